//! Cloud and pods ten times faster than the wall, by one factor (FC-04): what a rollout loses depends on the relation of
//! the cloud's tails to the pods' time to serve, and that relation is kept.

use crate::support::served_by;
use anyhow::Result;
use e2e_cloud::{
    engine::{Lag, Profile, TargetState, What},
    scale::Speeds,
};
use e2e_kubelet::PodStep;
use onehop_e2e::{
    scenario::{Rollout, RolloutReport},
    world::{OnTerm, ServiceManifest, World, WorldConfig},
};
use std::{collections::BTreeMap, time::Duration};

const SPEED: u32 = 10;
/// How long load balancer nodes go on choosing a target that is deregistered or has failed, in time of the cloud.
const TAIL: u64 = 30;

/// A cloud that takes 20 s to register and has a tail.
fn config() -> WorldConfig {
    let mut profile = Profile::local();
    profile.lags.registration = Lag::secs(20);
    profile.lags.deregistration_tail = Lag::secs(TAIL);
    profile.lags.unhealthy_tail = Lag::secs(TAIL);
    WorldConfig {
        profile: Some(profile),
        speeds: Speeds::all(SPEED),
        ..WorldConfig::default()
    }
}

async fn rollout(serve_seconds: u32) -> Result<(World, RolloutReport)> {
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) =
        served_by(config(), manifest, OnTerm::ServeSeconds(serve_seconds)).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .restart("web")
    .await?;
    Ok((world, report))
}

/// From SIGTERM to its end of every pod that got one, in time of the wall.
fn times_to_serve(world: &World) -> Vec<Duration> {
    let events = world.journal.events();
    let ended = events.iter().filter_map(|event| {
        let told = world.journal.sigterm_of(&event.pod.uid)?;
        matches!(event.step, PodStep::Exited { .. }).then(|| event.at.since(told))
    });
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended.len(), 4, "the old pods: {ended:?}");
    ended
}

/// How long each tail lasted, in time of the wall.
fn tails(world: &World) -> Vec<Duration> {
    let mut began = BTreeMap::new();
    let mut lasted = Vec::new();
    for event in world.cloud.events_after(0, usize::MAX) {
        match &event.what {
            What::TailStarted { group, target, .. } => {
                // Of one that fails while it drains the first counts.
                began
                    .entry((group.clone(), *target))
                    .or_insert(event.wall_time);
            }
            What::TailEnded { group, target, .. } => {
                let begun = began.remove(&(group.clone(), *target));
                lasted.extend(begun.map(|begun| event.wall_time.since(begun)));
            }
            _ => {}
        }
    }
    assert!(!lasted.is_empty(), "a tail ended before the rollout did");
    lasted
}

/// From registration to `healthy` of every target, in time of the cloud.
fn registrations(world: &World) -> Vec<Duration> {
    let events = world.cloud.events_after(0, usize::MAX);
    let changed = |state: TargetState| {
        let of = events.iter().filter_map(move |event| match &event.what {
            What::TargetState {
                group,
                target,
                state: to,
                from: TargetState::Unused | TargetState::Initial,
                ..
            } if *to == state => Some(((group.clone(), *target), event.cloud_time)),
            _ => None,
        });
        of.collect::<Vec<_>>()
    };
    let begun = changed(TargetState::Initial);
    let lag = |(of, healthy): &(_, onehop_core::time::Time)| {
        let (_, begun) = begun.iter().find(|(target, _)| target == of)?;
        Some(healthy.since(*begun))
    };
    changed(TargetState::Healthy)
        .iter()
        .filter_map(lag)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fc03_fc04_fc07_at_ten_times_the_speed_pods_that_serve_for_longer_than_the_tail_lose_nothing()
-> Result<()> {
    // 20 s until the new targets are healthy, 30 of the tail; the rest is for what does not scale: watches, calls, commits.
    const SERVE: u32 = 90;
    let (world, report) = rollout(SERVE).await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.speed, SPEED, "FC-07: the factor is beside the times");
    // FC-04: pods end after their time to serve, which is that much shorter; and it is reported unscaled (FC-07).
    assert!(
        report.rollout_ms >= u64::from(SERVE) * 1000,
        "{} ms",
        report.rollout_ms
    );
    for took in times_to_serve(&world) {
        let wall = Duration::from_secs(SERVE.into()) / SPEED;
        assert!(
            took >= wall && took < wall * 5,
            "FC-04: {took:?} of the wall"
        );
    }
    for took in tails(&world) {
        let wall = Duration::from_secs(TAIL) / SPEED;
        assert!(
            took >= wall && took < wall * 5,
            "FC-04: {took:?} of the wall"
        );
    }
    let lags = registrations(&world);
    assert!(lags.len() >= 8, "{lags:?}");
    let twenty = Duration::from_secs(20);
    assert!(lags.iter().all(|lag| *lag >= twenty), "FC-03: {lags:?}");
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn fc04_a_world_whose_pods_keep_the_walls_time_is_refused() {
    let partly = WorldConfig {
        speeds: Speeds {
            pod_grace: 1,
            ..Speeds::all(SPEED)
        },
        ..WorldConfig::default()
    };
    let Err(refused) = World::start(partly).await else {
        panic!("FC-04: it started");
    };
    assert!(refused.to_string().contains("pod grace 1"), "{refused}");
}
