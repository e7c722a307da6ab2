//! Rollouts behind a Standard Load Balancer, whose probes take ten seconds to find a node or pod out.

use crate::{promise::no_new_connection_lost, support::served_by};
use anyhow::Result;
use onehop_e2e::{
    scenario::Rollout,
    world::{CloudKind, OnTerm, ServiceManifest, WorldConfig},
};
use serde_json::json;

async fn rolled_out(service: ServiceManifest) -> Result<()> {
    let config = WorldConfig {
        cloud: CloudKind::Azure,
        ..WorldConfig::default()
    };
    let service = service.of_cloud(CloudKind::Azure);
    let (world, address) = served_by(config, service, OnTerm::ServeSeconds(15)).await?;
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
    no_new_connection_lost(&report);
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn zi09_az299_nodes_that_lose_their_pods_under_policy_local_lose_no_new_connection()
-> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web")
        .vip_mode()
        .with("externalTrafficPolicy", json!("Local"));
    rolled_out(service).await
}

#[tokio::test(flavor = "multi_thread")]
async fn zi09_zi10_az295_pods_that_are_replaced_lose_no_new_connection() -> Result<()> {
    rolled_out(ServiceManifest::load_balancer("web", "web").pod_mode()).await
}
