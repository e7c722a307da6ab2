//! Runs one cell in a world of its own, and counts what was lost.

use super::{
    cells::{Cell, Claim, Cloud, Event, Measures, Mode},
    event::{NAME, happen, settled},
};
use crate::{
    scenario::{FailureReport, Rollout, RolloutReport},
    traffic::{FailureKind, LongFlow, Transport},
    world::{
        CloudKind, Replicas, ServiceManifest, World, WorldConfig, deployment, eventually,
        first_answer,
    },
};
use anyhow::{Context, Result};
use e2e_cloud::{
    engine::{Lag, Lags, Profile},
    scale::Speeds,
};
use serde::Serialize;
use serde_json::json;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

const PODS: u32 = 4;
const SPEED: u32 = 10;
const WITHIN: Duration = Duration::from_mins(2);
/// Flows that are open all the time.
const FLOWS: usize = 50;
/// How often each of them asks.
const EVERY: Duration = Duration::from_millis(500);
/// Failures that a report has in full.
const SHOWN: usize = 20;
const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// What was found in one run of a cell.
#[derive(Debug, Serialize)]
pub struct CellReport {
    /// The cell.
    pub cell: String,
    /// Loss windows that it is about.
    pub windows: &'static str,
    /// What is promised.
    pub claim: Claim,
    /// Seed of the run.
    pub seed: u64,
    /// How many times faster than the wall cloud and pods ran.
    pub speed: u32,
    /// New TCP connections, 100 a second.
    pub connections: usize,
    /// Of those, connections that nobody had accepted, by class.
    pub lost: BTreeMap<FailureKind, usize>,
    /// Connections that a pod had accepted when it ended: nobody else can answer them (W4).
    pub ended_with_pod: usize,
    /// UDP requests, 20 a second.
    pub datagrams: usize,
    /// Of those, without an answer.
    pub lost_datagrams: usize,
    /// Longest time between two answers, in ms of the wall.
    pub longest_gap_ms: u64,
    /// SYN segments that clients had to send again.
    pub syn_resends: u64,
    /// Flows that were open from the start.
    pub long_flows: usize,
    /// Of those, cut before their pod was told to end.
    pub cut_early: usize,
    /// How long it took, in ms of the cloud.
    pub took_ms: u64,
    /// Connections begun as a share of rate times time.
    pub kept_rate: f64,
    /// What did not hold at the end of the world, if anything (FC-103).
    pub wrong_at_end: Option<String>,
    /// Some of the failures, with their causes.
    pub failures: Vec<FailureReport>,
}

impl CellReport {
    /// New connections that were lost.
    pub fn lost_all(&self) -> usize {
        self.lost.values().sum()
    }

    /// What was promised and did not hold.
    pub fn broken(&self) -> Option<String> {
        let lost = self.lost_all();
        let broken = match self.claim {
            Claim::Zero => lost > 0 || self.cut_early > 0 || self.wrong_at_end.is_some(),
            Claim::Measured => false,
            Claim::Loses => lost == 0,
        };
        broken.then(|| {
            format!(
                "{} with seed {}: {lost} connections lost {:?}, {} flows cut early, at the end: {}; {:#?}",
                self.cell,
                self.seed,
                self.lost,
                self.cut_early,
                self.wrong_at_end.as_deref().unwrap_or("all well"),
                self.failures
            )
        })
    }
}

/// Runs a cell.
pub async fn measure(cell: &Cell, seed: u64) -> Result<CellReport> {
    let world = World::start(config(cell, seed)).await?;
    let pods = deployment(NAME, PODS, cell.on_term);
    world.objects.apply(pods).await?;
    world.objects.apply(service(cell).json()).await?;
    let address = address(&world, cell.cloud).await?;
    world.objects.rolled_out(NAME, WITHIN).await?;
    first_answer(&world, address).await?;
    settled(&world, cell.mode).await?;
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let flow = LongFlow::open(&world.sockets, address, EVERY, world.clock).await;
        flows.push(flow.map_err(|failure| anyhow::anyhow!("open a long flow: {failure:?}"))?);
    }
    let rollout = Rollout {
        world: &world,
        address,
    };
    let found = rollout.during(async || happen(&world, cell.event, cell.mode).await);
    let found = found.await?;
    let cut_early = cut_early(&world, flows).await?;
    let wrong_at_end = match cell.claim {
        Claim::Zero => world.end().await.err().map(|error| format!("{error:#}")),
        // Checks that hold with our measures only.
        Claim::Measured | Claim::Loses => None,
    };
    Ok(report(cell, seed, found, (cut_early, wrong_at_end)))
}

fn config(cell: &Cell, seed: u64) -> WorldConfig {
    let base = WorldConfig {
        seed,
        keep_logs: false,
        agent_flags: match cell.measures {
            Measures::NoGuard => vec!["--keep-rp-filter"],
            Measures::On | Measures::NoHold => Vec::new(),
        },
        replicas: match cell.event {
            Event::LeaderChaos => Replicas::Two,
            _ => Replicas::One,
        },
        ..WorldConfig::default()
    };
    match cell.cloud {
        Cloud::Local => base,
        Cloud::Azure => WorldConfig {
            cloud: CloudKind::Azure,
            ..base
        },
        Cloud::Nlb => WorldConfig {
            cloud: CloudKind::Aws,
            profile: Some(Profile {
                lags: Lags {
                    // Of the load balancer itself, which nothing here is about.
                    provisioning: Lag::NONE,
                    ..Lags::nlb_realistic()
                },
                trickle_per_mille: 20,
                ..Profile::nlb()
            }),
            speeds: Speeds::all(SPEED),
            ..base
        },
    }
}

fn service(cell: &Cell) -> ServiceManifest {
    let service = ServiceManifest::load_balancer(NAME, NAME);
    let service = match cell.mode {
        Mode::Node => service,
        Mode::Local => service.with("externalTrafficPolicy", json!("Local")),
        Mode::Pod => service.pod_mode(),
    };
    let service = match cell.measures {
        Measures::NoHold => service.annotated("onehop.dev/membership", "compat"),
        Measures::On | Measures::NoGuard => service,
    };
    match cell.cloud {
        Cloud::Local => return service,
        Cloud::Azure => return service.with("loadBalancerClass", json!("onehop.dev/azure")),
        Cloud::Nlb => {}
    }
    let targets = match cell.mode {
        Mode::Pod => "ip",
        Mode::Node | Mode::Local => "instance",
    };
    service
        .with("loadBalancerClass", json!("onehop.dev/aws"))
        .annotated(&format!("{AWS}scheme"), "internet-facing")
        .annotated(&format!("{AWS}nlb-target-type"), targets)
        // TCP and UDP on one port are one listener.
        .annotated(&format!("{AWS}enable-tcp-udp-listener"), "true")
}

async fn address(world: &World, cloud: Cloud) -> Result<SocketAddr> {
    let address = match cloud {
        Cloud::Local | Cloud::Azure => world.lb_address(NAME).await?,
        Cloud::Nlb => {
            let host = world.lb_host(NAME).await?;
            let what = "the load balancer's name resolves";
            eventually(&world.clock, what, WITHIN, async || {
                let addresses = world.aws().map_err(|e| e.to_string())?.resolve(&host);
                let first = addresses.first().copied();
                first.ok_or_else(|| format!("{host} has no address"))
            })
            .await?
        }
    };
    Ok(SocketAddr::new(address, 80))
}

/// How many flows were cut before their pod was told to end.
async fn cut_early(world: &World, flows: Vec<LongFlow>) -> Result<usize> {
    let mut early = 0;
    for flow in flows {
        let pod = flow.first.uid.clone();
        let end = flow.end().await.context("a flow's task ended")?;
        let told = world.journal.sigterm_of(&pod);
        let Some((at, _)) = end.cut else { continue };
        early += usize::from(told.is_none_or(|told| at < told));
    }
    Ok(early)
}

fn report(
    cell: &Cell,
    seed: u64,
    found: RolloutReport,
    (cut_early, wrong_at_end): (usize, Option<String>),
) -> CellReport {
    let mut lost = BTreeMap::new();
    let (mut ended_with_pod, mut lost_datagrams) = (0, 0);
    for failure in &found.failures {
        match failure.transport {
            Transport::Udp => lost_datagrams += 1,
            Transport::Tcp if failure.was_accepted() => ended_with_pod += 1,
            Transport::Tcp => *lost.entry(failure.kind).or_default() += 1,
        }
    }
    CellReport {
        cell: cell.name(),
        windows: cell.windows(),
        claim: cell.claim,
        seed,
        speed: found.speed,
        connections: found.connections,
        lost,
        ended_with_pod,
        datagrams: found.datagrams,
        lost_datagrams,
        longest_gap_ms: found.longest_gap_ms,
        syn_resends: found.syn_retx,
        long_flows: FLOWS,
        cut_early,
        took_ms: found.rollout_ms,
        kept_rate: found.kept_rate,
        wrong_at_end,
        failures: found.failures.into_iter().take(SHOWN).collect(),
    }
}
