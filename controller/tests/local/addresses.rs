//! What happens to a Service's addresses while pools, wishes and Services come and go around it.

use std::time::Duration;

use e2e_cloud::engine::TargetState;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use onehop_core::crd::{AddressPool, LoadBalancer};
use serde_json::json;

use crate::support::{FIRST, POOL, has_address, pod_mode};
use crate::world::World;

const SECOND: &str = "198.51.100.11";

/// Replaces the one pod of `web` and waits until the cloud has the new one and lets the old one go.
pub(crate) async fn members_are_cared_for(world: &World, old: u8, new: u8) {
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

async fn told(world: &World, name: &str, reason: &str) {
    let what = format!("Service {name} is told {reason}");
    world
        .eventually(&what, async |w| {
            w.events(name).await.iter().any(|r| r == reason)
        })
        .await;
}

/// Waits until the condition says so: an event may be there a moment earlier.
async fn explains(world: &World, name: &str, text: &str) {
    let what = format!("the condition of Service {name} says {text:?}");
    world
        .eventually(&what, async |w| {
            let service = w.api::<Service>().get(name).await.unwrap();
            let conditions = service
                .status
                .and_then(|s| s.conditions)
                .unwrap_or_default();
            let ours = conditions
                .into_iter()
                .find(|c| c.type_ == "onehop.dev/LoadBalancerReady");
            ours.is_some_and(|c| c.message.contains(text))
        })
        .await;
}

fn annotations(pairs: &[(&str, &str)]) -> serde_json::Value {
    let pairs: serde_json::Map<_, _> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), json!(v)))
        .collect();
    json!({ "metadata": { "annotations": pairs } })
}

/// Makes a Service that asks for something before it has anything.
async fn asking(world: &World, name: &str, protocol: &str, pairs: &[(&str, &str)]) {
    let ports = json!([{ "name": "p", "port": 80, "protocol": protocol, "targetPort": 8080 }]);
    world
        .service(
            name,
            json!({ "type": "ClusterIP", "loadBalancerClass": null, "ports": ports }),
        )
        .await;
    world.patch(name, annotations(pairs)).await;
    let on = json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local" } });
    world.patch(name, on).await;
}

pub(crate) async fn pool_status(
    world: &World,
    name: &str,
) -> Option<onehop_core::crd::AddressPoolStatus> {
    let pools: Api<AddressPool> = Api::all(world.admin());
    pools.get_opt(name).await.unwrap()?.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c22_c29_the_peers_keys_do_the_same_and_an_event_names_ours() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    let peers = [
        ("metallb.io/allow-shared-ip", "dns"),
        ("metallb.io/loadBalancerIPs", "198.51.100.15"),
    ];
    asking(&world, "tcp", "TCP", &peers).await;
    has_address(&world, "tcp", "198.51.100.15").await;
    told(&world, "tcp", "AnnotationDeprecated").await;
    asking(
        &world,
        "udp",
        "UDP",
        &[("metallb.io/allow-shared-ip", "dns")],
    )
    .await;
    has_address(&world, "udp", "198.51.100.15").await;
    asking(
        &world,
        "stranger",
        "UDP",
        &[("metallb.io/loadBalancerIPs", "198.51.100.15")],
    )
    .await;
    told(&world, "stranger", "RequestedAddressInUse").await;
    // C-22: names the holder.
    explains(
        &world,
        "stranger",
        "198.51.100.15 is held by Service default/",
    )
    .await;
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "FC-100");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c25_l01_fc101_a_restart_amid_allocations_keeps_what_is_given_shared_or_not() {
    let world = World::start("198.51.100.10-198.51.100.12").await;
    for round in 0..3_u64 {
        let controller = world.controller();
        let names = ["a", "b"].map(|which| format!("{which}{round}"));
        let key = format!("k{round}");
        asking(
            &world,
            &names[0],
            "TCP",
            &[("onehop.dev/allow-shared-ip", &key)],
        )
        .await;
        asking(
            &world,
            &names[1],
            "UDP",
            &[("onehop.dev/allow-shared-ip", &key)],
        )
        .await;
        world.quiet(Duration::from_millis(round * 15)).await;
        controller.kill().await;
    }
    let controller = world.controller();
    for (round, address) in [(0, FIRST), (1, SECOND), (2, "198.51.100.12")] {
        for which in ["a", "b"] {
            has_address(&world, &format!("{which}{round}"), address).await;
        }
    }
    world.service("late", json!({})).await;
    told(&world, "late", "AllocationFailed").await;
    // C-38: names pool and reason.
    explains(&world, "late", "no free IPv4 address in pools: default").await;
    assert_eq!(
        world.cloud.violations(),
        Vec::<String>::new(),
        "C-25, FC-100, FC-101"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c23_the_oldest_waiter_is_first_and_a_fixed_address_is_taken_over_from_its_holder() {
    let world = World::start("198.51.100.10-198.51.100.11").await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    world.service("other", json!({})).await;
    has_address(&world, "other", SECOND).await;
    // Ages are in whole seconds; among those of one age the name decides.
    for name in ["w1", "w2", "w3"] {
        world.service(name, json!({})).await;
        told(&world, name, "AllocationFailed").await;
    }
    asking(
        &world,
        "w0",
        "TCP",
        &[("onehop.dev/loadBalancerIPs", SECOND)],
    )
    .await;
    told(&world, "w0", "RequestedAddressInUse").await;
    let services = world.api::<Service>();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    has_address(&world, "w1", FIRST).await;
    assert_eq!(world.address("w2").await, None, "C-23");
    services
        .delete("other", &DeleteParams::default())
        .await
        .unwrap();
    // Whoever of the two waits longer: the one for any address, or the one for this one.
    world
        .eventually("one of them has it", async |w| {
            let two = [w.address("w0").await, w.address("w2").await];
            two.iter().flatten().count() == 1
        })
        .await;
    assert_eq!(world.address("w3").await, None, "C-23");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_l03_c104_a_pool_in_use_says_so_is_not_deleted_and_orphans_are_marked() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    world
        .eventually("the pool counts", async |w| {
            let status = pool_status(w, "default").await;
            status.is_some_and(|s| (s.assigned, s.available) == (1, 10))
        })
        .await;
    let pools: Api<AddressPool> = Api::all(world.admin());
    let params = PatchParams::default();
    let away = json!({ "spec": { "addresses": ["198.51.100.15-198.51.100.20"] } });
    pools
        .patch("default", &params, &Patch::Merge(away))
        .await
        .unwrap();
    told(&world, "web", "AddressOrphaned").await;
    world
        .eventually("C-27: the pool names it", async |w| {
            pool_status(w, "default")
                .await
                .is_some_and(|s| s.orphaned == [FIRST])
        })
        .await;
    world
        .eventually("C-27: the condition says so", async |w| {
            let object = w.api::<LoadBalancer>().get("web").await.unwrap();
            let conditions = object.status.map(|s| s.conditions).unwrap_or_default();
            let degraded = conditions.iter().find(|c| c.type_ == "Degraded");
            degraded.is_some_and(|c| c.reason == "AddressOrphaned")
        })
        .await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "C-27");
    // An explicit migration, then a pool that is in use is deleted.
    world
        .patch(
            "web",
            annotations(&[("onehop.dev/loadBalancerIPs", "198.51.100.16")]),
        )
        .await;
    has_address(&world, "web", "198.51.100.16").await;
    told(&world, "web", "ClearAssignment").await;
    world
        .eventually("the pool is held", async |w| {
            pool_status(w, "default")
                .await
                .is_some_and(|s| s.assigned == 1 && s.orphaned.is_empty())
        })
        .await;
    pools
        .delete("default", &DeleteParams::default())
        .await
        .unwrap();
    world.quiet(Duration::from_millis(1500)).await;
    let pool = pools.get("default").await.unwrap();
    assert!(
        pool.metadata.deletion_timestamp.is_some(),
        "C-27: terminating"
    );
    world
        .api::<Service>()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world
        .eventually("C-27: it goes with its last user", async |_| {
            pools.get_opt("default").await.unwrap().is_none()
        })
        .await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c28_a_newer_pool_that_overlaps_says_conflict() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    let pools: Api<AddressPool> = Api::all(world.admin());
    let newer = json!({
        "apiVersion": "onehop.dev/v1alpha1", "kind": "AddressPool", "metadata": { "name": "zz" },
        "spec": { "addresses": ["198.51.100.20-198.51.100.30"] },
    });
    let newer = serde_json::from_value(newer).unwrap();
    pools
        .create(&kube::api::PostParams::default(), &newer)
        .await
        .unwrap();
    world
        .eventually("C-28, C-104: it says so", async |w| {
            let status = pool_status(w, "zz").await;
            status.is_some_and(|s| s.conflict.as_deref() == Some("default") && s.available == 0)
        })
        .await;
    asking(&world, "web", "TCP", &[("onehop.dev/address-pool", "zz")]).await;
    told(&world, "web", "AllocationFailed").await;
    // C-28, C-38
    explains(&world, "web", "overlaps the older pool").await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c20_a_pool_for_labelled_namespaces_serves_once_the_label_is_there() {
    let world = World::start(POOL).await;
    let pools: Api<AddressPool> = Api::all(world.admin());
    let params = PatchParams::default();
    let team = json!([{ "matchLabels": { "team": "red" } }]);
    let only = json!({ "spec": { "serviceAllocation": { "namespaceSelectors": team } } });
    pools
        .patch("default", &params, &Patch::Merge(only))
        .await
        .unwrap();
    let controller = world.controller();
    world.service("web", json!({})).await;
    told(&world, "web", "AllocationFailed").await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.admin());
    let label = json!({ "metadata": { "labels": { "team": "red" } } });
    namespaces
        .patch("default", &params, &Patch::Merge(label))
        .await
        .unwrap();
    has_address(&world, "web", FIRST).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c29_ct24_with_policy_local_two_selectors_do_not_share_and_the_event_names_both() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    let key = ("onehop.dev/allow-shared-ip", "k");
    for (name, protocol) in [("tcp", "TCP"), ("udp", "UDP")] {
        let ports = json!([{ "name": "p", "port": 80, "protocol": protocol, "targetPort": 8080 }]);
        let quiet = json!({ "type": "ClusterIP", "loadBalancerClass": null, "ports": ports });
        world.service(name, quiet).await;
        world
            .patch(
                name,
                annotations(&[key, ("onehop.dev/loadBalancerIPs", FIRST)]),
            )
            .await;
        let on = json!({ "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "externalTrafficPolicy": "Local",
        } });
        world.patch(name, on).await;
        if name == "tcp" {
            has_address(&world, name, FIRST).await;
        }
    }
    world
        .eventually("C-T24", async |w| {
            let told = w.told("udp").await;
            told.iter().any(|(reason, text)| {
                let both = text.contains("default/udp") && text.contains("default/tcp");
                reason == "RequestedAddressInUse" && both && text.contains("the same pod selector")
            })
        })
        .await;
    assert_eq!(world.address("udp").await, None, "C-T24: pending");
    // L-06: with the same selector it may.
    world
        .patch("udp", json!({ "spec": { "selector": { "app": "tcp" } } }))
        .await;
    has_address(&world, "udp", FIRST).await;
    controller.stop().await;
}

/// Exhaustion with many waiters, and a crowd that is let in at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c23_c38_a_hundred_waiters_are_served_in_order_of_their_age_once_there_is_room() {
    let world = World::start("198.51.100.10-198.51.100.10").await;
    let controller = world.controller();
    let names: Vec<String> = (0..100).map(|n| format!("w{n:03}")).collect();
    for name in &names {
        world.service(name, json!({})).await;
    }
    world
        .eventually_within(Duration::from_mins(1), "all but one wait", async |w| {
            let mut waiting = 0;
            for name in &names {
                let told = w.condition(name).await;
                waiting += usize::from(told.is_some_and(|c| c.reason == "AllocationFailed"));
            }
            waiting == 99
        })
        .await;
    assert_eq!(
        controller.metric("onehop_addresses_in_use").as_deref(),
        Some("1"),
        "C-110"
    );
    world
        .furnish_as("more", &["198.51.100.100-198.51.100.149"])
        .await;
    let given = async |w: &World| w.held().len() == 51;
    world
        .eventually_within(Duration::from_mins(1), "the pool is used up", given)
        .await;
    let services = world
        .api::<Service>()
        .list(&kube::api::ListParams::default())
        .await
        .unwrap();
    let mut all: Vec<_> = services.items.iter().collect();
    all.sort_by_key(|s| {
        (
            s.metadata.creation_timestamp.clone(),
            s.metadata.name.clone(),
        )
    });
    let held = world
        .cloud
        .look(e2e_cloud::engine::Engine::inventory)
        .load_balancers;
    let has = |name: &str| {
        let tag = format!("default/{name}");
        held.iter()
            .any(|lb| lb.spec.tags["onehop.dev/service"] == tag)
    };
    let turn: Vec<bool> = all
        .iter()
        .map(|s| has(s.metadata.name.as_deref().unwrap()))
        .collect();
    // The first one to come has the one address, whoever that was; of the others the oldest fifty.
    let late = turn.iter().skip(51).filter(|given| **given).count();
    assert!(late <= 1, "C-23: {turn:?}");
    assert_eq!(
        controller.metric("onehop_addresses_leaked").as_deref(),
        Some("0"),
        "C-35"
    );
    controller.stop().await;
}
