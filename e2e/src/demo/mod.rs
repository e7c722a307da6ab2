//! The demo: a LoadBalancer Service gets an address, packets reach its pods, and its Deployment rolls out under load,
//! in each target mode. Called by `src/bin/demo.rs`.

mod print;
mod report;

pub use report::{ModeReport, PhaseCalls, Report};

use crate::{
    controlplane::{BackEnd, OnLoopback},
    scenario::{Rollout, RolloutReport, timeline, trace},
    world::{
        CloudKind, Cluster, OnTerm, ServiceManifest, World, WorldConfig, deployment, first_answer,
    },
};
use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use onehop_runtime::clock::Clock;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Seconds that a pod of the graceful kind accepts after SIGTERM.
const GRACE_SECONDS: u32 = 5;
const ROLLED_OUT_WITHIN: Duration = Duration::from_secs(90);
const DEPLOYMENT: &str = "web";

/// A LoadBalancer Service on real packets: created, reached, and rolled out under load.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run demo")]
pub struct Args {
    /// Whose APIs the cloud speaks: its own, those of AWS (EC2 and ELB, Network Load Balancers), or Azure's (Resource Manager,
    /// Standard Load Balancers).
    #[arg(long, value_enum, default_value_t)]
    provider: CloudKind,
    /// Only this target mode; without it, node and pod (on Azure vip, node and pod), one after the other.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Write what was found as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave everything running in the end, for kubectl, until Ctrl-C.
    #[arg(long)]
    keep: bool,
    /// Whose control plane: the embedded API server, or real etcd, kube-apiserver, kube-controller-manager and
    /// kube-scheduler.
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    control_plane: BackEnd,
    /// Seed of every random choice; printed, so that a run can be repeated.
    #[arg(long)]
    seed: Option<u64>,
}

/// What the load balancer's targets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Node address and node port; on AWS the node's instance.
    #[value(alias = "instance")]
    Node,
    /// Pod address and target port (`allocateLoadBalancerNodePorts: false`).
    #[value(alias = "ip")]
    Pod,
    /// Not on AWS: node, with the load balancer's address kept as destination (`onehop.dev/target: vip`, no node ports).
    Vip,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Vip => "vip",
        }
    }

    fn service(self, cloud: CloudKind) -> ServiceManifest {
        let name = format!("web-{}", self.name());
        let service = ServiceManifest::load_balancer(&name, DEPLOYMENT).of_cloud(cloud);
        match self {
            // What nothing says is `vip` there.
            Self::Node if cloud == CloudKind::Azure => {
                service.annotated("onehop.dev/target", "node")
            }
            Self::Node => service,
            Self::Pod => service.pod_mode(),
            Self::Vip => service.vip_mode(),
        }
    }
}

/// Runs the demo. Ctrl-C or SIGTERM end it early, and clean up all the same.
pub async fn run(args: Args) -> Result<()> {
    let vip = args.mode == Some(Mode::Vip);
    ensure!(
        !(vip && args.provider == CloudKind::Aws),
        "--mode vip: AWS has no such targets; use node (instance) or pod (ip)"
    );
    let seed = args.seed.unwrap_or_else(any_seed);
    print::headline(&format!("a cluster of network namespaces (seed {seed})"));
    let config = WorldConfig {
        seed,
        cloud: args.provider,
        cluster: Cluster::on(args.control_plane),
        keep_logs: false,
        progress: print::step,
        ..WorldConfig::default()
    };
    let world = tokio::select! {
        world = World::start(config) => world?,
        () = interrupted() => return interrupted_and_clean(),
    };
    let report = tokio::select! {
        report = show(&world, &args, seed) => Some(report),
        () = interrupted() => None,
    };
    if let (true, Some(Ok(report))) = (args.keep, &report) {
        let _open = keep(&world, report)?;
        interrupted().await;
    }
    print::step("cleaning up");
    world.end().await?;
    let Some(report) = report.transpose()? else {
        return interrupted_and_clean();
    };
    print::summary(&report);
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        print::step(&format!("report written to {}", file.display()));
    }
    Ok(())
}

/// Opens the API server to programs of this machine, and says what to try.
fn keep(world: &World, report: &Report) -> Result<OnLoopback> {
    let (open, kubeconfig) = world.on_loopback()?;
    let mode = report.modes.values().next().context("no mode was shown")?;
    print::things_to_try(world, &kubeconfig, mode.address);
    Ok(open)
}

async fn interrupted() {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        // Without its handler the signal ends the process, and the kernel ends the world with it.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

fn interrupted_and_clean() -> Result<()> {
    bail!("interrupted; every process and namespace of the demo is gone")
}

/// A seed that differs from run to run; whatever it is, the run can be repeated with it.
fn any_seed() -> u64 {
    Clock::system().now().as_millis().unsigned_abs()
}

async fn show(world: &World, args: &Args, seed: u64) -> Result<Report> {
    print::topology(world);
    let all = match args.provider {
        CloudKind::Local | CloudKind::Aws => vec![Mode::Node, Mode::Pod],
        CloudKind::Azure => vec![Mode::Vip, Mode::Node, Mode::Pod],
    };
    let modes = args.mode.map_or(all, |mode| vec![mode]);
    let mut report = Report {
        seed,
        modes: BTreeMap::new(),
    };
    for mode in modes {
        let found = show_mode(world, mode, args).await?;
        report.modes.insert(mode.name().to_owned(), found);
    }
    Ok(report)
}

async fn show_mode(world: &World, mode: Mode, args: &Args) -> Result<ModeReport> {
    print::headline(&format!("target mode {}", mode.name()));
    let mut calls = Calls::begin(world);
    let begun = world.clock.now();
    let graceful = OnTerm::ServeSeconds(GRACE_SECONDS);
    world
        .objects
        .apply(deployment(DEPLOYMENT, 4, graceful))
        .await?;
    let service = mode.service(args.provider).json();
    let name = service["metadata"]["name"]
        .as_str()
        .context("the Service has a name")?
        .to_owned();
    world.objects.apply(service).await?;
    print::step(&format!(
        "applied Deployment {DEPLOYMENT} (4 pods) and Service {name}"
    ));
    let address = SocketAddr::from((world.lb_address(&name).await?, 80));
    print::step(&format!(
        "Service {name} has the load balancer address {}",
        address.ip()
    ));
    world
        .objects
        .rolled_out(DEPLOYMENT, ROLLED_OUT_WITHIN)
        .await?;
    let first = first_answer(world, address).await?;
    let first_answer_s = world.clock.now().since(begun).as_secs_f64();
    print::step(&format!(
        "first answer through it: pod {} on node {}",
        first.pod, first.node
    ));
    let (hops, answers) = trace(world, address).await?;
    print::hops(world, address, &hops, &answers);
    calls.end_of("create, first answers");
    let rollouts = show_rollouts(world, address).await?;
    calls.end_of("rollouts");
    if !args.keep {
        world.objects.delete_service(&name).await?;
        world.service_gone(&name).await?;
        print::step(&format!(
            "Service {name} deleted: its load balancer, address and rules are gone"
        ));
        calls.end_of("delete");
    }
    print::calls(&calls.phases);
    let client_ip_seen = answers
        .first()
        .context("nothing answered")?
        .peer
        .ip()
        .to_string();
    Ok(ModeReport {
        address,
        hops,
        client_ip_seen,
        first_answer_s,
        rollouts,
        calls: calls.phases,
    })
}

/// Counts of API calls by phase, where the cloud counts them.
struct Calls<'a> {
    world: &'a World,
    last: BTreeMap<String, u64>,
    phases: Vec<PhaseCalls>,
}

impl<'a> Calls<'a> {
    fn begin(world: &'a World) -> Self {
        Self {
            world,
            last: world.cloud_calls(),
            phases: Vec::new(),
        }
    }

    /// Notes what was called since the last phase ended.
    fn end_of(&mut self, phase: &str) {
        let now = self.world.cloud_calls();
        let spent = now
            .iter()
            .map(|(call, n)| (call.clone(), n - self.last.get(call).unwrap_or(&0)));
        let calls: BTreeMap<_, _> = spent.filter(|(_, n)| *n > 0).collect();
        if !now.is_empty() {
            let phase = phase.to_owned();
            self.phases.push(PhaseCalls { phase, calls });
        }
        self.last = now;
    }
}

/// Both kinds of pod, each rolled out under load.
async fn show_rollouts(
    world: &World,
    address: SocketAddr,
) -> Result<BTreeMap<String, RolloutReport>> {
    let rollout = Rollout { world, address };
    print::headline("rollout under load: pods that accept for 5 s after SIGTERM");
    let graceful = rollout.restart(DEPLOYMENT).await?;
    show_rollout(world, "graceful", &graceful);
    print::headline("rollout under load: pods that exit at once on SIGTERM");
    world
        .objects
        .apply(deployment(DEPLOYMENT, 4, OnTerm::Exit))
        .await?;
    world
        .objects
        .rolled_out(DEPLOYMENT, ROLLED_OUT_WITHIN)
        .await?;
    let instant = rollout.restart(DEPLOYMENT).await?;
    show_rollout(world, "instant", &instant);
    Ok([("graceful", graceful), ("instant", instant)]
        .map(|(kind, report)| (kind.to_owned(), report))
        .into())
}

fn show_rollout(world: &World, kind: &str, report: &RolloutReport) {
    if let Some((from, to)) = report.span {
        print::rollout(kind, report, from, &timeline(world, from, to));
    }
}
