//! The demo: a LoadBalancer Service gets an address, packets reach its pods, and its Deployment rolls out under load,
//! in each target mode. Called by `src/bin/demo.rs`.

mod print;
mod report;

pub use report::{ModeReport, Report};

use crate::{
    scenario::{Rollout, RolloutReport, timeline, trace},
    world::{OnTerm, ServiceManifest, World, WorldConfig, deployment},
};
use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use print::Printer;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

/// Seconds that a pod of the graceful kind accepts after SIGTERM.
const GRACE_SECONDS: u32 = 5;
const ROLLED_OUT_WITHIN: Duration = Duration::from_secs(90);
const DEPLOYMENT: &str = "web";

/// A LoadBalancer Service on real packets: created, reached, and rolled out under load.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run demo")]
pub struct Args {
    /// Only this target mode; without it, one after the other.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Write what was found as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of every random choice; printed, so that a run can be repeated.
    #[arg(long)]
    seed: Option<u64>,
}

/// What the load balancer's targets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Node address and node port.
    Node,
    /// Pod address and target port (`allocateLoadBalancerNodePorts: false`).
    Pod,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pod => "pod",
        }
    }

    fn service(self) -> ServiceManifest {
        let service = ServiceManifest::load_balancer(&format!("web-{}", self.name()), DEPLOYMENT);
        match self {
            Self::Node => service,
            Self::Pod => service.pod_mode(),
        }
    }
}

/// Runs the demo. Ctrl-C ends it early and cleans up all the same.
pub async fn run(args: Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(any_seed);
    let printer = Printer::new(seed);
    let report = tokio::select! {
        report = show(&args, seed, &printer) => report?,
        _ = tokio::signal::ctrl_c() => {
            printer.step("interrupted: cleaning up");
            // Whatever the world had is gone with `show`, which owned it.
            return Ok(());
        }
    };
    printer.summary(&report);
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        printer.step(&format!("report written to {}", file.display()));
    }
    Ok(())
}

/// A seed that differs from run to run; whatever it is, the run can be repeated with it.
fn any_seed() -> u64 {
    onehop_runtime::clock::Clock::system()
        .now()
        .as_millis()
        .unsigned_abs()
}

async fn show(args: &Args, seed: u64, printer: &Printer) -> Result<Report> {
    let world = World::start(WorldConfig {
        seed,
        progress: print::progress,
        ..WorldConfig::default()
    })
    .await?;
    printer.topology(&world);
    let modes = args
        .mode
        .map_or_else(|| vec![Mode::Node, Mode::Pod], |mode| vec![mode]);
    let mut report = Report {
        seed,
        modes: BTreeMap::new(),
    };
    for mode in modes {
        let found = show_mode(&world, mode, printer).await?;
        report.modes.insert(mode.name().to_owned(), found);
    }
    printer.step("cleaning up");
    world.end().await?;
    Ok(report)
}

async fn show_mode(world: &World, mode: Mode, printer: &Printer) -> Result<ModeReport> {
    printer.headline(&format!("target mode {}", mode.name()));
    let begun = world.clock.now();
    let graceful = OnTerm::ServeSeconds(GRACE_SECONDS);
    world
        .objects
        .apply(deployment(DEPLOYMENT, 4, graceful))
        .await?;
    let service = mode.service().json();
    let name = service["metadata"]["name"]
        .as_str()
        .context("the Service has a name")?
        .to_owned();
    world.objects.apply(service).await?;
    printer.step(&format!(
        "applied Deployment {DEPLOYMENT} (4 pods) and Service {name}"
    ));
    let address = SocketAddr::from((world.lb_address(&name).await?, 80));
    printer.step(&format!(
        "Service {name} has the load balancer address {}",
        address.ip()
    ));
    world
        .objects
        .rolled_out(DEPLOYMENT, ROLLED_OUT_WITHIN)
        .await?;
    let first = crate::world::first_answer(world, address).await?;
    let first_answer_s = world.clock.now().since(begun).as_secs_f64();
    printer.step(&format!(
        "first answer through it: pod {} on node {}",
        first.pod, first.node
    ));
    let (hops, answers) = trace(world, address).await?;
    printer.hops(world, address, &hops, &answers);
    let mut rollouts = BTreeMap::new();
    let rollout = Rollout { world, address };
    let report = rollout.restart(DEPLOYMENT).await?;
    show_rollout(world, "graceful", &report, printer);
    rollouts.insert("graceful".to_owned(), report);
    world
        .objects
        .apply(deployment(DEPLOYMENT, 4, OnTerm::Exit))
        .await?;
    world
        .objects
        .rolled_out(DEPLOYMENT, ROLLED_OUT_WITHIN)
        .await?;
    let report = rollout.restart(DEPLOYMENT).await?;
    show_rollout(world, "instant", &report, printer);
    rollouts.insert("instant".to_owned(), report);
    world.objects.delete_service(&name).await?;
    world.service_gone(&name).await?;
    printer.step(&format!(
        "Service {name} deleted: its load balancer, address and rules are gone"
    ));
    let Some(answer) = answers.first() else {
        bail!("nothing answered")
    };
    Ok(ModeReport {
        address: address.to_string(),
        hops,
        client_ip_seen: answer.peer.ip().to_string(),
        first_answer_s,
        rollouts,
    })
}

fn show_rollout(world: &World, kind: &str, report: &RolloutReport, printer: &Printer) {
    let entries = report
        .span
        .map(|(from, to)| (from, timeline(world, from, to)));
    printer.rollout(kind, report, entries);
}
