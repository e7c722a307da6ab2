//! The controller dies (SIGKILL) in the middle of a rollout: what it did is neither repeated nor undone. It stands still
//! while all pods are replaced: the agents carry the load balancer over.

use crate::{
    promise::no_new_connection_lost,
    support::{
        WITHIN, membership_changes, rollout_reached_the_cloud, served, targets_are_the_new_pods,
    },
};
use anyhow::Result;
use nix::sys::signal::Signal;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest},
};
use std::time::Duration;

/// Longer than this cloud's load balancer takes to give up a target whose checks fail: two of them, 2 s apart.
const VERDICT: Duration = Duration::from_secs(8);

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
        rollout_reached_the_cloud(&world).await?;
        world.controller.kill()?;
        world.objects.rolled_out("web", WITHIN).await
    })
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    targets_are_the_new_pods(&world).await?;
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

/// W15, ZD-110, L-55: nobody registers the new pods and nobody holds the old ones. This cloud sends nothing once all members are
/// down, so the agents have to answer for pods that are gone as long as their guards take the flows.
#[tokio::test(flavor = "multi_thread")]
async fn w15_zd110_all_pods_are_replaced_while_the_controller_stands_still_without_loss()
-> Result<()> {
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    let (world, address) = served(manifest, OnTerm::Exit).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.controller.signal(Signal::SIGSTOP)?;
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await?;
        world.clock.sleep(VERDICT).await;
        world.controller.signal(Signal::SIGCONT)?;
        targets_are_the_new_pods(&world).await
    })
    .await?;
    no_new_connection_lost(&report);
    world.end().await
}
