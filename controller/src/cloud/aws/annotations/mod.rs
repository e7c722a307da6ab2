//! The one parser of annotations for the AWS provider. It collects every problem; nothing else reads an
//! annotation.
//!
//! Read again from the resolved spec's options ([`of_options`]) when a plan is made, so that an
//! invalid edit falls back to all of the last good wishes (I10).

pub mod keys;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use onehop_core::crd::{LoadBalancerSpec, MembershipPolicy, Scheme, TargetMode};
use onehop_core::id::{Cidr, IpFamily};
use onehop_core::service::ServiceSpec;

use self::reader::{Reader, boolean};
use super::model::{CheckProtocol, IpType};
use super::settings::Settings;

/// What a Service's annotations ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// An explicit mode.
    pub mode: Option<TargetMode>,
    /// An explicit membership policy.
    pub membership: Option<MembershipPolicy>,
    /// A name for the load balancer.
    pub name: Option<String>,
    /// An explicit scheme.
    pub scheme: Option<Scheme>,
    /// Subnets by id or name, in their order.
    pub subnets: Vec<String>,
    /// Elastic addresses, one a subnet.
    pub eips: Vec<String>,
    /// Private addresses, one a subnet.
    pub private_ipv4: Vec<Ipv4Addr>,
    /// Families.
    pub ip_type: Option<IpType>,
    /// Attributes of the load balancer.
    pub attributes: BTreeMap<String, String>,
    /// Tags of everything.
    pub tags: BTreeMap<String, String>,
    /// Security groups by id or name.
    pub security_groups: Vec<String>,
    /// Whether targets get rules.
    pub backend_rules: Option<bool>,
    /// No security group at all.
    pub no_security_group: bool,
    /// Who may connect, if anything says so.
    pub source_ranges: Vec<Cidr>,
    /// Prefix lists of who may connect.
    pub prefix_lists: Vec<String>,
    /// Rules for path MTU discovery.
    pub icmp: bool,
    /// TLS.
    pub tls: Tls,
    /// PROXY protocol.
    pub proxy: Proxy,
    /// Attributes of every group.
    pub group_attributes: BTreeMap<String, String>,
    /// Attributes of the group of one listener port.
    pub group_attributes_of: BTreeMap<u16, BTreeMap<String, String>>,
    /// Attributes of listeners by `PROTO-PORT`.
    pub listener_attributes: BTreeMap<String, BTreeMap<String, String>>,
    /// The health check.
    pub health: Health,
    /// Labels of the nodes that are targets.
    pub node_labels: BTreeMap<String, String>,
    /// Merge TCP and UDP on one port.
    pub merge: Option<bool>,
    /// What is worth saying although nothing is wrong.
    pub hints: Vec<Hint>,
    /// Option (the key without prefix), value and the annotation or field it came from.
    pub origins: Vec<(String, String, String)>,
}

/// Wishes about TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates, the default one first.
    pub certificates: Vec<String>,
    /// Ports by name or number; all that are not UDP when absent.
    pub ports: Option<Vec<String>>,
    /// Security policy.
    pub policy: Option<String>,
    /// TLS towards targets too.
    pub to_targets: bool,
    /// ALPN policy.
    pub alpn: Option<String>,
}

/// Wishes about PROXY protocol version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// On every group.
    pub everywhere: bool,
    /// On the groups of these ports, and no others.
    pub ports: Option<BTreeSet<u16>>,
}

/// Wishes about the health check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Protocol.
    pub protocol: Option<CheckProtocol>,
    /// Port.
    pub port: Option<HealthPort>,
    /// Path.
    pub path: Option<String>,
    /// Seconds between checks.
    pub interval: Option<u32>,
    /// Seconds for an answer.
    pub timeout: Option<u32>,
    /// Good ones in a row.
    pub healthy: Option<u32>,
    /// Bad ones in a row.
    pub unhealthy: Option<u32>,
    /// Good codes.
    pub codes: Option<String>,
}

/// Port of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthPort {
    /// The target's own.
    Traffic,
    /// A number.
    Number(u16),
    /// A port of the Service by name.
    Name(String),
}

/// Something about an annotation that is worth saying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It does nothing here; what to use instead (AWS-085).
    Replaced(String, &'static str),
    /// Nobody knows the key (AWS-086).
    Unknown(String),
    /// It is understood and not carried out.
    NotYet(String),
    /// An unknown word that counts as `instance` (AWS-003).
    CountsAsInstance(String),
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = keys::PREFIX;
        match self {
            Self::Replaced(key, instead) => {
                write!(f, "{prefix}{key} does nothing here: use {prefix}{instead}")
            }
            Self::Unknown(key) => write!(f, "{prefix}{key} is not known and does nothing"),
            Self::NotYet(key) => write!(f, "{prefix}{key} is not carried out by this version"),
            Self::CountsAsInstance(word) => {
                let key = keys::TARGET_TYPE;
                write!(
                    f,
                    "{prefix}{key}: {word:?} counts as instance; the words are ip and instance"
                )
            }
        }
    }
}

/// One annotation or field that cannot be followed (AWS-033).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its full key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value, allowed) = (&self.key, &self.value, &self.allowed);
        write!(f, "{key}: {value:?} is not allowed: {allowed}")
    }
}

/// Whether a Service without a class asks aws-load-balancer-controller for a load balancer, by its rule (AWS-002):
/// `external` alone, and every type of others, do not.
pub fn ask_the_peer(service: &ServiceSpec) -> bool {
    let text = |key: &str| {
        let key = format!("{}{key}", keys::PREFIX);
        service.annotations.get(&key).map(String::as_str)
    };
    match (text(keys::TYPE), text(keys::TARGET_TYPE)) {
        (Some("nlb-ip"), _) => true,
        (Some("external"), Some(target)) => matches!(target, "ip" | "instance"),
        _ => false,
    }
}

/// Reads everything and reports everything.
pub fn parse(settings: &Settings, service: &ServiceSpec) -> (Wishes, Vec<Problem>) {
    let mut reader = Reader::new(&service.annotations);
    unknown_keys(&mut reader);
    let mut wishes = read(settings, &mut reader);
    spec_ranges(&mut wishes, &mut reader, service);
    let origins = reader.used.iter().filter_map(|key| {
        let from = format!("{}{key}", keys::PREFIX);
        let value = service.annotations.get(&from)?.trim().to_owned();
        Some((key.clone(), value, from))
    });
    wishes.origins.extend(origins);
    wishes.origins.sort();
    wishes.hints = reader.hints;
    (wishes, reader.problems)
}

/// The wishes that a resolved spec holds.
pub fn of_options(settings: &Settings, spec: &LoadBalancerSpec) -> Wishes {
    let pairs = spec.options.iter();
    let annotations = pairs
        .map(|option| {
            (
                format!("{}{}", keys::PREFIX, option.name),
                option.value.clone(),
            )
        })
        .collect();
    // Whatever was a problem when it was resolved never got into a spec.
    read(settings, &mut Reader::new(&annotations))
}

fn read(settings: &Settings, reader: &mut Reader<'_>) -> Wishes {
    let mut wishes = Wishes {
        mode: mode(reader),
        membership: membership(reader),
        name: reader.text(keys::NAME).map(str::to_owned),
        scheme: scheme(reader),
        subnets: reader.list(keys::SUBNETS),
        eips: reader.list(keys::EIPS),
        private_ipv4: reader.parsed(keys::PRIVATE_IPV4, "IPv4 addresses with commas"),
        ip_type: reader.word(
            keys::IP_TYPE,
            &[("ipv4", IpType::Ipv4), ("dualstack", IpType::Dualstack)],
        ),
        attributes: balancer_attributes(reader),
        tags: tags(settings, reader),
        security_groups: reader.list(keys::SECURITY_GROUPS),
        backend_rules: reader.bool(keys::BACKEND_RULES),
        no_security_group: reader.bool(keys::NO_SECURITY_GROUP).unwrap_or(false),
        source_ranges: reader.parsed(keys::SOURCE_RANGES, "address ranges with commas"),
        prefix_lists: reader.list(keys::PREFIX_LISTS),
        icmp: reader.word(keys::ICMP, &[("on", true)]).unwrap_or(false),
        tls: tls(reader),
        proxy: proxy(reader),
        group_attributes: reader.map(keys::GROUP_ATTRIBUTES),
        group_attributes_of: group_attributes_of(reader),
        listener_attributes: listener_attributes(reader),
        health: health(reader),
        node_labels: reader.map(keys::NODE_LABELS),
        merge: reader.text(keys::TCP_UDP).and_then(boolean),
        ..Wishes::default()
    };
    check_name(&wishes, reader);
    check_group_attributes(&mut wishes, reader);
    wishes
}

fn mode(reader: &mut Reader<'_>) -> Option<TargetMode> {
    // AWS-003: with the class given, an unknown word is `instance`.
    let theirs = reader.text(keys::TARGET_TYPE).map(|word| {
        if !matches!(word, "ip" | "instance") {
            reader.hints.push(Hint::CountsAsInstance(word.to_owned()));
        }
        if word == "ip" {
            TargetMode::Pod
        } else {
            TargetMode::Node
        }
    });
    let Some(value) = reader.annotations.get(keys::TARGET) else {
        return theirs;
    };
    let ours = match value.trim() {
        "pod" => Some(TargetMode::Pod),
        "node" => Some(TargetMode::Node),
        other => {
            let other = other.to_owned();
            reader.problem(keys::TARGET, &other, "one of node, pod (AWS has no vip)");
            None
        }
    };
    theirs.or(ours)
}

fn membership(reader: &mut Reader<'_>) -> Option<MembershipPolicy> {
    match reader.annotations.get(keys::MEMBERSHIP)?.trim() {
        "zero-drop" => Some(MembershipPolicy::ZeroDrop),
        "compat" => Some(MembershipPolicy::Compat),
        other => {
            let other = other.to_owned();
            reader.problem(keys::MEMBERSHIP, &other, "one of zero-drop, compat");
            None
        }
    }
}

/// AWS-043, AWS-044.
fn scheme(reader: &mut Reader<'_>) -> Option<Scheme> {
    let words = [
        ("internal", Scheme::Internal),
        ("internet-facing", Scheme::InternetFacing),
    ];
    let scheme = reader.word(keys::SCHEME, &words);
    let old = reader.bool(keys::INTERNAL).map(|internal| {
        if internal {
            Scheme::Internal
        } else {
            Scheme::InternetFacing
        }
    });
    scheme.or(old)
}

/// AWS-052 to AWS-054.
fn balancer_attributes(reader: &mut Reader<'_>) -> BTreeMap<String, String> {
    let mut all = reader.map(keys::ATTRIBUTES);
    let routing = "dns_record.client_routing_policy";
    let allowed = [
        "any_availability_zone",
        "partial_availability_zone_affinity",
        "availability_zone_affinity",
    ];
    if let Some(value) = all.get(routing)
        && !allowed.contains(&value.as_str())
    {
        let value = format!("{routing}={value}");
        let allowed = format!("{routing} is one of {}", allowed.join(", "));
        reader.problem(keys::ATTRIBUTES, &value, allowed);
    }
    if let Some(on) = reader.bool(keys::CROSS_ZONE) {
        all.insert(
            "load_balancing.cross_zone.enabled".to_owned(),
            on.to_string(),
        );
    }
    let bucket = reader.text(keys::LOG_BUCKET).map(str::to_owned);
    let prefix = reader.text(keys::LOG_PREFIX).map(str::to_owned);
    if reader.bool(keys::LOG_ENABLED) == Some(true) {
        all.insert("access_logs.s3.enabled".to_owned(), "true".to_owned());
        let parts = [("bucket", bucket), ("prefix", prefix)];
        for (part, value) in parts {
            all.extend(value.map(|value| (format!("access_logs.s3.{part}"), value)));
        }
    }
    all
}

/// AWS-056.
fn tags(settings: &Settings, reader: &mut Reader<'_>) -> BTreeMap<String, String> {
    let tags = reader.map(keys::TAGS);
    for key in tags
        .keys()
        .filter(|key| settings.external_tags.contains(*key))
    {
        let allowed =
            format!("any key but {key}, which is managed by others (external-managed-tags)");
        reader.problem(keys::TAGS, key, allowed);
    }
    let (mut all, over) = if settings.gates.default_tags_low.is_on() {
        (settings.default_tags.clone(), tags)
    } else {
        (tags, settings.default_tags.clone())
    };
    all.extend(over);
    all
}

fn tls(reader: &mut Reader<'_>) -> Tls {
    let words = [
        "None",
        "HTTP1Only",
        "HTTP2Only",
        "HTTP2Optional",
        "HTTP2Preferred",
    ];
    Tls {
        certificates: reader.list(keys::CERTIFICATES),
        ports: reader.text(keys::SSL_PORTS).map(reader::list),
        policy: reader.text(keys::SSL_POLICY).map(str::to_owned),
        to_targets: reader.text(keys::BACKEND_PROTOCOL) == Some("ssl"),
        alpn: reader
            .word(keys::ALPN, &words.map(|w| (w, w)))
            .map(str::to_owned),
    }
}

/// AWS-069, AWS-070.
fn proxy(reader: &mut Reader<'_>) -> Proxy {
    let everywhere = reader
        .word(keys::PROXY_PROTOCOL, &[("*", true)])
        .unwrap_or(false);
    let ports =
        reader
            .annotations
            .contains_key(&format!("{}{}", keys::PREFIX, keys::PROXY_PROTOCOL_OF));
    let listed = reader.parsed(keys::PROXY_PROTOCOL_OF, "port numbers with commas");
    Proxy {
        everywhere,
        ports: ports.then(|| listed.into_iter().collect()),
    }
}

fn group_attributes_of(reader: &mut Reader<'_>) -> BTreeMap<u16, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for suffix in reader.suffixes(keys::GROUP_ATTRIBUTES) {
        let key = format!("{}.{suffix}", keys::GROUP_ATTRIBUTES);
        match suffix.parse() {
            Ok(port) => {
                all.insert(port, reader.map(&key));
            }
            Err(_) => reader.problem(&key, &suffix, "a listener port after the last dot"),
        }
    }
    all
}

fn listener_attributes(reader: &mut Reader<'_>) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for suffix in reader.suffixes(keys::LISTENER_ATTRIBUTES) {
        let key = format!("{}.{suffix}", keys::LISTENER_ATTRIBUTES);
        let map = reader.map(&key);
        all.insert(suffix, map);
    }
    all
}

fn health(reader: &mut Reader<'_>) -> Health {
    let protocol = reader.text(keys::HC_PROTOCOL).map(|word| {
        let read = CheckProtocol::read(&word.to_ascii_uppercase());
        if read.is_none() {
            reader.problem(keys::HC_PROTOCOL, word, "one of tcp, http, https");
        }
        read
    });
    let port = reader.text(keys::HC_PORT).map(|text| match text.parse() {
        _ if text == "traffic-port" => HealthPort::Traffic,
        Ok(number) => HealthPort::Number(number),
        Err(_) => HealthPort::Name(text.to_owned()),
    });
    Health {
        protocol: protocol.flatten(),
        port,
        path: reader.text(keys::HC_PATH).map(str::to_owned),
        interval: reader.number(keys::HC_INTERVAL),
        timeout: reader.number(keys::HC_TIMEOUT),
        healthy: reader.number(keys::HC_HEALTHY),
        unhealthy: reader.number(keys::HC_UNHEALTHY),
        codes: reader.text(keys::HC_CODES).map(str::to_owned),
    }
}

/// AWS-042.
fn check_name(wishes: &Wishes, reader: &mut Reader<'_>) {
    if let Some(name) = wishes
        .name
        .as_deref()
        .filter(|name| name.chars().count() > 32)
    {
        reader.problem(keys::NAME, name, "at most 32 characters");
    }
}

/// AWS-071, AWS-072: `preserve_client_ip` must be a boolean; an empty value keeps the global one.
fn check_group_attributes(wishes: &mut Wishes, reader: &mut Reader<'_>) {
    let per_port = wishes.group_attributes_of.values_mut();
    per_port.for_each(|map| map.retain(|_, value| !value.is_empty()));
    let global = (keys::GROUP_ATTRIBUTES.to_owned(), &wishes.group_attributes);
    let of = wishes.group_attributes_of.iter();
    let of = of.map(|(port, map)| (format!("{}.{port}", keys::GROUP_ATTRIBUTES), map));
    for (key, map) in std::iter::once(global).chain(of) {
        let name = "preserve_client_ip.enabled";
        if let Some(value) = map.get(name).filter(|value| boolean(value).is_none()) {
            reader.problem(
                &key,
                &format!("{name}={value}"),
                format!("{name} is true or false"),
            );
        }
    }
}

/// AWS-061: `spec.loadBalancerSourceRanges` wins; IPv6 needs a dualstack load balancer.
fn spec_ranges(wishes: &mut Wishes, reader: &mut Reader<'_>, service: &ServiceSpec) {
    let mut from = format!("{}{}", keys::PREFIX, keys::SOURCE_RANGES);
    if !service.source_ranges.is_open() {
        wishes
            .source_ranges
            .clone_from(&service.source_ranges.allowed);
        "spec.loadBalancerSourceRanges".clone_into(&mut from);
        reader.used.remove(keys::SOURCE_RANGES);
        let list: Vec<_> = wishes
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        let origin = (keys::SOURCE_RANGES.to_owned(), list.join(","), from.clone());
        wishes.origins.push(origin);
    }
    let dualstack = wishes.ip_type == Some(IpType::Dualstack);
    let six = |range: &&Cidr| range.family() == IpFamily::V6;
    if let Some(range) = wishes.source_ranges.iter().find(six).filter(|_| !dualstack) {
        let key = from.strip_prefix(keys::PREFIX).unwrap_or(&from);
        let allowed = format!(
            "IPv4 ranges, or {}{}: dualstack",
            keys::PREFIX,
            keys::IP_TYPE
        );
        reader.problem(key, &range.to_string(), allowed);
    }
}

fn unknown_keys(reader: &mut Reader<'_>) {
    let ours = [keys::TARGET, keys::MEMBERSHIP];
    let annotations = reader.annotations;
    for (key, value) in annotations {
        if key.starts_with(keys::OUR_PREFIX) && !ours.contains(&key.as_str()) {
            reader.problem(key, value, format!("the keys here are {}", ours.join(", ")));
        }
        let Some(suffix) = key.strip_prefix(keys::PREFIX) else {
            continue;
        };
        let stem = suffix.split_once('.').map_or(suffix, |(stem, _)| stem);
        let replaced = keys::REPLACED.iter().find(|(old, _)| *old == suffix);
        let suffix = suffix.to_owned();
        if let Some((_, instead)) = replaced {
            reader.hints.push(Hint::Replaced(suffix, instead));
        } else if keys::NOT_YET.contains(&stem) {
            reader.hints.push(Hint::NotYet(suffix));
        } else if suffix.starts_with(keys::LB_PREFIX) && !keys::KNOWN.contains(&stem) {
            reader.hints.push(Hint::Unknown(suffix));
        }
    }
}

#[cfg(test)]
mod tests;
