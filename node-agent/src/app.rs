//! The state machine that ties everything together: takes watch steps, keeps the health answers
//! honest, plans a batch whenever the writer is idle and something changed, and acts on what came
//! of it. It waits for nothing itself; `run.rs` feeds it.
//!
//! Batching is adaptive (S-120): the first change is committed at once, and whatever comes while a
//! commit runs goes into the next one. There is no timer in that path.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::NodeTargetsStatus;
use onehop_core::id::ServiceKey;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::watch;

use crate::args::NodePortAddresses;
use crate::flows::{FlowCleaner, Servers};
use crate::guard::network::Network;
use crate::health::board::Board;
use crate::health::ports::{BindFailure, Listen};
use crate::health::wanted::WantedPorts;
use crate::http::Tables;
use crate::metrics::Metrics;
use crate::node;
use crate::notify::Notifier;
use crate::planner::{Batch, Planner};
use crate::ready::Readiness;
use crate::state::{Change, State};
use crate::table::element::{CommitFailure, ElementChange, ElementKey, Elements, Family, Frontend};
use crate::targets::Truth;
use crate::writer::{Order, Report, Writer, WriterGone};

/// First pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause after failures: upstream's sync period (S-120).
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Where the app's outputs go.
#[derive(Debug)]
pub struct Outlets {
    /// Health answers.
    pub board: Arc<Board>,
    /// Wanted health ports.
    pub listens: watch::Sender<BTreeSet<Listen>>,
    /// Whose the tables are: opens the ports.
    pub tables: watch::Sender<Tables>,
    /// Readiness.
    pub ready: watch::Sender<Readiness>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub notifier: Notifier,
    /// Clean-up of UDP flows.
    pub flows: FlowCleaner,
    /// The status of the own `NodeTargets` that is to be written; none when it says so already.
    pub targets: watch::Sender<Option<NodeTargetsStatus>>,
}

/// What the writer is doing.
#[derive(Debug)]
enum Work {
    /// Nothing: the tables have to be read (again) first.
    Unread,
    /// Reading the tables.
    Reading,
    /// Nothing.
    Idle,
    /// Committing; what becomes true with it.
    Committing(Flight),
}

/// What becomes true when a batch is in the kernel.
#[derive(Debug, Default)]
struct Flight {
    services: Vec<(ServiceKey, usize)>,
    udp: Servers,
    gone: BTreeSet<Frontend>,
    families: Vec<Family>,
    added: usize,
    removed: usize,
    full: bool,
    targets: Option<Truth>,
}

/// The agent's state machine.
#[derive(Debug)]
pub struct App {
    state: State,
    planner: Planner,
    writer: Writer,
    work: Work,
    out: Outlets,
    clock: Clock,
    wanted_addresses: NodePortAddresses,
    interfaces: Vec<IpAddr>,
    addresses: Vec<IpAddr>,
    health_ports: WantedPorts,
    /// What the kernel has of the own `NodeTargets`.
    truth: Option<Truth>,
    /// A batch must be planned although no Service is dirty.
    must_plan: bool,
    /// No batch was committed since the tables were read.
    full: bool,
    refused: BTreeSet<ElementKey>,
    pause: Duration,
    retry_at: Option<Time>,
}

impl App {
    /// Nothing is known yet; [`App::advance`] asks the writer for the tables.
    pub fn new(
        state: State,
        writer: Writer,
        out: Outlets,
        wanted_addresses: NodePortAddresses,
        clock: Clock,
    ) -> Self {
        Self {
            state,
            planner: Planner::new(Elements::new()),
            writer,
            work: Work::Unread,
            out,
            clock,
            wanted_addresses,
            interfaces: Vec::new(),
            addresses: Vec::new(),
            health_ports: WantedPorts::default(),
            truth: None,
            must_plan: true,
            full: true,
            refused: BTreeSet::new(),
            pause: PAUSE,
            retry_at: None,
        }
    }

    /// Takes one step of a watch. Health answers are lowered here, before anything is planned.
    pub fn change(&mut self, change: Change) {
        let count = match change {
            Change::Service(_) => Metrics::service_changed,
            Change::Slice(_) => Metrics::endpoints_changed,
            Change::Node(_) | Change::Targets(_) | Change::Pod(_) => |_: &Metrics| {},
        };
        for service in self.state.apply(change) {
            count(&self.out.metrics);
            self.lower(&service);
        }
        if self.state.take_node_changed() {
            self.node_changed();
        }
        self.say_truth();
    }

    /// The interfaces of the node have these addresses now (S-28).
    pub fn interfaces(&mut self, addresses: Vec<IpAddr>) {
        self.interfaces = addresses;
        self.resolve_addresses();
    }

    /// The node stands so in the fabric now (S-400).
    pub fn network(&mut self, network: Network) {
        for problem in &network.problems {
            tracing::warn!(problem, "targets on this node are not guarded");
        }
        if self.state.set_network(network) {
            self.state.guards().touch_all();
            self.must_plan = true;
            self.say_truth();
        }
    }

    /// A health port could not be opened; it is tried again by itself (S-105).
    pub fn bind_failed(&mut self, failure: &BindFailure) {
        tracing::warn!(service = %failure.listen.service, addr = %failure.listen.addr,
            error = %failure.error, "cannot open a health check node port");
        if let Some(service) = self.state.service(&failure.listen.service) {
            self.out.notifier.health_port_failed(service, failure);
        }
    }

    /// Takes what came of an order.
    pub fn report(&mut self, report: Report) {
        match report {
            Report::Tables(Ok(Some(elements))) => self.tables(elements),
            Report::Tables(Ok(None)) => self.standby(),
            Report::Tables(Err(failure)) | Report::Doubt(failure) => self.failed(failure),
            Report::Commit { result, took } => {
                let work = std::mem::replace(&mut self.work, Work::Idle);
                let Work::Committing(flight) = work else {
                    return;
                };
                match result {
                    Ok(()) => self.committed(flight, took),
                    Err(failure) => {
                        self.out.metrics.commit_failed(&flight.families);
                        self.failed(failure);
                    }
                }
            }
        }
    }

    /// Whether the writer has an order.
    pub fn is_busy(&self) -> bool {
        matches!(self.work, Work::Reading | Work::Committing(_))
    }

    /// When [`App::advance`] has something to do although nothing came in.
    pub fn next_look(&self) -> Option<Time> {
        // While the writer works, its report is what goes on from here.
        if self.is_busy() {
            return None;
        }
        let ends = self.state.next_guard_end();
        [self.retry_at, ends].into_iter().flatten().min()
    }

    /// Gives the writer its next order, if it is idle and there is one.
    pub fn advance(&mut self) -> Result<(), WriterGone> {
        self.state.guards().pass(self.clock.now());
        if self.state.synced() {
            // The first answer after a start shall be a true one, so ports open once it is known.
            if *self.out.ready.borrow() == Readiness::InSync
                && let Some(listens) = self.health_ports.take_changed()
            {
                self.out.metrics.health_ports(listens.len());
                self.out.listens.send_replace(listens);
            }
            if self.state.is_dirty() || self.must_plan {
                self.out.board.queued();
            }
        }
        let due = self.retry_at.is_none_or(|at| at <= self.clock.now());
        match self.work {
            Work::Unread if due => {
                self.retry_at = None;
                self.work = Work::Reading;
                self.writer.order(Order::ReadBack)
            }
            Work::Idle if self.state.synced() => {
                if due {
                    self.retry_refused();
                }
                self.plan()
            }
            _ => Ok(()),
        }
    }

    fn plan(&mut self) -> Result<(), WriterGone> {
        if !self.state.is_dirty() && !self.must_plan {
            return Ok(());
        }
        self.must_plan = false;
        let guards = self.state.compile_guards(self.clock.now());
        self.planner.guards(guards);
        self.planner.network(self.state.network_elements());
        let batch = self.planner.plan(&mut self.state, &self.addresses);
        self.tell(&batch);
        let Batch {
            change,
            services,
            udp,
            gone,
            ..
        } = batch;
        let flight = Flight {
            services,
            udp,
            gone,
            families: families(&change),
            added: change.add.len(),
            removed: change.remove.len(),
            full: std::mem::take(&mut self.full),
            targets: Some(self.state.targets_truth()),
        };
        if change.is_empty() {
            // Already as it should be, so nothing is sent (S-130).
            self.committed(flight, Duration::ZERO);
            return Ok(());
        }
        self.work = Work::Committing(flight);
        self.writer.order(Order::Commit(change))
    }

    fn committed(&mut self, flight: Flight, took: Duration) {
        for (service, ready) in &flight.services {
            if self.state.health_port(service).is_some() {
                let now = self.state.local_ready(service);
                self.out.board.raise(service, *ready, now);
            }
        }
        self.out.board.in_sync();
        let metrics = &self.out.metrics;
        if !flight.families.is_empty() {
            metrics.committed(&flight.families, flight.full, took, self.clock.now());
            metrics.elements(flight.added, flight.removed);
        }
        metrics.guards(self.state.guards().count());
        metrics.frontends(self.planner.frontends());
        let (internal, external) = self.planner.no_local();
        metrics.no_local_endpoints(internal, external);
        if self.state.is_dirty() {
            self.out.board.queued();
        } else {
            metrics.nothing_pending();
        }
        if self.refused.is_empty() {
            self.pause = PAUSE;
        }
        self.out
            .flows
            .clean(flight.udp, flight.gone, self.addresses.clone());
        self.truth = flight.targets;
        self.say_truth();
        self.set_ready(Readiness::InSync);
    }

    /// Says in the own `NodeTargets` what is true, where it does not say so. What came without touching a Service of
    /// ours needs no commit to be true.
    fn say_truth(&mut self) {
        if matches!(self.work, Work::Idle) && self.truth.is_some() && !self.state.is_dirty() {
            self.truth = Some(self.state.targets_truth());
        }
        let wish = match (&self.truth, self.state.own_targets()) {
            (Some(truth), Some(known)) => known.due(truth),
            _ => None,
        };
        self.out.targets.send_if_modified(|said| {
            let changed = *said != wish;
            *said = wish;
            changed
        });
    }

    fn tables(&mut self, elements: Elements) {
        tracing::info!(elements = elements.len(), "kernel tables read");
        self.out.tables.send_replace(Tables::Ours);
        if !self.refused.is_empty() {
            self.out.metrics.repaired("refused");
            self.retry_later();
        }
        self.state.guards().inherit(&elements);
        self.planner.restart(elements, &self.refused);
        self.state.touch_all();
        self.must_plan = true;
        self.full = true;
        self.work = Work::Idle;
    }

    fn standby(&mut self) {
        tracing::info!("another agent has this node's tables: in standby until it ends");
        self.set_ready(Readiness::Standby);
        self.work = Work::Unread;
        self.retry_at = Some(self.clock.now() + PAUSE);
    }

    fn failed(&mut self, failure: CommitFailure) {
        tracing::error!(error = %failure, "the kernel did not take everything");
        if failure.standby {
            self.standby();
            return;
        }
        // Frontends that were refused are left out of the next try, which can come at once.
        let progress = !failure.refused.is_subset(&self.refused);
        self.refused.extend(failure.refused);
        self.work = Work::Unread;
        if progress {
            self.retry_at = None;
        } else {
            self.retry_later();
        }
    }

    fn retry_later(&mut self) {
        self.retry_at = Some(self.clock.now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn retry_refused(&mut self) {
        self.retry_at = None;
        self.refused.clear();
        for service in self.planner.retry_refused() {
            self.state.touch(service);
        }
    }

    /// Lowers the health answer of a Service to what is true now, and notes its health port.
    fn lower(&mut self, service: &ServiceKey) {
        let port = self.state.health_port(service);
        let had_one = self.health_ports.set(service, port);
        if port.is_some() {
            let ready = self.state.local_ready(service);
            self.out.board.lower(service, ready);
        } else if had_one {
            self.out.board.forget(service);
        }
    }

    fn node_changed(&mut self) {
        let seen = self.state.node();
        let gone = seen.is_some() && !self.state.node_exists();
        // Before the first Node event: eligible (S-111).
        let eligible = !gone && seen.is_none_or(node::is_eligible);
        self.out.board.set_node_eligible(eligible);
        self.resolve_addresses();
    }

    fn resolve_addresses(&mut self) {
        let node = self.state.node();
        let wanted = &self.wanted_addresses;
        let addresses = node::nodeport_addresses(wanted, node, &self.interfaces);
        self.health_ports
            .set_addresses(node::health_addresses(wanted, &addresses));
        if addresses != self.addresses {
            tracing::info!(?addresses, "NodePorts answer on these addresses");
            self.addresses = addresses;
            self.must_plan = true;
        }
    }

    fn tell(&self, batch: &Batch) {
        for (key, notices) in &batch.notices {
            if let Some(service) = self.state.service(key) {
                self.out.notifier.notices(service, notices);
            }
        }
    }

    fn set_ready(&self, ready: Readiness) {
        self.out.ready.send_if_modified(|state| {
            let changed = *state != ready;
            *state = ready;
            changed
        });
    }
}

/// The families that a change touches.
fn families(change: &ElementChange) -> Vec<Family> {
    let touched: BTreeSet<Family> = change
        .add
        .keys()
        .chain(&change.remove)
        .map(|(family, ..)| *family)
        .collect();
    touched.into_iter().collect()
}
