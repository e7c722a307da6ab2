//! The one parser of annotations for the Azure provider (section 3 of the specification). It collects every problem;
//! nothing else reads an annotation.
//!
//! Read again from the resolved spec's options ([`of_options`]) when a plan is made, so that an invalid edit falls back
//! to all of the last good wishes (I10).

pub mod keys;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use onehop_core::crd::{LoadBalancerSpec, MembershipPolicy, TargetMode};
use onehop_core::id::{Cidr, IpFamily};
use onehop_core::service::ServiceSpec;

use self::reader::Reader;

/// What a Service's annotations and fields ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an annotation of its own"
)]
pub struct Wishes {
    /// An explicit mode.
    pub mode: Option<TargetMode>,
    /// An explicit membership policy.
    pub membership: Option<MembershipPolicy>,
    /// A private frontend.
    pub internal: bool,
    /// Subnet of a private frontend.
    pub subnet: Option<String>,
    /// Pinned addresses, by family: of the annotations, else of `spec.loadBalancerIP`.
    pub pinned: BTreeMap<IpFamily, IpAddr>,
    /// Public IPs by name.
    pub pip: ByFamily,
    /// Public IP prefixes by id.
    pub prefix: ByFamily,
    /// Tags on public IPs that we manage.
    pub pip_tags: BTreeMap<String, String>,
    /// `ipTags` of public IPs that we make; absent leaves them alone.
    pub ip_tags: Option<BTreeMap<String, String>>,
    /// DNS label; the empty one clears, absent leaves it alone.
    pub dns_label: Option<String>,
    /// Resource group of public IPs.
    pub resource_group: Option<String>,
    /// Addresses to publish beside our own.
    pub additional: Vec<IpAddr>,
    /// Who may connect.
    pub access: Access,
    /// Nodes are sent to by their own address and node port (AZ-055).
    pub no_floating: bool,
    /// One rule for every port and protocol of a private frontend (AZ-056).
    pub all_ports: bool,
    /// Minutes after which an idle flow is forgotten.
    pub idle_minutes: Option<u32>,
    /// No reset at its end.
    pub no_reset: bool,
    /// The probe of all ports.
    pub probe: ProbeWish,
    /// What single ports want, by number.
    pub ports: BTreeMap<u16, PortWish>,
    /// Whether flows of one client go to one target.
    pub affinity: bool,
    /// Ports for which nodes with ready pods stand in for the pods (AZ-132): never of an annotation.
    pub own_pools: BTreeSet<String>,
    /// What is worth saying although nothing is wrong.
    pub hints: Vec<Hint>,
    /// Option (the key without prefix), value and where it came from.
    pub origins: Vec<(String, String, String)>,
}

/// A wish for each family: a single-stack IPv6 Service prefers its own key and falls back (AZ-043).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByFamily {
    plain: Option<String>,
    six: Option<String>,
}

impl ByFamily {
    /// The wish for a family of a Service with these families.
    pub fn of(&self, family: IpFamily, families: &[IpFamily]) -> Option<&str> {
        let wish = match (family, families.len()) {
            (IpFamily::V4, _) => self.plain.as_ref(),
            (IpFamily::V6, 0 | 1) => self.six.as_ref().or(self.plain.as_ref()),
            (IpFamily::V6, _) => self.six.as_ref(),
        };
        wish.map(String::as_str)
    }
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Service tags.
    pub tags: BTreeSet<String>,
    /// Ranges; aggregated where they are used (AZ-206).
    pub ranges: Vec<Cidr>,
    /// Lists with entries that are no ranges: the frontend is closed for everybody else (AZ-052).
    pub bad: Vec<BadRanges>,
    /// Nobody else, not even from the virtual network (AZ-053).
    pub deny_all: bool,
    /// No rules at all (AZ-054).
    pub unruled: bool,
}

impl Access {
    /// Whether nothing limits who may connect.
    pub fn is_open(&self) -> bool {
        self.tags.is_empty() && self.ranges.is_empty() && self.bad.is_empty()
    }
}

/// A list of ranges with bad entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRanges {
    /// Reason of the event.
    pub reason: &'static str,
    /// Full key of the list.
    pub key: String,
    /// The bad entries.
    pub entries: Vec<String>,
}

/// What a probe should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeWish {
    /// Protocol: an unknown word counts as TCP and does not fall through (AZ-144).
    pub protocol: Option<ProbeProtocol>,
    /// Path.
    pub path: Option<String>,
    /// Seconds between two probes.
    pub interval: Option<u32>,
    /// Equal answers in a row until the verdict changes.
    pub count: Option<u32>,
}

/// Protocol of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// A connection that opens.
    Tcp,
    /// GET, 200.
    Http,
    /// The same over TLS.
    Https,
}

impl ProbeProtocol {
    /// By a word in any case; others mean TCP (AZ-144).
    pub fn of(word: &str) -> Self {
        match word.to_ascii_lowercase().as_str() {
            "http" => Self::Http,
            "https" => Self::Https,
            _ => Self::Tcp,
        }
    }
}

/// What one port wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortWish {
    /// No rule, no probe, no opening.
    pub no_rule: bool,
    /// A rule without a probe.
    pub no_probe: bool,
    /// Its probe.
    pub probe: ProbeWish,
    /// Port of its probe: the name or number of a Service port, or any number.
    pub probe_port: Option<String>,
}

/// Something about an annotation that is worth saying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// It does nothing here, and why.
    Ignored(String, &'static str),
    /// Two keys say different things; the first one wins.
    Overruled(&'static str, &'static str),
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored(key, why) => write!(f, "{key} does nothing: {why}"),
            Self::Overruled(winner, loser) => write!(
                f,
                "{winner} comes before {loser}, which says something else"
            ),
        }
    }
}

/// One annotation or field that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Reason of the event (AZ-474).
    pub reason: &'static str,
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

/// Reason of a value that cannot be followed.
pub const INVALID: &str = "AnnotationInvalid";
/// Reason of two settings that do not go together.
pub const CONFLICT: &str = "ConflictConfiguration";

/// Reads everything and reports everything.
pub fn parse(service: &ServiceSpec) -> (Wishes, Vec<Problem>) {
    let mut values = service.annotations.clone();
    values.retain(|key, _| !key.starts_with("spec."));
    let ranges = &service.source_ranges;
    if !ranges.is_open() {
        let mut list: Vec<_> = ranges.allowed.iter().map(ToString::to_string).collect();
        if ranges.has_bad {
            list.push("unreadable".to_owned());
        }
        values.insert(keys::SPEC_RANGES.to_owned(), list.join(","));
    }
    if let Some(address) = &service.requested_address {
        values.insert(keys::SPEC_ADDRESS.to_owned(), address.clone());
    }
    if service.affinity.is_some() {
        values.insert(keys::SPEC_AFFINITY.to_owned(), "ClientIP".to_owned());
    }
    let (mut wishes, problems, used) = read(&values);
    let origins = used.into_iter().filter_map(|from| {
        let name = from.strip_prefix(keys::PREFIX).unwrap_or(&from).to_owned();
        Some((name, values.get(&from)?.trim().to_owned(), from))
    });
    wishes.origins = origins.collect();
    (wishes, problems)
}

/// The wishes of a resolved spec.
pub fn of_options(spec: &LoadBalancerSpec) -> Wishes {
    let options = spec.options.iter();
    let values = options.map(|o| (o.from.clone(), o.value.clone())).collect();
    read(&values).0
}

fn read(values: &BTreeMap<String, String>) -> (Wishes, Vec<Problem>, BTreeSet<String>) {
    let mut reader = Reader::new(values);
    let mut wishes = Wishes {
        mode: reader.own(
            keys::TARGET,
            &[
                ("node", TargetMode::Node),
                ("vip", TargetMode::Vip),
                ("pod", TargetMode::Pod),
            ],
        ),
        membership: reader.own(
            keys::MEMBERSHIP,
            &[
                ("zero-drop", MembershipPolicy::ZeroDrop),
                ("compat", MembershipPolicy::Compat),
            ],
        ),
        internal: reader.flag(keys::INTERNAL),
        pip: ByFamily {
            plain: reader.word(keys::PIP_NAME),
            six: reader.word(keys::PIP_NAME_V6),
        },
        prefix: ByFamily {
            plain: reader.word(keys::PIP_PREFIX),
            six: reader.word(keys::PIP_PREFIX_V6),
        },
        pip_tags: reader.pairs(keys::PIP_TAGS).unwrap_or_default(),
        ip_tags: reader.pairs(keys::PIP_IP_TAGS),
        dns_label: reader.text(keys::DNS_LABEL).map(str::to_owned),
        resource_group: reader.word(keys::RESOURCE_GROUP),
        additional: reader.addresses(keys::ADDITIONAL_IPS),
        no_floating: reader.flag(keys::NO_FLOATING),
        all_ports: reader.flag(keys::HA_PORTS),
        idle_minutes: reader.number(keys::IDLE, 4, 100, "minutes"),
        no_reset: reader.flag(keys::NO_RESET),
        probe: reader.probe(|key| match key {
            keys::PORT_PROBE_PROTOCOL => keys::PROBE_PROTOCOL.to_owned(),
            keys::PORT_PROBE_PATH => keys::PROBE_PATH.to_owned(),
            keys::PORT_PROBE_INTERVAL => keys::PROBE_INTERVAL.to_owned(),
            _ => keys::PROBE_COUNT.to_owned(),
        }),
        affinity: reader.take(keys::SPEC_AFFINITY).is_some(),
        own_pools: reader.list(keys::SPEC_OWN_POOLS).into_iter().collect(),
        ..Wishes::default()
    };
    // Read only when internal (AZ-041).
    wishes.subnet = wishes.internal.then(|| reader.word(keys::SUBNET)).flatten();
    wishes.access = access(&mut reader);
    pinned(&mut reader, &mut wishes);
    for number in reader.port_numbers() {
        let key = |suffix: &str| format!("port_{number}_{suffix}");
        let wish = PortWish {
            no_rule: reader.flag(&key(keys::PORT_NO_RULE)),
            no_probe: reader.flag(&key(keys::PORT_NO_PROBE)),
            probe: reader.probe(key),
            probe_port: reader.word(&key(keys::PORT_PROBE_PORT)),
        };
        wishes.ports.insert(number, wish);
    }
    all_ports(&mut reader, &mut wishes);
    together(&mut reader, &wishes);
    not_here(&mut reader);
    wishes.hints = reader.hints;
    (wishes, reader.problems, reader.used)
}

/// AZ-051 to AZ-054.
fn access(reader: &mut Reader<'_>) -> Access {
    let mut access = Access {
        tags: reader.list(keys::SERVICE_TAGS).into_iter().collect(),
        deny_all: reader.flag(keys::DENY_ALL),
        unruled: reader.flag(keys::NO_NSG),
        ..Access::default()
    };
    let lists = [
        (keys::ALLOWED_RANGES, "InvalidAllowedIPRanges"),
        (keys::SOURCE_RANGES, "InvalidAllowedIPRanges"),
        (keys::SPEC_RANGES, "InvalidSourceRanges"),
    ];
    for (key, reason) in lists {
        let (ranges, entries) = reader.ranges(key);
        access.ranges.extend(ranges);
        if !entries.is_empty() {
            let key = reader::full(key);
            access.bad.push(BadRanges {
                reason,
                key,
                entries,
            });
        }
    }
    access
}

/// AZ-042: annotations win, and with either of them the field is ignored.
fn pinned(reader: &mut Reader<'_>, wishes: &mut Wishes) {
    let mut said = false;
    for (key, family) in [(keys::IPV4, IpFamily::V4), (keys::IPV6, IpFamily::V6)] {
        said |= reader.word(key).is_some();
        let address = reader.address(key).filter(|address| {
            let right = IpFamily::of(*address) == family;
            if !right {
                reader.problem(
                    INVALID,
                    key,
                    &address.to_string(),
                    format!("an {family} address"),
                );
            }
            right
        });
        wishes
            .pinned
            .extend(address.map(|address| (family, address)));
    }
    if !said && let Some(address) = reader.address(keys::SPEC_ADDRESS) {
        wishes.pinned.insert(IpFamily::of(address), address);
    }
    if wishes.internal {
        return;
    }
    for address in wishes.pinned.values() {
        if !is_public(*address) {
            let allowed = "the address of a public IP that is there; with a private one the Service is internal";
            reader.problem(INVALID, keys::IPV4, &address.to_string(), allowed);
        }
    }
}

/// AZ-042: what no public IP has.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            let [first, second, ..] = a.octets();
            let shared = first == 100 && (64..128).contains(&second);
            // 168.63.129.16 is Azure's own address on every machine.
            !(a.is_private() || a.is_loopback() || shared || a.octets() == [168, 63, 129, 16])
        }
        IpAddr::V6(a) => !(a.is_unique_local() || a.is_loopback()),
    }
}

/// AZ-056, AZ-055: private frontends only, and with floating IP.
fn all_ports(reader: &mut Reader<'_>, wishes: &mut Wishes) {
    if !wishes.all_ports {
        return;
    }
    if !wishes.internal {
        wishes.all_ports = false;
        let why = "Azure has rules for all ports on private frontends only";
        reader
            .hints
            .push(Hint::Ignored(reader::full(keys::HA_PORTS), why));
    } else if wishes.no_floating {
        wishes.no_floating = false;
        let why = "a rule for all ports changes none, so there is no node port in it";
        reader
            .hints
            .push(Hint::Ignored(reader::full(keys::NO_FLOATING), why));
    }
}

/// What does not go together.
fn together(reader: &mut Reader<'_>, wishes: &Wishes) {
    let spec = reader.word(keys::SPEC_RANGES).is_some();
    let annotated = [keys::ALLOWED_RANGES, keys::SOURCE_RANGES];
    for key in annotated {
        if let (true, Some(value)) = (spec, reader.word(key)) {
            let allowed = format!("either it or {}, not both", keys::SPEC_RANGES);
            reader.problem(CONFLICT, key, &value, allowed);
        }
    }
    if spec && !wishes.access.tags.is_empty() {
        let why = "with spec.loadBalancerSourceRanges nodes drop the sources that it does not list";
        reader
            .hints
            .push(Hint::Ignored(reader::full(keys::SERVICE_TAGS), why));
    }
    if wishes.no_floating && wishes.mode.is_some_and(|mode| mode != TargetMode::Node) {
        reader
            .hints
            .push(Hint::Overruled(keys::NO_FLOATING, keys::TARGET));
    }
    reader.check_products(&wishes.probe, &wishes.ports);
}

/// What is known and not carried out, and what never does anything.
fn not_here(reader: &mut Reader<'_>) {
    for key in keys::DEAD {
        // Accepted without a word (AZ-036).
        let _ = reader.take(key);
    }
    if reader.take(keys::BASIC_MODE).is_some() {
        let why = "it is for load balancers of SKU Basic, and ours are Standard";
        reader
            .hints
            .push(Hint::Ignored(reader::full(keys::BASIC_MODE), why));
    }
    for key in keys::PLS_MORE {
        if reader.take(key).is_some() {
            let why = "there is no Private Link Service on a load balancer with IP pools";
            reader.hints.push(Hint::Ignored(reader::full(key), why));
        }
    }
    if reader.flag(keys::PLS_CREATE) {
        let allowed = "false: Azure has no Private Link Service on a load balancer with pools of addresses, which ours are \
                       (AZ-321)";
        reader.problem(
            "PrivateLinkServiceUnsupported",
            keys::PLS_CREATE,
            "true",
            allowed,
        );
    }
    if let Some(value) = reader.word(keys::CONFIGURATIONS) {
        let allowed = "absent: this install defines no load balancer configurations";
        reader.problem(
            "NoLoadBalancerEligible",
            keys::CONFIGURATIONS,
            &value,
            allowed,
        );
    }
}

#[cfg(test)]
mod tests;
