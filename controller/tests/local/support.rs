//! What most tests begin with: addresses, edits, a served Service, and states to wait for.

use std::time::Duration;

use e2e_cloud::engine::TargetState;
use k8s_openapi::api::core::v1::Service;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::world::{Controller, World};

/// The pool of most tests, and its first two addresses.
pub(crate) const POOL: &str = "198.51.100.10-198.51.100.20";
pub(crate) const FIRST: &str = "198.51.100.10";
pub(crate) const SECOND: &str = "198.51.100.11";

/// Fields of a Service whose targets are pods.
pub(crate) fn pod_mode() -> Value {
    json!({ "allocateLoadBalancerNodePorts": false })
}

/// The edit that sets these annotations.
pub(crate) fn annotated(pairs: &[(&str, &str)]) -> Value {
    let pairs: serde_json::Map<_, _> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), json!(v)))
        .collect();
    json!({ "metadata": { "annotations": pairs } })
}

/// The edit that makes a Service one of the cluster only.
pub(crate) fn no_load_balancer() -> Value {
    json!({ "spec": {
        "type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null,
        "externalTrafficPolicy": null,
    } })
}

/// A controller, and Service `web` with the pool's first address and one pod as target.
pub(crate) async fn web_with_a_pod(world: &World) -> Controller {
    web(world, pod_mode()).await
}

/// The same with the nodes as targets.
pub(crate) async fn web_with_nodes(world: &World) -> Controller {
    web(world, json!({})).await
}

async fn web(world: &World, fields: Value) -> Controller {
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", fields).await;
    has_address(world, "web", FIRST).await;
    controller
}

/// A Service as it is now.
pub(crate) async fn get(world: &World, name: &str) -> Service {
    world.api::<Service>().get(name).await.unwrap()
}

/// Deletes a Service and waits until it is gone.
pub(crate) async fn delete(world: &World, name: &str) {
    let services = world.api::<Service>();
    services
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    world
        .eventually("the Service is gone", async |_| {
            services.get_opt(name).await.unwrap().is_none()
        })
        .await;
}

/// Waits until a Service has this address.
pub(crate) async fn has_address(world: &World, name: &str, address: &str) {
    let address = Some(address.to_owned());
    let what = format!("Service {name} has address {address:?}");
    world
        .eventually(&what, async |w| w.address(name).await == address)
        .await;
}

/// Waits until so many targets have been healthy.
pub(crate) async fn healthy(world: &World, count: usize) {
    world
        .eventually("targets are healthy", async |w| {
            w.times_in_state(TargetState::Healthy).len() == count
        })
        .await;
}

/// Waits for an event with this reason about a Service.
pub(crate) async fn told_of(world: &World, name: &str, reason: &str) {
    let what = format!("Service {name} has an event {reason}");
    world
        .eventually(&what, async |w| {
            w.events(name).await.iter().any(|of| of == reason)
        })
        .await;
}

/// Waits until nothing has been written for a second.
pub(crate) async fn settled(world: &World) {
    let mut last = 0;
    let mut since = 0;
    world
        .eventually_within(
            Duration::from_secs(40),
            "nothing is written any more",
            async |w| {
                let now = w.server.resource_version();
                since = if now == last { since + 1 } else { 0 };
                last = now;
                since > 50
            },
        )
        .await;
}
