//! Rollouts behind a Standard Load Balancer, whose probes take ten seconds to find a node or pod out.

use crate::{promise::no_new_connection_lost, support::served_by};
use anyhow::{Context, Result};
use e2e_cloud::engine::{TargetState, What};
use onehop_e2e::{
    scenario::Rollout,
    traffic::LongFlow,
    world::{CloudKind, OnTerm, ServiceManifest, World, WorldConfig},
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

/// How long pods accept after SIGTERM.
const SERVES: u32 = 15;
/// Flows that are open all the time.
const FLOWS: usize = 10;

async fn rolled_out(service: ServiceManifest) -> Result<World> {
    let config = WorldConfig {
        cloud: CloudKind::Azure,
        ..WorldConfig::default()
    };
    let service = service.of_cloud(CloudKind::Azure);
    let (world, address) = served_by(config, service, OnTerm::ServeSeconds(SERVES)).await?;
    let flows = long_flows(&world, address).await?;
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
    no_new_connection_lost(&report);
    live_as_long_as_their_pods(&world, flows).await?;
    Ok(world)
}

async fn long_flows(world: &World, address: SocketAddr) -> Result<Vec<LongFlow>> {
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let every = Duration::from_millis(200);
        let flow = LongFlow::open(&world.sockets, address, every, world.clock).await;
        flows.push(flow.map_err(|failure| anyhow::anyhow!("open a long flow: {failure:?}"))?);
    }
    Ok(flows)
}

/// RE 0: no flow is cut before its pod ends.
async fn live_as_long_as_their_pods(world: &World, flows: Vec<LongFlow>) -> Result<()> {
    for flow in flows {
        let pod = flow.first.uid.clone();
        let end = flow.end().await.context("a flow's task ended")?;
        let Some((at, failure)) = end.cut else {
            continue;
        };
        let told = world
            .journal
            .sigterm_of(&pod)
            .context("a cut without a SIGTERM")?;
        let lived = at.since(told) + Duration::from_millis(500);
        assert!(
            lived >= Duration::from_secs(SERVES.into()),
            "ZD-T05: cut {lived:?} after its pod's SIGTERM: {failure:?}"
        );
    }
    Ok(())
}

/// ZD-34: a member is Down, which the fake cloud takes for draining, before it is taken out.
fn down_before_it_is_out(world: &World) {
    let mut out = 0;
    for event in world.cloud.events_after(0, usize::MAX) {
        let What::TargetState {
            from,
            state: TargetState::Unused,
            target,
            ..
        } = &event.what
        else {
            continue;
        };
        // It was not used before either.
        if *from == TargetState::Unused {
            continue;
        }
        assert_eq!(*from, TargetState::Draining, "ZD-T05: {target}");
        out += 1;
    }
    assert!(out >= 4, "ZD-T05: {out} members were taken out");
}

#[tokio::test(flavor = "multi_thread")]
async fn zi09_az299_nodes_that_lose_their_pods_under_policy_local_lose_no_new_connection()
-> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web")
        .vip_mode()
        .with("externalTrafficPolicy", json!("Local"));
    rolled_out(service).await?.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn zi09_zi10_az295_zd_t05_pods_that_are_replaced_lose_no_new_connection() -> Result<()> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    let world = rolled_out(service).await?;
    down_before_it_is_out(&world);
    world.end().await
}
