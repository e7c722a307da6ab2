//! Pods that accept for 5 s after SIGTERM: a rollout loses nothing, in every target mode, and in node and pod mode on a
//! real control plane, too.

use crate::support::served_by;
use anyhow::Result;
use onehop_e2e::{
    controlplane::BackEnd,
    scenario::Rollout,
    world::{Cluster, OnTerm, ServiceManifest, WorldConfig},
};

fn web() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web")
}

async fn rolls_without_loss(on: BackEnd, service: ServiceManifest) -> Result<()> {
    rolls_while_pods_serve(on, service, 5).await
}

/// The same with pods that serve so long after SIGTERM.
async fn rolls_while_pods_serve(on: BackEnd, service: ServiceManifest, seconds: u32) -> Result<()> {
    let config = WorldConfig {
        cluster: Cluster::on(on),
        ..WorldConfig::default()
    };
    let (world, address) = served_by(config, service, OnTerm::ServeSeconds(seconds)).await?;
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

mod embedded {
    use super::{BackEnd::Embedded, Result, rolls_without_loss, web};

    #[tokio::test(flavor = "multi_thread")]
    async fn graceful_rollout_loses_nothing_in_node_mode() -> Result<()> {
        rolls_without_loss(Embedded, web()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn graceful_rollout_loses_nothing_in_vip_mode() -> Result<()> {
        rolls_without_loss(Embedded, web().vip_mode()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn graceful_rollout_loses_nothing_in_pod_mode() -> Result<()> {
        rolls_without_loss(Embedded, web().pod_mode()).await
    }
}

mod real {
    use super::{BackEnd::Real, Result, rolls_without_loss, web};

    #[tokio::test(flavor = "multi_thread")]
    async fn graceful_rollout_loses_nothing_in_node_mode() -> Result<()> {
        rolls_without_loss(Real, web()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn graceful_rollout_loses_nothing_in_pod_mode() -> Result<()> {
        rolls_without_loss(Real, web().pod_mode()).await
    }
}

/// L-27, L-32: with policy Local the load balancer has to notice by its health check that a node has no ready pod left: two checks, 2 s
/// apart, each of which may take 2 s. Until then the terminating pods of the node serve (S-47).
#[tokio::test(flavor = "multi_thread")]
async fn s47_graceful_rollout_loses_nothing_with_policy_local() -> Result<()> {
    let local = ServiceManifest::load_balancer("web", "web")
        .with("externalTrafficPolicy", serde_json::json!("Local"));
    rolls_while_pods_serve(BackEnd::Embedded, local, 12).await
}
