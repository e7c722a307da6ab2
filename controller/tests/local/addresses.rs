//! What happens to a Service's addresses while pools, wishes and Services come and go around it.

use std::time::Duration;

use e2e_cloud::engine::TargetState;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use onehop_core::crd::AddressPool;
use serde_json::json;

use super::{FIRST, POOL, has_address, pod_mode};
use crate::world::World;

const SECOND: &str = "198.51.100.11";

/// Replaces the one pod of `web` and waits until the cloud has the new one and lets the old one go.
async fn members_are_cared_for(world: &World, old: u8, new: u8) {
    world.endpoints("web", &[new], &[old]).await;
    world
        .eventually("targets follow the pods", async |w| {
            w.times_in_state(TargetState::Healthy)
                .contains_key(&format!("10.244.1.{new}"))
                && w.times_in_state(TargetState::Draining)
                    .contains_key(&format!("10.244.1.{old}"))
        })
        .await;
    world.endpoints("web", &[new], &[]).await;
}

async fn says(world: &World, reason: &str) {
    world
        .eventually("it is said", async |w| {
            w.events("web").await.iter().any(|r| r == reason)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_i8_no_wish_for_an_address_that_fails_stops_the_care_for_targets() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    let pool = json!({ "metadata": { "annotations": { "onehop.dev/address-pool": "default" } } });
    world.service("other", json!({})).await;
    has_address(&world, "other", FIRST).await;
    world.service("web", pod_mode()).await;
    world.patch("web", pool).await;
    has_address(&world, "web", SECOND).await;
    // A wish for what another Service has, then for what no pool has; last its pool is deleted.
    let wish = |address| {
        let annotations =
            json!({ "onehop.dev/loadBalancerIPs": address, "onehop.dev/address-pool": null });
        json!({ "metadata": { "annotations": annotations } })
    };
    world.patch("web", wish(json!(FIRST))).await;
    says(&world, "RequestedAddressInUse").await;
    members_are_cared_for(&world, 1, 2).await;
    world.patch("web", wish(json!("192.0.2.1"))).await;
    says(&world, "AllocationFailed").await;
    members_are_cared_for(&world, 2, 3).await;
    let named = json!({ "onehop.dev/loadBalancerIPs": null, "onehop.dev/address-pool": "default" });
    world
        .patch("web", json!({ "metadata": { "annotations": named } }))
        .await;
    let pools: Api<AddressPool> = Api::all(world.admin());
    pools
        .delete("default", &DeleteParams::default())
        .await
        .unwrap();
    members_are_cared_for(&world, 3, 4).await;
    assert_eq!(world.address("web").await.as_deref(), Some(SECOND), "C-27");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c15_the_address_of_a_service_that_was_made_anew_by_force_is_free_again() {
    let world = World::start("198.51.100.10-198.51.100.11").await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    // By force: deleted, the finalizer is taken off by hand, and the next one is there before we have looked. Deleted
    // first, since a live Service would get its finalizer back. If we were quicker, it is gone already.
    let services = world.api::<Service>();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    let none = json!({ "metadata": { "finalizers": null } });
    let params = PatchParams::default();
    let taken_off = services.patch("web", &params, &Patch::Merge(none)).await;
    assert!(
        taken_off.is_ok() || matches!(&taken_off, Err(kube::Error::Api(e)) if e.code == 404),
        "{taken_off:?}"
    );
    world.service("web", json!({})).await;
    world
        .eventually("the new one has an address", async |w| {
            w.address("web").await.is_some()
        })
        .await;
    world.service("late", json!({})).await;
    world
        .eventually("C-35: no address is lost", async |w| {
            w.address("late").await.is_some()
        })
        .await;
    world.quiet(Duration::from_millis(100)).await;
    controller.stop().await;
}
