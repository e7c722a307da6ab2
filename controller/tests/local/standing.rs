//! What is measured and told of targets that are held, and of tails (ZD-83, ZD-120, ZD-121).

use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use onehop_core::crd::{LoadBalancer, NodeTargets, TargetState};
use serde_json::json;

use crate::pod_health::agent_answers;
use crate::support::{FIRST, POOL, get, has_address, pod_mode, told_of};
use crate::world::{Controller, World};

fn number(controller: &Controller, metric: &str) -> u64 {
    let value = controller.metric(metric);
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd120_zd121_what_is_held_is_counted_and_told_from_its_begin_to_its_end() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let holds = |state: &'static str, wanted: u64| {
        let metric = format!("onehop_targets{{state=\"{state}\"}}");
        let controller = &controller;
        async move |_: &World| number(controller, &metric) == wanted
    };
    world
        .eventually("one is healthy", holds("healthy", 1))
        .await;
    let healthy_after = "onehop_target_healthy_after_seconds_count";
    assert_eq!(number(&controller, healthy_after), 1, "ZD-121");
    // The next pod is a target that does not answer yet.
    let next = [10, 244, 1, 2].into();
    world.answers(next, false);
    world.endpoints("web", &[2], &[1]).await;
    world
        .eventually("ZD-121: one is held", holds("held", 1))
        .await;
    // Two checks five seconds apart are the fastest verdict that there is: one of them may have failed by now.
    let nodes: Api<NodeTargets> = Api::all(world.admin());
    let held = async |_: &World| {
        let object = nodes.get_opt("node-1").await.unwrap();
        let installs = object.into_iter().flat_map(|o| o.spec.installs);
        let mut targets = installs.flat_map(|(_, install)| install.targets);
        targets.any(|target| target.state == TargetState::Held)
    };
    let verdict = Duration::from_secs(5);
    world
        .eventually_within(verdict, "ZD-27: its node is told", held)
        .await;
    told_of(&world, "web", "TargetsHeld").await;
    let replaced = "onehop_hold_releases_total{cause=\"replaced\"}";
    assert_eq!(number(&controller, replaced), 0);
    world.answers(next, true);
    world
        .eventually("ZD-121: none is held", holds("held", 0))
        .await;
    told_of(&world, "web", "HoldReleased").await;
    assert_eq!(number(&controller, replaced), 1, "ZD-121");
    assert_eq!(
        number(&controller, "onehop_target_held_seconds_count"),
        1,
        "ZD-121"
    );
    assert_eq!(number(&controller, healthy_after), 2, "ZD-121");
    assert_eq!(
        controller
            .metric("onehop_floor_violations_total")
            .as_deref(),
        Some("0"),
        "ZD-121: must be 0, and is there to be asked for"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd83_the_longest_tail_that_agents_have_seen_is_kept_in_the_load_balancer() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    agent_answers(&world).await;
    let uid = get(&world, "web").await.metadata.uid;
    let objects: Api<NodeTargets> = Api::all(world.admin());
    let kept = async |seconds: Option<u32>| {
        let holds = async |w: &World| {
            let object = w.api::<LoadBalancer>().get("web").await.unwrap();
            object.status.is_some_and(|s| s.tail_seconds == seconds)
        };
        world.eventually("ZD-83: it is kept", holds).await;
    };
    let seen = async |seconds: u32| {
        let service = json!({ "namespace": "default", "name": "web", "uid": uid });
        let tails = json!([{ "service": service, "seconds": seconds }]);
        let said = json!({ "status": { "tails": tails } });
        let params = PatchParams::default();
        let patch = Patch::Merge(said);
        objects
            .patch_status("node-1", &params, &patch)
            .await
            .unwrap();
    };
    seen(41).await;
    kept(Some(41)).await;
    controller.stop().await;
    // The agent starts anew, and so does the controller.
    seen(3).await;
    let next = world.controller().working().await;
    world.endpoints("web", &[1, 2], &[]).await;
    let both = async |w: &World| w.registered().len() == 2;
    world.eventually("it works", both).await;
    kept(Some(41)).await;
    next.stop().await;
}
