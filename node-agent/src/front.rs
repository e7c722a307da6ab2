//! The side of the agent that answers probes: its fixed ports, those of Services and the one of pod health, on a thread
//! with a runtime of their own. Opened before anything is known; closed once what was accepted is answered.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use onehop_runtime::scrape::Scrapes;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::args::Config;
use crate::args::file::configz;
use crate::health::board::Board;
use crate::health::doors::Doors;
use crate::health::pods::PodPort;
use crate::health::ports::{BindFailure, Listen, Ports};
use crate::health::proxy;
use crate::http::{Handler, Port, Tables};
use crate::metrics::Metrics;
use crate::questions::Questions;

/// What it answers from.
pub struct Front {
    /// Health answers.
    pub board: Arc<Board>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Clock.
    pub clock: Clock,
    /// Source of jitter.
    pub rng: SmallRng,
    /// Who is told of a fixed port that cannot be bound, if that is to end the process (S-129).
    pub fatal: Option<UnboundedSender<String>>,
    /// The door of metrics on addresses of the node (S-300).
    pub scrapes: Scrapes,
}

/// What it is told, and tells.
pub struct Opened {
    /// The health ports of Services that shall be open.
    pub listens: watch::Sender<BTreeSet<Listen>>,
    /// Whether the tables are this process's.
    pub tables: watch::Sender<Tables>,
    /// The same for the port of pod health, once there are answers to give.
    pub pod_answers: watch::Sender<Tables>,
    /// Health ports of Services that cannot be bound.
    pub failures: UnboundedReceiver<BindFailure>,
    /// Which doors are open.
    pub doors: Doors,
    /// Its end.
    pub closing: Closing,
}

/// Ends all of it when it is dropped.
pub struct Closing {
    ask: DropGuard,
    closed: oneshot::Receiver<()>,
}

impl Closing {
    /// Closes every port and waits until what was accepted is answered. The senders of [`Opened`] have to be gone.
    pub async fn close(self) {
        drop(self.ask);
        // The thread tells its end by being gone.
        let _ = self.closed.await;
    }
}

impl Front {
    /// Opens all ports, each as soon as it may. The one of metrics is among `tasks`.
    pub fn open(
        mut self,
        config: &Config,
        asked: Questions,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<Opened> {
        let (listens, wanted) = watch::channel(BTreeSet::new());
        let (failed, failures) = mpsc::unbounded_channel();
        let (tables, taken) = watch::channel(Tables::NotOurs);
        let (pod_answers, answers) = watch::channel(Tables::NotOurs);
        let closing = CancellationToken::new();
        let fixed = config.health_binds.len() + usize::from(config.pod_health_port.is_some());
        let doors = Doors::new(fixed, wanted.clone());
        let mut port = |addr: SocketAddr, handler: &Handler, doors: Option<&Doors>| Port {
            addr,
            handler: handler.clone(),
            clock: self.clock,
            backoff: Policy::BIND.start(&mut self.rng),
            tables: taken.clone(),
            stop: CancellationToken::new(),
            closing: closing.clone(),
            doors: doors.cloned(),
            scrapes: None,
        };
        let metrics = self.metrics.clone().handler(configz(config), asked);
        let outside = self.metrics.clone().for_scrapers(&self.scrapes);
        for addr in &config.metrics_binds {
            let port = if addr.ip().is_loopback() {
                port(*addr, &metrics, None)
            } else {
                let scrapes = Some(self.scrapes.clone());
                let port = port(*addr, &outside, None);
                Port { scrapes, ..port }
            };
            tasks.spawn(serve(port, self.fatal.clone()));
        }
        let health = proxy::handler(self.board.clone(), self.metrics.clone());
        let binds = config.health_binds.iter();
        let servers = binds.map(|addr| port(*addr, &health, Some(&doors)));
        let servers = servers.collect();
        let pods = config.pod_health_port.map(|port| PodPort {
            port,
            board: self.board.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock,
            backoff: Policy::BIND.start(&mut self.rng),
            answers,
            closing: closing.clone(),
            doors: doors.clone(),
        });
        let ports = Ports {
            board: self.board,
            clock: self.clock,
            rng: SmallRng::from_rng(&mut self.rng),
            tables: taken,
            failures: failed,
            closing: closing.clone(),
            doors: doors.clone(),
        };
        let closed = spawn((servers, pods), self.fatal, ports, wanted)?;
        Ok(Opened {
            listens,
            tables,
            pod_answers,
            failures,
            doors,
            closing: Closing {
                ask: closing.drop_guard(),
                closed,
            },
        })
    }
}

/// Serves a port. With `fatal` a failure to bind is told there instead of only logged (S-129).
async fn serve(port: Port, fatal: Option<UnboundedSender<String>>) {
    let addr = port.addr;
    let failed = move |error: &io::Error| {
        tracing::warn!(
            "cannot listen on {addr}: {error}: it is tried again until whoever has it lets it go"
        );
        if let Some(fatal) = &fatal {
            let _ = fatal.send(format!("cannot listen on {addr}: {error}"));
        }
    };
    port.run(failed).await;
}

/// Runs the servers on a thread with a runtime of its own until `listens` is closed and they are; what comes back
/// ends with it.
fn spawn(
    (servers, pods): (Vec<Port>, Option<PodPort>),
    fatal: Option<UnboundedSender<String>>,
    ports: Ports,
    listens: watch::Receiver<BTreeSet<Listen>>,
) -> io::Result<oneshot::Receiver<()>> {
    let (alive, closed) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let work = async move {
        let _alive: oneshot::Sender<()> = alive;
        let mut open = JoinSet::new();
        for server in servers {
            open.spawn(serve(server, fatal.clone()));
        }
        if let Some(pods) = pods {
            let port = pods.port;
            let failed = move |error: &io::Error| {
                tracing::warn!(
                    "cannot listen on port {port} for pod health: {error}: it is tried again"
                );
            };
            open.spawn(pods.run(failed));
        }
        ports.run(listens).await;
        while open.join_next().await.is_some() {}
    };
    thread::Builder::new()
        .name("health".to_owned())
        .spawn(move || runtime.block_on(work))?;
    Ok(closed)
}
