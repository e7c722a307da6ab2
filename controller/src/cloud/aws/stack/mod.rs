//! What AWS should have for one Service, complete: load balancer, groups, listeners, security groups and
//! rules. Pure; read by the planner and judged by tables (the AA rows).
//!
//! Needs the network and what lives already (scheme and subnets of a live load balancer are its own
//! unless told otherwise), nothing else.

mod groups;
mod security;
mod subnets;

use std::collections::BTreeMap;

use onehop_core::crd::{LoadBalancerPort, Scheme, TargetMode};
use onehop_core::id::{PortKey, Protocol};

use super::annotations::{self, Wishes};
use super::model::{
    Attributes, Balancer, Check, GroupProtocol, IpType, Network, Rule, RuleSource, TargetType,
};
use super::names::{self, GroupHash, Namer, Tags};
use super::settings::{Flavour, Settings};
use crate::plan::{Intent, Notice, Refusal};

pub(super) use groups::CUT_UNHEALTHY;
pub use groups::{kind_of, target_family};

/// A subnet, with addresses in it where they are asked for (AWS-220).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Id of the subnet.
    pub subnet: String,
    /// Elastic address.
    pub eip: Option<String>,
    /// Private address.
    pub private_ipv4: Option<String>,
}

/// A security group of the load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupRef {
    /// The one that we make for it, by name.
    Managed(String),
    /// The shared one, by name.
    Backend(String),
    /// One that is there, by id.
    Given(String),
}

/// The load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerSpec {
    /// Name.
    pub name: String,
    /// Which of several that replace one another.
    pub generation: u32,
    /// Who can reach it.
    pub scheme: Scheme,
    /// Families.
    pub ip_type: IpType,
    /// Subnets in their order.
    pub subnets: Vec<Mapping>,
    /// Security groups in their order; none for one without.
    pub security_groups: Vec<GroupRef>,
    /// Attributes that somebody asks for.
    pub attributes: Attributes,
    /// Tags.
    pub tags: Tags,
}

/// A security group that we make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecuritySpec {
    /// Name.
    pub name: String,
    /// Description.
    pub description: String,
    /// VPC.
    pub vpc: String,
    /// Tags.
    pub tags: Tags,
    /// Inbound rules.
    pub rules: Vec<Rule>,
}

/// A group and what stands in its place in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// The Service's ports that it is for: two where TCP and UDP are merged.
    pub ports: Vec<PortKey>,
    /// Number of the Service's port.
    pub service_port: u16,
    /// Name.
    pub name: String,
    /// Which of several that replace one another.
    pub generation: u32,
    /// Mode of its targets.
    pub mode: TargetMode,
    /// The same in the API's words.
    pub target: TargetType,
    /// Protocol.
    pub protocol: GroupProtocol,
    /// Port.
    pub port: u16,
    /// Family.
    pub ip_type: IpType,
    /// VPC.
    pub vpc: String,
    /// Check.
    pub check: Check,
    /// What decides its name.
    pub hash: GroupHash,
    /// Attributes that somebody asks for, and PROXY protocol always (AWS-071).
    pub attributes: Attributes,
    /// Tags.
    pub tags: Tags,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Port.
    pub port: u16,
    /// Protocol.
    pub protocol: GroupProtocol,
    /// Certificates, the default one first.
    pub certificates: Vec<String>,
    /// Policy of a TLS listener.
    pub policy: Option<String>,
    /// ALPN policy of a TLS listener.
    pub alpn: Option<String>,
    /// Attributes that somebody asks for.
    pub attributes: Attributes,
    /// Tags.
    pub tags: Tags,
}

/// A rule on targets, whose source may be a group that is not made yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetRule {
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// First port.
    pub from: u16,
    /// Last port.
    pub to: u16,
    /// Where packets come from.
    pub source: TargetSource,
}

/// Source of a rule on targets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetSource {
    /// The backend security group.
    Backend,
    /// A range.
    Range(RuleSource),
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The load balancer.
    pub balancer: BalancerSpec,
    /// The security group that we make for it.
    pub managed: Option<SecuritySpec>,
    /// The shared security group, where it is needed and ours.
    pub backend: Option<SecuritySpec>,
    /// Listeners, each with its group.
    pub listeners: Vec<(ListenerSpec, GroupSpec)>,
    /// Rules on targets.
    pub target_rules: Vec<TargetRule>,
    /// What is worth saying.
    pub notices: Vec<Notice>,
}

/// What lives already of the Service's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live<'a> {
    /// Its load balancer.
    pub balancer: Option<&'a Balancer>,
    /// Name of its managed security group.
    pub managed: Option<&'a str>,
}

/// One building of a stack.
struct Builder<'a> {
    settings: &'a Settings,
    intent: &'a Intent,
    network: &'a Network,
    live: Live<'a>,
    flavour: Flavour,
    wishes: Wishes,
    notices: Vec<Notice>,
}

/// What AWS should have, or everything that stands in the way.
pub fn build(
    settings: &Settings,
    intent: &Intent,
    network: &Network,
    live: Live<'_>,
) -> Result<Stack, Vec<Refusal>> {
    Builder {
        settings,
        intent,
        network,
        live,
        flavour: Settings::flavour(intent.spec.class.as_deref()),
        wishes: annotations::of_options(settings, &intent.spec),
        notices: Vec::new(),
    }
    .build()
}

impl Builder<'_> {
    fn namer(&self) -> Namer<'_> {
        Namer {
            settings: self.settings,
            flavour: self.flavour,
            service: &self.intent.service,
            uid: &self.intent.uid,
        }
    }

    fn build(mut self) -> Result<Stack, Vec<Refusal>> {
        let scheme = self.scheme();
        let ip_type = self.wishes.ip_type.unwrap_or(IpType::Ipv4);
        let mut refusals = Vec::new();
        let subnets = self.subnets(scheme, ip_type).unwrap_or_else(|mut wrong| {
            refusals.append(&mut wrong);
            Vec::new()
        });
        let security = self.security(ip_type).unwrap_or_else(|mut wrong| {
            refusals.append(&mut wrong);
            security::Security::default()
        });
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let moved = self.addresses_kept(scheme, &subnets);
        self.notices.extend(moved);
        let listeners = self.listeners(ip_type);
        let used: Vec<_> = subnets
            .iter()
            .map(|mapping| mapping.subnet.clone())
            .collect();
        let target_rules = self.target_rules(&security, &listeners, scheme, &used);
        let namer = self.namer();
        let name = self.wishes.name.clone();
        let mut tags = self.wishes.tags.clone();
        tags.extend(namer.tracking_tags(names::LOAD_BALANCER, 1));
        let balancer = BalancerSpec {
            name: name.unwrap_or_else(|| namer.balancer(scheme, 1)),
            generation: 1,
            scheme,
            ip_type,
            subnets,
            security_groups: security.of_balancer.clone(),
            attributes: self.wishes.attributes.clone(),
            tags,
        };
        Ok(Stack {
            balancer,
            managed: security.managed,
            backend: security.backend,
            listeners,
            target_rules,
            notices: self.notices,
        })
    }

    /// AWS-043: said, or of the live load balancer, or the default.
    fn scheme(&self) -> Scheme {
        let live = self.live.balancer.map(|balancer| balancer.scheme);
        let said = self.wishes.scheme.or(live);
        said.unwrap_or(self.intent.spec.scheme)
    }

    /// The ports that share a number, in the order of the Service: one listener each.
    fn by_number(&self) -> Vec<Vec<&LoadBalancerPort>> {
        let mut all: Vec<Vec<&LoadBalancerPort>> = Vec::new();
        for port in &self.intent.spec.ports {
            match all.iter_mut().find(|ports| ports[0].port == port.port) {
                Some(ports) => ports.push(port),
                None => all.push(vec![port]),
            }
        }
        all
    }

    fn listeners(&self, ip_type: IpType) -> Vec<(ListenerSpec, GroupSpec)> {
        let mut all = Vec::new();
        for ports in self.by_number() {
            let transport = transport(&ports);
            let tls = self.is_tls(&ports);
            let protocol = if tls { GroupProtocol::Tls } else { transport };
            let group = self.group(&ports, protocol, transport, ip_type);
            let key = format!("{protocol}-{}", ports[0].port);
            // AWS-073: attributes of TLS listeners are not settable.
            let attributes = self.wishes.listener_attributes.get(&key).filter(|_| !tls);
            let mut tags = self.wishes.tags.clone();
            tags.extend(self.namer().tracking_tags(&ports[0].port.to_string(), 1));
            let wishes = &self.wishes.tls;
            let policy = wishes
                .policy
                .clone()
                .unwrap_or(self.settings.ssl_policy.clone());
            let listener = ListenerSpec {
                port: ports[0].port,
                protocol,
                certificates: if tls {
                    wishes.certificates.clone()
                } else {
                    Vec::new()
                },
                policy: tls.then_some(policy),
                alpn: wishes.alpn.clone().filter(|_| tls),
                attributes: attributes.cloned().unwrap_or_default(),
                tags,
            };
            all.push((listener, group));
        }
        all
    }

    /// AWS-064, AWS-065: with certificates, the named ports or all that are not UDP.
    fn is_tls(&self, ports: &[&LoadBalancerPort]) -> bool {
        let tls = &self.wishes.tls;
        let [port] = ports else { return false };
        let named = tls.ports.as_ref().is_none_or(|entries| {
            entries
                .iter()
                .any(|entry| port.name.as_str() == entry || port.port.to_string() == *entry)
        });
        !tls.certificates.is_empty() && named && port.protocol == Protocol::Tcp
    }
}

/// The transport of a listener on these ports.
fn transport(ports: &[&LoadBalancerPort]) -> GroupProtocol {
    match ports {
        [port] if port.protocol == Protocol::Udp => GroupProtocol::Udp,
        [_] => GroupProtocol::Tcp,
        _ => GroupProtocol::TcpUdp,
    }
}

/// The description of everything that is built, for golden tests and people.
impl std::fmt::Display for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let b = &self.balancer;
        write!(
            f,
            "load balancer {} {} {}",
            b.name,
            names::scheme_word(b.scheme),
            b.ip_type
        )?;
        for mapping in &b.subnets {
            write!(f, " {}", mapping.subnet)?;
        }
        writeln!(
            f,
            " groups={:?} {}",
            b.security_groups,
            pairs(&b.attributes)
        )?;
        for group in self.managed.iter().chain(&self.backend) {
            writeln!(f, "security group {}", group.name)?;
            for rule in &group.rules {
                writeln!(f, "  {rule}")?;
            }
        }
        for (listener, group) in &self.listeners {
            let (policy, alpn) = (listener.policy.as_deref(), listener.alpn.as_deref());
            writeln!(
                f,
                "listener {} {} {:?} {policy:?} {alpn:?} {}",
                listener.port,
                listener.protocol,
                listener.certificates,
                pairs(&listener.attributes)
            )?;
            let c = &group.check;
            writeln!(
                f,
                "  group {} {} {} {} {} {} check {} {:?} {:?} {}/{}/{}/{} {}",
                group.name,
                group.tags.get(names::RESOURCE).map_or("", String::as_str),
                group.target,
                group.protocol,
                group.port,
                group.ip_type,
                c.protocol,
                c.port,
                c.path,
                c.interval,
                c.timeout,
                c.healthy,
                c.unhealthy,
                pairs(&group.attributes)
            )?;
        }
        for rule in &self.target_rules {
            writeln!(
                f,
                "on targets {} {}-{} {:?}",
                rule.protocol, rule.from, rule.to, rule.source
            )?;
        }
        Ok(())
    }
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = map.iter().map(|(k, v)| format!("{k}={v}")).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests;
