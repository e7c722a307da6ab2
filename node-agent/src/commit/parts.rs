//! One family's share of a change, cut into pieces that may go alone, and its encoding as a batch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::time::Time;
use onehop_nft::{Batch, Chain, Element, FailedOp};

use super::classes::{Class, Classes};
use crate::table::class;
use crate::table::element::{
    Data, ElementChange, ElementKey, Elements, Family, Frontend, Key, Protocol, SetId,
};
use crate::table::layout::table;

/// What stands and falls together in one transaction (S-245): all that lies on one address, or on one node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    /// Hairpin pairs come first: nothing depends on them, and frontends want them.
    Pair(IpAddr),
    Address(IpAddr),
    NodePort(Protocol, u16),
    /// The node's own network: uplinks, and what is inside the cluster.
    Network,
}

/// What is left out together when the kernel refuses one element of it (S-258).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Frontend(Frontend),
    NodePort(Protocol, u16),
    Alone(SetId, Key),
    /// Beginnings without ends mean something else.
    Ranges(SetId),
}

fn unit(key: &ElementKey) -> Unit {
    match key.2 {
        Key::Pair(addr, _) => Unit::Pair(addr),
        Key::Addr(addr) => Unit::Address(addr),
        Key::Frontend(frontend) | Key::FrontendSlot(frontend, _) | Key::Range(frontend, _) => {
            Unit::Address(frontend.address)
        }
        Key::NodePort { protocol, port } | Key::NodePortSlot { protocol, port, .. } => {
            Unit::NodePort(protocol, port)
        }
        Key::Interface(_) | Key::Edge(..) => Unit::Network,
    }
}

fn owner(key: &ElementKey) -> Owner {
    match key.2 {
        Key::Frontend(frontend) | Key::FrontendSlot(frontend, _) | Key::Range(frontend, _) => {
            Owner::Frontend(frontend)
        }
        Key::NodePort { protocol, port } | Key::NodePortSlot { protocol, port, .. } => {
            Owner::NodePort(protocol, port)
        }
        Key::Addr(_) | Key::Pair(..) | Key::Interface(_) => Owner::Alone(key.1, key.2),
        Key::Edge(..) => Owner::Ranges(key.1),
    }
}

/// A family's share of a change.
#[derive(Debug, Default)]
pub(super) struct Part {
    change: ElementChange,
}

impl Part {
    pub(super) fn of(change: &ElementChange, family: Family) -> Self {
        let add = change
            .add
            .iter()
            .filter(|(key, _)| key.0 == family)
            .map(|(key, data)| (*key, *data))
            .collect();
        let remove = change
            .remove
            .iter()
            .filter(|key| key.0 == family)
            .copied()
            .collect();
        Self {
            change: ElementChange { add, remove },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.change.is_empty()
    }

    pub(super) fn added(&self) -> &Elements {
        &self.change.add
    }

    pub(super) fn removed(&self) -> &BTreeSet<ElementKey> {
        &self.change.remove
    }

    /// All keys it touches.
    pub(super) fn keys(&self) -> impl Iterator<Item = ElementKey> + '_ {
        self.change.add.keys().chain(&self.change.remove).copied()
    }

    /// Whether it has more than one unit.
    pub(super) fn can_split(&self) -> bool {
        let mut units = self.keys().map(|key| unit(&key));
        units
            .next()
            .is_some_and(|first| units.any(|other| other != first))
    }

    /// Two halves of about the same number of elements, units whole and in order.
    pub(super) fn split(self) -> (Self, Self) {
        let mut sizes: BTreeMap<Unit, usize> = BTreeMap::new();
        for key in self.keys() {
            *sizes.entry(unit(&key)).or_default() += 1;
        }
        let half = sizes.values().sum::<usize>() / 2;
        let (mut taken, mut first) = (0, BTreeSet::new());
        for (unit, size) in &sizes {
            if !first.is_empty() && (taken + size > half || first.len() + 1 == sizes.len()) {
                break;
            }
            taken += size;
            first.insert(*unit);
        }
        self.partition(|key| first.contains(&unit(key)))
    }

    /// Forgets removals of elements that are not there any more.
    pub(super) fn forget_removed(&mut self, keys: &BTreeSet<ElementKey>) {
        self.change.remove.retain(|key| !keys.contains(key));
    }

    /// Takes out everything of the frontends that these keys belong to.
    pub(super) fn take_owners_of(&mut self, keys: &BTreeSet<ElementKey>) -> Self {
        let owners: BTreeSet<Owner> = keys.iter().map(owner).collect();
        let (taken, left) = std::mem::take(self).partition(|key| owners.contains(&owner(key)));
        *self = left;
        taken
    }

    fn partition(self, first: impl Fn(&ElementKey) -> bool) -> (Self, Self) {
        let (add_first, add_second) = self.change.add.into_iter().partition(|(key, _)| first(key));
        let (remove_first, remove_second) =
            self.change.remove.into_iter().partition(|key| first(key));
        let part = |add, remove| Self {
            change: ElementChange { add, remove },
        };
        (
            part(add_first, remove_first),
            part(add_second, remove_second),
        )
    }
}

/// A part as a batch, with what each of its operations means.
pub(super) struct Planned {
    pub(super) batch: Batch,
    /// Classes whose chains the batch makes.
    pub(super) new_classes: Vec<Class>,
    /// Elements that no table of this family can hold (S-124).
    pub(super) unencodable: BTreeSet<ElementKey>,
    ops: Vec<Op>,
}

struct Op {
    keys: Vec<ElementKey>,
    removes: bool,
}

/// What a failure is about.
#[derive(Debug, Default)]
pub(super) struct Meaning {
    /// Elements the kernel refused.
    pub(super) keys: BTreeSet<ElementKey>,
    /// Elements that were to be removed and are not there.
    pub(super) already_gone: BTreeSet<ElementKey>,
}

impl Planned {
    /// Chains before what names them, removals before additions, slots before verdicts (S-245).
    pub(super) fn new(family: Family, part: &Part, classes: &Classes, now: Time) -> Self {
        let mut planned = Self {
            batch: Batch::new(),
            new_classes: Vec::new(),
            unencodable: BTreeSet::new(),
            ops: Vec::new(),
        };
        planned.add_classes(family, part, classes);
        for id in SetId::ALL.iter().rev() {
            planned.remove(family, *id, part);
        }
        for id in SetId::ALL {
            planned.add(family, id, part, now);
        }
        planned
    }

    /// Which elements failed operations are about.
    pub(super) fn meaning(&self, failed: &[FailedOp]) -> Meaning {
        let mut meaning = Meaning::default();
        for failure in failed {
            let Some(op) = self.ops.get(failure.op) else {
                continue;
            };
            let keys = match failure.element.and_then(|element| op.keys.get(element)) {
                Some(key) => std::slice::from_ref(key),
                None => &op.keys,
            };
            let gone = op.removes && failure.errno == libc::ENOENT && keys.len() == 1;
            let side = if gone {
                &mut meaning.already_gone
            } else {
                &mut meaning.keys
            };
            side.extend(keys);
        }
        meaning
    }

    fn add_classes(&mut self, family: Family, part: &Part, classes: &Classes) {
        let wanted: BTreeSet<Class> = part
            .added()
            .values()
            .filter_map(|data| Class::named_by(data.as_ref()))
            .collect();
        for class in wanted.into_iter().filter(|class| !classes.exists(*class)) {
            let count = add_class(&mut self.batch, family, class);
            self.ops.extend((0..count).map(|_| Op {
                keys: Vec::new(),
                removes: false,
            }));
            self.new_classes.push(class);
        }
    }

    fn remove(&mut self, family: Family, id: SetId, part: &Part) {
        let keys = part.removed().iter().filter(|key| key.1 == id);
        let (keys, elements) = self.encode(keys.map(|key| (key, id.encode_key(family, &key.2))));
        if !keys.is_empty() {
            self.batch.del_elements(&table(family), id.name(), elements);
            self.ops.push(Op {
                keys,
                removes: true,
            });
        }
    }

    fn add(&mut self, family: Family, id: SetId, part: &Part, now: Time) {
        let added = part.added().iter().filter(|(key, _)| key.1 == id);
        let encode =
            |data: &Option<Data>, key: &ElementKey| id.encode(family, &key.2, data.as_ref(), now);
        let (keys, elements) = self.encode(added.map(|(key, data)| (key, encode(data, key))));
        if !keys.is_empty() {
            self.batch.add_elements(&table(family), id.name(), elements);
            self.ops.push(Op {
                keys,
                removes: false,
            });
        }
    }

    fn encode<'a>(
        &mut self,
        elements: impl Iterator<Item = (&'a ElementKey, Option<Element>)>,
    ) -> (Vec<ElementKey>, Vec<Element>) {
        let mut encoded = (Vec::new(), Vec::new());
        for (key, element) in elements {
            match element {
                Some(element) => {
                    encoded.0.push(*key);
                    encoded.1.push(element);
                }
                None => {
                    self.unencodable.insert(*key);
                }
            }
        }
        encoded
    }
}

/// Adds a class chain with its rules; the number of operations.
pub(super) fn add_class(batch: &mut Batch, family: Family, class: Class) -> usize {
    let before = batch.ops();
    let (table, name) = (table(family), class.name());
    batch.add_chain(&table, &Chain::regular(&name));
    for rule in class::rules(family, class.0, class.1) {
        batch.add_rule(&table, &name, &super::skeleton::marked(rule));
    }
    batch.ops() - before
}
