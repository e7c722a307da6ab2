//! The reconciler: a queue of shards, a bounded number of passes side by side, lanes that run on.
//!
//! A pass (`pass`) looks at the cloud, plans, starts lanes and says how things stand; it decides nothing
//! that is not decided in pure code. Nothing starts before every cache is full and everything of ours in
//! the cloud was listed (I1, I6).

mod addresses;
mod advice;
mod agentless;
mod cases;
mod changed;
mod clean;
mod custody;
mod gates;
mod injection;
mod lanes;
mod late_flows;
mod memory;
mod nodes;
mod nodes_for_pods;
mod pace;
mod pass;
mod pod_health;
mod pools;
mod proxied;
mod queue;
mod rights;
mod say;
mod second_look;
mod standing;

pub use gates::Gates;
pub use pools::LEVELS as POOL_LEVELS;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Publisher, Severity};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::addresses::Stamp;
use self::changed::Changes;
use self::lanes::Lanes;
use self::memory::Memory;
use self::pace::Due;
use self::queue::Queue;
use self::standing::Totals;
use crate::cloud::AddressBook;
use crate::cloud::local::resolve::NodeProxy;
use crate::index::{Index, Touched};
use crate::lease::Fence;
use crate::metrics::Measures;
use crate::node_targets::{Ranges, Register};
use crate::plan::{Existing, MissingRight, Provider, Tails};
use crate::policy::Policies;
use crate::presence::Presence;
use crate::snapshot::{Claim, Standing};
use crate::writes::Writer;

/// How the reconciler behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which Services are ours.
    pub claim: Claim,
    /// What their annotations may ask for (K-60).
    pub policies: Policies,
    /// Passes side by side.
    pub workers: usize,
    /// Between two full looks at a shard that is at rest, for drift.
    pub sweep: Duration,
    /// How long an unexplained mass removal waits for its second look (K-33).
    pub second_look: Duration,
    /// What to do with cloud objects of ours whose Service is gone (C-123).
    pub orphans: Orphans,
    /// Ranges of pods and nodes given by hand; those that are empty are read from the Nodes.
    pub ranges: Ranges,
    /// How long such an object is only reported before it may be deleted.
    pub orphan_grace: Duration,
    /// How agents answer for the health of pods; none: they do not.
    pub pod_health: Option<PodHealth>,
    /// How readiness gates of pods are turned; none: they are not.
    pub gates: Option<Gates>,
    /// Who forwards on the nodes.
    pub proxy: NodeProxy,
    /// How far the tails that agents have seen may shorten those of Services (ZD-83).
    pub tails: Tails,
}

/// How agents answer for the health of pods (K-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodHealth {
    /// Port of every node.
    pub port: u16,
    /// How long a Service waits for the agents of its nodes before its pods are asked themselves.
    pub wait: Duration,
}

/// What to do with cloud objects of ours whose Service is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// Report them.
    Report,
    /// Delete them.
    Delete,
}

/// What is known of a shard that the listing at start has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suspicion {
    /// Nobody has looked yet whose it is.
    Open,
    /// No Service wants it, as has been known since then.
    Orphan(Time),
}

/// How far the reconciler has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It still waits for the first list of these kinds.
    Listing(Vec<&'static str>),
    /// It reconciles.
    Working,
}

/// How long a first list may take before it is said that it is waited for.
const LISTED_WITHIN: Duration = Duration::from_secs(5);
/// How long a start waits at most for the list of what nodes were told.
const NODES_LISTED_WITHIN: Duration = Duration::from_secs(5);

/// Everything passes share.
pub struct Reconciler<P: Provider> {
    provider: P,
    client: Client,
    clock: Clock,
    fence: Fence,
    settings: Settings,
    writer: Writer,
    events: Publisher,
    measures: Measures,
    index: Mutex<Index>,
    book: Mutex<AddressBook>,
    queue: Mutex<Queue<P::Shard>>,
    lanes: Mutex<HashMap<P::Shard, Arc<Mutex<Lanes>>>>,
    memory: Mutex<HashMap<P::Shard, Memory<P>>>,
    suspects: Mutex<BTreeMap<P::Shard, Suspicion>>,
    /// Services that were refused an address.
    waiting: Mutex<BTreeMap<ServiceKey, Stamp>>,
    /// Addresses that others have in the cloud: until when they are not asked for, and how long that is.
    taken: Mutex<BTreeMap<IpAddr, (Time, Duration)>>,
    rng: Mutex<SmallRng>,
    wake: Notify,
    synced: Notify,
    register: Mutex<Register>,
    /// Ranges of pods and nodes as nodes were last told.
    ranges_said: Mutex<Ranges>,
    due_nodes: Mutex<Due>,
    nodes_wake: Notify,
    /// Hears whenever a node has been told something.
    told: watch::Sender<()>,
    pools_changed: Notify,
    presence: Mutex<Presence>,
    /// Services that wait for agents which answer for their pods, since when (K-24).
    silent: Mutex<BTreeMap<ServiceKey, Time>>,
    /// Services that wait for agents which proxy them on nodes (ZD-75).
    unproxied: Mutex<BTreeSet<ServiceKey>>,
    /// Targets of all shards, counted.
    totals: Mutex<Totals<P::Shard>>,
    /// Rights in the cloud that are missing.
    rights: Mutex<Vec<MissingRight>>,
    /// The object that stands for the install in events.
    install: Option<ObjectReference>,
}

/// What the reconciler is made of.
pub struct Parts<P> {
    /// The cloud.
    pub provider: P,
    /// The API server.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// The right to write.
    pub fence: Fence,
    /// Events.
    pub events: Publisher,
    /// Metrics.
    pub measures: Measures,
    /// For jitter.
    pub rng: SmallRng,
    /// The object that stands for the install in events, if there is one.
    pub install: Option<ObjectReference>,
}

/// Locks; what a panicking thread left behind is whole, since no critical section can panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Provider> Reconciler<P> {
    /// A reconciler that has yet to be run.
    pub fn new(parts: Parts<P>, settings: Settings) -> Arc<Self> {
        let (install, tails) = (&settings.claim.install, settings.tails);
        Arc::new(Self {
            writer: Writer::new(parts.client.clone(), parts.fence.clone(), install),
            provider: parts.provider,
            client: parts.client,
            clock: parts.clock,
            fence: parts.fence,
            settings,
            events: parts.events,
            measures: parts.measures,
            index: Mutex::default(),
            book: Mutex::default(),
            queue: Mutex::default(),
            lanes: Mutex::default(),
            memory: Mutex::default(),
            suspects: Mutex::default(),
            waiting: Mutex::default(),
            taken: Mutex::default(),
            rng: Mutex::new(parts.rng),
            wake: Notify::new(),
            synced: Notify::new(),
            register: Mutex::new(Register::new(tails)),
            ranges_said: Mutex::default(),
            due_nodes: Mutex::default(),
            nodes_wake: Notify::new(),
            told: watch::Sender::default(),
            pools_changed: Notify::new(),
            presence: Mutex::default(),
            silent: Mutex::default(),
            unproxied: Mutex::default(),
            totals: Mutex::default(),
            rights: Mutex::default(),
            install: parts.install,
        })
    }

    /// Takes in what a watch has shown.
    pub fn take_in(&self, change: impl FnOnce(&mut Index) -> Touched) {
        let (touched, synced, everything) = {
            let mut index = lock(&self.index);
            let (agents, offers) = (index.agents_version(), index.offers_version());
            let touched = change(&mut index);
            if index.agents_version() != agents {
                self.note_agents(&index);
            }
            let everything = touched == Touched::All;
            let mut services = match touched {
                Touched::Services(services) => services,
                Touched::All => {
                    self.pools_changed.notify_one();
                    self.concerned(&index)
                }
            };
            if index.offers_version() != offers {
                services.extend(lock(&self.silent).keys().cloned());
                services.extend(lock(&self.unproxied).iter().cloned());
            }
            (services, index.is_synced(), everything)
        };
        if everything {
            // A node came or went, perhaps.
            self.gone_nodes_due();
        }
        if synced {
            self.synced.notify_one();
        }
        for service in touched {
            self.touch_service(&service);
        }
    }

    /// Runs until `stop`: fills its caches, waits until it is `elected`, reads what the cloud has, and
    /// reconciles. `tell` hears how far it has come.
    pub async fn run(
        self: &Arc<Self>,
        stop: &CancellationToken,
        elected: impl Future<Output = ()>,
        tell: impl Fn(Progress),
    ) {
        // Ends with this.
        let mut rights = JoinSet::new();
        let started = async {
            while !lock(&self.index).is_synced() {
                tokio::select! {
                    () = self.synced.notified() => {}
                    () = self.clock.sleep(LISTED_WITHIN) => {
                        let missing = lock(&self.index).missing();
                        tell(Progress::Listing(missing));
                    }
                }
            }
            elected.await;
            self.nodes_listed().await;
            let this = Arc::clone(self);
            rights.spawn(async move { this.keep_rights().await });
            // After the election: what the last leader did is seen before anything is written.
            self.restore(self.list_everything().await);
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = started => {}
        }
        tell(Progress::Working);
        let nodes = tokio::spawn(Arc::clone(self).tell_nodes(stop.clone()));
        tokio::select! {
            () = self.drive(stop) => {}
            () = self.keep_pools() => {}
            () = self.keep_gates() => {}
            () = self.keep_tidy() => {}
        }
        nodes.abort();
    }

    /// Waits until it is known what nodes were told: who is held, since when, and whose agent stands in for pods that are
    /// gone (ZD-81). Not for ever, since a cluster may not know the kind (K-26).
    async fn nodes_listed(&self) {
        let until = self.clock.now() + NODES_LISTED_WITHIN;
        while !lock(&self.index).node_targets_synced() && self.clock.now() < until {
            tokio::select! {
                () = self.synced.notified() => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// Has put right what no shard is about, at each sweep.
    async fn keep_tidy(&self) {
        loop {
            let at = self.next_sweep(self.clock.now());
            self.clock.sleep_until(at).await;
            if let Err(error) = self.provider.tidy(&self.fence).await {
                tracing::warn!(%error, "what no Service is about is not put right yet");
            }
        }
    }

    /// Lists everything of ours in the cloud, for as long as it takes.
    async fn list_everything(&self) -> Vec<Existing<P::Shard>> {
        let mut backoff = Policy::RETRY.start(&mut lock(&self.rng));
        loop {
            match self.provider.inventory().await {
                Ok(existing) => return existing,
                Err(error) => {
                    tracing::warn!(%error, "cannot list what is in the cloud, trying again");
                    self.clock.sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Notes every address in use before the first new one is given (C-25), and queues every shard.
    fn restore(&self, existing: Vec<Existing<P::Shard>>) {
        let concerned = {
            let index = lock(&self.index);
            self.restore_addresses(&index, &existing);
            self.concerned(&index)
        };
        self.pass_on_news();
        for entry in existing {
            lock(&self.suspects).insert(entry.shard.clone(), Suspicion::Open);
            self.touch(&entry.shard);
        }
        for service in &concerned {
            self.touch_service(service);
        }
        let first = self.changed_shards(&concerned);
        lock(&self.queue).put_first(&first, self.clock.now());
    }

    /// Shards of Services that have changed since anything was written last (AWS-424).
    fn changed_shards(&self, concerned: &[ServiceKey]) -> BTreeSet<P::Shard> {
        let index = lock(&self.index);
        let changes = Changes::of(&index, &self.settings.claim.install);
        let changed = concerned.iter().filter(|key| {
            changes.has(key, |service, object| {
                let last_good = Some(&object.spec);
                self.provider.resolve(&service.spec, last_good).spec
            })
        });
        changed.flat_map(|key| self.provider.shards(key)).collect()
    }

    /// Every Service that is ours, was ours, or has an object of ours.
    fn concerned(&self, index: &Index) -> Vec<ServiceKey> {
        let claim = &self.settings.claim;
        let services = index.services().filter(|service| {
            let object = index.balancer(&service.spec.key).map(AsRef::as_ref);
            claim.standing(&service.spec, object) != Standing::Foreign
        });
        let objects = index.balancers().filter(|(_, object)| claim.made(object));
        let mut keys: Vec<_> = services.map(|s| s.spec.key.clone()).collect();
        keys.extend(objects.map(|(key, _)| key));
        keys
    }

    /// Publishes an event about a Service.
    fn tell(&self, service: &ServiceSpec, severity: Severity, reason: &'static str, text: &str) {
        crate::events::publish(&self.events, service, severity, reason, text);
    }

    fn touch_service(&self, service: &ServiceKey) {
        for shard in self.provider.shards(service) {
            self.touch(&shard);
        }
    }

    fn touch(&self, shard: &P::Shard) {
        lock(&self.queue).touch(shard, self.clock.now());
        self.wake.notify_one();
    }

    async fn drive(self: &Arc<Self>, stop: &CancellationToken) {
        let mut passes = JoinSet::new();
        loop {
            while passes.len() < self.settings.workers {
                let Some(shard) = lock(&self.queue).pop(self.clock.now()) else {
                    break;
                };
                let this = Arc::clone(self);
                passes.spawn(async move { this.one_pass(shard).await });
            }
            let next = lock(&self.queue).next_due();
            let full = passes.len() >= self.settings.workers;
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = passes.join_next(), if !passes.is_empty() => {}
                () = self.wake.notified(), if !full => {}
                () = self.until(next), if !full => {}
            }
            let depth = lock(&self.queue).depth();
            self.measures
                .queue
                .set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
        // The fence is down by now: passes end at their next call.
        while passes.join_next().await.is_some() {}
    }

    async fn until(&self, next: Option<Time>) {
        match next {
            Some(at) => self.clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    async fn one_pass(self: &Arc<Self>, shard: P::Shard) {
        let start = self.clock.now();
        let mut memory = lock(&self.memory).remove(&shard).unwrap_or_default();
        let again = self.pass(&shard, &mut memory).await;
        self.measures.passes.inc();
        let now = self.clock.now();
        let mut queue = lock(&self.queue);
        queue.finished(&shard, now, now.since(start), again);
        if again.is_some() || !memory.is_empty() {
            lock(&self.memory).insert(shard, memory);
        } else {
            queue.forget(&shard);
            lock(&self.lanes).remove(&shard);
        }
    }

    fn lanes_of(&self, shard: &P::Shard) -> Arc<Mutex<Lanes>> {
        Arc::clone(lock(&self.lanes).entry(shard.clone()).or_default())
    }

    /// The time of the next slow look, jittered so that shards spread.
    fn next_sweep(&self, now: Time) -> Time {
        let factor = lock(&self.rng).random_range(0.75..1.25);
        now + self.settings.sweep.mul_f64(factor)
    }

    fn fork_rng(&self) -> SmallRng {
        SmallRng::from_rng(&mut *lock(&self.rng))
    }
}
