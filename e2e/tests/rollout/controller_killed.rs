//! The controller dies (SIGKILL) in the middle of a rollout: what it did is neither repeated nor undone.

use crate::support::{
    WITHIN, membership_changes, rollout_reached_the_cloud, served, targets_are_the_new_pods,
};
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest},
};

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
