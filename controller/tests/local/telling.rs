//! Nodes are told of a target before it is one: a controller may die between any two steps, and a target that its agent
//! knows nothing of is unhealthy and unguarded until another controller leads (ZD-12, K-20).

use std::time::Duration;

use e2e_cloud::engine::Operation;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use onehop_core::crd::{NodeTargets, TargetState};
use serde_json::json;

use crate::pod_health::agent_answers;
use crate::support::{FIRST, POOL, annotated, has_address, pod_mode};
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
