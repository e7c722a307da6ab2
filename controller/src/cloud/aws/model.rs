//! AWS objects as the planner sees them: typed, by our names where a step speaks of them, by ids where
//! one object points at another. Built by `client` from what the APIs answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::crd::Scheme;
use onehop_core::id::{Cidr, ServiceKey, ServiceUid};
use onehop_core::time::Time;

use super::interfaces::Carried;
use super::names::{self, Tags};

/// Defines an enum whose values are words of the API.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The API's spelling.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// From the API's spelling; nothing for a word that this version does not know.
            pub fn read(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What a group's targets are.
    TargetType {
        /// Machines: `i-…` and a node port.
        Instance = "instance",
        /// Addresses.
        Ip = "ip",
    }
}
words! {
    /// Protocol of a group.
    GroupProtocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// Both, on one port.
        TcpUdp = "TCP_UDP",
        /// TLS.
        Tls = "TLS",
    }
}
words! {
    /// Protocol of a check.
    CheckProtocol {
        /// A connection that opens.
        Tcp = "TCP",
        /// A good answer.
        Http = "HTTP",
        /// The same over TLS.
        Https = "HTTPS",
    }
}
words! {
    /// Family of a load balancer's or a group's addresses.
    IpType {
        /// IPv4.
        Ipv4 = "ipv4",
        /// IPv6, of a group only.
        Ipv6 = "ipv6",
        /// Both, of a load balancer only.
        Dualstack = "dualstack",
    }
}
words! {
    /// How a load balancer stands.
    BalancerState {
        /// Not yet serving.
        Provisioning = "provisioning",
        /// Serving.
        Active = "active",
        /// Serving, short of something.
        Impaired = "active_impaired",
        /// Never going to.
        Failed = "failed",
    }
}
words! {
    /// A target's state (AWS-770).
    HealthState {
        /// Not yet judged.
        Initial = "initial",
        /// Takes flows.
        Healthy = "healthy",
        /// Fails its checks.
        Unhealthy = "unhealthy",
        /// Fails its checks; its flows go on for a while. Registered all the same (AWS-434).
        UnhealthyDraining = "unhealthy.draining",
        /// Deregistered.
        Draining = "draining",
        /// Not in use.
        Unused = "unused",
        /// The service cannot tell.
        Unavailable = "unavailable",
    }
}

/// Id and port of a target: the whole of its identity (AWS-427).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId {
    /// Address or `i-…`.
    pub id: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.port)
    }
}

/// State and reason of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    /// The state.
    pub state: HealthState,
    /// The reason, as the service words it.
    pub reason: String,
}

/// A health check with everything stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// How.
    pub protocol: CheckProtocol,
    /// Where; at the target's own port if not said.
    pub port: Option<u16>,
    /// Path of an HTTP check.
    pub path: Option<String>,
    /// Good status codes of an HTTP check.
    pub codes: Option<String>,
    /// Seconds between two checks.
    pub interval: u32,
    /// Seconds for an answer.
    pub timeout: u32,
    /// Good ones in a row until healthy.
    pub healthy: u32,
    /// Bad ones in a row until unhealthy.
    pub unhealthy: u32,
}

impl Check {
    /// Whether one can be turned into the other in place (AWS-091).
    pub fn same_kind(&self, other: &Self) -> bool {
        (self.protocol, self.port) == (other.protocol, other.port)
    }
}

/// Attributes as they were read; what was never read is not known.
pub type Attributes = BTreeMap<String, String>;

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// ARN.
    pub arn: String,
    /// Name.
    pub name: String,
    /// DNS name, as the service gives it.
    pub dns: String,
    /// Who can reach it.
    pub scheme: Scheme,
    /// How it stands.
    pub state: BalancerState,
    /// Families.
    pub ip_type: IpType,
    /// Subnets, with the addresses in each where the service names them.
    pub subnets: BTreeMap<String, Vec<String>>,
    /// Security groups; none for one that was made without.
    pub security_groups: Vec<String>,
    /// Tags.
    pub tags: Tags,
    /// Attributes, once read.
    pub attributes: Option<Attributes>,
    /// Listeners by port, once read.
    pub listeners: Option<BTreeMap<u16, Listener>>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// ARN.
    pub arn: String,
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: GroupProtocol,
    /// Groups by ARN, with their weights.
    pub groups: BTreeMap<String, u32>,
    /// Certificates, the default one first; the others once read.
    pub certificates: Vec<String>,
    /// Security policy of a TLS listener.
    pub policy: Option<String>,
    /// ALPN policy of a TLS listener.
    pub alpn: Option<String>,
    /// Attributes, once read.
    pub attributes: Option<Attributes>,
}

/// A target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// ARN.
    pub arn: String,
    /// Name.
    pub name: String,
    /// What its targets are.
    pub target: TargetType,
    /// Protocol.
    pub protocol: GroupProtocol,
    /// Port.
    pub port: u16,
    /// Family.
    pub ip_type: IpType,
    /// Its check.
    pub check: Check,
    /// Tags.
    pub tags: Tags,
    /// Attributes, once read.
    pub attributes: Option<Attributes>,
    /// Load balancers that use it.
    pub used_by: Vec<String>,
    /// Targets, once read.
    pub targets: Option<BTreeMap<TargetId, TargetHealth>>,
    /// When they were read last.
    pub read_at: Option<Time>,
    /// Targets that the service refused to register.
    pub refused: BTreeMap<TargetId, RefusedTarget>,
}

/// A target that the service refused to register (AWS-430, AWS-432).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedTarget {
    /// Until when it is not tried again.
    pub until: Time,
    /// Whether it was for want of room, not for what it is.
    pub no_room: bool,
    /// What the service said.
    pub why: String,
}

/// A rule of a security group, inbound.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// `tcp`, `udp`, `icmp`, `icmpv6`.
    pub protocol: &'static str,
    /// First port, or ICMP type.
    pub from: i32,
    /// Last port, or ICMP code.
    pub to: i32,
    /// Where packets come from.
    pub source: RuleSource,
}

/// Source of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleSource {
    /// A range.
    Cidr(Cidr),
    /// A prefix list.
    PrefixList(String),
    /// A security group by id.
    Group(String),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, self.from)?;
        if self.from != self.to {
            write!(f, "-{}", self.to)?;
        }
        match &self.source {
            RuleSource::Cidr(range) => write!(f, " from {range}"),
            RuleSource::PrefixList(id) | RuleSource::Group(id) => write!(f, " from {id}"),
        }
    }
}

/// A security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Tags.
    pub tags: Tags,
    /// Inbound rules with their descriptions.
    pub rules: BTreeMap<Rule, String>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Id.
    pub id: String,
    /// Its zone, `eu-central-1a`.
    pub zone: String,
    /// IPv4 range.
    pub cidr: Option<Cidr>,
    /// Associated IPv6 ranges.
    pub ipv6: Vec<Cidr>,
    /// Free IPv4 addresses.
    pub free: u32,
    /// Tags.
    pub tags: Tags,
    /// Whether a route leads to an internet gateway, where that was read.
    pub public: Option<bool>,
}

/// What is known of the network, read once and then every ten minutes (AWS-426, AWS-714).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The VPC.
    pub vpc: String,
    /// Its ranges.
    pub cidrs: Vec<Cidr>,
    /// Its subnets, by id.
    pub subnets: BTreeMap<String, Subnet>,
    /// Security groups by `Name` tag and by id, of those that annotations may name.
    pub named_groups: BTreeMap<String, String>,
}

/// What a look at a Service gives.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Load balancers that carry the Service's tags.
    pub balancers: Vec<Balancer>,
    /// Groups that do.
    pub groups: Vec<Group>,
    /// Managed security groups that do.
    pub security_groups: Vec<SecurityGroup>,
    /// The backend security group of this install, if it is there.
    pub backend: Option<SecurityGroup>,
    /// The network.
    pub network: Arc<Network>,
    /// The security groups that targets carry, and the rules there: where targets' rules go (AWS-310).
    pub node_groups: Vec<SecurityGroup>,
    /// Those of them that were chosen among several (AWS-311).
    pub chosen_groups: Vec<Carried>,
    /// What aws-load-balancer-controller has made for the Service and nobody has taken over.
    pub peer: PeerStack,
}

/// What carries the peer's tags of a Service, and no tag of any install of ours (AWS-110).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerStack {
    /// Load balancers.
    pub balancers: Vec<Balancer>,
    /// Groups.
    pub groups: Vec<Group>,
    /// Managed security groups.
    pub security_groups: Vec<SecurityGroup>,
    /// Id of its shared security group, if it is there (AWS-111).
    pub backend: Option<String>,
}

impl PeerStack {
    /// Whether nothing of the Service is the peer's.
    pub fn is_empty(&self) -> bool {
        self.balancers.is_empty() && self.groups.is_empty() && self.security_groups.is_empty()
    }
}

/// An object that carries tags.
pub trait Tagged {
    /// The tags.
    fn tags(&self) -> &Tags;

    /// UID of the Service that it was made for.
    fn uid(&self) -> Option<ServiceUid> {
        self.tags()
            .get(names::SERVICE_UID)
            .map(|uid| uid.as_str().into())
    }

    /// The Service that it was made for.
    fn service(&self) -> Option<ServiceKey> {
        let (namespace, name) = self.tags().get(names::SERVICE)?.split_once('/')?;
        Some(ServiceKey::new(namespace, name))
    }

    /// What it is for its Service.
    fn resource(&self) -> &str {
        self.tags().get(names::RESOURCE).map_or("", String::as_str)
    }

    /// The Service that the peer made it for, where no install of ours has it.
    fn peer_stack(&self, cluster: &str) -> Option<&str> {
        let tags = self.tags();
        let theirs = tags.get(names::PEER_CLUSTER).is_some_and(|c| c == cluster);
        let stack = tags.get(names::PEER_STACK)?;
        (theirs && !tags.contains_key(names::INSTALL)).then_some(stack)
    }

    /// Which of several that replace one another.
    fn generation(&self) -> u32 {
        let tag = self.tags().get(names::GENERATION);
        tag.and_then(|tag| tag.parse().ok()).unwrap_or(1)
    }

    /// Since when it is replaced.
    fn retired(&self) -> Option<Time> {
        self.tags().get(names::RETIRED)?.parse().ok()
    }
}

macro_rules! tagged {
    ($($name:ident),+) => { $(impl Tagged for $name { fn tags(&self) -> &Tags { &self.tags } })+ };
}
tagged!(Balancer, Group, SecurityGroup);

impl Group {
    /// The Service port that it is for, by its tag.
    pub fn service_port(&self) -> Option<u16> {
        self.resource().rsplit_once(':')?.1.parse().ok()
    }

    /// Targets that need no registration.
    pub fn registered(&self) -> impl Iterator<Item = (&TargetId, &TargetHealth)> {
        let all = self.targets.iter().flatten();
        all.filter(|(_, health)| health.state != HealthState::Draining)
    }
}

impl Observed {
    /// The group with this ARN.
    pub fn group(&self, arn: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.arn == arn)
    }

    /// Whether a listener sends to the group.
    pub fn in_use(&self, group: &Group) -> bool {
        let mut listeners = self
            .balancers
            .iter()
            .flat_map(|b| b.listeners.iter().flatten());
        listeners.any(|(_, listener)| listener.groups.get(&group.arn).is_some_and(|w| *w > 0))
    }

    /// Whether a listener names the group at all, which makes it checked (AWS-621).
    pub fn is_attached(&self, group: &Group) -> bool {
        let mut listeners = self
            .balancers
            .iter()
            .flat_map(|b| b.listeners.iter().flatten());
        listeners.any(|(_, listener)| listener.groups.contains_key(&group.arn))
    }

    /// Addresses of targets.
    pub fn target_addresses(&self) -> BTreeSet<IpAddr> {
        let targets = self.groups.iter().flat_map(|g| g.targets.iter().flatten());
        targets
            .filter_map(|(target, _)| target.id.parse().ok())
            .collect()
    }

    /// Whether nothing of a Service is there.
    pub fn is_empty(&self) -> bool {
        self.balancers.is_empty() && self.groups.is_empty() && self.security_groups.is_empty()
    }
}
