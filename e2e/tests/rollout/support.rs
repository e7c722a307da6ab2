//! A world that serves, for rollouts and kills.

use anyhow::Result;
use e2e_cloud::{
    engine::{Lag, Lags, Profile, TargetState, What},
    scale::Speeds,
};
use onehop_e2e::world::{
    CloudKind, OnTerm, ServiceManifest, World, WorldConfig, deployment, eventually, first_answer,
};
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

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

/// Waits for the middle of a rollout of the four pods: something is registered anew, and the rollout is not over.
pub(crate) async fn rollout_reached_the_cloud(world: &World) -> Result<()> {
    let what = "the rollout reached the cloud";
    eventually(
        &world.clock,
        what,
        WITHIN,
        async || match membership_changes(world).len() {
            registered if registered > 4 => Ok(()),
            registered => Err(format!("{registered} targets so far")),
        },
    )
    .await
}

/// Waits until the registered targets are the pods of `web`.
pub(crate) async fn targets_are_the_new_pods(world: &World) -> Result<()> {
    let pods = world.pod_addresses("web").await?;
    let what = "the targets are the new pods";
    eventually(&world.clock, what, WITHIN, async || {
        let targets = world.registered_addresses();
        if targets == pods {
            Ok(())
        } else {
            Err(format!("targets {targets:?}, pods {pods:?}"))
        }
    })
    .await
}

/// How many times faster than the wall [`nlb`] runs.
pub(crate) const SPEED: u32 = 10;

/// A world behind Network Load Balancers with the tails that users report and this time of registration, ten times faster
/// than the wall (FC-04).
pub(crate) fn nlb(registration: Lag) -> WorldConfig {
    let profile = Profile {
        lags: Lags {
            registration,
            // Of the load balancer itself, which nothing here is about.
            provisioning: Lag::NONE,
            verdict_skew: Lag::NONE,
            ..Lags::nlb_realistic()
        },
        ..Profile::nlb()
    };
    WorldConfig {
        cloud: CloudKind::Aws,
        profile: Some(profile),
        speeds: Speeds::all(SPEED),
        ..WorldConfig::default()
    }
}

/// Service `web` behind one, with pods as targets.
pub(crate) fn web_of_nlb() -> ServiceManifest {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    service.of_cloud(CloudKind::Aws)
}
