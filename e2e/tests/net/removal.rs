//! What is not there: node ports of a Service without them, and anything at all of a Service that is gone.

use crate::support::{PodOnA, world_with_pod_on_a};
use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::world::{Cluster, ServiceManifest, eventually};
use serde_json::json;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(10);

/// Elements that `nft` lists in the maps and sets whose name has this part.
fn elements(ruleset: &str, part: &str) -> usize {
    let mut inside = false;
    let mut count = 0;
    for line in ruleset.lines().map(str::trim) {
        if line.starts_with("map ") || line.starts_with("set ") {
            inside = line.contains(part);
        }
        if inside && line.starts_with("elements") {
            count += 1;
        }
    }
    count
}

pub(crate) async fn a_service_without_node_ports_opens_none(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let _served = world
        .serve(ServiceManifest::load_balancer("web", "web").pod_mode())
        .await?;
    for node in ["a", "b"] {
        let ruleset = world.ruleset(node)?;
        assert!(
            elements(&ruleset, "service-ips") > 0,
            "the Service is programmed:\n{ruleset}"
        );
        for map in [
            "service-nodeports",
            "nodeport-endpoints",
            "no-endpoint-nodeports",
            "masq-nodeports",
        ] {
            assert_eq!(
                elements(&ruleset, map),
                0,
                "{map} on node {node}:\n{ruleset}"
            );
        }
        let address = world.kubelet(node)?.node().address();
        let address = world.cluster.family.of(address);
        assert_eq!(
            world.open_ports(address, 30000..=32767),
            Vec::<u16>::new(),
            "open on node {node}"
        );
    }
    world.end().await
}

async fn nothing_left(world: &PodOnA, before: &[String; 2]) -> Result<()> {
    for (node, before) in ["a", "b"].into_iter().zip(before) {
        eventually(
            &world.clock,
            &format!("node {node} has no rule of it"),
            WITHIN,
            async || {
                let now = world.ruleset(node).map_err(|e| e.to_string())?;
                let extra: Vec<&str> = now
                    .lines()
                    .filter(|l| l.contains("elements") && !before.contains(*l))
                    .collect();
                if extra.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{extra:?}"))
                }
            },
        )
        .await?;
    }
    let balancers = world.load_balancers();
    assert_eq!(balancers, 0, "load balancers in the cloud");
    assert_eq!(world.cloud.violations(), Vec::<String>::new());
    Ok(())
}

pub(crate) async fn c34_a_removed_service_leaves_nothing_behind(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let before = [world.ruleset("a")?, world.ruleset("b")?];
    let manifest =
        ServiceManifest::load_balancer("web", "web").with("externalTrafficPolicy", json!("Local"));
    let _served = world.serve(manifest).await?;
    world.objects.delete_service("web").await?;
    world.service_gone("web").await?;
    nothing_left(&world, &before).await?;
    world.end().await
}

pub(crate) async fn a_service_that_stops_being_a_load_balancer_gives_everything_back(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let _served = world
        .serve(ServiceManifest::load_balancer("web", "web"))
        .await?;
    let patch = json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}});
    world
        .objects
        .api::<Service>()
        .patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    eventually(
        &world.clock,
        "its load balancer, status and finalizer are gone",
        WITHIN,
        async || {
            let service = world
                .objects
                .service("web")
                .await
                .map_err(|e| e.to_string())?;
            let ingress = service
                .status
                .and_then(|s| s.load_balancer)
                .and_then(|l| l.ingress)
                .unwrap_or_default();
            let finalizers = service.metadata.finalizers.unwrap_or_default();
            let balancers = world.load_balancers();
            if ingress.is_empty() && finalizers.is_empty() && balancers == 0 {
                Ok(())
            } else {
                Err(format!(
                    "ingress {ingress:?}, finalizers {finalizers:?}, {balancers} load balancers"
                ))
            }
        },
    )
    .await?;
    world.end().await
}
