//! The state machine that ties everything together: takes watch steps, keeps the health answers
//! honest, plans a batch whenever the writer is idle and something changed, and acts on what came
//! of it. It waits for nothing itself; `run.rs` feeds it.
//!
//! Batching is adaptive (S-120): the first change is committed at once, and whatever comes while a
//! commit runs goes into the next one. There is no timer in that path.

mod kept;
mod peers;
mod place;
mod reports;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::{NodeTargetsStatus, ServiceRef};
use onehop_core::health::LocalReady;
use onehop_core::id::{Frontend, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::{oneshot, watch};

use crate::args::{Mode, NodePortAddresses};
use crate::dump;
use crate::flows::{self, FlowCleaner};
use crate::guard::Ended;
use crate::health::board::Board;
use crate::health::pods::Answers;
use crate::health::ports::{BindFailure, Listen};
use crate::health::wanted::WantedPorts;
use crate::http::Tables;
use crate::metrics::Metrics;
use crate::node::Eligibility;
use crate::node_file::{Keeper, NodeFile};
use crate::notify::Notifier;
use crate::peer::{Peer, Stand};
use crate::planner::{self, Batch, Planner};
use crate::questions::Question;
use crate::ready::Readiness;
use crate::state::{Change, State};
use crate::sys::links::Links;
use crate::table::element::{Data, ElementChange, ElementKey, Elements, Family};
use crate::table::layout::Ranges;
use crate::tails::Tails;
use crate::targets::Truth;
use crate::writer::{Commit, Order, Writer, WriterGone};

/// First pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// In standby, between looks whether the other agent has let go of the tables: nobody changes them from then on until this
/// one does. A look costs the kernel microseconds.
const STANDBY: Duration = Duration::from_millis(50);
/// Longest time, after another agent has let go of the tables, that this one leaves the answers to it: it is to answer what
/// is true from the first on, and the other one waits for longer (ZD-36).
const FOLLOW: Duration = Duration::from_secs(5);
/// Between comparisons of the tables with what they should hold (S-264).
const VERIFY: Duration = Duration::from_hours(1);
/// Two changes by others within this time are a fight (S-262).
const FIGHT: Duration = Duration::from_mins(1);
/// Longest pause after failures: upstream's sync period (S-120).
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// After a change, until health answers are kept: many changes at once are kept once.
const KEEP: Duration = Duration::from_millis(500);
/// About so many Services go in one batch of a first load or a flood. It bounds what a batch takes of memory, and what a
/// change on its own waits for (S-120, S-133).
const AT_ONCE: usize = 1000;

/// Where the app's outputs go.
#[derive(Debug)]
pub struct Outlets {
    /// Health answers.
    pub board: Arc<Board>,
    /// Wanted health ports.
    pub listens: watch::Sender<BTreeSet<Listen>>,
    /// Whose the tables are: opens the ports.
    pub tables: watch::Sender<Tables>,
    /// The same for the port of pod health, once there are answers to give.
    pub pod_answers: watch::Sender<Tables>,
    /// Readiness.
    pub ready: watch::Sender<Readiness>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Events.
    pub notifier: Notifier,
    /// Clean-up of UDP flows.
    pub flows: FlowCleaner,
    /// How long flows came to targets that were let go.
    pub tails: Tails,
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
    Committing(Box<Flight>),
}

/// What becomes true when a batch is in the kernel.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one thing that goes with it or not"
)]
#[derive(Debug, Default)]
struct Flight {
    services: Vec<(ServiceKey, LocalReady)>,
    pods: Vec<(Frontend, Answers)>,
    /// Everything was known that answers for pods follow from.
    pods_known: bool,
    flows: flows::Task,
    families: Vec<Family>,
    added: usize,
    removed: usize,
    /// Guards begin with it whose evidence was seen then.
    guarded: Option<Time>,
    ended: Vec<Ended>,
    full: bool,
    targets: Option<Truth>,
    ranges: Option<Ranges>,
    take_over: bool,
    triggers: Vec<(Family, Time)>,
    verified: Option<Verification>,
    /// The next batch has more of what was known already.
    more: bool,
}

/// What the batches took that belong together.
#[derive(Debug, Default)]
struct Sync {
    took: Duration,
    families: BTreeSet<Family>,
}

/// The tables were read back to compare them (S-264).
#[derive(Debug, Default)]
struct Verification {
    /// Elements that were not as they should be.
    differed: usize,
    /// Who asked for it.
    asked: Vec<oneshot::Sender<usize>>,
}

/// The agent's state machine.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one thing that is due or was seen"
)]
#[derive(Debug)]
pub struct App {
    state: State,
    planner: Planner,
    writer: Writer,
    work: Work,
    out: Outlets,
    clock: Clock,
    wanted_addresses: NodePortAddresses,
    eligibility: Eligibility,
    node_address: Option<IpAddr>,
    interfaces: Vec<IpAddr>,
    links: Links,
    addresses: Vec<IpAddr>,
    health_ports: WantedPorts,
    peer: Peer,
    keeper: Keeper,
    /// What an earlier process kept, until the tables are read.
    file: Option<NodeFile>,
    /// Services whose answers come from there.
    kept: Vec<ServiceKey>,
    /// All lists were complete once.
    seen_all: bool,
    started: Time,
    /// When somebody else changed our tables last.
    tampered: Option<Time>,
    /// The tables have to be read again after what is under way.
    reread: bool,
    /// When the tables are compared again.
    verify_at: Time,
    /// Who asked for it to be done now.
    verify_for: Vec<oneshot::Sender<usize>>,
    /// What the next batch mends was found by a comparison.
    verifying: Option<Verification>,
    /// The ranges for which the static part was made.
    ranges: Option<Ranges>,
    /// What the kernel has of the own `NodeTargets`.
    truth: Option<Truth>,
    /// A batch must be planned although no Service is dirty.
    must_plan: bool,
    /// Not everything was committed since the tables were read.
    full: bool,
    /// Everything was committed once.
    loaded: bool,
    /// The batches of the sync that is under way.
    sync: Sync,
    /// When what is true is kept for the next process.
    keep_at: Option<Time>,
    /// When the first evidence was seen that waits to be compiled.
    evidence: Option<Time>,
    /// When this agent answers at the latest, while the one before it still does.
    answer_at: Option<Time>,
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
            eligibility: Eligibility::default(),
            node_address: None,
            interfaces: Vec::new(),
            links: Links::default(),
            addresses: Vec::new(),
            health_ports: WantedPorts::default(),
            peer: Peer::new(Mode::Beside, false),
            keeper: Keeper::default(),
            file: None,
            kept: Vec::new(),
            seen_all: false,
            started: clock.now(),
            tampered: None,
            reread: false,
            verify_at: clock.now() + VERIFY,
            verify_for: Vec::new(),
            verifying: None,
            ranges: None,
            truth: None,
            must_plan: true,
            full: true,
            loaded: false,
            sync: Sync::default(),
            keep_at: None,
            evidence: None,
            answer_at: None,
            refused: BTreeSet::new(),
            pause: PAUSE,
            retry_at: None,
        }
    }

    /// The node's own address, where it is not the one that the Node object names first.
    #[must_use]
    pub fn with_node_address(mut self, address: Option<IpAddr>) -> Self {
        self.node_address = address;
        self
    }

    /// What keeps the node from new load balancer traffic, where it is not the default.
    #[must_use]
    pub fn with_eligibility(mut self, eligibility: Eligibility) -> Self {
        self.eligibility = eligibility;
        self
    }

    /// Keeps health answers over restarts, and has those that an earlier process kept.
    #[must_use]
    pub fn with_node_file(mut self, keeper: Keeper, file: Option<NodeFile>) -> Self {
        self.keeper = keeper;
        self.file = file;
        self
    }

    /// How a kube-proxy on the node is dealt with; without this it is not looked for.
    #[must_use]
    pub fn with_peer(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    /// Takes one step of a watch. Health answers are lowered here, before anything is planned.
    pub fn change(&mut self, change: Change) {
        let count = match change {
            Change::Service(_) => Metrics::service_changed,
            Change::Slice(_) => Metrics::endpoints_changed,
            Change::Node(_) | Change::Targets(_) | Change::ServiceCidr(_) | Change::Pod(_) => {
                |_: &Metrics| {}
            }
        };
        let touched = self.state.apply(change);
        for _ in &touched {
            count(&self.out.metrics);
        }
        // Half a list is no reason to lower an answer that was kept (I1, S-109).
        if self.state.synced() {
            let first = !std::mem::replace(&mut self.seen_all, true);
            let all = first.then(|| self.state.keys().cloned().collect::<Vec<_>>());
            let kept = std::mem::take(&mut self.kept);
            for service in touched
                .into_iter()
                .chain(all.into_iter().flatten())
                .chain(kept)
            {
                self.lower(&service);
            }
        }
        if self.state.take_node_changed() {
            self.node_changed();
        }
        if self.state.guards().is_dirty() {
            self.evidence.get_or_insert(self.clock.now());
        }
        self.say_truth();
    }

    /// A health port could not be opened; it is tried again by itself (S-105).
    pub fn bind_failed(&mut self, failure: &BindFailure) {
        tracing::warn!(service = %failure.listen.service, addr = %failure.listen.addr,
            error = %failure.error, "cannot open a health check node port");
        if let Some(service) = self.state.service(&failure.listen.service) {
            self.out.notifier.health_port_failed(service, failure);
        }
    }

    /// Whether something that is known is not in the kernel yet.
    fn is_behind(&self) -> bool {
        self.state.is_dirty() || self.planner.is_behind()
    }

    /// Whether the writer has an order.
    pub fn is_busy(&self) -> bool {
        matches!(self.work, Work::Reading | Work::Committing(_))
    }

    /// When [`App::advance`] has something to do although nothing came in.
    pub fn next_look(&self) -> Option<Time> {
        // While the writer works, its report is what goes on from here.
        let idle = !self.is_busy();
        let own = [
            self.retry_at,
            self.state.next_guard_end(),
            self.state.next_window_end(),
            self.state.next_handover(),
            Some(self.verify_at),
            self.answer_at,
            self.keep_at.filter(|_| self.may_keep()),
        ];
        let own = own.into_iter().filter(|_| idle).flatten();
        own.chain(self.peer.next_look()).min()
    }

    /// Whether what is known is what the kernel holds.
    fn may_keep(&self) -> bool {
        matches!(self.work, Work::Idle) && !self.is_behind()
    }

    /// Gives the writer its next order, if it is idle and there is one.
    pub fn advance(&mut self) -> Result<(), WriterGone> {
        self.state.guards().pass(self.clock.now());
        let (planner, peer) = (&self.planner, &self.peer);
        let looks = peer.looks();
        self.state.pass_windows(self.clock.now());
        self.state.pass_handovers(self.clock.now(), looks, |key| {
            planner.fronts(key).any(|front| peer.serves(&front))
        });
        if self
            .peer
            .next_look()
            .is_some_and(|at| at <= self.clock.now())
        {
            self.settle_claims();
        }
        if self.state.synced() {
            // The first answer after a start shall be a true one, so ports open once it is known.
            if *self.out.ready.borrow() == Readiness::InSync {
                self.open_health_ports();
            }
            let waiting = self.is_behind() || self.must_plan;
            if waiting && self.out.board.queued() {
                self.out.metrics.queued(self.clock.now());
            }
        }
        let now = self.clock.now();
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer();
        }
        if self.keep_at.is_some_and(|at| at <= now) && self.may_keep() {
            self.keep_at = None;
            self.keeper.keep(|| self.node_file());
        }
        let verify = matches!(self.work, Work::Idle) && self.verify_at <= now;
        if verify {
            let asked = std::mem::take(&mut self.verify_for);
            self.verifying = Some(Verification { differed: 0, asked });
        }
        if verify || (std::mem::take(&mut self.reread) && !self.is_busy()) {
            self.work = Work::Unread;
        }
        let due = self.retry_at.is_none_or(|at| at <= now);
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
        let ranges = Some(self.state.ranges()).filter(|now| Some(now) != self.ranges.as_ref());
        let stand = self.peer.stand(self.clock.now());
        self.out.board.set_refused(stand == Stand::Refuse);
        if stand == Stand::Refuse {
            self.set_ready(Readiness::Starting);
            return Ok(());
        }
        let take_over = stand == Stand::TakeOver;
        let due = self.is_behind() || self.must_plan || take_over;
        if !due && ranges.is_none() {
            return Ok(());
        }
        self.must_plan = false;
        self.state.settle_windows(self.clock.now());
        let pods_known = self.state.guards().ready();
        let guards = self.state.compile_guards(self.clock.now());
        let evidence = self.evidence.take();
        let begun = self.state.guards().take_begun() > 0;
        let answers = guards
            .iter()
            .filter_map(|g| Some((g.key, g.answers.clone()?)));
        let pods: Vec<_> = answers.collect();
        for (key, answers) in &pods {
            self.out.board.lower_pods(key, answers);
        }
        self.planner.guards(guards);
        self.planner.network(self.state.network_elements());
        // What was there once, or takes another's place, comes back as a whole (S-127, S-261).
        let whole = take_over || (self.full && self.loaded);
        let limit = if whole { usize::MAX } else { AT_ONCE };
        let addresses = &self.addresses;
        let batch = self.planner.plan(&mut self.state, addresses, limit);
        self.tell(&batch);
        let Batch {
            change,
            services,
            udp,
            gone,
            more,
            ..
        } = batch;
        let full = self.full;
        self.full &= more;
        let flows = flows::Task {
            servers: udp,
            gone,
            fresh: if full {
                planner::tcp_frontends(&change.add)
            } else {
                BTreeSet::new()
            },
            node_addresses: self.addresses.clone(),
        };
        let flight = Flight {
            services,
            pods,
            pods_known,
            flows,
            families: families(&change),
            added: change.add.len(),
            removed: change.remove.len(),
            guarded: evidence.filter(|_| begun),
            ended: self.state.guards().take_ended(),
            full,
            targets: (!more).then(|| self.truth_now()),
            ranges: ranges.clone(),
            take_over,
            triggers: if more {
                Vec::new()
            } else {
                self.state.take_triggers()
            },
            verified: self.verified(&change),
            more,
        };
        if change.is_empty() && ranges.is_none() && !take_over {
            // Already as it should be, so nothing is sent (S-130).
            self.committed(flight, Duration::ZERO);
            return Ok(());
        }
        self.work = Work::Committing(Box::new(flight));
        let commit = Commit {
            ranges,
            take_over,
            change,
        };
        self.writer.order(Order::Commit(Box::new(commit)))
    }

    /// What a comparison of the tables found, if this change is what it leads to.
    fn verified(&mut self, change: &ElementChange) -> Option<Verification> {
        let mut verified = self.verifying.take()?;
        verified.differed = differing(change);
        if verified.differed > 0 {
            self.out.metrics.repaired("verify");
            let elements = verified.differed;
            tracing::warn!(
                elements,
                "the kernel's tables were not as they should be; mending them"
            );
        }
        Some(verified)
    }

    /// From here on this agent answers for its node.
    fn answer(&mut self) {
        self.answer_at = None;
        self.out.tables.send_if_modified(|tables| {
            let before = std::mem::replace(tables, Tables::Ours);
            before != Tables::Ours
        });
    }

    fn open_health_ports(&mut self) {
        if let Some(listens) = self.health_ports.take_changed() {
            self.out.metrics.health_ports(listens.len());
            self.out.listens.send_replace(listens);
        }
    }

    /// Lets go of the tables and says nothing more about this node; from here on answers are only lowered, by
    /// [`App::change`]. What comes back waits until the tables are free. Blocking.
    pub fn leave(&mut self) -> impl FnOnce() + Send + use<> {
        self.truth = None;
        self.say_truth();
        self.set_ready(Readiness::Starting);
        self.writer.close()
    }

    /// Answers what somebody asks on the node.
    pub fn asked(&mut self, question: Question) {
        match question {
            Question::Services { only, answer } => {
                // Who asked may have gone.
                let _ = answer.send(dump::text(&self.state, &self.planner, only.as_ref()));
            }
            Question::Verify { answer } => {
                self.verify_for.push(answer);
                self.verify_at = self.clock.now();
            }
        }
    }

    /// Says in the own `NodeTargets` what is true, where it does not say so. What came without touching a Service of
    /// ours needs no commit to be true.
    fn say_truth(&mut self) {
        if matches!(self.work, Work::Idle) && self.truth.is_some() && !self.is_behind() {
            self.truth = Some(self.truth_now());
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

    /// What is true of the agent now.
    fn truth_now(&self) -> Truth {
        let installs = self.state.installs().values();
        let listed = |service: &ServiceRef| {
            let mut targets = installs.clone().flat_map(|install| &install.targets);
            targets.any(|target| target.service == *service)
        };
        Truth {
            tails: self.out.tails.longest(listed),
            ..self.state.targets_truth()
        }
    }

    /// Lowers the health answer of a Service to what is true now, and notes its health ports.
    fn lower(&mut self, service: &ServiceKey) {
        let ports = self.state.health_ports(service);
        let answers = !ports.is_empty();
        let had_one = self.health_ports.set(service, ports);
        if answers {
            let ready = self.state.local_ready(service);
            self.out.board.lower(service, &ready);
            if !self.state.holds(service) {
                self.out.board.hold(service, false);
            }
        } else if had_one {
            self.out.board.forget(service);
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

/// How many elements a change mends. What is left of a life time is never quite what was reckoned.
fn differing(change: &ElementChange) -> usize {
    let timed = |data: &Option<Data>| matches!(data, Some(Data::Timed(..) | Data::Until(_)));
    let refreshed = |key, data| timed(data) && change.remove.contains(key);
    let added = change
        .add
        .iter()
        .filter(|(key, data)| !refreshed(key, data));
    let removed = change.remove.iter();
    let removed = removed.filter(|key| !change.add.contains_key(key));
    added.count() + removed.count()
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
