//! What the engine has no word for: the network, machines, security groups, and AWS's own side of load
//! balancers, groups and listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};
use onehop_core::time::Time;

use super::error::Refusal;
use super::rights::Rights;
use crate::certificate::Certificate;
use crate::engine::{GroupId, LbId, ListenerKey, Tags};

/// How an account begins.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Region.
    pub region: String,
    /// Access keys with their secrets.
    pub keys: BTreeMap<String, String>,
    /// Id of the one VPC.
    pub vpc: String,
    /// Its ranges.
    pub ranges: Vec<IpNet>,
    /// Its subnets.
    pub subnets: Vec<SubnetSetup>,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Security groups that are there, by id, with their tags.
    pub security_groups: BTreeMap<String, Tags>,
    /// From where load balancers get their addresses.
    pub addresses: Ipv4Net,
}

/// A subnet.
#[derive(Clone, Debug)]
pub struct SubnetSetup {
    /// Id.
    pub id: String,
    /// Zone, as the LB nodes are named by.
    pub zone: String,
    /// Range.
    pub range: Ipv4Net,
    /// Tags.
    pub tags: Tags,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `i-…`.
    pub id: String,
    /// Its primary address.
    pub address: IpAddr,
    /// Its zone.
    pub zone: String,
    /// Security groups of its primary interface; none: the account's first.
    pub security_groups: Vec<String>,
}

/// A network interface beside the machines' primary ones: a pod's own, or one more of a machine.
#[derive(Clone, Debug)]
pub struct Interface {
    /// `eni-…`.
    pub id: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Ranges that are assigned to it.
    pub prefixes: Vec<IpNet>,
    /// Its security groups.
    pub security_groups: Vec<String>,
}

/// A load balancer's own side.
#[derive(Clone, Debug)]
pub(super) struct Balancer {
    pub(super) arn: String,
    pub(super) name: String,
    pub(super) dns: String,
    pub(super) engine: LbId,
    pub(super) scheme: String,
    pub(super) ip_type: String,
    pub(super) created: Time,
    pub(super) subnets: Vec<(String, String, IpAddr)>,
    pub(super) security_groups: Vec<String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) tags: Tags,
}

impl Balancer {
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.subnets
            .iter()
            .map(|(_, _, address)| *address)
            .collect()
    }
}

/// A group's own side. One that takes TCP and UDP is two groups of the engine.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) arn: String,
    pub(super) name: String,
    pub(super) engine: Vec<GroupId>,
    pub(super) target_type: String,
    pub(super) protocol: String,
    pub(super) port: u16,
    pub(super) check: Check,
    /// The ids under which targets were registered.
    pub(super) ids: BTreeMap<SocketAddr, String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) tags: Tags,
}

/// A health check as AWS words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) protocol: String,
    pub(super) port: String,
    pub(super) path: Option<String>,
    pub(super) codes: Option<String>,
    pub(super) interval: u32,
    pub(super) timeout: u32,
    pub(super) healthy: u32,
    pub(super) unhealthy: u32,
}

/// A listener's own side.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    pub(super) arn: String,
    pub(super) balancer: String,
    pub(super) port: u16,
    pub(super) protocol: String,
    pub(super) groups: BTreeMap<String, u32>,
    /// The default one first; none where the protocol is not TLS.
    pub(super) certificates: Vec<String>,
    pub(super) policy: Option<String>,
    pub(super) alpn: Option<String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) tags: Tags,
}

impl Listener {
    /// The engine's listeners that it is.
    pub(super) fn keys(&self) -> Vec<ListenerKey> {
        let transports = super::groups::transports(&self.protocol);
        let key = |protocol: &crate::engine::Protocol| ListenerKey {
            port: self.port,
            protocol: *protocol,
        };
        transports.iter().map(key).collect()
    }
}

/// A security group.
#[derive(Clone, Debug)]
pub(super) struct SecurityGroup {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) made_by_call: bool,
    pub(super) tags: Tags,
    /// Protocol, ports and source decide whether two rules are one (FC-99a).
    pub(super) rules: BTreeMap<RuleKey, String>,
}

/// What makes a rule: protocol, first and last port, and the kind and text of its source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleKey {
    pub(super) protocol: String,
    pub(super) from: i32,
    pub(super) to: i32,
    pub(super) kind: &'static str,
    pub(super) source: String,
}

/// The account.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) region: String,
    pub(super) keys: BTreeMap<String, String>,
    pub(super) rights: Rights,
    pub(super) vpc: String,
    pub(super) ranges: Vec<IpNet>,
    pub(super) subnets: BTreeMap<String, SubnetSetup>,
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) security_groups: BTreeMap<String, SecurityGroup>,
    pub(super) balancers: BTreeMap<String, Balancer>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) listeners: BTreeMap<String, Listener>,
    /// Those that listeners may name, by ARN.
    pub(super) certificates: BTreeMap<String, Arc<Certificate>>,
    pub(super) calls: BTreeMap<String, u64>,
    /// Calls that are no reads, in their order.
    pub(super) writes: Vec<String>,
    addresses: Ipv4Net,
    number: u64,
}

impl Account {
    pub(super) fn new(setup: Setup) -> Self {
        let group = |(id, tags): (String, Tags)| {
            let group = SecurityGroup {
                name: id.clone(),
                description: "of the cluster".to_owned(),
                made_by_call: false,
                tags,
                rules: BTreeMap::new(),
                id: id.clone(),
            };
            (id, group)
        };
        Self {
            region: setup.region,
            keys: setup.keys,
            rights: Rights::All,
            vpc: setup.vpc,
            ranges: setup.ranges,
            subnets: setup
                .subnets
                .into_iter()
                .map(|s| (s.id.clone(), s))
                .collect(),
            machines: setup
                .machines
                .into_iter()
                .map(|m| (m.id.clone(), m))
                .collect(),
            interfaces: Vec::new(),
            security_groups: setup.security_groups.into_iter().map(group).collect(),
            balancers: BTreeMap::new(),
            groups: BTreeMap::new(),
            listeners: BTreeMap::new(),
            certificates: BTreeMap::new(),
            calls: BTreeMap::new(),
            writes: Vec::new(),
            addresses: setup.addresses,
            number: 0,
        }
    }

    pub(super) fn add_machine(&mut self, machine: Machine) {
        self.machines.insert(machine.id.clone(), machine);
    }

    /// A number that was never given before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(super) fn request_id(&mut self) -> String {
        let number = self.next_number();
        format!("00000000-0000-4000-8000-{number:012x}")
    }

    /// `arn:aws:elasticloadbalancing:<region>:<account>:<rest>`.
    pub(super) fn arn(&self, rest: &str) -> String {
        format!(
            "arn:aws:elasticloadbalancing:{}:123456789012:{rest}",
            self.region
        )
    }

    /// An address for a load balancer.
    pub(super) fn free_address(&self) -> Result<Ipv4Addr, Refusal> {
        let taken: BTreeSet<IpAddr> = self
            .balancers
            .values()
            .flat_map(Balancer::addresses)
            .collect();
        let free = self
            .addresses
            .hosts()
            .find(|a| !taken.contains(&IpAddr::V4(*a)));
        free.ok_or_else(|| Refusal::new("InvalidSubnet", "the subnet has no free addresses"))
    }

    pub(super) fn balancer(&mut self, arn: &str) -> Result<&mut Balancer, Refusal> {
        let missing = || {
            Refusal::new(
                "LoadBalancerNotFound",
                format!("Load balancer '{arn}' not found"),
            )
        };
        self.balancers.get_mut(arn).ok_or_else(missing)
    }

    pub(super) fn group(&mut self, arn: &str) -> Result<&mut Group, Refusal> {
        let missing = || {
            Refusal::new(
                "TargetGroupNotFound",
                format!("Target group '{arn}' not found"),
            )
        };
        self.groups.get_mut(arn).ok_or_else(missing)
    }

    pub(super) fn listener(&mut self, arn: &str) -> Result<&mut Listener, Refusal> {
        let missing = || Refusal::new("ListenerNotFound", format!("Listener '{arn}' not found"));
        self.listeners.get_mut(arn).ok_or_else(missing)
    }

    /// Load balancers whose listeners name the group.
    pub(super) fn users(&self, group: &str) -> BTreeSet<String> {
        let listeners = self
            .listeners
            .values()
            .filter(|l| l.groups.contains_key(group));
        listeners
            .map(|listener| listener.balancer.clone())
            .collect()
    }
}
