//! The controller with provider local against the API server and the fake cloud, in one process and
//! over real HTTP; no packets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod addresses;
mod bad_input;
#[path = "../shared/cluster.rs"]
mod cluster;
#[path = "../../../e2e/src/documented.rs"]
mod documented;
mod events;
mod flaps;
#[path = "../shared/gated.rs"]
mod gated;
mod gates;
mod gitops;
mod installs;
mod leaders;
mod pod_health;
mod pools;
mod removal;
mod repairs;
mod standing;
mod successions;
mod support;
mod telling;
mod webhook;
mod witness;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_cloud::engine::{Operation, TargetState};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::DeleteParams;
use onehop_core::crd::{LoadBalancer, SERVICE_FINALIZER, TargetMode};
use serde_json::json;
use support::{FIRST, POOL, has_address, no_load_balancer, pod_mode, told_of, web_with_a_pod};
use world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_gets_an_address_once_it_is_usable_and_then_nothing_is_written() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1, 2], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    assert_eq!(
        world.writes(Operation::PutListener),
        1,
        "C-10: every listener is there"
    );
    let service = world.api::<Service>().get("web").await.unwrap();
    assert!(
        service.finalizers().iter().any(|f| f == SERVICE_FINALIZER),
        "K-03"
    );
    let ingress = &service
        .status
        .unwrap()
        .load_balancer
        .unwrap()
        .ingress
        .unwrap()[0];
    assert_eq!(ingress.ip_mode.as_deref(), Some("VIP"), "K-52, L-30");
    world
        .eventually("two targets are healthy", async |w| {
            let object = w.api::<LoadBalancer>().get("web").await.unwrap();
            object
                .status
                .is_some_and(|s| s.summary.targets == "2/2" && s.summary.ready == "True")
        })
        .await;
    let object = world.api::<LoadBalancer>().get("web").await.unwrap();
    assert_eq!(object.spec.ports[0].mode, TargetMode::Pod, "K-51");
    world
        .eventually("the pool counts it", async |w| {
            let status = addresses::pool_status(w, "default").await;
            status.is_some_and(|s| s.assigned == 1)
        })
        .await;
    let before = (world.all_writes(), world.server.resource_version());
    world.quiet(Duration::from_secs(2)).await;
    let after = (world.all_writes(), world.server.resource_version());
    assert_eq!(before, after, "I4: nothing changed, so nothing is written");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd21_l39_a_terminating_pod_stays_until_another_is_healthy() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    world.endpoints("web", &[], &[1]).await;
    world.quiet(Duration::from_millis(500)).await;
    assert_eq!(
        world.writes(Operation::DeregisterTargets),
        0,
        "I2: nothing else serves"
    );
    world.endpoints("web", &[2], &[1]).await;
    let gone = async |w: &World| w.writes(Operation::DeregisterTargets) == 1;
    world.eventually("the old pod is out", gone).await;
    assert_eq!(world.writes(Operation::RegisterTargets), 2, "ZD-21, L-39");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_killed_at_any_moment_of_a_create_it_ends_with_one_of_each_and_no_call_made_twice() {
    for after in [0, 3, 8, 15, 25, 40, 60, 90] {
        let world = World::start(POOL).await;
        world.endpoints("web", &[1, 2], &[]).await;
        let first = world.controller().working().await;
        world.service("web", pod_mode()).await;
        world.quiet(Duration::from_millis(after)).await;
        first.kill().await;
        // A call that was on its way when the process died still arrives.
        world.quiet(Duration::from_millis(50)).await;
        let second = world.controller();
        has_address(&world, "web", FIRST).await;
        let once = [
            Operation::CreateLoadBalancer,
            Operation::CreateGroup,
            Operation::PutListener,
            Operation::RegisterTargets,
        ];
        for operation in once {
            assert_eq!(
                world.writes(operation),
                1,
                "I6: {operation:?}, killed after {after} ms"
            );
        }
        second.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l35_a_type_changed_away_while_the_controller_was_down_leaves_nothing() {
    let world = World::start(POOL).await;
    world.endpoints("web", &[1], &[]).await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    controller.stop().await;
    let away = no_load_balancer();
    world.patch("web", away).await;
    let controller = world.controller();
    world
        .eventually("our finalizer is gone", async |w| {
            w.api::<Service>()
                .get("web")
                .await
                .unwrap()
                .finalizers()
                .is_empty()
        })
        .await;
    assert_eq!(world.writes(Operation::DeleteLoadBalancer), 1, "L-35");
    assert_eq!(world.writes(Operation::DeleteGroup), 1, "L-35");
    assert_eq!(world.address("web").await, None, "C-34");
    assert!(
        world
            .api::<LoadBalancer>()
            .get_opt("web")
            .await
            .unwrap()
            .is_none()
    );
    world.service("next", json!({})).await;
    has_address(&world, "next", FIRST).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i10_a_typo_tears_nothing_down_and_is_said() {
    let world = World::start(POOL).await;
    world.endpoints("web", &[1], &[]).await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    let writes = world.all_writes();
    let typo = json!({ "metadata": { "annotations": { "onehop.dev/target": "pods" } } });
    world.patch("web", typo).await;
    told_of(&world, "web", "AnnotationInvalid").await;
    world.quiet(Duration::from_millis(500)).await;
    assert_eq!(world.all_writes(), writes, "I10");
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "I10");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd28_another_mode_is_another_group_which_serves_before_the_old_one_goes() {
    let world = World::start(POOL).await;
    world.endpoints("web", &[1, 2], &[]).await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    let pods = json!({ "metadata": { "annotations": { "onehop.dev/target": "pod" } } });
    world.patch("web", pods).await;
    let switched = async |w: &World| w.writes(Operation::PutListener) == 2;
    world.eventually("the listener is switched", switched).await;
    assert_eq!(
        world.writes(Operation::DeregisterTargets),
        0,
        "ZD-28: the old group serves on"
    );
    assert_eq!(world.writes(Operation::DeleteGroup), 0, "ZD-28");
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST));
    let drained = async |w: &World| w.writes(Operation::DeregisterTargets) == 1;
    world
        .eventually("the old group drains after the tail", drained)
        .await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c23_a_waiter_gets_the_address_that_is_freed_and_a_deleted_service_leaves_nothing() {
    let world = World::start("198.51.100.10-198.51.100.10").await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    world.service("late", json!({})).await;
    told_of(&world, "late", "AllocationFailed").await;
    let services = world.api::<Service>();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    has_address(&world, "late", FIRST).await;
    world
        .eventually("the deleted one is gone", async |w| {
            let object = w.api::<LoadBalancer>().get_opt("web").await.unwrap();
            services.get_opt("web").await.unwrap().is_none() && object.is_none()
        })
        .await;
    services
        .delete("late", &DeleteParams::default())
        .await
        .unwrap();
    let gone = async |w: &World| w.api::<Service>().get_opt("late").await.unwrap().is_none();
    world.eventually("it is gone", gone).await;
    assert_eq!(world.writes(Operation::DeleteLoadBalancer), 2, "C-34");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k05_services_of_others_are_not_touched() {
    let world = World::start(POOL).await;
    let controller = world.controller().working().await;
    let peers = json!({ "loadBalancerClass": "service.k8s.aws/nlb" });
    let peer = world.service("peer", peers).await;
    let classless = world
        .service("classless", json!({ "loadBalancerClass": null }))
        .await;
    world.quiet(Duration::from_millis(500)).await;
    for before in [peer, classless] {
        let name = before.name_any();
        let now = world.api::<Service>().get(&name).await.unwrap();
        assert_eq!(
            now.resource_version(),
            before.resource_version(),
            "K-05, C-T14: {name}"
        );
        assert!(world.events(&name).await.is_empty(), "K-05: {name}");
    }
    assert_eq!(world.all_writes(), 0, "K-05");
    controller.stop().await;
}

/// SIGKILL of the real program at every turn of a rollout: what was done is neither repeated nor
/// undone, and the rollout ends right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_killed_through_a_rollout_nothing_is_repeated_or_undone() {
    let world = World::start(POOL).await;
    world.endpoints("web", &[1, 2, 3], &[]).await;
    let mut program = world.program();
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    for step in 1..=3_u8 {
        let ready: Vec<u8> = (step + 1..=step + 3).collect();
        world.endpoints("web", &ready, &[step]).await;
        world
            .quiet(Duration::from_millis(u64::from(step) * 7))
            .await;
        program.kill().await;
        program = world.program();
        let healthy = async |w: &World| {
            let newest = format!("10.244.1.{}", step + 3);
            let old = format!("10.244.1.{step}");
            w.times_in_state(TargetState::Healthy).contains_key(&newest)
                && w.times_in_state(TargetState::Draining).contains_key(&old)
        };
        world.eventually("the step is done", healthy).await;
        world.endpoints("web", &ready, &[]).await;
    }
    let initial = world.times_in_state(TargetState::Initial);
    let draining = world.times_in_state(TargetState::Draining);
    let each = |octets: std::ops::RangeInclusive<u8>| -> BTreeMap<String, u32> {
        octets.map(|n| (format!("10.244.1.{n}"), 1)).collect()
    };
    assert_eq!(initial, each(1..=6), "I6: each is registered once");
    assert_eq!(
        draining,
        each(1..=3),
        "I6: each old one leaves once, no other does"
    );
    program.kill().await;
}
