//! The controller dies (SIGKILL) in the middle of a rollout: what it did is neither repeated nor undone.

use crate::support::served;
use anyhow::Result;
use e2e_cloud::engine::{TargetState, What};
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest, World, eventually},
};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(90);

/// How often each target was registered and deregistered.
pub(crate) fn membership_changes(world: &World) -> BTreeMap<SocketAddr, (usize, usize)> {
    let mut changes: BTreeMap<SocketAddr, (usize, usize)> = BTreeMap::new();
    for event in world.cloud.events_after(0, usize::MAX) {
        let What::TargetState {
            target,
            from,
            state,
            ..
        } = &event.what
        else {
            continue;
        };
        let counts = changes.entry(*target).or_default();
        match (from, state) {
            (_, TargetState::Draining) => counts.1 += 1,
            (TargetState::Unused | TargetState::Draining, TargetState::Initial) => counts.0 += 1,
            _ => {}
        }
    }
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn i6_sigkill_of_the_controller_in_a_rollout_repeats_and_undoes_no_write() -> Result<()> {
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served(manifest, OnTerm::ServeSeconds(5)).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        // In the middle: something is registered anew, and the rollout is not over.
        eventually(
            &world.clock,
            "the rollout reached the cloud",
            WITHIN,
            async || {
                let registered = membership_changes(&world).len();
                if registered > 4 {
                    Ok(())
                } else {
                    Err(format!("{registered} targets so far"))
                }
            },
        )
        .await?;
        world.controller.kill()?;
        world.objects.rolled_out("web", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    let pods = world.pod_addresses("web").await?;
    eventually(
        &world.clock,
        "the targets are the new pods",
        WITHIN,
        async || {
            let targets = world.registered_addresses();
            if targets == pods {
                Ok(())
            } else {
                Err(format!("targets {targets:?}, pods {pods:?}"))
            }
        },
    )
    .await?;
    for (target, (registered, deregistered)) in membership_changes(&world) {
        // One target belongs to a TCP and to a UDP group.
        assert!(
            registered <= 2 && deregistered <= 2,
            "{target}: registered {registered}, deregistered {deregistered} times"
        );
    }
    assert_eq!(world.load_balancers(), 1, "no second load balancer");
    world.end().await
}
