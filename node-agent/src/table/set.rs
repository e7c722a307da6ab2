//! The sets and maps of section 12.3: their names, and how keys and data lie in them (12.2).
//! Called by the layout (declarations) and by commit (elements to bytes and back).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use onehop_core::time::Time;
use onehop_nft::{Element, ElementData, FieldType, Set, SetInfo, Value};

use crate::claims::Front;

use super::demand::OnDemand;
use super::element::{
    Data, Family, Frontend, InterfaceName, Key, MAX_UPLINK, Protocol, SetId, Side, UplinkNumber,
    Verdict,
};
use super::guard::{DEAD_REFUSED, DEAD_STEERED, POD_HEALTH, mark_uplink, to_uplink};

/// Name of the chain that refuses.
pub const REJECT_CHAIN: &str = "reject-chain";

/// Kinds of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Addr,
    Frontend,
    NodePort,
    FrontendSlot,
    NodePortSlot,
    Pair,
    Range,
    Interface,
    Edge,
}

/// Kinds of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataKind {
    None,
    Target,
    Verdict,
    /// A verdict that the kernel takes out in its time.
    Timed,
    /// An element that the kernel takes out in its time.
    Until,
}

impl SetId {
    /// All of them, in the order in which they are declared and committed: slots come before the verdicts that use them.
    pub const ALL: [Self; 40] = [
        Self::PodInterfaces,
        Self::UplinkMarks,
        Self::UplinkAddresses,
        Self::Inside,
        Self::Hairpin,
        Self::Endpoints,
        Self::NodePortEndpoints,
        Self::OtherClusterIps,
        Self::SourceAllow,
        Self::SourceGuarded,
        Self::ClusterIps,
        Self::NodePortIps,
        Self::MasqFrontends,
        Self::MasqNodePorts,
        Self::NoEndpointServices,
        Self::NoEndpointNodePorts,
        Self::EtpLocal,
        Self::EtpLocalNodePorts,
        Self::AffinityRecord,
        Self::AffinityLocal,
        Self::AffinityNodePortsLocal,
        Self::Affinity,
        Self::AffinityNodePorts,
        Self::ServiceIpsLocal,
        Self::ServiceNodePortsLocal,
        Self::ServiceIps,
        Self::ServiceNodePorts,
        Self::Window,
        Self::WindowNodePorts,
        Self::GuardEndpoints,
        Self::GuardFrom,
        Self::GuardAny,
        Self::DeadFrom,
        Self::DeadAny,
        Self::DeadKeys,
        Self::Targets,
        Self::PodHealth,
        Self::HealthFrom,
        Self::HealthAny,
        Self::Uplinks,
    ];

    /// Its name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIps => "cluster-ips",
            Self::OtherClusterIps => "other-cluster-ips",
            Self::NodePortIps => "nodeport-ips",
            Self::MasqFrontends => "masq-frontends",
            Self::MasqNodePorts => "masq-nodeports",
            Self::EtpLocal => "etp-local",
            Self::EtpLocalNodePorts => "etp-local-nodeports",
            Self::ServiceIps => "service-ips",
            Self::ServiceIpsLocal => "service-ips-local",
            Self::ServiceNodePorts => "service-nodeports",
            Self::ServiceNodePortsLocal => "service-nodeports-local",
            Self::Endpoints => "endpoints",
            Self::NodePortEndpoints => "nodeport-endpoints",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::Hairpin => "hairpin",
            Self::SourceGuarded => "source-guarded",
            Self::SourceAllow => "source-allow",
            Self::Affinity => "affinity",
            Self::AffinityLocal => "affinity-local",
            Self::AffinityNodePorts => "affinity-nodeports",
            Self::AffinityNodePortsLocal => "affinity-nodeports-local",
            Self::AffinityRecord => "affinity-record",
            Self::PodInterfaces => "pod-interfaces",
            Self::Uplinks => "uplinks",
            Self::UplinkMarks => "uplink-marks",
            Self::UplinkAddresses => "uplink-addresses",
            Self::Inside => "inside",
            Self::Window => "window",
            Self::WindowNodePorts => "window-nodeports",
            Self::GuardEndpoints => "guard-endpoints",
            Self::GuardFrom => "guard-from",
            Self::GuardAny => "guard-any",
            Self::DeadFrom => "dead-from",
            Self::DeadAny => "dead-any",
            Self::DeadKeys => "dead-keys",
            Self::Targets => "targets",
            Self::PodHealth => "pod-health",
            Self::HealthFrom => "health-from",
            Self::HealthAny => "health-any",
        }
    }

    const fn kinds(self) -> (KeyKind, DataKind) {
        match self {
            Self::ClusterIps | Self::OtherClusterIps | Self::NodePortIps => {
                (KeyKind::Addr, DataKind::None)
            }
            Self::MasqFrontends | Self::EtpLocal | Self::SourceGuarded | Self::Targets => {
                (KeyKind::Frontend, DataKind::None)
            }
            Self::MasqNodePorts | Self::EtpLocalNodePorts => (KeyKind::NodePort, DataKind::None),
            Self::ServiceIps
            | Self::ServiceIpsLocal
            | Self::NoEndpointServices
            | Self::Affinity
            | Self::AffinityLocal
            | Self::AffinityRecord
            | Self::HealthAny => (KeyKind::Frontend, DataKind::Verdict),
            Self::ServiceNodePorts
            | Self::ServiceNodePortsLocal
            | Self::NoEndpointNodePorts
            | Self::AffinityNodePorts
            | Self::AffinityNodePortsLocal => (KeyKind::NodePort, DataKind::Verdict),
            Self::Endpoints | Self::GuardEndpoints => (KeyKind::FrontendSlot, DataKind::Target),
            Self::NodePortEndpoints => (KeyKind::NodePortSlot, DataKind::Target),
            Self::Hairpin => (KeyKind::Pair, DataKind::None),
            Self::SourceAllow => (KeyKind::Range, DataKind::None),
            Self::HealthFrom => (KeyKind::Range, DataKind::Verdict),
            Self::PodHealth => (KeyKind::Frontend, DataKind::Target),
            Self::Uplinks | Self::PodInterfaces => (KeyKind::Interface, DataKind::None),
            Self::UplinkMarks => (KeyKind::Interface, DataKind::Verdict),
            Self::UplinkAddresses => (KeyKind::Addr, DataKind::Verdict),
            Self::Inside => (KeyKind::Edge, DataKind::None),
            Self::GuardFrom | Self::DeadFrom => (KeyKind::Range, DataKind::Timed),
            Self::GuardAny | Self::DeadAny | Self::Window => (KeyKind::Frontend, DataKind::Timed),
            Self::WindowNodePorts => (KeyKind::NodePort, DataKind::Timed),
            Self::DeadKeys => (KeyKind::Frontend, DataKind::Until),
        }
    }

    /// Its declaration in the table of a family.
    pub fn declaration(self, family: Family) -> Set {
        let (key, data) = self.kinds();
        let set = Set::new(self.name(), &key_fields(key, family));
        let set = if matches!(key, KeyKind::Range | KeyKind::Edge) {
            set.interval()
        } else {
            set
        };
        match data {
            DataKind::None => set,
            DataKind::Target => set.map(&[address(family), FieldType::PORT]),
            DataKind::Verdict => set.vmap(),
            DataKind::Timed => set.vmap().timeout(),
            DataKind::Until => set.timeout(),
        }
    }

    /// The element as the kernel takes it at this time; `None` when key or data are not of this set or family (S-124).
    pub fn encode(
        self,
        family: Family,
        key: &Key,
        data: Option<&Data>,
        now: Time,
    ) -> Option<Element> {
        let element = self.encode_key(family, key)?;
        match (self.kinds().1, data) {
            (DataKind::None, None) => Some(element),
            (DataKind::Target, Some(Data::Target(target))) if Family::of(target.ip()) == family => {
                Some(element.value(Value::new().addr(target.ip()).port(target.port())))
            }
            (DataKind::Verdict, Some(Data::Verdict(verdict))) => {
                Some(element.verdict(encode_verdict(*verdict)))
            }
            (DataKind::Timed, Some(Data::Timed(verdict, until))) => {
                let element = element.verdict(encode_verdict(*verdict));
                Some(element.timeout_ms(left(*until, now)))
            }
            (DataKind::Until, Some(Data::Until(until))) => {
                Some(element.timeout_ms(left(*until, now)))
            }
            _ => None,
        }
    }

    /// The element without its data, which is enough to delete it.
    pub fn encode_key(self, family: Family, key: &Key) -> Option<Element> {
        let kind = self.kinds().0;
        let matches = key_kind(key) == kind && key_family(key).is_none_or(|of| of == family);
        matches.then(|| encode_key(key))
    }

    /// Reads an element back that was dumped at this time; `None` for one that we never write.
    pub fn decode(
        self,
        family: Family,
        element: &Element,
        now: Time,
    ) -> Option<(Key, Option<Data>)> {
        let (kind, data) = self.kinds();
        let key = decode_key(kind, family == Family::V6, element)?;
        let data = match (data, &element.data) {
            (DataKind::None, None) => None,
            (DataKind::Target, Some(ElementData::Value(value))) => {
                Some(Data::Target(decode_target(family, value)?))
            }
            (DataKind::Verdict, Some(ElementData::Verdict(verdict))) => {
                Some(Data::Verdict(decode_verdict(verdict)?))
            }
            (DataKind::Timed, Some(ElementData::Verdict(verdict))) => {
                Some(Data::Timed(decode_verdict(verdict)?, expiry(element, now)?))
            }
            (DataKind::Until, None) => Some(Data::Until(expiry(element, now)?)),
            _ => return None,
        };
        Some((key, data))
    }
}

/// The frontend that is the key of an element that the rules wrote.
pub(super) fn decode_frontend(family: Family, element: &Element) -> Option<Frontend> {
    match decode_key(KeyKind::Frontend, family == Family::V6, element)? {
        Key::Frontend(frontend) => Some(frontend),
        _ => None,
    }
}

/// The frontend that is the key of an element of another proxy's maps, which have keys like ours.
pub fn frontend_of(family: Family, element: &Element) -> Option<Front> {
    let v6 = family == Family::V6;
    let kind = match element.key.as_slice().len() {
        8 => KeyKind::NodePort,
        12 | 24 => KeyKind::Frontend,
        _ => return None,
    };
    match decode_key(kind, v6, element)? {
        Key::Frontend(frontend) => Some(Front::Vip(frontend)),
        Key::NodePort { protocol, port } => Some(Front::NodePort(family, protocol, port)),
        _ => None,
    }
}

/// Whether the kernel holds what is declared.
pub fn declared_alike(declared: &Set, held: &SetInfo) -> bool {
    *held == SetInfo::expected(declared)
}

/// Life time of an element that shall be there until then; the kernel takes zero for "for ever".
fn left(until: Time, now: Time) -> u64 {
    u64::try_from(until.since(now).as_millis().max(1)).unwrap_or(u64::MAX)
}

/// Until when an element is there that was dumped at this time.
fn expiry(element: &Element, now: Time) -> Option<Time> {
    Some(now + Duration::from_millis(element.expires_ms?))
}

/// The address type of a family.
pub const fn address(family: Family) -> FieldType {
    match family {
        Family::V4 => FieldType::IPV4,
        Family::V6 => FieldType::IPV6,
    }
}

fn key_fields(kind: KeyKind, family: Family) -> Vec<FieldType> {
    let addr = address(family);
    let frontend = [addr, FieldType::PROTO, FieldType::PORT];
    let nodeport = [FieldType::PROTO, FieldType::PORT];
    match kind {
        KeyKind::Addr | KeyKind::Edge => vec![addr],
        KeyKind::Frontend => frontend.to_vec(),
        KeyKind::NodePort => nodeport.to_vec(),
        KeyKind::FrontendSlot => [&frontend[..], &[FieldType::MARK]].concat(),
        KeyKind::NodePortSlot => [&nodeport[..], &[FieldType::MARK]].concat(),
        KeyKind::Pair => vec![addr, addr],
        KeyKind::Range => [&frontend[..], &[addr]].concat(),
        KeyKind::Interface => vec![FieldType::IFNAME],
    }
}

const fn key_kind(key: &Key) -> KeyKind {
    match key {
        Key::Addr(_) => KeyKind::Addr,
        Key::Frontend(_) => KeyKind::Frontend,
        Key::NodePort { .. } => KeyKind::NodePort,
        Key::FrontendSlot(..) => KeyKind::FrontendSlot,
        Key::NodePortSlot { .. } => KeyKind::NodePortSlot,
        Key::Pair(..) => KeyKind::Pair,
        Key::Range(..) => KeyKind::Range,
        Key::Interface(_) => KeyKind::Interface,
        Key::Edge(..) => KeyKind::Edge,
    }
}

/// `None` for node ports and interfaces, which are in both families, and (matching no family's check) for mixed keys.
fn key_family(key: &Key) -> Option<Family> {
    match key {
        Key::Addr(addr) | Key::Pair(addr, _) | Key::Edge(addr, _) => Some(Family::of(*addr)),
        Key::Frontend(frontend) | Key::FrontendSlot(frontend, _) | Key::Range(frontend, _) => {
            Some(Family::of(frontend.address))
        }
        Key::NodePort { .. } | Key::NodePortSlot { .. } | Key::Interface(_) => None,
    }
}

fn frontend(frontend: &Frontend) -> Value {
    Value::new()
        .addr(frontend.address)
        .u8(frontend.protocol.number())
        .port(frontend.port)
}

fn nodeport(protocol: Protocol, port: u16) -> Value {
    Value::new().u8(protocol.number()).port(port)
}

fn encode_key(key: &Key) -> Element {
    Element::key(match key {
        Key::Addr(addr) => Value::new().addr(*addr),
        Key::Frontend(of) => frontend(of),
        Key::NodePort { protocol, port } => nodeport(*protocol, *port),
        Key::FrontendSlot(of, slot) => frontend(of).u32_host(*slot),
        Key::NodePortSlot {
            protocol,
            port,
            slot,
        } => nodeport(*protocol, *port).u32_host(*slot),
        Key::Pair(source, destination) => Value::new().addr(*source).addr(*destination),
        Key::Range(of, range) => {
            return Element::range(
                frontend(of).addr(range.network()),
                frontend(of).addr(range.broadcast()),
            );
        }
        Key::Interface(name) => Value::new().ifname(name.as_str()),
        Key::Edge(addr, side) => {
            let edge = Element::key(Value::new().addr(*addr));
            return Element {
                interval_end: *side == Side::End,
                ..edge
            };
        }
    })
}

fn decode_key(kind: KeyKind, v6: bool, element: &Element) -> Option<Key> {
    let (value, addr_len) = (&element.key, if v6 { 16 } else { 4 });
    let frontend = || {
        Some(Frontend {
            address: value.addr_at(0, v6)?,
            protocol: protocol(value.u8_at(addr_len)?)?,
            port: value.port_at(addr_len + 4)?,
        })
    };
    let nodeport = || Some((protocol(value.u8_at(0)?)?, value.port_at(4)?));
    Some(match kind {
        KeyKind::Addr => Key::Addr(value.addr_at(0, v6)?),
        KeyKind::Frontend => Key::Frontend(frontend()?),
        KeyKind::NodePort => {
            let (protocol, port) = nodeport()?;
            Key::NodePort { protocol, port }
        }
        KeyKind::FrontendSlot => Key::FrontendSlot(frontend()?, value.u32_host_at(addr_len + 8)?),
        KeyKind::NodePortSlot => {
            let (protocol, port) = nodeport()?;
            Key::NodePortSlot {
                protocol,
                port,
                slot: value.u32_host_at(8)?,
            }
        }
        KeyKind::Pair => Key::Pair(value.addr_at(0, v6)?, value.addr_at(addr_len, v6)?),
        KeyKind::Range => {
            let at = addr_len + 8;
            // The kernel leaves out the upper end of a range of one address.
            let end = element.key_end.as_ref().unwrap_or(value);
            Key::Range(
                frontend()?,
                prefix_of(value.addr_at(at, v6)?, end.addr_at(at, v6)?)?,
            )
        }
        KeyKind::Interface => Key::Interface(interface(value)?),
        KeyKind::Edge => {
            let side = if element.interval_end {
                Side::End
            } else {
                Side::Begin
            };
            Key::Edge(value.addr_at(0, v6)?, side)
        }
    })
}

fn interface(value: &Value) -> Option<InterfaceName> {
    let name = value.as_slice().split(|byte| *byte == 0).next()?;
    InterfaceName::new(std::str::from_utf8(name).ok()?)
}

/// The prefix that spans exactly these addresses.
fn prefix_of(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let net = match (first, last) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let length = (a.to_bits() ^ b.to_bits()).leading_zeros();
            IpNet::V4(Ipv4Net::new(a, u8::try_from(length).ok()?).ok()?)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let length = (a.to_bits() ^ b.to_bits()).leading_zeros();
            IpNet::V6(Ipv6Net::new(a, u8::try_from(length).ok()?).ok()?)
        }
        _ => return None,
    };
    ((net.network(), net.broadcast()) == (first, last)).then_some(net)
}

/// The endpoint that a value stands for.
pub(super) fn decode_target(family: Family, value: &Value) -> Option<SocketAddr> {
    let v6 = family == Family::V6;
    Some(SocketAddr::new(
        value.addr_at(0, v6)?,
        value.port_at(if v6 { 16 } else { 4 })?,
    ))
}

fn encode_verdict(verdict: Verdict) -> onehop_nft::Verdict {
    match verdict {
        Verdict::Drop => onehop_nft::Verdict::Drop,
        Verdict::Reject => onehop_nft::Verdict::Goto(REJECT_CHAIN.to_owned()),
        Verdict::Class(kind, count) => {
            onehop_nft::Verdict::Goto(OnDemand::Class(kind, count).name())
        }
        Verdict::Sticky(sticky) => onehop_nft::Verdict::Jump(sticky.chain_name()),
        Verdict::Record(record) => onehop_nft::Verdict::Goto(record.chain_name()),
        Verdict::DeadSteered => onehop_nft::Verdict::Goto(DEAD_STEERED.to_owned()),
        Verdict::DeadRefused => onehop_nft::Verdict::Goto(DEAD_REFUSED.to_owned()),
        Verdict::PodHealth => onehop_nft::Verdict::Goto(POD_HEALTH.to_owned()),
        Verdict::MarkUplink(number) => onehop_nft::Verdict::Goto(mark_uplink(number)),
        Verdict::ToUplink(number) => onehop_nft::Verdict::Jump(to_uplink(number)),
    }
}

fn decode_verdict(verdict: &onehop_nft::Verdict) -> Option<Verdict> {
    match verdict {
        onehop_nft::Verdict::Drop => Some(Verdict::Drop),
        onehop_nft::Verdict::Goto(chain) if chain == REJECT_CHAIN => Some(Verdict::Reject),
        onehop_nft::Verdict::Goto(chain) if chain == DEAD_STEERED => Some(Verdict::DeadSteered),
        onehop_nft::Verdict::Goto(chain) if chain == DEAD_REFUSED => Some(Verdict::DeadRefused),
        onehop_nft::Verdict::Goto(chain) if chain == POD_HEALTH => Some(Verdict::PodHealth),
        onehop_nft::Verdict::Goto(chain) => match OnDemand::parse(chain) {
            Some(OnDemand::Class(kind, count)) => Some(Verdict::Class(kind, count)),
            Some(OnDemand::Record(record)) => Some(Verdict::Record(record)),
            Some(OnDemand::Sticky(_) | OnDemand::Hook(_)) => None,
            None => uplink(chain, mark_uplink).map(Verdict::MarkUplink),
        },
        onehop_nft::Verdict::Jump(chain) => match OnDemand::parse(chain) {
            Some(OnDemand::Sticky(sticky)) => Some(Verdict::Sticky(sticky)),
            Some(OnDemand::Class(..) | OnDemand::Record(_) | OnDemand::Hook(_)) => None,
            None => uplink(chain, to_uplink).map(Verdict::ToUplink),
        },
        _ => None,
    }
}

/// The uplink whose chain has this name.
fn uplink(chain: &str, name: fn(UplinkNumber) -> String) -> Option<UplinkNumber> {
    (1..=MAX_UPLINK).find(|number| name(*number) == chain)
}

fn protocol(number: u8) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|p| p.number() == number)
}
