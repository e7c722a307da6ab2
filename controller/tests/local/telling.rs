//! Nodes are told of a target before it is one: a controller may die between any two steps, and a target that its agent
//! knows nothing of is unhealthy and unguarded until another controller leads (ZD-12, K-20).

use std::time::Duration;

use e2e_cloud::engine::Operation;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use onehop_core::crd::{ClusterFacts, NodeTarget, NodeTargets, TargetState};
use onehop_core::id::InstallId;
use onehop_core::service::{AGENT_PROXY_NAME, PROXY_NAME_LABEL};
use serde_json::json;

use crate::cluster::read;
use crate::pod_health::agent_answers;
use crate::support::{FIRST, POOL, annotated, has_address, pod_mode, settled};
use crate::witness::ToNodes;
use crate::world::World;

/// So many pods are targets.
async fn registered(world: &World, pods: usize) {
    let what = format!("{pods} pods are targets");
    let holds = async |w: &World| w.registered().len() == pods;
    world.eventually(&what, holds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd12_no_pod_is_registered_before_its_node_is_told_of_it_however_slow_that_is() {
    for slow in [ToNodes::AtOnce, ToNodes::After(Duration::from_millis(700))] {
        let mut world = World::start(POOL).await;
        world.tune.to_nodes = slow;
        let controller = world.controller();
        // A Service that is new, one that grows, and one whose targets become pods.
        world.endpoints("web", &[1, 2], &[]).await;
        world.service("web", pod_mode()).await;
        has_address(&world, "web", FIRST).await;
        world.endpoints("nodes", &[8], &[]).await;
        world.service("nodes", json!({})).await;
        world.endpoints("web", &[2, 3], &[1]).await;
        registered(&world, 2 + 2).await;
        world
            .patch("nodes", annotated(&[("onehop.dev/target", "pod")]))
            .await;
        let moved = async |w: &World| w.registered().contains(&[10, 244, 1, 8].into());
        world.eventually("its targets are pods", moved).await;
        assert_eq!(world.untold(), [] as [std::net::IpAddr; 0], "ZD-12");
        controller.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd12_i6_whenever_a_controller_dies_the_node_of_each_target_was_told_of_it() {
    let mut world = World::start(POOL).await;
    world.tune.to_nodes = ToNodes::After(Duration::from_millis(20));
    let first = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    first.kill().await;
    for n in 2..=24_u8 {
        let controller = world.controller().working().await;
        world.endpoints("web", &[n - 1, n], &[]).await;
        world.quiet(Duration::from_millis(u64::from(n) * 4)).await;
        controller.kill().await;
        // A call that was on its way when the process died still arrives.
        world.quiet(Duration::from_millis(50)).await;
        assert_eq!(
            world.untold(),
            [] as [std::net::IpAddr; 0],
            "ZD-12: killed after {n} times 4 ms"
        );
    }
    let last = world.controller();
    let ends = async |w: &World| w.registered().contains(&[10, 244, 1, 24].into());
    world
        .eventually("the last one takes it to its end", ends)
        .await;
    assert_eq!(world.untold(), [] as [std::net::IpAddr; 0], "ZD-12");
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k20_zd04_a_node_that_cannot_be_told_keeps_a_target_waiting_for_seconds_only() {
    let mut world = World::start(POOL).await;
    world.tune.to_nodes = ToNodes::Never;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    assert_eq!(world.writes(Operation::RegisterTargets), 1, "K-20");
    assert_eq!(
        controller.metric("onehop_untold_nodes_total").as_deref(),
        Some("1"),
        "ZD-04"
    );
    controller.kill().await;
}

/// ZD-81, ZD-24: who stands in for a pod that is gone, and how long it is held already, is known from what nodes were told:
/// nothing is decided before that is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd81_zd22a_a_controller_that_starts_anew_drops_nobody_before_it_knows_what_nodes_were_told()
 {
    let mut world = World::start(POOL).await;
    agent_answers(&world).await;
    let first = world.controller();
    world.endpoints("web", &[1, 2], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    registered(&world, 2).await;
    first.kill().await;
    // Nobody serves while no controller runs.
    let pods = world.api::<Pod>();
    for pod in ["pod-1", "pod-2"] {
        let now = DeleteParams::default().grace_period(0);
        pods.delete(pod, &now).await.unwrap();
    }
    world.endpoints("web", &[], &[]).await;
    world.tune.to_nodes = ToNodes::ListedAfter(Duration::from_secs(1));
    let second = world.controller();
    let held = async |w: &World| {
        let objects: Api<NodeTargets> = Api::all(w.admin());
        let object = objects.get("node-1").await.unwrap();
        let targets = object.spec.installs.values().flat_map(|i| &i.targets);
        targets.filter(|t| t.state == TargetState::Held).count() == 2
    };
    world.eventually("both are held", held).await;
    let dropped = world.writes(Operation::DeregisterTargets);
    assert_eq!(dropped, 0, "ZD-81, ZD-22a");
    second.stop().await;
}

/// What `node-1` is told of the only pod of `web`.
async fn told(world: &World) -> Option<(NodeTarget, ClusterFacts)> {
    let objects: Api<NodeTargets> = Api::all(world.admin());
    let object = objects.get_opt("node-1").await.unwrap()?;
    let install = object.spec.installs.into_values().next()?;
    Some((install.targets.into_iter().next()?, install.cluster))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd14_a_node_is_told_where_the_flows_of_its_targets_come_from() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let is_told = async |w: &World| told(w).await.is_some();
    world.eventually("its node is told", is_told).await;
    let (target, cluster) = told(&world).await.unwrap();
    // The local cloud keeps the client's address: flows come from all that is no pod and no node.
    assert!(target.any_outside && target.sources.is_empty(), "ZD-14");
    assert!(!cluster.node_cidrs.is_empty(), "ZD-14: what is inside");
    assert_eq!(target.allowed, None, "ZD-49: anybody is let in");
    controller.stop().await;
}

/// K-20, ZD-11: each install writes its own entry of a node's object under its own name, and nobody but agents its status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd11_zd10_of_a_nodes_object_each_install_writes_its_own_entry_and_none_the_status() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    web_is_told_beside_another(&world).await;
    let objects: Api<NodeTargets> = Api::all(world.admin());
    let object = objects.get("node-1").await.unwrap();
    let fields = object.metadata.managed_fields.clone().unwrap_or_default();
    let of = |install: &str| -> Vec<String> {
        let path = format!("f:{install}");
        let has = |entry: &&ManagedFieldsEntry| {
            let fields = entry.fields_v1.as_ref().map(|f| &f.0);
            let installs = fields.and_then(|f| f.pointer("/f:spec/f:installs"));
            installs.is_some_and(|installs| installs.get(&path).is_some())
        };
        let owners = fields.iter().filter(has);
        owners.filter_map(|entry| entry.manager.clone()).collect()
    };
    let (ours, theirs) = (of("demo-local"), of("other"));
    assert_eq!(ours.len(), 1, "ZD-11: one writer");
    assert_eq!(theirs, ["another-controller"], "ZD-11: as it was");
    assert_ne!(ours, theirs, "ZD-11: each under its own name");
    assert!(
        object.spec.installs.contains_key(&InstallId::from("other")),
        "ZD-11"
    );
    let status = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|f| &f.0);
        fields.is_some_and(|f| f.get("f:status").is_some())
    };
    let writers = fields.iter().filter(status);
    let writers: Vec<_> = writers.filter_map(|e| e.manager.clone()).collect();
    assert_eq!(writers, ["agent"], "ZD-11: the agent alone");
    controller.stop().await;
}

/// A node's object with an entry of another install and a status, and then what is said of `web`.
async fn web_is_told_beside_another(world: &World) {
    let objects: Api<NodeTargets> = Api::all(world.admin());
    let head = json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets", "metadata": { "name": "node-1" },
    });
    let mut entry = head.clone();
    entry["spec"] = json!({ "installs": { "other": { "cluster": {} } } });
    let theirs = PatchParams::apply("another-controller");
    objects
        .patch("node-1", &theirs, &Patch::Apply(entry))
        .await
        .unwrap();
    let mut status = head;
    status["status"] = json!({ "version": "1" });
    let agent = PatchParams::apply("agent");
    objects
        .patch_status("node-1", &agent, &Patch::Apply(status))
        .await
        .unwrap();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(world, "web", FIRST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd75_w9_a_node_is_a_target_once_its_agent_proxies_what_it_is_to_proxy() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    let all = world.registered();
    assert!(!all.is_empty(), "kube-proxy's health decides for its own");
    // The same for one that the agent is to proxy.
    world.endpoints("ours", &[2], &[]).await;
    let registers = || world.writes(Operation::RegisterTargets);
    let before = registers();
    let ours = json!({
        "metadata": { "name": "ours", "labels": { PROXY_NAME_LABEL: AGENT_PROXY_NAME } },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "selector": { "app": "ours" },
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
        },
    });
    let services = world.api::<Service>();
    let params = PostParams::default();
    services.create(&params, &read(ours)).await.unwrap();
    let made = async |w: &World| w.writes(Operation::CreateGroup) >= 2;
    world.eventually("its group is there", made).await;
    settled(&world).await;
    assert_eq!(registers(), before, "ZD-75: no agent has said a word");
    let said = async |synced: bool| {
        let features = json!(["guard", "serviceProxy"]);
        let status = json!({ "status": { "synced": synced, "features": features } });
        let objects: Api<NodeTargets> = Api::all(world.admin());
        let head = json!({
            "apiVersion": "onehop.dev/v1alpha1", "kind": "NodeTargets",
            "metadata": { "name": "node-1" },
            "spec": {},
        });
        let ours = PatchParams::apply("agent").force();
        objects
            .patch("node-1", &ours, &Patch::Apply(head))
            .await
            .unwrap();
        let merge = Patch::Merge(status);
        let params = PatchParams::default();
        objects
            .patch_status("node-1", &params, &merge)
            .await
            .unwrap();
    };
    said(false).await;
    settled(&world).await;
    assert_eq!(registers(), before, "ZD-75: it is not in step yet");
    said(true).await;
    let one = async |w: &World| w.writes(Operation::RegisterTargets) == before + 1;
    world.eventually("ZD-75: the node is a target", one).await;
    controller.stop().await;
}
