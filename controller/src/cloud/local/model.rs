//! The local cloud's objects as the planner sees them: typed, by our own names, ids only where a call
//! needs them. Built by `client` from what the API answers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use onehop_core::crd::TargetMode;
use onehop_core::id::{PortKey, Protocol, ServiceUid, Zone};
use onehop_core::time::Time;

use super::names::Tags;
use crate::plan::membership::{CloudState, TargetKey};

/// Everything that carries our tags for one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Load balancers.
    pub balancers: Vec<Balancer>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Observed {
    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.balancers.is_empty() && self.groups.is_empty()
    }

    /// The group with this id.
    pub fn group(&self, id: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// Whether a listener points at the group.
    pub fn in_use(&self, group: &Group) -> bool {
        self.balancers
            .iter()
            .any(|b| b.listeners.values().any(|id| *id == group.id))
    }
}

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Id in the cloud.
    pub id: String,
    /// UID of the Service it was made for.
    pub uid: ServiceUid,
    /// What was asked.
    pub spec: BalancerSpec,
    /// How it stands.
    pub state: BalancerState,
    /// Listeners and the id of the group each points at.
    pub listeners: BTreeMap<ListenerKey, String>,
}

/// What is asked of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerSpec {
    /// Name.
    pub name: String,
    /// Tags.
    pub tags: Tags,
    /// Frontend addresses.
    pub addresses: Vec<IpAddr>,
    /// Others with this key may have the same addresses.
    pub sharing_key: Option<String>,
}

/// How a load balancer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerState {
    /// Not yet serving.
    Provisioning,
    /// Serving.
    Active,
    /// Never going to.
    Failed,
}

/// Port and protocol of a listener; text form `80-tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.port, self.protocol.as_str().to_lowercase())
    }
}

/// A target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Id in the cloud.
    pub id: String,
    /// UID of the Service it was made for.
    pub uid: ServiceUid,
    /// The Service's port it serves.
    pub port: PortKey,
    /// Tells a replacement from what it replaces.
    pub generation: u32,
    /// Since when it is out of use after a switch, once that is noted.
    pub retired: Option<Time>,
    /// What was asked.
    pub spec: GroupSpec,
    /// Its targets.
    pub targets: BTreeMap<TargetKey, CloudState>,
    /// The zones of those that have one: without, a target counts as near for every zone.
    pub zones: BTreeMap<TargetKey, Zone>,
}

/// What is asked of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Name.
    pub name: String,
    /// Tags.
    pub tags: Tags,
    /// Protocol.
    pub protocol: Protocol,
    /// What its targets are.
    pub mode: TargetMode,
    /// Its probe; without one a target is healthy once registered.
    pub probe: Option<Probe>,
    /// How long established flows go on after deregistration.
    pub drain_seconds: u32,
    /// Whether all flows of a client choose the same target.
    pub sticky: bool,
}

/// A health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// How.
    pub protocol: ProbeProtocol,
    /// Where; at the target's own port if not said.
    pub port: Option<u16>,
    /// Path of an HTTP probe.
    pub path: Option<String>,
    /// Between two probes.
    pub interval_seconds: u32,
    /// For an answer.
    pub timeout_seconds: u32,
    /// Good ones in a row until healthy.
    pub healthy: u32,
    /// Bad ones in a row until unhealthy.
    pub unhealthy: u32,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// A connection that is accepted.
    Tcp,
    /// A GET answered well.
    Http,
}

impl GroupSpec {
    /// Whether a group can be turned into the other one in place. Who answers the check, by which
    /// protocol and at which port is fixed when a group is made (K-40).
    pub fn same_kind(&self, other: &Self) -> bool {
        let fixed = |spec: &Self| spec.probe.as_ref().map(|p| (p.protocol, p.port));
        self.protocol == other.protocol && self.mode == other.mode && fixed(self) == fixed(other)
    }
}
