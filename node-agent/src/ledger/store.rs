//! What the kernel holds, in little space: there are two elements for every endpoint of the cluster, and nearly all of
//! them are plain ones of IPv4, whose key and data fit into a fifth of what the general form takes. Anything else is kept
//! in that form. Used by the ledger alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::table::element::{
    ClassKind, Data, ElementKey, Family, Frontend, Key, Protocol, SetId, Verdict,
};

/// One element, and how many want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) data: Option<Data>,
    pub(super) owners: u32,
}

/// Elements by key.
#[derive(Debug, Default)]
pub(super) struct Store {
    small: BTreeMap<Small, SmallHeld>,
    large: BTreeMap<ElementKey, Held>,
}

impl Store {
    pub(super) fn get(&self, key: &ElementKey) -> Option<Held> {
        let small = Small::of(key).and_then(|small| self.small.get(&small));
        small
            .map(SmallHeld::held)
            .or_else(|| self.large.get(key).copied())
    }

    pub(super) fn insert(&mut self, key: ElementKey, held: Held) {
        let Some(small) = Small::of(&key) else {
            self.large.insert(key, held);
            return;
        };
        // A key lies in one of the two, whatever its data was before.
        if let Some(data) = SmallData::of(held.data) {
            let owners = held.owners;
            self.small.insert(small, SmallHeld { data, owners });
            self.large.remove(&key);
        } else {
            self.small.remove(&small);
            self.large.insert(key, held);
        }
    }

    pub(super) fn remove(&mut self, key: &ElementKey) -> Option<Held> {
        let small = Small::of(key).and_then(|small| self.small.remove(&small));
        small
            .map(|small| small.held())
            .or_else(|| self.large.remove(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ElementKey, Held)> {
        let small = self
            .small
            .iter()
            .map(|(key, held)| (key.key(), held.held()));
        small.chain(self.large.iter().map(|(key, held)| (*key, *held)))
    }

    /// The data of the slots from one key to another of the same frontend, both included, in order.
    pub(super) fn slots(
        &self,
        from: &ElementKey,
        to: &ElementKey,
    ) -> impl Iterator<Item = Option<Data>> {
        let ends = Small::of(from).zip(Small::of(to));
        let small = ends.map(|(from, to)| self.small.range(from..=to));
        let small = small.into_iter().flatten();
        let large = self.large.range(*from..=*to).map(|(_, held)| held.data);
        small.map(|(_, held)| held.held().data).chain(large)
    }
}

/// Keys in the order of [`ElementKey`], as they are held for an owner.
#[derive(Debug, Default)]
pub(super) struct Keys {
    small: Box<[Small]>,
    large: Box<[ElementKey]>,
}

impl Keys {
    pub(super) fn of<'a>(keys: impl Iterator<Item = &'a ElementKey>) -> Self {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for key in keys {
            match Small::of(key) {
                Some(key) => small.push(key),
                None => large.push(*key),
            }
        }
        small.sort_unstable();
        Self {
            small: small.into(),
            large: large.into(),
        }
    }

    pub(super) fn contains(&self, key: &ElementKey) -> bool {
        match Small::of(key) {
            Some(key) => self.small.binary_search(&key).is_ok(),
            None => self.large.binary_search(key).is_ok(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ElementKey> {
        let small = self.small.iter().map(Small::key);
        small.chain(self.large.iter().copied())
    }
}

/// Key of an element of IPv4, or of a node port of either family: set (and family), form and protocol, address, port,
/// slot. The slots of a frontend are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Small {
    set: u8,
    form: u8,
    address: [u8; 4],
    port: u16,
    slot: [u8; 4],
}

/// Bit of the set's number that stands for IPv6.
const V6: u8 = 0x80;
const ADDR: u8 = 0;
const FRONTEND: u8 = 1;
const NODE_PORT: u8 = 2;
const FRONTEND_SLOT: u8 = 3;
const NODE_PORT_SLOT: u8 = 4;
/// An address with itself.
const PAIR: u8 = 5;

/// Sets by their number.
const SETS: [SetId; SetId::ALL.len()] = {
    let mut sets = SetId::ALL;
    let mut at = 0;
    while at < sets.len() {
        let set = SetId::ALL[at];
        sets[set as usize] = set;
        at += 1;
    }
    sets
};

impl Small {
    fn of(&(family, set, key): &ElementKey) -> Option<Self> {
        let number = set as u8;
        let small = |form, address: Option<IpAddr>, protocol: Protocol, port, slot: u32| {
            let address = match address {
                Some(IpAddr::V4(address)) if family == Family::V4 => address.octets(),
                None => [0; 4],
                Some(_) => return None,
            };
            Some(Self {
                set: number | if family == Family::V6 { V6 } else { 0 },
                form: form << 2 | protocol as u8,
                address,
                port,
                slot: slot.to_be_bytes(),
            })
        };
        let at =
            |form, of: Frontend, slot| small(form, Some(of.address), of.protocol, of.port, slot);
        match key {
            Key::Addr(address) => small(ADDR, Some(address), Protocol::Tcp, 0, 0),
            Key::Frontend(of) => at(FRONTEND, of, 0),
            Key::FrontendSlot(of, slot) => at(FRONTEND_SLOT, of, slot),
            Key::NodePort { protocol, port } => small(NODE_PORT, None, protocol, port, 0),
            Key::NodePortSlot {
                protocol,
                port,
                slot,
            } => small(NODE_PORT_SLOT, None, protocol, port, slot),
            Key::Pair(from, to) if from == to => small(PAIR, Some(from), Protocol::Tcp, 0, 0),
            Key::Pair(..) | Key::Range(..) | Key::Interface(_) | Key::Edge(..) => None,
        }
    }

    fn key(&self) -> ElementKey {
        let family = if self.set & V6 == 0 {
            Family::V4
        } else {
            Family::V6
        };
        let address = IpAddr::V4(Ipv4Addr::from(self.address));
        let (port, slot) = (self.port, u32::from_be_bytes(self.slot));
        let protocol = match self.form & 3 {
            0 => Protocol::Tcp,
            1 => Protocol::Udp,
            _ => Protocol::Sctp,
        };
        let frontend = Frontend {
            address,
            protocol,
            port,
        };
        let key = match self.form >> 2 {
            ADDR => Key::Addr(address),
            FRONTEND => Key::Frontend(frontend),
            FRONTEND_SLOT => Key::FrontendSlot(frontend, slot),
            NODE_PORT => Key::NodePort { protocol, port },
            NODE_PORT_SLOT => Key::NodePortSlot {
                protocol,
                port,
                slot,
            },
            _ => Key::Pair(address, address),
        };
        (family, SETS[usize::from(self.set & !V6)], key)
    }
}

#[derive(Debug, Clone, Copy)]
struct SmallHeld {
    data: SmallData,
    owners: u32,
}

impl SmallHeld {
    fn held(&self) -> Held {
        Held {
            data: self.data.data(),
            owners: self.owners,
        }
    }
}

/// The data of nearly all elements.
#[derive(Debug, Clone, Copy)]
enum SmallData {
    None,
    Target([u8; 4], u16),
    Class(ClassKind, u16),
    Drop,
    Reject,
}

impl SmallData {
    fn of(data: Option<Data>) -> Option<Self> {
        Some(match data {
            None => Self::None,
            Some(Data::Target(SocketAddr::V4(target))) => {
                Self::Target(target.ip().octets(), target.port())
            }
            Some(Data::Verdict(Verdict::Class(kind, count))) => Self::Class(kind, count),
            Some(Data::Verdict(Verdict::Drop)) => Self::Drop,
            Some(Data::Verdict(Verdict::Reject)) => Self::Reject,
            Some(_) => return None,
        })
    }

    fn data(self) -> Option<Data> {
        Some(match self {
            Self::None => return None,
            Self::Target(address, port) => Data::Target(SocketAddr::from((address, port))),
            Self::Class(kind, count) => Data::Verdict(Verdict::Class(kind, count)),
            Self::Drop => Data::Verdict(Verdict::Drop),
            Self::Reject => Data::Verdict(Verdict::Reject),
        })
    }
}

#[cfg(test)]
mod tests {
    use onehop_core::time::Time;

    use super::*;

    fn keys() -> Vec<ElementKey> {
        let addresses = [
            IpAddr::from([10, 96, 0, 7]),
            IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 7]),
        ];
        let other = IpAddr::from([10, 96, 0, 8]);
        let mut keys = Vec::new();
        for address in addresses {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                let (port, slot) = (443, 65_537);
                let frontend = Frontend {
                    address,
                    protocol,
                    port,
                };
                let forms = [
                    Key::Addr(address),
                    Key::Frontend(frontend),
                    Key::NodePort { protocol, port },
                    Key::FrontendSlot(frontend, slot),
                    Key::NodePortSlot {
                        protocol,
                        port,
                        slot,
                    },
                    Key::Pair(address, address),
                    Key::Pair(address, other),
                    Key::Range(frontend, address.into()),
                ];
                for key in forms {
                    keys.extend(SetId::ALL.map(|set| (Family::of(address), set, key)));
                }
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    #[test]
    fn s285_a_key_is_the_same_in_either_form_and_most_are_small() {
        let (mut store, keys) = (Store::default(), keys());
        for (owners, key) in (0..).zip(&keys) {
            store.insert(*key, Held { data: None, owners });
        }
        for (owners, key) in (0..).zip(&keys) {
            assert_eq!(store.get(key), Some(Held { data: None, owners }), "{key:?}");
        }
        let mut all: Vec<ElementKey> = store.iter().map(|(key, _)| key).collect();
        all.sort_unstable();
        assert_eq!(all, keys);
        let owned = Keys::of(keys.iter());
        assert!(keys.iter().all(|key| owned.contains(key)));
        assert_eq!(owned.iter().count(), keys.len());
        // Two elements for each of 100,000 endpoints, in a tree that is half full: ten megabytes, and three of keys.
        assert!(
            size_of::<(Small, SmallHeld)>() <= 24 && size_of::<Small>() <= 12,
            "S-285"
        );
    }

    #[test]
    fn data_that_is_not_plain_takes_the_place_of_data_that_is() {
        let mut store = Store::default();
        let key = (
            Family::V4,
            SetId::GuardAny,
            Key::Addr(IpAddr::from([10, 0, 0, 1])),
        );
        let verdict = Verdict::Class(ClassKind::Gl(3), 9);
        let kinds = [
            None,
            Some(Data::Verdict(verdict)),
            Some(Data::Timed(verdict, Time::from_millis(5))),
            Some(Data::Target(SocketAddr::from(([10, 0, 0, 2], 80)))),
            Some(Data::Until(Time::from_millis(7))),
            Some(Data::Verdict(Verdict::Drop)),
            Some(Data::Target(SocketAddr::from((
                [0xfd, 0, 0, 0, 0, 0, 0, 2],
                80,
            )))),
            Some(Data::Verdict(Verdict::Reject)),
        ];
        for data in kinds {
            let held = Held { data, owners: 1 };
            store.insert(key, held);
            assert_eq!(store.get(&key), Some(held));
            assert_eq!(store.iter().count(), 1);
        }
        assert!(store.remove(&key).is_some() && store.get(&key).is_none());
    }
}
