//! Names and rules of session affinity (12.7): per service port and list a map from client to endpoint, a chain that
//! uses it, and chains that write it. Called by compile (which verdict a frontend gets) and by commit (what to make).
//!
//! The life time of an entry is part of the name of the chain that writes it. So a change of the time is a change of
//! one verdict like any other, and the name alone tells on read-back what a chain does.

use std::net::SocketAddr;

use onehop_core::id::{PortKey, ServiceKey};
use onehop_nft::{CmpOp, Element, ElementData, Field, FieldType, Rule, Set};

use super::element::Family;
use super::layout::{Options, Rules, UPLINK_MARK, nft_family};
use super::set::address;

/// Most clients of one map; who comes later is served, but does not stick (S-241).
const CLIENTS: u32 = 65_535;

/// A service port, by a stable hash of its key: a restart finds the same map (S-83, S-236).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StickyPort(u64);

impl StickyPort {
    /// Of a port of a Service (FNV-1a; the parts cannot hold a zero byte).
    pub fn of(service: &ServiceKey, port: &PortKey) -> Self {
        let parts = [
            service.namespace.as_str(),
            service.name.as_str(),
            port.name.as_str(),
            port.protocol.as_str(),
        ];
        let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// Which of a service port's two endpoint lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// The Cluster list.
    Cluster,
    /// The Local list.
    Local,
}

/// The clients of one list of a service port, and the chain that serves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sticky {
    /// The list.
    pub list: List,
    /// The service port.
    pub port: StickyPort,
}

/// Into which list's map a new connection is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recorder {
    /// This one.
    List(List),
    /// That of the list which the kind of client is served from (S-238).
    ByClient,
}

/// A chain that records new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// Where to.
    pub by: Recorder,
    /// The service port.
    pub port: StickyPort,
    /// How long an entry lives after the client's last new connection.
    pub seconds: u32,
}

impl List {
    const fn letter(self) -> &'static str {
        match self {
            Self::Cluster => "c",
            Self::Local => "l",
        }
    }
}

impl Sticky {
    /// Name of the map.
    pub fn map_name(self) -> String {
        format!("aff-{}-{:016x}", self.list.letter(), self.port.0)
    }

    /// Name of the chain.
    pub fn chain_name(self) -> String {
        format!("sticky-{}-{:016x}", self.list.letter(), self.port.0)
    }

    /// The map that a name stands for.
    pub fn parse_map(name: &str) -> Option<Self> {
        Self::parse("aff-", name)
    }

    /// The chain that a name stands for.
    pub fn parse_chain(name: &str) -> Option<Self> {
        Self::parse("sticky-", name)
    }

    fn parse(prefix: &str, name: &str) -> Option<Self> {
        let (letter, port) = name.strip_prefix(prefix)?.split_once('-')?;
        let list = list(letter)?;
        Some(Self {
            list,
            port: port_of(port)?,
        })
    }

    /// The map in the table of a family.
    pub fn map(self, family: Family) -> Set {
        Set::new(&self.map_name(), &[address(family)])
            .map(&[address(family), FieldType::PORT])
            .timeout()
            .dynamic()
            .size(CLIENTS)
    }

    /// Sends a known client where it was; others return and are spread as usual.
    pub fn rules(self, family: Family) -> Vec<Rule> {
        let rule = || Rule::new(nft_family(family));
        vec![
            rule().jump(UPLINK_MARK),
            rule().dnat_to_map(&[Field::Saddr], self.map_name().as_str()),
        ]
    }
}

impl Record {
    /// Name of the chain.
    pub fn chain_name(self) -> String {
        let letter = match self.by {
            Recorder::List(list) => list.letter(),
            Recorder::ByClient => "x",
        };
        format!("record-{letter}-{:016x}-{}", self.port.0, self.seconds)
    }

    /// The chain that a name stands for.
    pub fn parse_chain(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("record-")?.split('-');
        let (letter, port, seconds) = (parts.next()?, parts.next()?, parts.next()?);
        let by = match letter {
            "x" => Recorder::ByClient,
            letter => Recorder::List(list(letter)?),
        };
        let record = Self {
            by,
            port: port_of(port)?,
            seconds: seconds.parse().ok()?,
        };
        // Only the form that we write.
        (record.chain_name() == name).then_some(record)
    }

    /// The same for one list.
    #[must_use]
    pub fn of_list(self, list: List) -> Self {
        Self {
            by: Recorder::List(list),
            ..self
        }
    }

    /// Writes the entry, or sends each kind of client to the chain of its list.
    pub fn rules(self, family: Family, options: &Options) -> Vec<Rule> {
        let rule = || Rule::new(nft_family(family));
        let Recorder::List(list) = self.by else {
            let (cluster, local) = (
                self.of_list(List::Cluster).chain_name(),
                self.of_list(List::Local).chain_name(),
            );
            let pods = Rules { family, options }.pods_only();
            let mut rules: Vec<Rule> = pods.into_iter().map(|rule| rule.goto(&cluster)).collect();
            rules.push(rule().saddr_is_local().goto(&cluster));
            // A flow of the Local window is masqueraded and goes to a remote endpoint, which is in no Local list.
            rules.push(
                rule()
                    .masked(Field::Mark, options.masquerade_mark, CmpOp::Eq, 0)
                    .goto(&local),
            );
            return rules;
        };
        let map = Sticky {
            list,
            port: self.port,
        };
        vec![rule().update_map(
            &[Field::Saddr],
            &[Field::Daddr, Field::Dport],
            map.map_name().as_str(),
            u64::from(self.seconds) * 1000,
        )]
    }
}

/// The endpoint that an entry of a map names.
pub fn endpoint(family: Family, entry: &Element) -> Option<SocketAddr> {
    match &entry.data {
        Some(ElementData::Value(value)) => super::set::decode_target(family, value),
        _ => None,
    }
}

fn list(letter: &str) -> Option<List> {
    [List::Cluster, List::Local]
        .into_iter()
        .find(|list| list.letter() == letter)
}

fn port_of(digits: &str) -> Option<StickyPort> {
    let well_formed = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok();
    number.filter(|_| well_formed).map(StickyPort)
}

#[cfg(test)]
mod tests {
    use onehop_core::id::{PortName, Protocol};

    use super::*;

    fn port(name: &str, protocol: Protocol) -> StickyPort {
        let key = PortKey::new(PortName::new(name), protocol);
        StickyPort::of(&ServiceKey::new("default", "web"), &key)
    }

    #[test]
    fn s236_names_are_stable_per_service_port_and_read_back() {
        let (http, other) = (
            port("http", Protocol::Tcp),
            [port("http", Protocol::Udp), port("", Protocol::Tcp)],
        );
        assert_eq!(http, port("http", Protocol::Tcp));
        // DI-31
        assert!(!other.contains(&http), "S-80: ports stick apart");
        for list in [List::Cluster, List::Local] {
            let sticky = Sticky { list, port: http };
            assert_eq!(Sticky::parse_map(&sticky.map_name()), Some(sticky));
            assert_eq!(Sticky::parse_chain(&sticky.chain_name()), Some(sticky));
            assert_eq!(Sticky::parse_map(&sticky.chain_name()), None);
        }
        for by in [Recorder::List(List::Local), Recorder::ByClient] {
            let record = Record {
                by,
                port: http,
                seconds: 10_800,
            };
            assert_eq!(Record::parse_chain(&record.chain_name()), Some(record));
        }
        for foreign in [
            "record",
            "record-c-12-3",
            "sticky-q-0000000000000000",
            "aff-c-zz",
        ] {
            assert_eq!(Record::parse_chain(foreign), None, "{foreign}");
            assert_eq!(Sticky::parse_chain(foreign), None, "{foreign}");
        }
    }
}
