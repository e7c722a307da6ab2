//! The words of the membership policy: targets, their states in Kubernetes and in the cloud, verdicts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::id::{NodeName, PodUid};
use onehop_core::time::Time;
use serde::Serialize;

/// Address and port of a target; the protocol is the group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TargetKey {
    /// Pod or node address.
    pub address: IpAddr,
    /// Target port or node port.
    pub port: u16,
}

impl fmt::Display for TargetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Whose address it is. With the key this is the identity of a target (K-21, ZD-12).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Owner {
    /// A pod.
    Pod(PodUid),
    /// A node.
    Node(NodeName),
    /// An address of an `EndpointSlice` that names no pod (AWS-411), or one not remembered.
    Unknown,
}

/// Whether something accepts new flows on behalf of a pod that is gone (the target guard, ZD-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The agent of the target's node is present and has the feature.
    Present,
    /// Nothing answers for a pod that is gone.
    Absent,
}

/// What Kubernetes says about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Ready: to be registered.
    Ready,
    /// Ready, while nobody answers the health check of its group on its node yet: registered later (K-24).
    Waiting,
    /// Alive and not ready: readiness is carried by LB health where that asks the target (ZD-82).
    NotReady,
    /// Alive and to be replaced, since its node is going (ZD-76); counts as one of the desired number.
    Displaced,
    /// Serves, but is wanted no more: a node with the exclude label or a going signal (ZD-73, ZD-78),
    /// or a pod that a selector change has left.
    Withdrawn,
    /// The pod is being deleted and may still serve.
    Terminating {
        /// Its readiness probe still answers.
        serving: Serving,
        /// When deletion was asked for, where known; bounds the hold.
        since: Option<Time>,
    },
    /// The pod or node is provably gone.
    Gone,
    /// The address belongs to a new pod (ZD-85).
    Reused,
    /// In the group, and in no endpoint list, without a reason that we know.
    Unexplained,
}

/// Whether a terminating endpoint still serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serving {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// A target as Kubernetes wants or knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Address and port.
    pub key: TargetKey,
    /// Whose it is.
    pub owner: Owner,
    /// What Kubernetes says.
    pub state: State,
    /// Whether the node's agent stands in for it.
    pub guard: Guard,
    /// Since when it is held, if it is: bounds the hold, also over a restart (ZD-26, ZD-81).
    pub held_since: Option<Time>,
}

/// A target's state in the cloud, in the words that all clouds share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CloudState {
    /// Registered, not yet judged.
    Initial,
    /// Registered and healthy.
    Healthy,
    /// Registered and not healthy.
    Unhealthy,
    /// Registered; the cloud does not say more (unprobed group, group not in use).
    Unjudged,
    /// Deregistered, established flows may go on.
    Draining,
}

impl CloudState {
    /// Whether it is registered, that is, needs no registration.
    pub const fn registered(self) -> bool {
        !matches!(self, Self::Draining)
    }

    /// Whether the LB sends it new flows, as far as the cloud tells.
    pub const fn usable(self) -> bool {
        matches!(self, Self::Healthy | Self::Unjudged)
    }
}

/// Who tells the LB that a live target is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// Its health check (agent, node or traffic port): membership does not change (K-30).
    ByHealth,
    /// Nobody: an unprobed group, so membership has to.
    ByMembership,
}

/// Which policy (K-30, K-31).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ZD-20 to ZD-29 and ZD-82.
    ZeroDrop,
    /// The peers' timing within K-31's limits.
    Compat,
}

/// The policy's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which policy.
    pub kind: Kind,
    /// Share of the desired number that must be healthy before an old target leaves (ZD-22), percent.
    pub floor_percent: u8,
    /// Longest hold (ZD-26).
    pub hold_max: Duration,
    /// Who carries readiness.
    pub readiness: Readiness,
    /// Share of a group, percent, that may leave unexplained without a second look (K-33).
    pub mass_percent: u8,
    /// How many targets can be healthy at once, where that is fewer than are registered.
    pub at_most_healthy: Option<usize>,
}

impl Policy {
    /// How many targets have to be healthy before one that could go on serving leaves, out of
    /// this many desired ones (ZD-22).
    pub fn floor(&self, desired: usize) -> usize {
        let desired = self
            .at_most_healthy
            .map_or(desired, |most| desired.min(most));
        match self.kind {
            Kind::ZeroDrop => (desired * usize::from(self.floor_percent))
                .div_ceil(100)
                .max(1),
            Kind::Compat => 1,
        }
    }
}

/// How far the endpoint list can be trusted (K-33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// From a watch.
    Watched,
    /// Confirmed by a fresh list from the API server after the check was raised.
    Confirmed,
}

/// What to do with one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Action {
    /// Register it.
    Register,
    /// It is registered and stays.
    Keep,
    /// It is unwanted and stays for now.
    Hold,
    /// Take it out once the registrations of this pass were accepted (ZD-21).
    Drain,
    /// Take it out at once: it serves nobody.
    Release,
}

/// Why. One word each, for events, the CLI and golden plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Reason {
    /// A ready endpoint that is not registered.
    Ready,
    /// Not ready; the health check says so to the LB.
    NotReady,
    /// Terminating.
    Terminating,
    /// Its node is going.
    NodeGoing,
    /// Wanted no more.
    Withdrawn,
    /// Pod or node is gone.
    Gone,
    /// Its address belongs to another pod.
    AddressReused,
    /// In no endpoint list.
    Unlisted,
    /// Too few others are healthy (ZD-22).
    BelowFloor,
    /// Nothing else serves (I2).
    LastServing,
    /// Held for the longest time allowed (ZD-26).
    HoldMaximum,
    /// Waits for the second look (K-33).
    MassRemovalCheck,
}

/// Action and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// The mass-removal check was raised: this many of that many would leave for no known reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MassRemoval {
    /// Targets that would leave unexplained.
    pub leaving: usize,
    /// Targets registered.
    pub registered: usize,
}

/// The answer for one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// One verdict per target that is registered or to be.
    pub verdicts: BTreeMap<TargetKey, Verdict>,
    /// When time alone will change the answer.
    pub next_look: Option<Time>,
    /// Set while removals wait for a second look.
    pub mass_removal: Option<MassRemoval>,
    /// How many are let go although too few others are healthy, with no reason that allows it: must be none (ZD-121).
    pub below_floor: usize,
}

impl Decision {
    /// The targets with this action.
    pub fn with(&self, action: Action) -> impl Iterator<Item = (TargetKey, Reason)> + '_ {
        self.verdicts
            .iter()
            .filter(move |(_, v)| v.action == action)
            .map(|(k, v)| (*k, v.reason))
    }
}
