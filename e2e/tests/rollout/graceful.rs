//! Pods that accept for 5 s after SIGTERM: a rollout loses nothing, in both target modes.

use crate::support::served;
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest},
};

async fn rolls_without_loss(service: ServiceManifest) -> Result<()> {
    let (world, address) = served(service, OnTerm::ServeSeconds(5)).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .restart("web")
    .await?;
    assert_eq!(report.failed, 0, "{:#?}", report.failures);
    assert_eq!(report.syn_retx, 0, "SYN segments were sent again");
    assert!(
        report.kept_rate >= 0.95,
        "the load kept only {:.2} of its rate",
        report.kept_rate
    );
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_rollout_loses_nothing_in_node_mode() -> Result<()> {
    rolls_without_loss(ServiceManifest::load_balancer("web", "web")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_rollout_loses_nothing_in_vip_mode() -> Result<()> {
    rolls_without_loss(ServiceManifest::load_balancer("web", "web").vip_mode()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_rollout_loses_nothing_in_pod_mode() -> Result<()> {
    rolls_without_loss(ServiceManifest::load_balancer("web", "web").pod_mode()).await
}
