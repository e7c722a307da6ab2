//! `onehop-node-agent`: flags, logs, signals; everything else is in the library.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use onehop_nft::Socket;
use onehop_node_agent::args::{Args, Command, Config, LogFormat, Mode, TableOwner, file};
use onehop_node_agent::commit::{self, Features, Kernel};
use onehop_node_agent::guard::uplinks::{self, Keeper};
use onehop_node_agent::peer_watch::Watcher;
use onehop_node_agent::questions;
use onehop_node_agent::ready;
use onehop_node_agent::run::{Parts, run};
use onehop_node_agent::startup::{self, Missing};
use onehop_node_agent::sys::sysctl;
use onehop_runtime::client::{self, Requests};
use onehop_runtime::clock::Clock;
use onehop_runtime::log::{self, Format};
use onehop_runtime::metrics::Metrics;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let mut args = Args::parse();
    match &args.command {
        Some(Command::Ready) => return answer(ready::ask(&args.ready_socket)),
        Some(Command::Dump { service, from }) => {
            return print(questions::dump(*from, service.as_deref()));
        }
        Some(Command::Verify { from }) => return print(questions::verify(*from)),
        None => {}
    }
    let result = start(&mut args);
    if let Err(error) = &result {
        // Also without a log, so that `kubectl logs` shows why the process did not start.
        eprintln!("onehop-node-agent: {}", log::Chain(error.as_ref()));
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Missing>() => ExitCode::from(startup::EXIT),
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(answer: Result<String, String>) -> ExitCode {
    let (word, code) = match answer {
        Ok(word) => (word, ExitCode::SUCCESS),
        Err(word) => (word, ExitCode::FAILURE),
    };
    eprintln!("{word}");
    code
}

/// What was asked for goes to the standard output, why there is none to the other one.
fn print(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(text) if std::io::stdout().write_all(text.as_bytes()).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("onehop-node-agent: {why}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &mut Args) -> anyhow::Result<()> {
    let format = match args.log_format {
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
    };
    // It serves all installs of a cluster: it is known by its node.
    let node = args.node_name.clone().unwrap_or_default();
    log::init(&args.log_filter, format, ("node", &node))?;
    for flag in args.unused.given() {
        tracing::warn!(flag, "this flag of kube-proxy has no meaning here");
    }
    if let Some(path) = args.config.clone() {
        for field in file::apply(args, &path)? {
            tracing::warn!(
                field,
                "this field of a KubeProxyConfiguration has no meaning here"
            );
        }
    }
    let config = args.resolve()?;
    if args.init_only {
        tune(&config);
        return Ok(());
    }
    // On one thread a change goes from its bytes to the writer without waking anybody: that is a good part of what it
    // costs. Commits and health answers have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the async runtime")?;
    runtime.block_on(agent(config, args.cleanup))
}

/// Kernel settings; what cannot be set is only told (S-98).
fn tune(config: &Config) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let root = Path::new("/proc/sys");
    for (flag, set, idle) in config.settings.too_short() {
        tracing::warn!(
            flag,
            ?set,
            ?idle,
            "load balancers may keep idle flows for longer than this node tracks them"
        );
    }
    for not_set in sysctl::apply(&config.settings, root, cores, onehop_nft::kernel_version()) {
        tracing::warn!(%not_set, "a kernel setting is not as it should be");
    }
}

async fn agent(config: Config, cleanup: bool) -> anyhow::Result<()> {
    let clock = Clock::system();
    if cleanup {
        commit::cleanup().context("delete the tables ip onehop and ip6 onehop")?;
        return uplinks::cleanup().context("delete the policy rules and routing tables of uplinks");
    }
    let uplinks = Keeper::open(config.uplinks.clone()).context("open a route netlink socket")?;
    let kernel = open(&config, clock)?;
    // Who cannot run here changes nothing here.
    tune(&config);
    let options = client::Options {
        kubeconfig: config.kubeconfig.clone(),
        ..client::Options::default()
    };
    let registry = Metrics::default();
    let client = client::connect(&options, &Requests::new(&registry, clock)).await?;
    let stop = CancellationToken::new();
    stop_on_signal(&stop)?;
    tracing::info!(node = %config.node, mode = ?config.mode, "onehop-node-agent starts");
    let parts = Parts {
        config,
        client,
        registry,
        dataplane: Box::new(kernel),
        uplinks: Some(uplinks),
        clock,
        rng: seed(clock),
        stop,
    };
    run(parts).await
}

/// Jitter only has to differ between the agents of a cluster.
fn seed(clock: Clock) -> SmallRng {
    let started = clock.now().as_millis().unsigned_abs();
    SmallRng::seed_from_u64(started.rotate_left(32) ^ u64::from(std::process::id()))
}

/// The tables of this network namespace. Says what is missing, since this is where a pod without
/// the right privileges fails.
fn open(config: &Config, clock: Clock) -> anyhow::Result<Kernel> {
    // Sockets open without any privilege; only a question shows whether the kernel answers.
    let mut options = config.options();
    let mut socket = Socket::open().map_err(|error| startup::no_socket(&error))?;
    startup::check(&mut socket, &options)?;
    for chain in startup::forward_drops(&mut socket)? {
        tracing::warn!(
            chain,
            "this chain drops forwarded packets unless a rule of it accepts them: what goes through Services is lost \
             unless it has rules that accept the pods' addresses (docs/datapath.md, DI-53)"
        );
    }
    let now = Box::new(move || clock.now());
    let alone = config.mode == Mode::Replace;
    options.before_iptables = alone && Watcher::open(None)?.has_iptables_chains()?;
    let mut features = Features::detect();
    features.owned_tables &= config.table_owner == TableOwner::Agent;
    let kernel =
        Kernel::open(&options, features, now).context("open the netlink socket of the tables")?;
    Ok(kernel.awaiting_ranges())
}

/// SIGTERM and SIGINT end the agent; its rules stay in place (S-122).
fn stop_on_signal(stop: &CancellationToken) -> anyhow::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).context("listen for signals")?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            tracing::info!("stopped by a signal; rules stay in place");
            stop.cancel();
        });
    }
    Ok(())
}
