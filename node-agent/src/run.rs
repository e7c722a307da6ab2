//! Wiring of the running agent: threads, channels and servers around the [`App`].
//!
//! Three things run apart from each other, so that none delays another: the netlink writer (a
//! thread), the health servers (a thread with a runtime of its own) and everything else.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Context;
use kube::Client;
use onehop_runtime::backoff::{Backoff, Policy};
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Publisher, Reporter};
use onehop_runtime::scrape::Scrapes;
use onehop_runtime::watch::WatchMetrics;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::mpsc::{self, Receiver, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Outlets};
use crate::args::Config;
use crate::flows::FlowCleaner;
use crate::front::Front;
use crate::guard::uplinks::Keeper;
use crate::health::board::Board;
use crate::health::ports::BindFailure;
use crate::metrics::Metrics;
use crate::node_file::{self, NodeFile};
use crate::notify::Notifier;
use crate::peer::{Peer, Sighting};
use crate::peer_watch::Watcher;
use crate::questions::{Question, Questions};
use crate::ready::{self, Readiness};
use crate::state::{Change, Ownership, State};
use crate::succession::{self, Announcer};
use crate::sys::links::links;
use crate::sys::{follow_network, interface_addresses};
use crate::table::element::Dataplane;
use crate::tails::Tails;
use crate::targets_status::StatusWriter;
use crate::watch::Watches;
use crate::writer::{Report, Writer};

/// Steps of the watches that may wait; then decoding waits too.
const CHANGES: usize = 4096;
/// Steps that are taken in before the next look at everything else.
const CHANGES_AT_ONCE: usize = 1024;

/// What the agent runs on.
pub struct Parts {
    /// Flags, resolved.
    pub config: Config,
    /// API server.
    pub client: Client,
    /// Where metrics are registered.
    pub registry: onehop_runtime::metrics::Metrics,
    /// Kernel.
    pub dataplane: Box<dyn Dataplane>,
    /// Interfaces to the fabric; none: they are left alone, and no target is guarded.
    pub uplinks: Option<Keeper>,
    /// Clock.
    pub clock: Clock,
    /// Source of jitter.
    pub rng: SmallRng,
    /// Ends the agent; rules stay in place (S-122).
    pub stop: CancellationToken,
}

/// What comes in.
struct Inlets {
    changes: Receiver<Change>,
    reports: UnboundedReceiver<Report>,
    bind_failures: UnboundedReceiver<BindFailure>,
    network: Receiver<()>,
    peer: UnboundedReceiver<Sighting>,
    fatal: UnboundedReceiver<String>,
    questions: Receiver<Question>,
    stop: CancellationToken,
}

/// Runs the agent until it is stopped or cannot go on.
pub async fn run(parts: Parts) -> anyhow::Result<()> {
    let Parts {
        config,
        client,
        registry,
        mut dataplane,
        uplinks,
        clock,
        mut rng,
        stop,
    } = parts;
    let metrics = Arc::new(Metrics::new(registry.clone()));
    let board = Arc::new(Board::new(clock));
    let (report_sender, reports) = mpsc::unbounded_channel();
    let watcher = Watcher::open(dataplane.watched_port())?;
    dataplane.spare(watcher.ears());
    let writer = Writer::spawn(dataplane, report_sender)?;
    let (fatal, fatal_failures) = mpsc::unbounded_channel();
    let fatal = config.bind_hard_fail.then_some(fatal);
    let (asked, questions) = Questions::new(clock);
    let front = Front {
        board: board.clone(),
        metrics: metrics.clone(),
        clock,
        rng: SmallRng::from_rng(&mut rng),
        fatal,
        scrapes: Scrapes::new(config.node.as_str(), client.clone(), clock)
            .context("make the door of metrics on the node's addresses")?,
    };
    // Ends with this function, so that nothing of the agent outlives it.
    let mut tasks = JoinSet::new();
    let front = front.open(&config, asked, &mut tasks)?;
    let (ready, readiness) = watch::channel(Readiness::Starting);
    let (told, said) = watch::channel(Readiness::Starting);
    let announcer = Announcer {
        readiness,
        told,
        doors: front.doors,
        clock,
        backoff: Policy::BIND.start(&mut rng),
    };
    tasks.spawn(announcer.announce());
    let backoff = Policy::BIND.start(&mut rng);
    answer_readiness(&config, said, (clock, backoff), &mut tasks)?;

    let ownership = Ownership::of(&config);
    let (change_sender, changes) = mpsc::channel(CHANGES);
    let rng_of_watches = SmallRng::from_rng(&mut rng);
    let watches = watches(&client, rng_of_watches, &registry, (change_sender, clock));
    watches.start(&config.node, &ownership, &mut tasks);
    let (flows, inbox) = FlowCleaner::new();
    inbox.spawn(clock, metrics.clone())?;
    let (tails, inbox) = Tails::new();
    inbox.spawn(clock, metrics.clone())?;
    let (targets, wishes) = watch::channel(None);
    let backoff = Policy::RETRY.start(&mut rng);
    let status = StatusWriter::new(client.clone(), config.node.clone(), clock, backoff);
    tasks.spawn(status.run(wishes));
    let (publisher, events) = Publisher::new(client, clock, reporter(&config), &registry);
    tasks.spawn(events);
    let out = Outlets {
        board,
        listens: front.listens,
        tables: front.tables,
        pod_answers: front.pod_answers,
        ready,
        metrics,
        notifier: Notifier::new(publisher),
        flows,
        tails,
        targets,
    };
    let state = State::new(ownership, config.node.clone())
        .with_pod_ranges(config.pod_ranges())
        .with_choices(config.choices)
        .with_pod_health(config.pod_health_port);
    let mut app = App::new(state, writer, out, config.nodeport_addresses.clone(), clock)
        .with_node_address(config.node_address)
        .with_eligibility(config.eligibility.clone())
        .with_peer(Peer::new(config.mode, config.override_kube_proxy));
    app = keep_answers(app, &config, clock)?;
    let peer = watch_peer(&mut app, watcher)?;
    let network = follow_network()?;
    let inlets = Inlets {
        changes,
        reports,
        bind_failures: front.failures,
        network,
        peer,
        fatal: fatal_failures,
        questions,
        stop,
    };
    let ended = drive(app, inlets, uplinks, clock).await;
    front.closing.close().await;
    ended
}

/// The watches of the API server, not started yet.
fn watches(
    client: &Client,
    rng: SmallRng,
    registry: &onehop_runtime::metrics::Metrics,
    (changes, clock): (mpsc::Sender<Change>, Clock),
) -> Watches {
    Watches {
        client: client.clone(),
        rng,
        metrics: WatchMetrics::new(registry),
        changes,
        clock,
    }
}

/// Answers the exec probe; on a socket that another agent still has, once it is free (K-55).
fn answer_readiness(
    config: &Config,
    readiness: watch::Receiver<Readiness>,
    (clock, backoff): (Clock, Backoff),
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let socket = &config.ready_socket;
    match ready::listen(socket) {
        Ok(listener) => {
            tasks.spawn(ready::serve(listener, readiness, clock));
        }
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let later = ready::serve_when_free(socket.clone(), readiness, clock, backoff);
            tasks.spawn(later);
        }
        Err(error) => {
            return Err(error).with_context(|| format!("open the readiness socket {socket}"));
        }
    }
    Ok(())
}

/// How the agent signs events.
fn reporter(config: &Config) -> Reporter {
    Reporter {
        component: "onehop-node-agent".to_owned(),
        instance: config.node.to_string(),
    }
}

/// Gives the app what an earlier process kept, and keeps its answers for the next one (S-109).
fn keep_answers(app: App, config: &Config, clock: Clock) -> anyhow::Result<App> {
    let Some(path) = &config.node_file else {
        return Ok(app);
    };
    let file = NodeFile::read(path);
    let keeper = node_file::Keeper::spawn(path.clone(), clock);
    Ok(app.with_node_file(keeper.context("make the folder of --node-file")?, file))
}

/// Looks for a kube-proxy, once before anything is programmed (S-125), then whenever something changes.
fn watch_peer(app: &mut App, mut watcher: Watcher) -> anyhow::Result<UnboundedReceiver<Sighting>> {
    let (sightings, peer) = mpsc::unbounded_channel();
    let first = watcher.look(false);
    app.sighted(first.context("look for a kube-proxy on this node")?);
    watcher.spawn(sightings)?;
    Ok(peer)
}

/// Looks at the node's network anew.
fn look_around(app: &mut App, uplinks: Option<&mut Keeper>) -> io::Result<()> {
    let mut links = links()?;
    if let Some(keeper) = uplinks {
        app.network(keeper.refresh()?);
        // Flags may name other ones than routes do.
        links.uplinks.clear();
    }
    app.interfaces(interface_addresses()?, links);
    Ok(())
}

async fn drive(
    mut app: App,
    mut inlets: Inlets,
    mut uplinks: Option<Keeper>,
    clock: Clock,
) -> anyhow::Result<()> {
    look_around(&mut app, uplinks.as_mut())?;
    let mut buffer = Vec::with_capacity(CHANGES_AT_ONCE);
    loop {
        app.advance()?;
        let next_look = app.next_look();
        let timer = async {
            match next_look {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Reports first: they raise health answers and free the writer.
            biased;
            () = inlets.stop.cancelled() => return Box::pin(leave(app, inlets.changes, clock)).await,
            report = inlets.reports.recv() => match report {
                Some(report) => app.report(report),
                None => anyhow::bail!("the kernel writer thread has ended"),
            },
            taken = inlets.changes.recv_many(&mut buffer, CHANGES_AT_ONCE) => {
                anyhow::ensure!(taken > 0, "all watches have ended");
                buffer.drain(..).for_each(|change| app.change(change));
            }
            Some(message) = inlets.fatal.recv() => anyhow::bail!(message),
            Some(failure) = inlets.bind_failures.recv() => app.bind_failed(&failure),
            Some(()) = inlets.network.recv() => look_around(&mut app, uplinks.as_mut())?,
            Some(sighting) = inlets.peer.recv() => app.sighted(sighting),
            Some(question) = inlets.questions.recv() => app.asked(question),
            () = timer => {}
        }
    }
}

/// Lets go of the tables, and goes on answering until a successor does, if one stands by (ZD-36).
async fn leave(mut app: App, mut changes: Receiver<Change>, clock: Clock) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(app.leave()).await?;
    let mut served = pin!(succession::served(clock));
    let mut buffer = Vec::with_capacity(CHANGES_AT_ONCE);
    loop {
        tokio::select! {
            () = &mut served => return Ok(()),
            taken = changes.recv_many(&mut buffer, CHANGES_AT_ONCE) => {
                anyhow::ensure!(taken > 0, "all watches have ended");
                buffer.drain(..).for_each(|change| app.change(change));
            }
        }
    }
}
