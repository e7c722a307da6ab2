//! `./e2e/run bench datapath`: our agent and a real kube-proxy (nftables mode) with the same Services on the same kind of
//! node, one after the other, in both orders (S-287); connections through both in turns. What is compared are ratios of
//! the same run.

mod clients;
mod connects;
mod histogram;
mod lab;
mod load;
mod process;
mod table;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::{path::PathBuf, time::Duration};

use crate::world::Proxy;

/// What is measured, and with how much.
#[derive(Debug, clap::Args)]
pub(super) struct Datapath {
    /// Write everything that was measured as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Numbers of Services in the cluster.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1_000, 10_000], value_parser = clap::value_parser!(u32).range(1..=30_000))]
    services: Vec<u32>,
    /// Endpoints of each Service.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    endpoints: u32,
    /// Endpoint changes that are measured one by one.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    swaps: u32,
    /// How long 100 endpoints a second change.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    churn_seconds: u64,
    /// Runs of each size and proxy: in the first the agent comes first, in the second kube-proxy, and so on.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure one of the two alone, without ratios.
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Have the agent run as on kernels before 6.9, where anybody can flush its tables.
    #[arg(long)]
    unowned_tables: bool,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    Onehop,
    KubeProxy,
}

impl Only {
    const fn proxy(self) -> Proxy {
        match self {
            Self::Onehop => Proxy::Replace,
            Self::KubeProxy => Proxy::KubeProxy,
        }
    }
}

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    services: u32,
    endpoints: u32,
    swaps: u32,
    churn: Duration,
    unowned_tables: bool,
}

/// What was measured of one proxy in one run. Times in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Which proxy.
    pub(super) proxy: &'static str,
    /// Services beside the one that is asked.
    pub(super) services: u32,
    /// Endpoints of each.
    pub(super) endpoints: u32,
    /// Run, from 1.
    pub(super) round: u32,
    /// From the start of the program, without any of its rules, until it is healthy and the Service answers.
    pub(super) start_ms: f64,
    /// Of that, its own full sync as its metric tells it.
    pub(super) full_sync_ms: f64,
    /// Longest answer of /healthz meanwhile.
    pub(super) start_health_ms: f64,
    /// After it was killed, with its rules in place: from the start of the next one until what changed meanwhile holds.
    pub(super) restart_ms: f64,
    /// New connections to the Service while it was away and came back, 100 a second, and those that failed.
    pub(super) restart_connections: [u32; 2],
    /// From before the write of a changed endpoint to the API until the kernel sends connections there, each change.
    pub(super) swap_ms: Vec<f64>,
    /// Its own time of a partial sync, the mean of those changes, by its metric.
    pub(super) partial_sync_ms: f64,
    /// What 99 of 100 of them did not exceed: the upper end of a bucket of the metric, of which the lowest is 1 ms.
    pub(super) partial_sync_p99_ms: f64,
    /// CPU time of a change on its own.
    pub(super) swap_cpu_ms: f64,
    /// A second process beside the first, which then ends; of the agent alone.
    pub(super) surge: Option<Surge>,
    /// After `nft flush ruleset` by somebody else.
    pub(super) flush: Flush,
    /// CPU time in a second with 100 changes of endpoints.
    pub(super) churn_cpu_ms: f64,
    /// Longest answer of /healthz meanwhile.
    pub(super) churn_health_ms: f64,
    /// Largest resident memory, in MiB.
    pub(super) peak_mib: f64,
    /// New connections to each address of a Service, by one client without a pause, in turns with the other proxy.
    pub(super) connects: Vec<Connects>,
}

/// By which of its addresses a Service is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Way {
    /// Its ClusterIP.
    ClusterIp,
    /// The node's address and its node port.
    NodePort,
    /// The address of its load balancer.
    LoadBalancer,
}

/// What a flush of all tables by somebody else costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Flush {
    /// New connections in the time that is watched, one after the other.
    pub(super) connections: u32,
    /// Those that failed.
    pub(super) failed: u32,
    /// From the flush until the last that failed began; 0: none did. The whole time that is watched: it lasts on.
    pub(super) gap_ms: f64,
    /// How long the flush itself took.
    pub(super) reload_ms: f64,
}

impl Flush {
    /// How long after the end of the flush connections still failed.
    fn beyond_ms(&self) -> f64 {
        (self.gap_ms - self.reload_ms).max(0.0)
    }
}

/// What an update by surge costs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Surge {
    /// New connections meanwhile, 100 a second, and those that failed.
    pub(super) connections: [u32; 2],
    /// Questions to /healthz meanwhile, and those that were not answered with 200.
    pub(super) health: [u32; 2],
}

/// New connections by one client without a pause.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Connects {
    /// To which address.
    pub(super) way: Way,
    /// In a second.
    pub(super) rate: f64,
    /// Median time of one, in microseconds.
    pub(super) median_us: f64,
}

impl Measured {
    fn connects_by(&self, way: Way) -> Option<&Connects> {
        self.connects.iter().find(|connects| connects.way == way)
    }
}

/// Measures and prints the table.
pub(super) async fn run(args: &Datapath) -> Result<()> {
    ensure!(!args.services.is_empty(), "--services names no number");
    let mut all = Vec::new();
    for services in &args.services {
        for round in 1..=args.rounds {
            let plan = Plan {
                services: *services,
                endpoints: args.endpoints,
                swaps: args.swaps,
                churn: Duration::from_secs(args.churn_seconds),
                unowned_tables: args.unowned_tables,
            };
            let mut order = [Proxy::Replace, Proxy::KubeProxy];
            if round % 2 == 0 {
                order.reverse();
            }
            let only = args.only.map(Only::proxy);
            let mut proxies = order.to_vec();
            proxies.retain(|proxy| only.is_none_or(|only| only == *proxy));
            all.extend(compare(plan, &proxies, round).await?);
        }
        table::print(*services, &all);
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&all)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

/// One run: each by itself, then connections through both.
async fn compare(plan: Plan, proxies: &[Proxy], round: u32) -> Result<Vec<Measured>> {
    let services = plan.services;
    let mut all = Vec::new();
    for proxy in proxies.iter().copied() {
        let name = table::name(proxy);
        eprintln!("==> {name} with {services} Services, round {round}");
        let measured = lab::measure(plan, proxy, round).await;
        let measured = measured.with_context(|| format!("{name} with {services} Services"))?;
        eprintln!("    {}", serde_json::to_string(&measured)?);
        all.push(measured);
    }
    eprintln!("==> connections with {services} Services, round {round}");
    let connects = connects::measure(plan, proxies).await;
    for (proxy, connects) in connects.context("measure connections")? {
        let of = |m: &&mut Measured| m.proxy == table::name(proxy);
        if let Some(measured) = all.iter_mut().find(of) {
            measured.connects = connects;
        }
    }
    Ok(all)
}
