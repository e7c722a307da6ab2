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
    let config = WorldConfig {
        cluster: Cluster::on(on),
        ..WorldConfig::default()
    };
    let (world, address) = served_by(config, service, OnTerm::ServeSeconds(5)).await?;
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
