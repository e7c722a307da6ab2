//! The leader dies at each step of a rollout, which goes on without one: its successor takes out no target before another
//! one is healthy in its place (I2, I9, ZD-21, ZD-22, ZD-81).

use std::collections::BTreeSet;
use std::time::Duration;

use e2e_cloud::engine::{Seq, TargetState, What};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_controller::app::Phase;

use crate::pod_health::agent_answers;
use crate::support::{FIRST, POOL, has_address, pod_mode};
use crate::world::World;

/// Pods 1 to 4 are replaced by 5 to 8; each has two steps: its successor is ready and it is told to end, and it is gone.
const STEPS: u8 = 8;

/// Brings the rollout to a step.
async fn step(world: &World, step: u8) {
    let begun = step / 2 + 1;
    let gone = step.div_ceil(2);
    let ready: Vec<u8> = (begun + 1..=4).chain(5..=4 + begun).collect();
    let terminating: Vec<u8> = (gone + 1..=begun).collect();
    world.endpoints("web", &ready, &terminating).await;
    for n in 1..=gone {
        let name = format!("pod-{n}");
        let now = DeleteParams::default().grace_period(0);
        match world.api::<Pod>().delete(&name, &now).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What was wrong with the order in which the cloud was told.
fn disorder(world: &World) -> Option<String> {
    let (mut left, mut healthy) = (BTreeSet::new(), BTreeSet::new());
    for event in world.cloud.events_after(Seq::default(), usize::MAX) {
        let What::TargetState { target, state, .. } = &event.what else {
            continue;
        };
        let old = target.ip() < std::net::IpAddr::from([10, 244, 1, 5]);
        match (old, state) {
            (true, TargetState::Draining) => {
                left.insert(*target);
                if left.len() > healthy.len() {
                    return Some(format!("{left:?} left while only {healthy:?} were healthy"));
                }
            }
            (false, TargetState::Healthy) => drop(healthy.insert(*target)),
            (false, _) => drop(healthy.remove(target)),
            (true, _) => {}
        }
    }
    None
}

async fn dies_at(last: u8) {
    let world = World::start(POOL).await;
    let a = world.replica("one", "a").working().await;
    let standby = |phase: &Phase| matches!(phase, Phase::Standby { .. });
    let b = world.replica("one", "b").reaches(standby).await;
    agent_answers(&world).await;
    world.endpoints("web", &[1, 2, 3, 4], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let served = async |w: &World| w.times_in_state(TargetState::Healthy).len() == 4;
    world.eventually("four are healthy", served).await;
    for now in 0..=last {
        step(&world, now).await;
        // Each one's moment is another one, by its number.
        world
            .quiet(Duration::from_millis(u64::from(now) * 11))
            .await;
    }
    a.kill().await;
    for now in last + 1..STEPS {
        step(&world, now).await;
        world.quiet(Duration::from_millis(50)).await;
    }
    let b = b.working().await;
    let new: BTreeSet<_> = (5..=8).map(|n| [10, 244, 1, n].into()).collect();
    let followed = async |w: &World| w.registered() == new;
    world
        .eventually("the successor has followed", followed)
        .await;
    assert_eq!(
        disorder(&world),
        None,
        "I2, ZD-21: the leader died at step {last}"
    );
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_i9_zd21_zd81_a_leader_that_dies_at_any_step_is_followed_in_order() {
    let all = (0..STEPS).map(dies_at);
    futures::future::join_all(all).await;
}
