//! A world that serves, for rollouts and kills.

use anyhow::Result;
use onehop_e2e::world::{OnTerm, ServiceManifest, World, WorldConfig, deployment, first_answer};
use std::{net::SocketAddr, time::Duration};

/// How long a rollout may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(90);

/// Four pods of Deployment `web` behind the Service, answering through its load balancer.
pub(crate) async fn served(
    service: ServiceManifest,
    on_term: OnTerm,
) -> Result<(World, SocketAddr)> {
    served_by(WorldConfig::default(), service, on_term).await
}

/// The same in a world of one's own choice.
pub(crate) async fn served_by(
    config: WorldConfig,
    service: ServiceManifest,
    on_term: OnTerm,
) -> Result<(World, SocketAddr)> {
    let world = World::start(config).await?;
    world.objects.apply(deployment("web", 4, on_term)).await?;
    world.objects.apply(service.json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    world.objects.rolled_out("web", WITHIN).await?;
    first_answer(&world, address).await?;
    Ok((world, address))
}
