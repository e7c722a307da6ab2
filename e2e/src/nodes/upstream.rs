//! Upstream's own end-to-end suite against a world of real nodes: `./e2e/run test upstream`.

mod known;
mod report;
mod run;
mod table;
mod verdict;

use crate::world::{Cluster, Proxy, World, WorldConfig};
use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use onehop_core::time::Time;
use report::Told;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};
use verdict::Verdict;

/// The specs that the agent and the controller have to pass, and those that say something about the network under them.
/// What is about none of them, or needs machines of a cloud, is not here.
const FOCUS: &str = r"\[sig-network\] (Services|EndpointSlice|Networking Granular Checks|LoadBalancers|Conntrack|KubeProxy|Traffic Distribution|HostPort|NoSNAT|Service endpoints latency|\[Feature:IPv6DualStack\])";
/// What no harness of one machine has: hundreds of nodes, other operating systems, a cloud's own addresses, ssh into
/// nodes; and what is not in every cluster because it is not finished.
const SKIP: &str = r"\[Feature:(Windows|SCTPConnectivity|PerformanceDNS|GCEIngress|CloudProvider)|GCE|\[Alpha\]|\[KubeUp\]";
/// How the names of all specs begin that are wanted here.
const PART: &str = "[sig-network] ";
/// What every change has to pass: of each part of a proxy something, and of load balancers what is quick. What names go on
/// with, each of which stands for at least one spec.
const QUICK: &[&str] = &[
    "Services should serve a basic endpoint",
    "Services should serve multiport endpoints",
    "Services should allow pods to hairpin",
    "Services should be able to create a functioning NodePort",
    "Services should be able to change the type from ExternalName to NodePort",
    "Services should be able to change the type from NodePort to ExternalName",
    "Services should be able to switch session affinity for service with type clusterIP",
    "Services should be able to switch session affinity for NodePort service",
    "Services should preserve source pod IP",
    "Services should be rejected when",
    "Services should be rejected for evicted",
    "Services should implement service.kubernetes.io",
    "Services should respect internalTrafficPolicy=Local Pod to Pod",
    "Services should fallback to",
    "Conntrack should",
    "Traffic Distribution should route traffic to an endpoint in the same zone when",
    "Traffic Distribution should route traffic to an endpoint on the same node when",
    "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should target all",
    "LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] should work from",
    "LoadBalancers [Feature:LoadBalancer] should be able to create LoadBalancer Service without",
    "LoadBalancers [Feature:LoadBalancer] should be able to preserve UDP",
];

/// One for each zone.
pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];
/// Two for each zone, which some specs ask for.
const MORE_NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Runs upstream's specs on real nodes and prints a table of their results. Exit status 1 if one failed that is not known
/// to, or did not run.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run test upstream")]
pub struct Args {
    /// Only specs whose name matches; without it, all that are about Services and load balancers.
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// The part that every change has to pass, each spec of it; takes some minutes.
    #[arg(long, conflicts_with = "focus")]
    quick: bool,
    /// Whose Service proxy; without it, onehop's. Repeatable: a column of the table for each.
    #[arg(long, value_enum, value_name = "WHICH")]
    proxy: Vec<Which>,
    /// Specs at once.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
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

/// Runs it; an error if a spec failed that is not known to, or did not run that should have.
pub async fn run(args: Args) -> Result<()> {
    let which = if args.proxy.is_empty() {
        vec![Which::Onehop]
    } else {
        args.proxy.clone()
    };
    let mut columns = BTreeMap::new();
    let mut verdict = Verdict::default();
    for which in which {
        let told = one(&args, which)
            .await
            .with_context(|| format!("with {}", which.name()))?;
        let wanted = if args.quick { QUICK } else { &[] };
        verdict.add(which.name(), &told, wanted);
        columns.insert(which.name(), told.results);
    }
    println!("{}", table::text(&columns));
    if let Some(path) = &args.table {
        std::fs::write(path, table::markdown(&columns))
            .with_context(|| format!("write {}", path.display()))?;
    }
    println!("{verdict}");
    ensure!(
        verdict.passes(),
        "upstream's specs did not pass; what they said is in {}",
        args.output.display()
    );
    Ok(())
}

/// The specs with one proxy, in a world of their own.
async fn one(args: &Args, which: Which) -> Result<Told> {
    let nodes: &[&str] = if args.quick { &NODES } else { &MORE_NODES };
    println!(
        "==> {} real nodes, the Service proxy is {}",
        nodes.len(),
        which.name()
    );
    let config = config(nodes, which.proxy(), |step| println!("    {step}"));
    let world = World::start(config).await?;
    world.fabric().admit(&world.client)?;
    let began = world.clock.now();
    let folder = args.output.join(which.name());
    let suite = run::Suite {
        focus: &focus(args),
        skip: SKIP,
        procs: args.procs,
        folder: &folder,
    };
    let report = suite.run(&world).await?;
    let told = report::read(&report)?;
    println!("    took {} s", seconds(began, world.clock.now()));
    world.end_early().await?;
    Ok(told)
}

/// What upstream's runner is asked for.
fn focus(args: &Args) -> String {
    match (&args.focus, args.quick) {
        (Some(focus), _) => focus.clone(),
        (None, true) => QUICK
            .iter()
            .map(|name| literal(&format!("{PART}{name}")))
            .collect::<Vec<_>>()
            .join("|"),
        (None, false) => FOCUS.to_owned(),
    }
}

/// A regular expression that matches this text and no other.
fn literal(text: &str) -> String {
    let special = |c: char| !c.is_alphanumeric() && !" =:/-".contains(c);
    text.chars().fold(String::new(), |mut all, c| {
        if special(c) {
            all.push('\\');
        }
        all.push(c);
        all
    })
}

/// A world of these real nodes, spread over three zones.
pub(crate) fn config(nodes: &[&'static str], proxy: Proxy, progress: fn(&str)) -> WorldConfig {
    WorldConfig {
        nodes: nodes.to_vec(),
        zones: vec!["zone-a", "zone-b", "zone-c"],
        cluster: Cluster::of_real_nodes(proxy),
        progress,
        ..WorldConfig::default()
    }
}

fn seconds(from: Time, to: Time) -> u64 {
    to.since(from).max(Duration::ZERO).as_secs()
}
