//! Rules of the network security group, computed from all Services at once (AZ-200 to AZ-215). Pure.
//!
//! Ours are the rules with the prefix of this install and a priority of the band; every other one stays byte for byte.
//! Services with the same protocol, sources and ports share a rule by its hash.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::{Cidr, IpFamily, Protocol};
use serde_json::{Value, json};

use super::annotations::{Access, Wishes};
use super::document::{
    SECURITY_RULES, at, child, children, children_mut, has, lay_over, name, text,
};
use super::names;
use super::resolve::Flavour;
use super::settings::{Settings, Side};
use crate::plan::Refusal;

/// Band of priorities in which rules of ours are (AZ-201), and where both kinds begin (AZ-202).
const BAND: std::ops::RangeInclusive<u64> = 500..=4096;
const FIRST_ALLOW: u64 = 500;
const FIRST_DENY: u64 = 4095;
/// What Azure takes in one group (AZ-211, AZ-441).
const MOST_RULES: usize = 1000;
const MOST_PREFIXES: usize = 4000;
/// Source of everybody outside.
const INTERNET: &str = "Internet";
/// Where a rule lists its destinations.
const DESTINATIONS: &str = "destinationAddressPrefixes";
/// Source of probes.
const PROBES: &str = "AzureLoadBalancer";

/// What one Service's ports of one mode need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Where its packets go after translation.
    pub destinations: BTreeSet<Destination>,
    /// Ports there.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// Who may connect; nobody else when closed.
    pub sources: Sources,
    /// Whether everybody else is kept out, also from inside the network (AZ-053).
    pub deny_rest: bool,
    /// Ports of probes that a deny-all at these destinations would cover (AZ-156).
    pub probes: BTreeSet<u16>,
    /// Whose rules they are: those of targets that are pods are never the peer's (AZ-097).
    pub naming: Flavour,
    /// The security group that has to let them in.
    pub side: Side,
}

/// A destination, in order of family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination(IpFamily, Cidr);

impl Destination {
    fn of(range: Cidr) -> Self {
        Self(range.family(), range)
    }

    fn prefix(&self) -> String {
        let net = self.1.net();
        if net.prefix_len() == net.max_prefix_len() {
            net.addr().to_string()
        } else {
            net.to_string()
        }
    }
}

impl From<IpAddr> for Destination {
    fn from(address: IpAddr) -> Self {
        Self::of(Cidr::host(address))
    }
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Service tags, `Internet` among them.
    pub tags: BTreeSet<String>,
    /// Ranges.
    pub ranges: Vec<Cidr>,
}

/// Addresses that a Service's rules are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Of its frontends.
    pub frontends: Vec<IpAddr>,
    /// Of the nodes in its pools.
    pub nodes: Vec<IpAddr>,
    /// Of the pods in its pools.
    pub pods: Vec<IpAddr>,
}

/// What a Service needs, one for each mode of its ports.
pub fn demands(
    settings: &Settings,
    spec: &LoadBalancerSpec,
    wishes: &Wishes,
    at: &Addresses,
) -> Vec<Demand> {
    let access = &wishes.access;
    if access.unruled {
        return Vec::new();
    }
    let Some(sources) = sources(wishes) else {
        // The network's own default lets its machines in (AZ-205).
        return Vec::new();
    };
    // A bad entry closes (AZ-052).
    let deny_rest = !access.bad.is_empty() || (access.deny_all && !access.is_open());
    [TargetMode::Vip, TargetMode::Node, TargetMode::Pod]
        .into_iter()
        .filter_map(|mode| {
            let of_mode: Vec<_> = spec.ports.iter().filter(|port| port.mode == mode).collect();
            let port = |port: &&onehop_core::crd::LoadBalancerPort| match mode {
                TargetMode::Node => port.node_port,
                TargetMode::Pod => port.target_port,
                _ => Some(port.port),
            };
            let ports = of_mode
                .iter()
                .filter_map(|p| Some((p.protocol, port(p)?)))
                .collect();
            let destinations: BTreeSet<Destination> = match mode {
                TargetMode::Node => at.nodes.iter().copied().map(Destination::from).collect(),
                // The whole subnet: single addresses churn and are counted; a deny-all must not reach others (AZ-215).
                TargetMode::Pod if !deny_rest => settings
                    .pod_prefixes
                    .iter()
                    .copied()
                    .map(Destination::of)
                    .collect(),
                TargetMode::Pod => at.pods.iter().copied().map(Destination::from).collect(),
                _ => at
                    .frontends
                    .iter()
                    .chain(&wishes.additional)
                    .copied()
                    .map(Destination::from)
                    .collect(),
            };
            let served = |destination: &Destination| spec.families.contains(&destination.0);
            let covers = deny_rest && mode != TargetMode::Vip;
            let health = of_mode
                .iter()
                .filter(|_| covers)
                .filter_map(|p| p.health.as_ref()?.port);
            let demand = Demand {
                destinations: destinations.into_iter().filter(served).collect(),
                ports,
                sources: sources.clone(),
                deny_rest,
                probes: health.collect(),
                side: match (mode, &settings.place.pod_security_group) {
                    (TargetMode::Pod, Some(_)) => Side::Pods,
                    _ => Side::Nodes,
                },
                naming: match mode {
                    TargetMode::Pod => Flavour::Own,
                    _ => settings.naming(spec.class.as_deref()),
                },
            };
            (!demand.destinations.is_empty() && !demand.ports.is_empty()).then_some(demand)
        })
        .collect()
}

/// Whether a Service needs rules at all (AZ-018, AZ-205).
pub(super) fn needs_rules(wishes: &Wishes) -> bool {
    !wishes.access.unruled && sources(wishes).is_some()
}

/// AZ-205; none where no rule is needed at all.
fn sources(wishes: &Wishes) -> Option<Sources> {
    let Access { tags, ranges, .. } = &wishes.access;
    if !wishes.access.is_open() {
        return Some(Sources {
            tags: tags.clone(),
            ranges: Cidr::aggregate(ranges.iter().copied()),
        });
    }
    let everybody = Sources {
        tags: [INTERNET.to_owned()].into(),
        ranges: Vec::new(),
    };
    (!wishes.internal).then_some(everybody)
}

/// An allow rule, in the order of AZ-203: protocol, family, tags before ranges.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Allow {
    protocol: Protocol,
    family: IpFamily,
    kind: SourceKind,
    sources: Vec<String>,
    ports: Vec<String>,
    naming: Flavour,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SourceKind {
    Tag,
    Ranges,
}

#[derive(Default)]
struct Wanted {
    allow: BTreeMap<Allow, BTreeSet<Destination>>,
    deny: BTreeMap<(Flavour, IpFamily), BTreeSet<Destination>>,
}

impl Wanted {
    fn add(&mut self, demand: &Demand) {
        for family in IpFamily::ALL {
            let here: BTreeSet<_> = demand
                .destinations
                .iter()
                .filter(|d| d.0 == family)
                .copied()
                .collect();
            if here.is_empty() {
                continue;
            }
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let of = demand.ports.iter().filter(|(p, _)| *p == protocol);
                let ports: Vec<String> = of.map(|(_, port)| port.to_string()).collect();
                if ports.is_empty() {
                    continue;
                }
                for tag in &demand.sources.tags {
                    self.allow(
                        protocol,
                        SourceKind::Tag,
                        vec![tag.clone()],
                        (&ports, &here, demand.naming),
                    );
                }
                let ranges = demand
                    .sources
                    .ranges
                    .iter()
                    .filter(|range| range.family() == family);
                let ranges: Vec<String> = ranges.map(ToString::to_string).collect();
                if !ranges.is_empty() {
                    self.allow(
                        protocol,
                        SourceKind::Ranges,
                        ranges,
                        (&ports, &here, demand.naming),
                    );
                }
            }
            if demand.deny_rest {
                if !demand.probes.is_empty() {
                    let ports: Vec<String> =
                        demand.probes.iter().map(ToString::to_string).collect();
                    self.allow(
                        Protocol::Tcp,
                        SourceKind::Tag,
                        vec![PROBES.to_owned()],
                        (&ports, &here, demand.naming),
                    );
                }
                self.deny
                    .entry((demand.naming, family))
                    .or_default()
                    .extend(here);
            }
        }
    }

    fn allow(
        &mut self,
        protocol: Protocol,
        kind: SourceKind,
        mut sources: Vec<String>,
        (ports, to, naming): (&[String], &BTreeSet<Destination>, Flavour),
    ) {
        let Some(first) = to.first() else { return };
        sources.sort();
        let mut ports = ports.to_vec();
        ports.sort();
        let rule = Allow {
            protocol,
            family: first.0,
            kind,
            sources,
            ports,
            naming,
        };
        self.allow.entry(rule).or_default().extend(to);
    }
}

/// The document with the rules that all demands need, and no other rule of ours. The refusal names a limit (AZ-211).
pub fn desired(
    settings: &Settings,
    document: &Value,
    demands: &[Demand],
) -> Result<Value, Refusal> {
    let rules = bodies(settings, demands);
    let mut document = document.clone();
    let ours = |rule: &Value| is_ours(rule, settings);
    let keep: BTreeSet<String> = rules
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    if rules.is_empty() && !children(&document, SECURITY_RULES).iter().any(ours) {
        return Ok(document);
    }
    let there = children_mut(&mut document, SECURITY_RULES);
    there.retain(|rule| !ours(rule) || keep.contains(&name(rule).to_ascii_lowercase()));
    let mut taken: BTreeSet<u64> = there
        .iter()
        .filter(|rule| is_inbound(rule))
        .filter_map(priority)
        .collect();
    for (wanted_name, wish) in rules {
        let known = there
            .iter_mut()
            .find(|rule| name(rule).eq_ignore_ascii_case(&wanted_name));
        if let Some(known) = known {
            if !says(known, &wish) {
                lay_over(known, &wish);
            }
            continue;
        }
        let deny = text(&wish, &["properties", "access"]) == Some("Deny");
        let free = if deny {
            (*BAND.start()..=FIRST_DENY)
                .rev()
                .find(|p| !taken.contains(p))
        } else {
            (FIRST_ALLOW..=*BAND.end()).find(|p| !taken.contains(p))
        };
        let Some(free) = free else {
            return Err(limit(
                "priorities of the network security group",
                MOST_RULES + 1,
                MOST_RULES,
            ));
        };
        taken.insert(free);
        let mut made = json!({"name": wanted_name, "properties": {"priority": free}});
        lay_over(&mut made, &wish);
        there.push(made);
    }
    check_limits(&document)?;
    Ok(document)
}

/// Whether a rule says what is wished. Prefixes and ports are sets: whoever wrote them has an order of its own.
fn says(there: &Value, wish: &Value) -> bool {
    let in_order = |rule: &Value| {
        let mut rule = rule.clone();
        let lists = [
            DESTINATIONS,
            "sourceAddressPrefixes",
            "destinationPortRanges",
        ];
        for list in lists {
            if let Some(Value::Array(items)) = rule["properties"].get_mut(list) {
                items.sort_by_cached_key(ToString::to_string);
            }
        }
        rule
    };
    has(Some(&in_order(there)), &in_order(wish))
}

/// Whether everything that these demands need is there, whatever else is: enough for one Service, of which others share
/// rules (AZ-208).
pub fn lets_in(settings: &Settings, document: &Value, demands: &[Demand]) -> bool {
    bodies(settings, demands).iter().all(|(name, wish)| {
        let Some(there) = child(document, SECURITY_RULES, name) else {
            return false;
        };
        let destinations = |rule: &Value| -> BTreeSet<String> {
            let list = at(rule, &["properties", DESTINATIONS]).and_then(Value::as_array);
            let list = list.into_iter().flatten();
            list.filter_map(|it| it.as_str().map(str::to_owned))
                .collect()
        };
        let mut rest = wish.clone();
        if let Some(properties) = rest["properties"].as_object_mut() {
            properties.remove(DESTINATIONS);
        }
        says(there, &rest) && destinations(wish).is_subset(&destinations(there))
    })
}

/// Name and body of every rule that these demands need.
fn bodies(settings: &Settings, demands: &[Demand]) -> Vec<(String, Value)> {
    let mut wanted = Wanted::default();
    for demand in demands {
        wanted.add(demand);
    }
    let mut rules: Vec<(String, Value)> = Vec::new();
    for (allow, to) in &wanted.allow {
        let protocol = word(allow.protocol);
        let hash = names::rule_hash(protocol, &allow.sources, &allow.ports);
        let prefix = names::security_rule_prefix(&settings.install, allow.naming);
        let name = names::allow_rule(&prefix, allow.family, &hash);
        rules.push((name, allow_body(protocol, allow, to)));
    }
    for ((naming, family), to) in &wanted.deny {
        let prefix = names::security_rule_prefix(&settings.install, *naming);
        rules.push((names::deny_rule(&prefix, *family), deny_body(to)));
    }
    rules
}

/// Whether a rule is of this install, or of the peer that was said to be off (AZ-201).
fn is_ours(rule: &Value, settings: &Settings) -> bool {
    let named = |naming| {
        let prefix = names::security_rule_prefix(&settings.install, naming);
        let head = name(rule).get(..prefix.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(&prefix))
    };
    let peer = settings.naming(None);
    (named(Flavour::Own) || named(peer))
        && priority(rule).is_some_and(|priority| BAND.contains(&priority))
}

fn priority(rule: &Value) -> Option<u64> {
    at(rule, &["properties", "priority"])?.as_u64()
}

fn is_inbound(rule: &Value) -> bool {
    text(rule, &["properties", "direction"])
        .is_none_or(|direction| direction.eq_ignore_ascii_case("Inbound"))
}

/// Of a rule that may be ours to write: the same difference decides whether to write at all (AZ-214).
pub fn differs(a: &Value, b: &Value) -> bool {
    at(a, &["properties", SECURITY_RULES]) != at(b, &["properties", SECURITY_RULES])
}

const fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "Tcp",
        Protocol::Udp => "Udp",
        Protocol::Sctp => "*",
    }
}

fn prefixes(to: &BTreeSet<Destination>) -> Vec<String> {
    to.iter().map(Destination::prefix).collect()
}

/// AZ-204. What Azure may say in the singular is taken back where we say it in the plural.
fn allow_body(protocol: &str, allow: &Allow, to: &BTreeSet<Destination>) -> Value {
    let (one, many) = match allow.sources.as_slice() {
        [one] => (json!(one), Value::Null),
        many => (Value::Null, json!(many)),
    };
    json!({"properties": {
        "access": "Allow",
        "direction": "Inbound",
        "protocol": protocol,
        "sourcePortRange": "*",
        "sourceAddressPrefix": one,
        "sourceAddressPrefixes": many,
        "destinationAddressPrefix": Value::Null,
        (DESTINATIONS): prefixes(to),
        "destinationPortRange": Value::Null,
        "destinationPortRanges": allow.ports,
    }})
}

fn deny_body(to: &BTreeSet<Destination>) -> Value {
    json!({"properties": {
        "access": "Deny",
        "direction": "Inbound",
        "protocol": "*",
        "sourcePortRange": "*",
        "sourceAddressPrefix": "*",
        "sourceAddressPrefixes": Value::Null,
        "destinationAddressPrefix": Value::Null,
        (DESTINATIONS): prefixes(to),
        "destinationPortRange": "*",
        "destinationPortRanges": Value::Null,
    }})
}

fn check_limits(document: &Value) -> Result<(), Refusal> {
    let rules = children(document, SECURITY_RULES);
    let count = |list: &str| -> usize {
        let of = |rule: &Value| {
            at(rule, &["properties", list])
                .and_then(Value::as_array)
                .map_or(0, Vec::len)
        };
        rules.iter().map(of).sum()
    };
    let counts = [
        (
            "rules of the network security group",
            rules.len(),
            MOST_RULES,
        ),
        (
            "source prefixes of the network security group",
            count("sourceAddressPrefixes"),
            MOST_PREFIXES,
        ),
        (
            "destination prefixes of the network security group",
            count(DESTINATIONS),
            MOST_PREFIXES,
        ),
    ];
    match counts.into_iter().find(|(_, count, most)| count > most) {
        Some((what, count, most)) => Err(limit(what, count, most)),
        None => Ok(()),
    }
}

fn limit(what: &str, count: usize, most: usize) -> Refusal {
    Refusal {
        reason: "LimitReached",
        message: format!("{what}: {count} are needed and Azure takes {most}"),
    }
}

#[cfg(test)]
mod tests;
