//! Pods that accept for 5 s after SIGTERM: a rollout loses nothing, in both target modes.

use crate::support::served;
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{OnTerm, ServiceManifest},
};

async fn rolls_without_loss(service: ServiceManifest) -> Result<()> {
    rolls_while_pods_serve(service, 5).await
}

/// The same with pods that serve so long after SIGTERM.
async fn rolls_while_pods_serve(service: ServiceManifest, seconds: u32) -> Result<()> {
    let (world, address) = served(service, OnTerm::ServeSeconds(seconds)).await?;
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

/// With policy Local the load balancer has to notice by its health check that a node has no ready pod left: two checks, 2 s
/// apart, each of which may take 2 s. Until then the terminating pods of the node serve (S-47).
#[tokio::test(flavor = "multi_thread")]
async fn s47_graceful_rollout_loses_nothing_with_policy_local() -> Result<()> {
    let local = ServiceManifest::load_balancer("web", "web")
        .with("externalTrafficPolicy", serde_json::json!("Local"));
    rolls_while_pods_serve(local, 12).await
}
