//! Upstream's own end-to-end suite against a world of real nodes: `./e2e/run test upstream`.

mod run;
mod table;

use crate::world::{Cluster, Proxy, World, WorldConfig};
use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use onehop_core::time::Time;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};
use table::{Outcome, Results};

/// The specs that the agent and the controller have to pass, and those that say something about the network under them.
/// What is about none of them, or needs machines of a cloud, is not here.
const FOCUS: &str = r"\[sig-network\] (Services|EndpointSlice|Networking Granular Checks|LoadBalancers|Conntrack|KubeProxy|Traffic Distribution|HostPort|NoSNAT|Service endpoints latency|\[Feature:IPv6DualStack\])";
/// What no harness of one machine has: hundreds of nodes, other operating systems, a cloud's own addresses, ssh into
/// nodes; and what is not in every cluster because it is not finished.
const SKIP: &str = r"\[Feature:(Windows|SCTPConnectivity|PerformanceDNS|GCEIngress|CloudProvider)|GCE|\[Alpha\]|\[KubeUp\]";
/// What runs in `.ci/run`: of each part of a proxy something, and of load balancers what is quick.
const QUICK: &str = r"\[sig-network\] (Services should (serve (multiport|a basic)|allow pods to hairpin|be able to (create a functioning NodePort|change the type from (ExternalName to NodePort|NodePort to ExternalName)|switch session affinity for (service with type clusterIP|NodePort service))|preserve source pod IP|be rejected (when|for evicted)|implement service.kubernetes.io|respect internalTrafficPolicy=Local Pod to Pod|fallback to)|Conntrack should|LoadBalancers (ExternalTrafficPolicy: Local )?\[Feature:LoadBalancer\] should (target all|work from|be able to (create LoadBalancer Service without|preserve UDP))|Traffic Distribution should route traffic to an endpoint)";

/// Runs upstream's specs on real nodes and prints a table of their results. Exit status 1 if any failed.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run test upstream")]
pub struct Args {
    /// Only specs whose name matches; without it, all that are about Services and load balancers.
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// The part that every change has to pass; takes some minutes.
    #[arg(long, conflicts_with = "focus")]
    quick: bool,
    /// Whose Service proxy; without it, onehop's. Repeatable: a column of the table for each.
    #[arg(long, value_enum, value_name = "WHICH")]
    proxy: Vec<Which>,
    /// Specs at once.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    procs: u16,
    /// Keep what upstream's tests said here: a folder for each proxy.
    #[arg(long, value_name = "FOLDER", default_value = "target/upstream")]
    output: PathBuf,
    /// Write the table as markdown to this file, too.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Whose proxy a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Which {
    Onehop,
    KubeProxy,
}

impl Which {
    const fn name(self) -> &'static str {
        match self {
            Self::Onehop => "onehop",
            Self::KubeProxy => "kube-proxy",
        }
    }

    const fn proxy(self) -> Proxy {
        match self {
            Self::Onehop => Proxy::Replace,
            Self::KubeProxy => Proxy::KubeProxy,
        }
    }
}

/// Runs it; an error if a spec failed, or none ran.
pub async fn run(args: Args) -> Result<()> {
    let which = if args.proxy.is_empty() {
        vec![Which::Onehop]
    } else {
        args.proxy.clone()
    };
    let mut columns = BTreeMap::new();
    for which in which {
        let results = one(&args, which)
            .await
            .with_context(|| format!("with {}", which.name()))?;
        columns.insert(which.name(), results);
    }
    println!("{}", table::text(&columns));
    if let Some(path) = &args.table {
        std::fs::write(path, table::markdown(&columns))
            .with_context(|| format!("write {}", path.display()))?;
    }
    let all: Vec<&Outcome> = columns
        .values()
        .flat_map(|of_one: &Results| of_one.values())
        .collect();
    let count = |wanted: fn(&Outcome) -> bool| all.iter().filter(|o| wanted(o)).count();
    let (passed, failed) = (count(Outcome::passed), count(Outcome::failed));
    // As cargo's tests end, so that the launcher counts them.
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed;");
    ensure!(passed + failed > 0, "no spec ran; the focus matches none");
    ensure!(
        failed == 0,
        "{failed} of upstream's specs failed; what they said is in {}",
        args.output.display()
    );
    Ok(())
}

/// The specs with one proxy, in a world of their own.
async fn one(args: &Args, which: Which) -> Result<Results> {
    println!(
        "==> three real nodes, the Service proxy is {}",
        which.name()
    );
    let world = World::start(config(which.proxy(), |step| println!("    {step}"))).await?;
    world.fabric().admit(&world.client)?;
    let began = world.clock.now();
    let folder = args.output.join(which.name());
    let suite = run::Suite {
        focus: match (&args.focus, args.quick) {
            (Some(focus), _) => focus,
            (None, true) => QUICK,
            (None, false) => FOCUS,
        },
        skip: SKIP,
        procs: args.procs,
        folder: &folder,
    };
    let results = suite.run(&world).await?;
    let results = table::read(&results)?;
    println!("    took {} s", seconds(began, world.clock.now()));
    world.end_early().await?;
    Ok(results)
}

/// A world of three real nodes, each in a zone of its own.
pub(crate) fn config(proxy: Proxy, progress: fn(&str)) -> WorldConfig {
    WorldConfig {
        nodes: vec!["a", "b", "c"],
        zones: vec!["zone-a", "zone-b", "zone-c"],
        cluster: Cluster::of_real_nodes(proxy),
        progress,
        ..WorldConfig::default()
    }
}

fn seconds(from: Time, to: Time) -> u64 {
    to.since(from).max(Duration::ZERO).as_secs()
}
