//! Behind a Network Load Balancer with the lags and tails that users report: a single pod moves, and a rollout whose old
//! targets the cloud forgets at once.

use crate::{
    promise::{no_new_connection_lost, told},
    support::{SPEED, WITHIN, nlb, served_by, web_of_nlb},
    tails::roll_out,
};
use anyhow::{Context, Result};
use e2e_cloud::engine::{Lag, TargetState as InCloud, What};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_core::{crd::TargetState, time::Time};
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, World, eventually, first_answer, pod},
};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// When a target was first said to leave, by the cloud's log.
fn deregistered(world: &World, target: IpAddr) -> Option<Time> {
    let events = world.cloud.events_after(0, usize::MAX);
    let mut left = events.iter().filter(|event| {
        matches!(&event.what, What::TargetState { target: of, state: InCloud::Draining | InCloud::Unused, .. }
            if of.ip() == target)
    });
    left.next().map(|event| event.wall_time)
}

/// ZD-T03, ZD-T39: with a deregistration delay of 0 the cloud calls targets unused at once, and goes on sending to them
/// for 120 s. They are released when the tail is over, 180 s after the deregistration was accepted.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t03_zd_t39_targets_that_the_cloud_forgets_at_once_are_guarded_to_the_end_of_the_tail()
-> Result<()> {
    let service = web_of_nlb().annotated(
        "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes",
        "deregistration_delay.timeout_seconds=0",
    );
    let (world, address) = served_by(nlb(Lag::secs(40)), service, OnTerm::Exit).await?;
    let (report, held) = roll_out(&world, address).await?;
    assert!(held, "ZD-22: no target was ever held");
    no_new_connection_lost(&report);
    let told = told(&world).await.map_err(anyhow::Error::msg)?;
    for target in told.iter().filter(|t| t.state == TargetState::Released) {
        let left = deregistered(&world, target.address).context("it left")?;
        let took = target.since.since(left);
        let tail = Duration::from_mins(3) / SPEED;
        // Times of objects are in whole seconds.
        assert!(
            took + Duration::from_secs(1) > tail,
            "ZD-T39: released {took:?} after its deregistration: {target:?}"
        );
    }
    world.end().await
}

/// ZD-T07: the only pod moves from the second interface of node a to node b, and is gone long before the cloud has found
/// its successor healthy: it is held, and its node's guard forwards.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t07_a_single_pod_moves_to_another_node_without_loss() -> Result<()> {
    const LAG: Duration = Duration::from_mins(3);
    // Thirty seconds of the cloud's.
    const SERVES: OnTerm = OnTerm::ServeSeconds(30);
    let world = World::start(nlb(Lag::Fixed(LAG))).await?;
    world.objects.create(pod("old", "web", "a", SERVES)).await?;
    world.objects.pod_ready("default", "old", WITHIN).await?;
    world.objects.apply(web_of_nlb().json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    first_answer(&world, address).await?;
    let old = world.pod_place("old").await?.1;
    let judged = |at: IpAddr| {
        let target = SocketAddr::new(at, onehop_e2e::world::POD_PORT);
        let states = world.cloud.target_states_at(target, world.clock.now());
        states.into_values().next().map(|(state, _)| state)
    };
    let what = "the pod is healthy";
    eventually(&world.clock, what, WITHIN, async || {
        match judged(old.into()) {
            Some(InCloud::Healthy) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let mut held = Vec::new();
    let mut forwards = false;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.create(pod("new", "web", "b", SERVES)).await?;
        world.objects.pod_ready("default", "new", WITHIN).await?;
        let pods = world.objects.api::<Pod>();
        pods.delete("old", &DeleteParams::default()).await?;
        let what = "the old target drains, and its tail is over";
        // Targets that only drain are looked at once a minute, which no cloud shortens.
        eventually(&world.clock, what, WITHIN * 2, async || {
            let told = told(&world).await?;
            let states = told.iter().filter(|t| t.pod_name == "old").map(|t| t.state);
            let states: Vec<_> = states.collect();
            if states.contains(&TargetState::Held) {
                held.push(world.clock.now());
                let rules = world.ruleset("a").map_err(|error| error.to_string())?;
                forwards |= rules.contains("goto gr");
            }
            let over = !states.is_empty() && states.iter().all(|s| *s == TargetState::Released);
            over.then_some(()).ok_or_else(|| format!("{states:?}"))
        })
        .await
    })
    .await?;
    assert_eq!(report.failed, 0, "ZD-T07: {:#?}", report.failures);
    assert!(forwards, "ZD-T07: the guard on node a forwards to node b");
    let (first, last) = held.first().zip(held.last()).context("it was held")?;
    let took = last.since(*first) * SPEED;
    // From its end, when the new one was registered some time already, to that one's health.
    assert!(
        took >= LAG / 2 && took <= LAG + Duration::from_mins(1),
        "ZD-T07: held for {took:?}"
    );
    world.end().await
}
