//! Topology hints of slices: which endpoints a node uses.

use crate::{
    lab::{pod_ports, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_e2e::world::Cluster;
use serde_json::{Value, json};

async fn zone(world: &PodOnA, node: &str, zone: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.kube());
    let patch = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

fn zones(of: &[&str]) -> Value {
    let zones: Vec<Value> = of.iter().map(|zone| json!({"name": zone})).collect();
    json!({"forZones": zones})
}

fn zone_and_node(zone: &str, node: &str) -> Value {
    json!({"forZones": [{"name": zone}], "forNodes": [{"name": node}]})
}

/// Applies the slice of `near` with a hint for each of web, ask-a and ask-b.
async fn hint(world: &PodOnA, hints: [Value; 3]) -> Result<()> {
    let mut endpoints = Vec::new();
    for (pod, hint) in ["web", "ask-a", "ask-b"].into_iter().zip(hints) {
        let mut endpoint = world.endpoint(pod).await?;
        if !hint.is_null() {
            endpoint["hints"] = hint;
        }
        endpoints.push(endpoint);
    }
    world.slice("near", "near", endpoints, pod_ports()).await
}

pub(crate) async fn s41_s42_s44_s45_s46_s47_hints_choose_the_endpoints_and_follow_the_nodes_zone(
    on: Cluster,
) -> Result<()> {
    const ALL: [&str; 3] = ["web", "ask-a", "ask-b"];
    let world = world_with_pod_on_a(on).await?;
    zone(&world, "a", json!("east")).await?;
    zone(&world, "b", json!("west")).await?;
    // S-41: the field that made the hints is not read.
    let manifest = selectorless("near").with("trafficDistribution", json!("PreferClose"));
    let to = world.expose(manifest).await?.cluster(80);
    let (on_a, on_b) = (Place::PodOnA, Place::PodOnB);

    // S-46, E-08: each zone its own; a hint may name several.
    hint(
        &world,
        [zones(&["east"]), zones(&["east", "west"]), zones(&["west"])],
    )
    .await?;
    world.served_by(on_a, to, &["web", "ask-a"]).await?;
    world.served_by(on_b, to, &["ask-a", "ask-b"]).await?;
    // S-46, E-12: one without a hint, and the level is off.
    hint(&world, [zones(&["east"]), Value::Null, zones(&["west"])]).await?;
    world.served_by(on_a, to, &ALL).await?;
    // S-44, E-16: one that is not ready has no say, with or without a hint.
    let mut endpoints = Vec::new();
    for (pod, own) in [("web", "east"), ("ask-a", "west")] {
        let mut endpoint = world.endpoint(pod).await?;
        endpoint["hints"] = zones(&[own]);
        endpoints.push(endpoint);
    }
    let mut unready = world.endpoint("ask-b").await?;
    unready["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    endpoints.push(unready);
    world.slice("near", "near", endpoints, pod_ports()).await?;
    world.served_by(on_a, to, &["web"]).await?;
    world.served_by(on_b, to, &["ask-a"]).await?;
    // S-45, E-17: node hints come first; E-18: where none names this node, the zone counts.
    hint(
        &world,
        [
            zone_and_node("east", "a"),
            zone_and_node("east", "c"),
            zone_and_node("west", "d"),
        ],
    )
    .await?;
    world.served_by(on_a, to, &["web"]).await?;
    world.served_by(on_b, to, &["ask-b"]).await?;

    // S-42: the zone of the node changes, and goes.
    hint(
        &world,
        [zones(&["east"]), zones(&["east"]), zones(&["west"])],
    )
    .await?;
    world.served_by(on_a, to, &["web", "ask-a"]).await?;
    zone(&world, "a", json!("west")).await?;
    world.served_by(on_a, to, &["ask-b"]).await?;
    zone(&world, "a", Value::Null).await?;
    world.served_by(on_a, to, &ALL).await?;
    zone(&world, "a", json!("east")).await?;
    world.served_by(on_a, to, &["web", "ask-a"]).await?;

    // S-47: only terminating ones are left in any zone: hints do not matter.
    let mut endpoints = Vec::new();
    for (pod, own) in [("web", "east"), ("ask-b", "west")] {
        let mut endpoint = world.endpoint(pod).await?;
        endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        endpoint["hints"] = zones(&[own]);
        endpoints.push(endpoint);
    }
    world.slice("near", "near", endpoints, pod_ports()).await?;
    world.served_by(on_a, to, &["web", "ask-b"]).await?;
    world.end().await
}
