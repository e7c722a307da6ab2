//! Rollouts behind a Network Load Balancer, whose health checks take longer to find a pod healthy than old pods go on.

use crate::{
    promise::no_new_connection_lost,
    support::{served_by, targets_are_the_new_pods},
};
use anyhow::Result;
use onehop_e2e::{
    scenario::{FailureReport, Rollout},
    world::{CloudKind, OnTerm, ServiceManifest, WorldConfig},
};

#[tokio::test(flavor = "multi_thread")]
async fn zd_t04_pods_that_exit_at_once_lose_no_new_connection_behind_a_network_load_balancer()
-> Result<()> {
    let config = WorldConfig {
        cloud: CloudKind::Aws,
        ..WorldConfig::default()
    };
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let service = service.of_cloud(CloudKind::Aws);
    let (world, address) = served_by(config, service, OnTerm::Exit).await?;
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
    no_new_connection_lost(&report);
    let late = |f: &&FailureReport| f.ms_since_sigterm.is_none_or(|ms| ms >= 1_000);
    let late: Vec<&FailureReport> = report.failures.iter().filter(late).collect();
    assert!(late.is_empty(), "lost long after the exit: {late:#?}");
    targets_are_the_new_pods(&world).await?;
    world.end().await
}
