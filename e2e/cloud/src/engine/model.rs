//! The cloud's objects as its users see them: load balancers, listeners, groups, targets.
//!
//! Plain data without behaviour; shared by the engine, the APIs on top of it and the data path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use super::profile::LostFlow;

/// Defines an identifier that the cloud hands out.
macro_rules! cloud_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The identifier with this number.
            pub(crate) fn numbered(number: u64) -> Self {
                Self(format!(concat!($prefix, "-{:06}"), number))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

cloud_id! {
    /// A load balancer.
    LbId, "lb"
}
cloud_id! {
    /// A group of targets.
    GroupId, "group"
}

/// An LB node: one machine of the cloud's data plane, in one zone (FC-61).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u16);

/// Tags on an object.
pub type Tags = BTreeMap<String, String>;

/// Transport protocol of a listener or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[serde(alias = "tcp")]
    Tcp,
    /// UDP.
    #[serde(alias = "udp")]
    Udp,
}

impl Protocol {
    /// The number in the IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            _ => Err(format!(
                "{text:?} is no protocol of this cloud: use tcp or udp"
            )),
        }
    }
}

/// Where a group's targets live: what the load balancer delivers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Node address and node port.
    Node,
    /// Node, with the load balancer's address kept as destination.
    Vip,
    /// Pod address and port.
    Pod,
}

impl Mode {
    /// Whether packets keep the frontend address as destination on their way to the target.
    pub const fn floats(self) -> bool {
        matches!(self, Self::Vip)
    }
}

/// How targets are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ProbeProtocol {
    /// A TCP connection that is accepted.
    #[serde(alias = "tcp")]
    Tcp,
    /// An HTTP GET with a good status code.
    #[serde(alias = "http")]
    Http,
}

/// A health check with everything resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// Kind of probe.
    pub protocol: ProbeProtocol,
    /// Port to probe; the target's own port when absent.
    pub port: Option<u16>,
    /// Path of an HTTP probe.
    pub path: String,
    /// Start of one probe to start of the next.
    pub interval: Duration,
    /// After this an unanswered probe has failed.
    pub timeout: Duration,
    /// Good probes in a row for the verdict `healthy`.
    pub healthy: u32,
    /// Bad probes in a row for the verdict `unhealthy`.
    pub unhealthy: u32,
}

/// What a user asks of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LbSpec {
    /// Name; no identity.
    pub name: String,
    /// Tags.
    pub tags: Tags,
    /// Frontend addresses. The n-th address is served in the n-th zone, counted round and round.
    pub addresses: Vec<IpAddr>,
    /// Enabled zones; all when empty.
    pub zones: Vec<String>,
    /// Whether an LB node may choose targets of another zone.
    pub cross_zone: bool,
    /// Whether targets see the client's address.
    pub preserve_client_ip: bool,
    /// Load balancers with one key may have one address, as long as they have no listener in common.
    pub sharing_key: Option<String>,
}

/// Life of a load balancer (FC-47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LbState {
    /// Exists, does not serve yet.
    Provisioning,
    /// Serves.
    Active,
    /// Will never serve.
    Failed,
}

/// What a user asks of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupSpec {
    /// Name; no identity.
    pub name: String,
    /// Tags.
    pub tags: Tags,
    /// Transport protocol.
    pub protocol: Protocol,
    /// What the targets are.
    pub mode: Mode,
    /// The probe, or none: then a target is healthy once registered.
    pub health: Option<HealthCheck>,
    /// How long a deregistered target keeps its established flows.
    pub drain: Duration,
    /// Whether its targets see the client's address; as the load balancer says, if the group does not.
    pub preserve_client_ip: Option<bool>,
    /// Whether a header of the PROXY protocol, version 2, stands before the first payload of each TCP flow and of each
    /// probe (FC-32).
    pub proxy_protocol: bool,
    /// By what a flow chooses among the targets.
    pub choice: Choice,
    /// What a client hears on a TCP flow that was idle for too long; as the profile says, if the group does not (FC-28).
    pub lost_flow: Option<LostFlow>,
}

/// What of a flow its choice of a target depends on (FC-26). Who has the same of it is sent to the same target, as long as
/// the targets stay as they are (FC-27).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase")]
pub enum Choice {
    /// All: both addresses, both ports, the protocol.
    #[default]
    FiveTuple,
    /// Both addresses.
    Addresses,
    /// Both addresses and the protocol.
    AddressesAndProtocol,
}

/// A target to register: an address and port, perhaps in a zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetSpec {
    /// Where it listens.
    pub target: SocketAddr,
    /// Its zone; a target without one, or in one where no LB node stands, counts as near for every LB node.
    pub zone: Option<String>,
}

/// State of a target as the API reports it (FC section 5a).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// Registered, not yet judged.
    Initial,
    /// Gets new flows.
    Healthy,
    /// Fails its probes.
    Unhealthy,
    /// Deregistered, its drain time runs.
    Draining,
    /// Not registered, or its group is not in use.
    Unused,
}

impl fmt::Display for TargetState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initial => "initial",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
            Self::Unused => "unused",
        })
    }
}

/// Why a target is in its state. Names are those of the NLB API for every profile (FC-34b).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Registration goes on, no probe has answered yet.
    #[serde(rename = "Elb.RegistrationInProgress")]
    RegistrationInProgress,
    /// First probes run.
    #[serde(rename = "Elb.InitialHealthChecking")]
    InitialHealthChecking,
    /// Too many bad probes in a row.
    #[serde(rename = "Target.FailedHealthChecks")]
    FailedHealthChecks,
    /// Drain time runs.
    #[serde(rename = "Target.DeregistrationInProgress")]
    DeregistrationInProgress,
    /// Not in this group.
    #[serde(rename = "Target.NotRegistered")]
    NotRegistered,
    /// No listener uses the group.
    #[serde(rename = "Target.NotInUse")]
    NotInUse,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What the API says about one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// The target.
    pub target: SocketAddr,
    /// Its zone, as it was told.
    pub zone: Option<String>,
    /// State.
    pub state: TargetState,
    /// Why, where there is something to say.
    pub reason: Option<Reason>,
    /// Since when; absent for a target that is not registered.
    pub since: Option<Time>,
}

impl TargetStatus {
    /// Of a target that the group does not know.
    pub(crate) fn unregistered(target: SocketAddr) -> Self {
        Self {
            target,
            zone: None,
            state: TargetState::Unused,
            reason: Some(Reason::NotRegistered),
            since: None,
        }
    }
}

/// What the API says about one load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbStatus {
    /// Identity.
    pub id: LbId,
    /// As asked.
    pub spec: LbSpec,
    /// Life.
    pub state: LbState,
    /// Listeners by port and protocol, with their group.
    pub listeners: BTreeMap<ListenerKey, GroupId>,
}

/// What the API says about one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Identity.
    pub id: GroupId,
    /// As asked.
    pub spec: GroupSpec,
    /// Load balancers whose listeners use it.
    pub used_by: BTreeSet<LbId>,
}

/// Everything in the cloud, seen from inside: no call, no log line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Load balancers, by id.
    pub load_balancers: Vec<LbStatus>,
    /// Groups, by id, each with the targets that the API would list.
    pub groups: Vec<(GroupStatus, Vec<TargetStatus>)>,
}

/// Key of a listener in its load balancer. Text form `80-tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.port, self.protocol)
    }
}

impl FromStr for ListenerKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (port, protocol) = text
            .split_once('-')
            .ok_or_else(|| format!("{text:?} is no listener: use <port>-<protocol>"))?;
        let port: u16 = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("{port:?} is no port: use 1 to 65535"))?;
        Ok(Self {
            port,
            protocol: protocol.parse()?,
        })
    }
}
