//! What the controller asks of a cloud.
//!
//! One implementation per cloud under `cloud/`. Planning is pure and synchronous, observing and
//! executing are the only I/O. Methods that do I/O return `impl Future + Send` (an `async fn` in a
//! public trait promises no `Send`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::crd::{
    AddressPool, AddressPoolStatus, ClientIp, HealthCheck, LoadBalancerPort, LoadBalancerSpec,
    SERVICE_FINALIZER,
};
use onehop_core::id::{Cidr, IpFamily, PortKey, Protocol, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use super::custody::{Custody, Release};
use super::membership::{Action, CloudState, Decision, MassRemoval};
use super::{Intent, Listed, Machine, Plan, Step};
use crate::cloud::{AddressBook, CloudError, Holder, Source};
use crate::lease::Fence;
use crate::policy::Policy;

/// How much of a shard to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Only the targets of groups that are known.
    Members,
    /// Everything that carries our tags for this shard.
    Full,
}

/// How to look: with what was seen last, so that ids need not be found again.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a, O> {
    /// How much.
    pub depth: Depth,
    /// The last observation of this shard, if this process has made one.
    pub last: Option<&'a O>,
}

/// Something of ours found in the cloud by the listing at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing<K> {
    /// The shard it belongs to.
    pub shard: K,
    /// The Service it was made for.
    pub service: ServiceKey,
    /// That Service's UID.
    pub uid: ServiceUid,
    /// Addresses it holds.
    pub addresses: Vec<IpAddr>,
}

/// A Service's wishes in canonical form, or why they cannot be met.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The intent to carry out: the Service's own, or the last good one while it is wrong (I10).
    pub spec: Option<LoadBalancerSpec>,
    /// Everything wrong with the Service, each naming key, value and what is allowed.
    pub refusals: Vec<Refusal>,
    /// What is worth saying although nothing is wrong.
    pub notices: Vec<Notice>,
}

/// Something to say about a Service that is carried out as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Reason code of the event.
    pub reason: &'static str,
    /// What it is about.
    pub message: String,
    /// Whether it needs somebody's attention: the condition Degraded says so too.
    pub degrades: bool,
}

/// Where addresses come from.
#[derive(Clone, Debug, Default)]
pub struct Market {
    /// The pools.
    pub pools: Vec<AddressPool>,
    /// Labels of the Service's namespace.
    pub namespace_labels: BTreeMap<String, String>,
    /// What Services of that namespace may ask for (K-60).
    pub policy: Arc<Policy>,
}

/// Who gives a load balancer its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Giver {
    /// We do, from pools: without one nothing is made.
    #[default]
    Pools,
    /// The cloud does, once it has made the load balancer.
    Cloud,
}

/// What became of a Service's wish for addresses.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// Who gives them.
    pub giver: Giver,
    /// What it has: with a refusal, what it had before.
    pub addresses: Vec<IpAddr>,
    /// Why it was not given what it asks for.
    pub refusal: Option<Refusal>,
    /// What is worth saying about its addresses.
    pub notices: Vec<Notice>,
}

/// An address that was found in use, and what is known of its Service.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The address.
    pub address: IpAddr,
    /// Who has it.
    pub holder: &'a Holder,
    /// Where it was found.
    pub source: Source,
    /// The Service, if it is there.
    pub service: Option<&'a ServiceSpec>,
    /// The spec that was carried out last.
    pub spec: Option<&'a LoadBalancerSpec>,
}

/// A wish that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason code of event and condition (`AnnotationInvalid`, `RequestedAddressInUse`, …).
    pub reason: &'static str,
    /// What was asked, what is wrong with it and what is allowed.
    pub message: String,
}

/// A right of ours in the cloud that is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingRight {
    /// The action, as the cloud's policies name it.
    pub action: String,
    /// What was answered when it was tried.
    pub answer: String,
}

/// One successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The cloud changed.
    Changed,
    /// It was so already (a repeated delete, a create found by name).
    AlreadySo,
}

/// Targets of one port, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCount {
    /// All that are registered.
    pub registered: u32,
    /// Registered and healthy.
    pub healthy: u32,
    /// Registered, not yet judged.
    pub initial: u32,
    /// Registered, not healthy.
    pub unhealthy: u32,
    /// Leaving.
    pub draining: u32,
    /// Unwanted and kept for now.
    pub held: u32,
    /// To be let go although too few others are healthy: must be none (ZD-121).
    pub below_floor: u32,
}

impl PortCount {
    /// Counts a target that the cloud has in this state.
    pub const fn add(&mut self, state: CloudState) {
        match state {
            CloudState::Draining => {
                self.draining += 1;
                return;
            }
            CloudState::Healthy | CloudState::Unjudged => self.healthy += 1,
            CloudState::Initial => self.initial += 1,
            CloudState::Unhealthy => self.unhealthy += 1,
        }
        self.registered += 1;
    }

    /// Counts targets that are kept for now, and those that should be.
    pub fn judge(&mut self, decision: &Decision) {
        let add = |sum: &mut u32, targets: usize| {
            let targets = u32::try_from(targets).unwrap_or(u32::MAX);
            *sum = sum.saturating_add(targets);
        };
        add(&mut self.held, decision.with(Action::Hold).count());
        add(&mut self.below_floor, decision.below_floor);
    }

    /// Adds targets of another family.
    pub const fn join(&mut self, other: Self) {
        self.registered += other.registered;
        self.healthy += other.healthy;
        self.initial += other.initial;
        self.unhealthy += other.unhealthy;
        self.draining += other.draining;
        self.held += other.held;
        self.below_floor += other.below_floor;
    }
}

/// How far a load balancer has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programmed {
    /// It takes traffic on every port.
    Yes,
    /// Not yet, and what is missing.
    Waiting(String),
    /// The cloud gave up on it.
    Failed(String),
}

/// A load balancer's name in DNS, where the cloud gives one instead of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    /// The name.
    pub name: String,
    /// The ports that it serves.
    pub ports: BTreeSet<(u16, Protocol)>,
}

/// What status and events say about a Service, read off the last observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the addresses may be published (C-10).
    pub programmed: Programmed,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
    /// The name to publish, for clouds that give one: as soon as it is there (AWS-801).
    pub host: Option<HostName>,
    /// What the cloud makes worth saying.
    pub notices: Vec<Notice>,
    /// Cloud ids: kind, id, generation.
    pub resources: Vec<(&'static str, String, u32)>,
    /// Counts by port.
    pub ports: BTreeMap<PortKey, PortCount>,
    /// Set while removals wait for a fresh list (K-33).
    pub mass_removal: Option<MassRemoval>,
}

/// How many endpoints have each number for a port.
pub type Numbers = BTreeMap<PortKey, BTreeMap<u16, usize>>;

/// A Service whose named target ports are numbers, as far as those are known.
#[derive(Clone, Debug)]
pub struct Named {
    /// The Service.
    pub service: ServiceSpec,
    /// What is worth saying.
    pub notices: Vec<Notice>,
}

/// The Service's first family alone.
pub fn first_family(service: &ServiceSpec) -> Vec<IpFamily> {
    vec![service.families.first().copied().unwrap_or(IpFamily::V4)]
}

/// A cloud.
pub trait Provider: Send + Sync + 'static {
    /// Unit of observing, planning and writing.
    type Shard: Clone + Ord + std::hash::Hash + std::fmt::Debug + std::fmt::Display + Send + Sync;
    /// What a look at a shard gives.
    type Observed: Clone + std::fmt::Debug + Send + Sync;
    /// One idempotent call.
    type Step: Step;

    /// The provider's name, as in `onehop.dev/<name>`.
    fn name(&self) -> &'static str;

    /// The shards a Service touches. Pure.
    fn shards(&self, service: &ServiceKey) -> Vec<Self::Shard>;

    /// The Services a shard carries, out of those that it may touch. Pure.
    fn services(&self, shard: &Self::Shard) -> Vec<ServiceKey>;

    /// Tells of a Service that a look is going to be about, for clouds whose objects do not name their Service: what
    /// is left of it is found by its UID.
    fn meet(&self, _service: &ServiceKey, _uid: &ServiceUid) {}

    /// Reads a Service's annotations and fields into the canonical spec. Pure.
    fn resolve(&self, service: &ServiceSpec, last_good: Option<&LoadBalancerSpec>) -> Resolution;

    /// For clouds whose rules have one number for all pods of a port: the Service with the numbers that its pods have for its
    /// named target ports. Pure.
    fn name_ports(
        &self,
        _service: &ServiceSpec,
        _last_good: Option<&LoadBalancerSpec>,
        _numbers: &Numbers,
    ) -> Option<Named> {
        None
    }

    /// The check of a pod port that agents may answer (crd.md section 6): who answers, port and path are filled in by the
    /// caller. None where the Service's class or annotations say who answers. Pure.
    fn agent_check(&self, _service: &ServiceSpec, _port: &LoadBalancerPort) -> Option<HealthCheck> {
        None
    }

    /// Chooses addresses from pools, for providers where that is ours to do. Pure but for the book,
    /// which remembers what was given.
    fn place(
        &self,
        service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        market: &Market,
        book: &mut AddressBook,
    ) -> Placed;

    /// Families of the targets of a Service with this spec, whose load balancer has these addresses. Pure. Where a group
    /// has targets of one family only, that is the Service's first one.
    fn target_families(
        &self,
        service: &ServiceSpec,
        _spec: &LoadBalancerSpec,
        _addresses: &[IpAddr],
    ) -> Vec<IpFamily> {
        first_family(service)
    }

    /// Whether a node can be no target of a Service, whatever it could do: a healthy one leaves with those that take its
    /// place, and no new one comes. Pure.
    fn is_unfit(&self, _spec: &LoadBalancerSpec, _machine: &Machine) -> bool {
        false
    }

    /// Whether with externalTrafficPolicy Local a node becomes a target of a Service only once it has a ready endpoint
    /// (AWS-404). Pure.
    fn waits_for_local_endpoints(&self, _spec: &LoadBalancerSpec) -> bool {
        false
    }

    /// Whether of the nodes only those that host a ready pod of a Service are to be targets of a port of it, since they
    /// stand in for the pods (AZ-254). Pure.
    fn only_nodes_with_pods(&self, _spec: &LoadBalancerSpec, _port: &PortKey) -> bool {
        false
    }

    /// Notes an address in use, before the first one is given; the answer is who has it already and
    /// may not share it. Pure but for the book.
    fn restore(&self, found: Found<'_>, book: &mut AddressBook) -> Result<(), Holder>;

    /// How each pool stands; none where addresses are the cloud's. Pure.
    fn pool_statuses(
        &self,
        _pools: &[AddressPool],
        _book: &AddressBook,
    ) -> BTreeMap<String, AddressPoolStatus> {
        BTreeMap::new()
    }

    /// By family: how many addresses pools may give, and how many of them are in use (C-110). Pure.
    fn pool_use(
        &self,
        _pools: &[AddressPool],
        _book: &AddressBook,
    ) -> BTreeMap<IpFamily, (i64, i64)> {
        BTreeMap::new()
    }

    /// The rights that are missing, as far as that can be found out without changing anything (AWS-844).
    fn missing_rights(&self) -> impl Future<Output = Vec<MissingRight>> + Send {
        std::future::ready(Vec::new())
    }

    /// Whether every Service is told of a right that is missing; where only some need it, their outcome says so.
    fn rights_concern_all(&self) -> bool {
        true
    }

    /// Everything of this install, once at start and by the slow sweep.
    fn inventory(
        &self,
    ) -> impl Future<Output = Result<Vec<Existing<Self::Shard>>, CloudError>> + Send;

    /// Looks at a shard.
    fn observe(
        &self,
        shard: &Self::Shard,
        look: Look<'_, Self::Observed>,
    ) -> impl Future<Output = Result<Self::Observed, CloudError>> + Send;

    /// Target addresses seen, so that the snapshot can say what became of each. Pure.
    fn target_addresses(&self, seen: &Self::Observed) -> BTreeSet<IpAddr>;

    /// What has to be done. `intents` are the shard's live Services; what is observed beyond them
    /// goes. Pure.
    fn plan(
        &self,
        shard: &Self::Shard,
        intents: &[Intent],
        seen: &Self::Observed,
        now: Time,
    ) -> Plan<Self::Step>;

    /// Whether a port's group has as many targets as it may, so that others are left out (AWS-433). Pure.
    fn is_full(&self, _intent: &Intent, _port: &PortKey, _seen: &Self::Observed) -> bool {
        false
    }

    /// Readiness gates that another program has given to pods of a Service which we have now, with the port that each is
    /// about (AWS-504). Pure.
    fn peer_gates(&self, _intent: &Intent, _seen: &Self::Observed) -> BTreeMap<String, PortKey> {
        BTreeMap::new()
    }

    /// What the gates of another program for a Service's pods begin with, whichever group they are about (AWS-505). Pure.
    fn peer_gate_stem(&self, _service: &ServiceKey) -> Option<String> {
        None
    }

    /// Finalizer of the program from which load balancers can be taken over, and to which they can be given back.
    fn their_finalizer(&self) -> Option<&'static str> {
        None
    }

    /// Its name, for people.
    fn their_name(&self) -> &'static str {
        "another program"
    }

    /// Whether that program keeps what it has in bindings, which are objects of the API server (AWS-123).
    fn they_bind(&self) -> bool {
        false
    }

    /// Whether that program has a Service and we do not. Pure.
    fn is_theirs(&self, service: &ServiceSpec) -> bool {
        let theirs = self.their_finalizer();
        theirs.is_some_and(|f| service.has_finalizer(f))
            && !service.has_finalizer(SERVICE_FINALIZER)
    }

    /// Whether another program may have a Service like this, so that nothing is written to it before the cloud was looked
    /// at. Pure.
    fn may_be_theirs(&self, _service: &ServiceSpec) -> bool {
        false
    }

    /// Whose the load balancer of a claimed Service is, and what is to be done about that (AWS-129, AWS-130). Pure.
    fn custody(
        &self,
        _service: &ServiceSpec,
        _intent: &Intent,
        _seen: &Self::Observed,
        _release: Release,
        _now: Time,
    ) -> Custody<Self::Step> {
        Custody::Ours
    }

    /// Takes our marks off what another program has: nothing else of it is touched. Pure.
    fn disown(&self, _shard: &Self::Shard, _seen: &Self::Observed) -> Plan<Self::Step> {
        Plan::default()
    }

    /// Somebody else may have changed the members of a shard: the next look reads them.
    fn distrust_members(&self, _shard: &Self::Shard) {}

    /// A later plan for a shard whose members lane still runs. Calls of that lane which wait for their turn, and of which
    /// this plan says otherwise, fail as superseded: the lane begins anew with all that is to be done (AWS-421).
    fn supersede(&self, _shard: &Self::Shard, _plan: &Plan<Self::Step>) {}

    /// Makes one call. The fence is checked before each mutating call.
    fn execute(
        &self,
        step: &Self::Step,
        fence: &Fence,
    ) -> impl Future<Output = Result<Effect, CloudError>> + Send;

    /// Puts right what no Service's shard is about, from time to time.
    fn tidy(&self, _fence: &Fence) -> impl Future<Output = Result<(), CloudError>> + Send {
        std::future::ready(Ok(()))
    }

    /// When to look again although nothing has happened. Pure.
    fn next_look(
        &self,
        shard: &Self::Shard,
        intents: &[Intent],
        seen: &Self::Observed,
        now: Time,
    ) -> Option<Time>;

    /// What to say about one Service of the shard. Pure.
    fn outcome(&self, intent: &Intent, seen: &Self::Observed, now: Time) -> Outcome;

    /// UIDs of the Services of this name of which something is left. Pure.
    fn left_of(&self, service: &ServiceKey, seen: &Self::Observed) -> BTreeSet<ServiceUid>;

    /// The ports whose targets see the load balancer's own addresses, with those: where their flows come from (ZD-14).
    /// Flows of all other ports come from anywhere outside the cluster. Pure.
    fn sources(&self, intent: &Intent, _seen: &Self::Observed) -> BTreeMap<PortKey, Vec<Cidr>> {
        let own = |port: &&LoadBalancerPort| port.client_ip != ClientIp::Preserve;
        let ports = intent.spec.ports.iter().filter(own);
        ports
            .map(|port| (port.key(), intent.spec.sources.clone()))
            .collect()
    }

    /// The Service's targets as agents are told of them (K-20). Pure.
    fn listed(&self, intent: &Intent, seen: &Self::Observed, now: Time) -> Vec<Listed>;
}
