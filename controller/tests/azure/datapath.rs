//! Nodes whose datapath carries packets of pods past netfilter, such as Cilium's (AZ-256, ZD-58, ZD-107).

use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use onehop_core::crd::{LoadBalancer, NodeTargets};
use onehop_core::service::PROXY_NAME_LABEL;
use serde_json::json;

use crate::names;
use crate::world::World;

const WHY: &str = "interface cilium_host is there";

/// The agents say that they are there and cannot guard.
async fn agents_cannot_guard(world: &World) {
    let objects: Api<NodeTargets> = Api::all(world.kube());
    for node in ["node-1", "node-2"] {
        let object = json!({"metadata": {"name": node}, "spec": {}});
        let object = serde_json::from_value(object).unwrap();
        objects
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let said = json!({"status": {
            "synced": true, "features": ["serviceProxy"], "problems": [WHY],
        }});
        let patch = Patch::Merge(said);
        let params = PatchParams::default();
        objects.patch_status(node, &params, &patch).await.unwrap();
    }
}

/// Conditions of its LoadBalancer object: those of a kind that are so, with reason and message.
async fn is_so(world: &World, name: &str, kind: &str) -> Option<String> {
    let object = world.api::<LoadBalancer>().get_opt(name).await.unwrap()?;
    let conditions = object.status?.conditions.into_iter();
    let mut of_kind = conditions.filter(|it| it.type_ == kind && it.status == "True");
    of_kind
        .next()
        .map(|it| format!("{} {}", it.reason, it.message))
}

#[tokio::test(start_paused = true)]
async fn az256_zd58_zd107_pods_are_targets_there_without_guard_and_the_service_says_so() {
    let world = World::start().await;
    agents_cannot_guard(&world).await;
    let _controller = world.controller().await;
    world.endpoints("pods", &[1, 2]).await;
    let pods = json!({"onehop.dev/target": "pod"});
    world.service("pods", json!({}), pods).await;
    world.has_address("pods").await;
    let balancer = world.balancer().unwrap();
    let pool = &balancer["properties"]["backendAddressPools"][0]["properties"];
    let members = pool["loadBalancerBackendAddresses"].as_array().unwrap();
    assert_eq!(members.len(), 2, "AZ-256: pods work");
    world
        .eventually("the condition says why", async |w| {
            let degraded = is_so(w, "pods", "Degraded").await.unwrap_or_default();
            degraded.starts_with("TargetsUnguarded ")
                && degraded.contains("node-1")
                && degraded.contains(WHY)
        })
        .await;
    world.tells("pods", "TargetsUnguarded").await;
    // Nodes as targets: that dataplane is the proxy, which takes the address from status. Nothing is wrong with them.
    world.vip("vip").await;
    let node = json!({"ports": [{"name": "http", "port": 80, "targetPort": 8080}], "allocateLoadBalancerNodePorts": true});
    let target = json!({"onehop.dev/target": "node"});
    world.service("node", node, target).await;
    for name in ["vip", "node"] {
        let address = world.has_address(name).await;
        assert!(address.starts_with("20.0."), "AZ-256: {name}: {address}");
        world.quiet(Duration::from_secs(5)).await;
        assert_eq!(
            is_so(&world, name, "Degraded").await,
            None,
            "AZ-256: {name}"
        );
        let told = world.told(name).await;
        assert!(told.iter().all(|(reason, _)| reason != "TargetsUnguarded"));
    }
    let rules = names(&world.balancer().unwrap(), "loadBalancingRules").len();
    assert_eq!(rules, 3);
    let other = json!({"metadata": {"labels": {PROXY_NAME_LABEL: "cilium"}}});
    world.patch("vip", other).await;
    world.tells("vip", "TargetModeImpossible").await;
}
