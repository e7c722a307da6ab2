//! The load-balancer engine (FC-01): a state machine without I/O, without a clock of its own.
//!
//! Time is an argument of every call, randomness comes from one seed (FC-05). API servers call the
//! operations in `balancers`, `listeners` and `groups`; a driver asks for due probes, brings outcomes back, and
//! programs each LB node with [`Engine::data_path`]. Nothing here may read a clock or touch a socket.

mod addresses;
mod balancers;
mod call;
mod error;
mod faults;
mod groups;
mod judgement;
mod listeners;
mod log;
mod model;
mod path;
mod presets;
mod probe;
mod probing;
mod profile;
mod target;
mod timer;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use onehop_core::time::Time;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use call::Operation;
pub use error::{ApiError, Holder, Problem};
pub use faults::{Edit, Effect, Faults, Injection, Quotas, Throttle};
pub use log::{Event, Log, Seq, What};
pub use model::{
    Choice, GroupId, GroupSpec, GroupStatus, HealthCheck, Inventory, LbId, LbSpec, LbState,
    LbStatus, ListenerKey, Mode, NodeId, ProbeProtocol, Protocol, Reason, Tags, TargetSpec,
    TargetState, TargetStatus,
};
pub use path::{DataPathState, Frontend, FrontendPath};
pub use probe::{Outcome, ProbeId, ProbeOrder, Verdict};
pub use profile::{AllDown, Established, Hairpin, Lag, Lags, LostFlow, ProbeDefaults, Profile};

use crate::certificate::Certificate;
use crate::scale::Scale;
use target::Target;
use timer::Agenda;

/// What the scale factor does not reach (FC-07).
const UNSCALED: &[&str] = &[
    "tcp retransmission timers",
    "process start",
    "watch latency",
    "netlink commit time",
];

/// How an engine starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Behaviour.
    pub profile: Profile,
    /// Seed of every draw.
    pub seed: u64,
    /// Cloud time against wall time.
    pub scale: Scale,
    /// Ranges that the cloud routes to LB nodes; any address when empty.
    pub ranges: Vec<IpNet>,
}

/// An LB node.
#[derive(Clone, Debug)]
struct LbNode {
    zone: String,
}

/// A listener: which group new flows go to, and what is left of earlier groups.
#[derive(Clone, Debug)]
struct Listener {
    group: GroupId,
    /// Groups that it names without sending to them: their targets are probed (AWS-621).
    standby: BTreeSet<GroupId>,
    /// Groups that the listener used before. Flows to their targets go on while those stay.
    former: BTreeSet<GroupId>,
    /// LB nodes that still choose from an old group, and until when (FC-45).
    behind: BTreeMap<NodeId, (GroupId, Time)>,
    /// With what it ends TLS.
    tls: Option<Arc<Certificate>>,
}

/// A load balancer.
#[derive(Clone, Debug)]
struct Balancer {
    spec: LbSpec,
    state: LbState,
    ready_at: Time,
    listeners: BTreeMap<ListenerKey, Listener>,
    /// Behaviour that differs from the cloud's (FC-02).
    profile: Option<Profile>,
}

/// Whether an address may stay with both. That keys are equal is asked where an address is taken.
fn both_may_have(a: &Balancer, b: &Balancer) -> bool {
    let keys = a.spec.sharing_key.is_some() && b.spec.sharing_key.is_some();
    keys && !a.listeners.keys().any(|key| b.listeners.contains_key(key))
}

/// A group.
#[derive(Clone, Debug)]
struct Group {
    spec: GroupSpec,
    targets: BTreeMap<SocketAddr, Target>,
    users: BTreeSet<(LbId, ListenerKey)>,
}

impl Group {
    fn empty(spec: GroupSpec) -> Self {
        Self {
            spec,
            targets: BTreeMap::new(),
            users: BTreeSet::new(),
        }
    }
}

/// A probe that is under way.
#[derive(Clone, Debug)]
struct Flight {
    group: GroupId,
    target: SocketAddr,
    node: NodeId,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    ranges: Vec<IpNet>,
    rng: SmallRng,
    now: Time,
    agenda: Agenda,
    nodes: BTreeMap<NodeId, LbNode>,
    balancers: BTreeMap<LbId, Balancer>,
    groups: BTreeMap<GroupId, Group>,
    owners: BTreeMap<IpAddr, BTreeSet<LbId>>,
    keys: call::Keys,
    calls: BTreeMap<Operation, u64>,
    faults: faults::FaultState,
    due_probes: Vec<ProbeOrder>,
    flights: BTreeMap<ProbeId, Flight>,
    next_lb: u64,
    next_group: u64,
    next_probe: u64,
    revision: u64,
    log: Log,
}

impl Engine {
    /// An empty cloud at cloud time `now`.
    pub fn new(config: Config, now: Time) -> Self {
        let mut log = Log::new(config.scale);
        let profile = config.profile.name;
        let speed = config.scale.speed();
        let started = What::RunStarted {
            profile,
            seed: config.seed,
            speed,
            unscaled: UNSCALED,
        };
        log.push(now, None, started);
        Self {
            profile: config.profile,
            ranges: config.ranges,
            rng: SmallRng::seed_from_u64(config.seed),
            now,
            agenda: Agenda::default(),
            nodes: BTreeMap::new(),
            balancers: BTreeMap::new(),
            groups: BTreeMap::new(),
            owners: BTreeMap::new(),
            keys: call::Keys::default(),
            calls: BTreeMap::new(),
            faults: faults::FaultState::default(),
            due_probes: Vec::new(),
            flights: BTreeMap::new(),
            next_lb: 1,
            next_group: 1,
            next_probe: 1,
            revision: 1,
            log,
        }
    }

    /// The cloud's behaviour.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Adds an LB node in `zone` (FC-61). `address` is where its probes come from.
    pub fn add_node(&mut self, zone: &str, address: IpAddr, now: Time) -> NodeId {
        self.advance(now);
        let node = NodeId(u16::try_from(self.nodes.len()).unwrap_or(u16::MAX));
        self.nodes.insert(
            node,
            LbNode {
                zone: zone.to_owned(),
            },
        );
        let cause = self.log.push(
            self.now,
            None,
            What::NodeAdded {
                node,
                zone: zone.to_owned(),
                address,
            },
        );
        let groups: Vec<_> = self.groups.keys().cloned().collect();
        for group in groups {
            self.refresh_views(&group, cause);
        }
        self.revision += 1;
        node
    }

    /// Gives one load balancer a behaviour of its own (FC-02). It holds for the groups that its
    /// listeners use, from the next decision on.
    pub fn override_profile(&mut self, lb: &LbId, profile: Profile) -> Result<(), ApiError> {
        let balancer = self
            .balancers
            .get_mut(lb)
            .ok_or_else(|| not_found("load balancer", lb))?;
        balancer.profile = Some(profile);
        self.revision += 1;
        Ok(())
    }

    /// When something happens next by itself; call [`Engine::advance`] then.
    pub fn next_event(&self) -> Option<Time> {
        self.agenda.next_due()
    }

    /// Number of the current state. Data paths need a new look only when it changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes the probes that have fallen due.
    pub fn take_probes(&mut self) -> Vec<ProbeOrder> {
        std::mem::take(&mut self.due_probes)
    }

    /// The event log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Writes an event of another part of the world into the log (FC-102).
    pub fn observe(&mut self, now: Time, cause: Option<Seq>, what: What) -> Seq {
        self.advance(now);
        self.log.push(self.now, cause, what)
    }

    /// Everything that is there now, for consoles and tests: not an API call.
    pub fn inventory(&self) -> Inventory {
        let balancers = self.balancers.keys();
        let groups = self.groups.keys();
        let with_targets = |id| Some((self.group_status(id).ok()?, self.listed(id).ok()?));
        Inventory {
            load_balancers: balancers.filter_map(|id| self.lb_status(id).ok()).collect(),
            groups: groups.filter_map(with_targets).collect(),
        }
    }

    /// Calls so far by operation (FC-105).
    pub fn calls(&self) -> &BTreeMap<Operation, u64> {
        &self.calls
    }

    /// What fails the run whatever a test asserts (FC-100): the log's finds, and a second look at
    /// the addresses themselves.
    pub fn violations(&self) -> Vec<String> {
        let mut found = self.log.violations();
        let mut holders: BTreeMap<IpAddr, Vec<(&LbId, &Balancer)>> = BTreeMap::new();
        for (id, balancer) in &self.balancers {
            for address in &balancer.spec.addresses {
                let others = holders.entry(*address).or_default();
                for (other, held) in others
                    .iter()
                    .filter(|(_, held)| !both_may_have(held, balancer))
                {
                    let (a, b) = (&held.spec.name, &balancer.spec.name);
                    found.push(format!(
                        "address {address} is on {other} ({a}) and on {id} ({b})"
                    ));
                }
                others.push((id, balancer));
            }
        }
        found
    }

    /// State and reason that the API reported for a target at `at`, by group; the newest change not
    /// after that time. Groups that never knew the target are absent.
    pub fn target_states_at(
        &self,
        target: SocketAddr,
        at: Time,
    ) -> BTreeMap<GroupId, (TargetState, Option<Reason>)> {
        let mut states = BTreeMap::new();
        for event in self
            .log
            .after(0)
            .rev()
            .filter(|event| event.cloud_time <= at)
        {
            if let What::TargetState {
                group,
                target: of,
                state,
                reason,
                ..
            } = &event.what
                && *of == target
            {
                states.entry(group.clone()).or_insert((*state, *reason));
            }
        }
        states
    }

    fn profile_of(&self, group: &GroupId) -> &Profile {
        let mut users = self
            .groups
            .get(group)
            .into_iter()
            .flat_map(|group| &group.users);
        users
            .find_map(|(lb, _)| self.balancers.get(lb)?.profile.as_ref())
            .unwrap_or(&self.profile)
    }

    /// LB nodes that serve a load balancer, in the order of its zones.
    fn nodes_of(&self, spec: &LbSpec) -> Vec<NodeId> {
        if spec.zones.is_empty() {
            return self.nodes.keys().copied().collect();
        }
        let in_zone = |zone: &String| {
            let zone = zone.clone();
            self.nodes
                .iter()
                .filter(move |(_, node)| node.zone == zone)
                .map(|(id, _)| *id)
        };
        spec.zones.iter().flat_map(in_zone).collect()
    }
}

fn not_found(kind: &'static str, id: &impl ToString) -> ApiError {
    ApiError::NotFound {
        kind,
        id: id.to_string(),
    }
}
