//! Readiness flaps are carried by the health check's answer: they register and deregister nothing (ZD-82, W12).

use std::time::Duration;

use e2e_cloud::engine::{Operation, TargetState};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cluster::make_pod;
use crate::world::World;
use crate::{FIRST, POOL, has_address, pod_mode};

/// One more endpoint of `web`, in a slice of its own.
async fn fourth(world: &World, uid: &str, ready: bool) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "web-2", "labels": { "kubernetes.io/service-name": "web" } },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{
            "addresses": ["10.244.1.4"], "nodeName": "node-1",
            "conditions": { "ready": ready, "serving": ready, "terminating": false },
            "targetRef": { "kind": "Pod", "name": "pod-4", "uid": uid },
        }],
    });
    let params = PatchParams::apply("test").force();
    world
        .api::<EndpointSlice>()
        .patch("web-2", &params, &Patch::Apply(slice))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd82_w12_zd_t21_readiness_flaps_register_and_deregister_nothing() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1, 2, 3], &[]).await;
    let uid = make_pod(&world.admin(), 4).await;
    fourth(&world, &uid, true).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let all = async |w: &World| w.registered().len() == 4;
    world.eventually("four pods are targets", all).await;
    let quiet = async |w: &World| {
        let writes = w.all_writes();
        w.quiet(Duration::from_millis(500)).await;
        w.all_writes() == writes
    };
    world.eventually("it is at rest", quiet).await;
    let moves =
        |w: &World| [Operation::RegisterTargets, Operation::DeregisterTargets].map(|o| w.writes(o));
    let before = moves(&world);
    let passes = || controller.metric("onehop_passes_total");
    for flap in 0..10 {
        let seen = passes();
        fourth(&world, &uid, flap % 2 == 1).await;
        let looked = async |_: &World| passes() != seen;
        world.eventually("it has looked at that", looked).await;
    }
    world.eventually("it is at rest", quiet).await;
    assert_eq!(
        moves(&world),
        before,
        "ZD-82: 0 register and 0 deregister calls"
    );
    assert!(all(&world).await, "ZD-82");
    let left = [TargetState::Unhealthy, TargetState::Draining];
    let left = left.map(|state| world.times_in_state(state));
    let nobody = left.iter().all(std::collections::BTreeMap::is_empty);
    assert!(nobody, "ZD-T21: nobody else is affected: {left:?}");
    controller.stop().await;
}
