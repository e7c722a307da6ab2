//! One family's share of a change, cut into pieces that may go alone, and its encoding as a batch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use onehop_core::time::Time;
use onehop_nft::{Batch, Element, FailedOp, Table};

use super::chains::Chains;
use super::skeleton::add_rules;
use crate::table::affinity::Sticky;
use crate::table::demand::OnDemand;
use crate::table::element::{
    Data, ElementChange, ElementKey, Elements, Family, Frontend, Key, Protocol, SetId,
};
use crate::table::layout::Layout;

/// No key comes before it.
const FIRST: Key = Key::Addr(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

/// What stands and falls together in one transaction (S-245): all that lies on one address, or on one node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    /// Hairpin pairs come first: nothing depends on them, and frontends want them.
    Pair(IpAddr),
    Address(IpAddr),
    NodePort(Protocol, u16),
    /// The node's own network: interfaces, and what is inside the cluster.
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
        Key::Interface(_) | Key::Edge(..) => Unit::Network,
        Key::Addr(addr) => Unit::Address(addr),
        Key::Frontend(frontend) | Key::FrontendSlot(frontend, _) | Key::Range(frontend, _) => {
            Unit::Address(frontend.address)
        }
        Key::NodePort { protocol, port } | Key::NodePortSlot { protocol, port, .. } => {
            Unit::NodePort(protocol, port)
        }
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
    add: Elements,
    remove: BTreeSet<ElementKey>,
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
        Self { add, remove }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    pub(super) fn added(&self) -> &Elements {
        &self.add
    }

    pub(super) fn removed(&self) -> &BTreeSet<ElementKey> {
        &self.remove
    }

    /// What it adds to a set.
    fn added_to(
        &self,
        family: Family,
        set: SetId,
    ) -> impl Iterator<Item = (&ElementKey, &Option<Data>)> {
        let from = self.add.range((family, set, FIRST)..);
        from.take_while(move |(key, _)| (key.0, key.1) == (family, set))
    }

    /// What it removes from a set.
    fn removed_from(&self, family: Family, set: SetId) -> impl Iterator<Item = &ElementKey> {
        let from = self.remove.range((family, set, FIRST)..);
        from.take_while(move |key| (key.0, key.1) == (family, set))
    }

    /// All keys it touches.
    pub(super) fn keys(&self) -> impl Iterator<Item = ElementKey> + '_ {
        self.add.keys().chain(&self.remove).copied()
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
        self.remove.retain(|key| !keys.contains(key));
    }

    /// Takes out everything of the frontends that these keys belong to.
    pub(super) fn take_owners_of(&mut self, keys: &BTreeSet<ElementKey>) -> Self {
        let owners: BTreeSet<Owner> = keys.iter().map(owner).collect();
        let (taken, left) = std::mem::take(self).partition(|key| owners.contains(&owner(key)));
        *self = left;
        taken
    }

    fn partition(self, first: impl Fn(&ElementKey) -> bool) -> (Self, Self) {
        let (add_first, add_second) = self.add.into_iter().partition(|(key, _)| first(key));
        let (remove_first, remove_second) = self.remove.into_iter().partition(|key| first(key));
        let part = |add, remove| Self { add, remove };
        (
            part(add_first, remove_first),
            part(add_second, remove_second),
        )
    }
}

/// A part as a batch, with what each of its operations means.
pub(super) struct Planned {
    pub(super) batch: Batch,
    /// Chains that the batch makes.
    pub(super) new_chains: BTreeSet<OnDemand>,
    /// Elements that no table of this family can hold (S-124).
    pub(super) unencodable: BTreeSet<ElementKey>,
    ops: Vec<Op>,
}

/// What an operation of a batch is about. Its elements are those of the part, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// No element of ours.
    Other,
    Remove(SetId),
    Add(SetId),
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
    pub(super) fn new(layout: &Layout, part: &Part, chains: &Chains, now: Time) -> Self {
        let mut planned = Self {
            batch: Batch::new(),
            new_chains: new_chains(part, chains),
            unencodable: BTreeSet::new(),
            ops: Vec::new(),
        };
        let exists = |map| chains.uses_map(map);
        let new = &planned.new_chains;
        let count = add_chains(&mut planned.batch, layout, new, exists);
        planned.note(count);
        for id in SetId::ALL.iter().rev() {
            planned.remove(layout, *id, part);
        }
        for id in SetId::ALL {
            planned.add(layout, id, part, now);
        }
        planned
    }

    /// Adds the removal of clients whose endpoint leaves with this batch (S-240).
    pub(super) fn forget(&mut self, layout: &Layout, map: Sticky, clients: Vec<Element>) {
        let (table, before) = (&layout.table, self.batch.ops());
        self.batch.destroy_elements(table, &map.map_name(), clients);
        self.note(self.batch.ops() - before);
    }

    /// Deletes a foreign table with this batch.
    pub(super) fn retire(&mut self, table: &Table) {
        self.batch.del_table(table);
        self.note(1);
    }

    /// Operations that are about no element of ours.
    fn note(&mut self, count: usize) {
        self.ops.extend(std::iter::repeat_n(Op::Other, count));
    }

    /// Which elements of the part failed operations are about.
    pub(super) fn meaning(&self, family: Family, part: &Part, failed: &[FailedOp]) -> Meaning {
        let mut meaning = Meaning::default();
        for failure in failed {
            let (keys, removes): (Vec<ElementKey>, bool) = match self.ops.get(failure.op) {
                Some(Op::Add(set)) => {
                    let added = part.added_to(family, *set);
                    (added.map(|(key, _)| *key).collect(), false)
                }
                Some(Op::Remove(set)) => (part.removed_from(family, *set).copied().collect(), true),
                Some(Op::Other) | None => continue,
            };
            let keys = match failure.element.and_then(|element| keys.get(element)) {
                Some(key) => std::slice::from_ref(key),
                None => &keys[..],
            };
            let gone = removes && failure.errno == libc::ENOENT && keys.len() == 1;
            let side = if gone {
                &mut meaning.already_gone
            } else {
                &mut meaning.keys
            };
            side.extend(keys);
        }
        meaning
    }

    fn remove(&mut self, layout: &Layout, id: SetId, part: &Part) {
        let family = layout.family;
        let mut keys = part.removed_from(family, id).peekable();
        if keys.peek().is_none() {
            return;
        }
        let unencodable = &mut self.unencodable;
        let elements =
            keys.filter_map(|key| known(unencodable, key, id.encode_key(family, &key.2)));
        self.batch.del_elements(&layout.table, id.name(), elements);
        self.ops.push(Op::Remove(id));
    }

    fn add(&mut self, layout: &Layout, id: SetId, part: &Part, now: Time) {
        let family = layout.family;
        let mut added = part.added_to(family, id).peekable();
        if added.peek().is_none() {
            return;
        }
        let unencodable = &mut self.unencodable;
        let elements = added.filter_map(|(key, data)| {
            known(
                unencodable,
                key,
                id.encode(family, &key.2, data.as_ref(), now),
            )
        });
        self.batch.add_elements(&layout.table, id.name(), elements);
        self.ops.push(Op::Add(id));
    }
}

/// Takes note of an element that could not be encoded; then the batch is not sent.
fn known(
    unencodable: &mut BTreeSet<ElementKey>,
    key: &ElementKey,
    element: Option<Element>,
) -> Option<Element> {
    if element.is_none() {
        unencodable.insert(*key);
    }
    element
}

/// Chains that a part's elements need, with those that these need, as far as they do not exist.
fn new_chains(part: &Part, chains: &Chains) -> BTreeSet<OnDemand> {
    let named = part.added().iter();
    named
        .filter_map(|((_, set, _), data)| OnDemand::named_by(*set, data.as_ref()))
        .flat_map(|chain| chain.needs().into_iter().chain([chain]))
        .filter(|chain| !chains.exists(*chain))
        .collect()
}

/// Adds chains made on demand with their rules and maps; the number of operations.
pub(super) fn add_chains(
    batch: &mut Batch,
    layout: &Layout,
    chains: &BTreeSet<OnDemand>,
    exists: impl Fn(Sticky) -> bool,
) -> usize {
    let before = batch.ops();
    let maps: BTreeSet<Sticky> = chains.iter().filter_map(|chain| chain.map()).collect();
    for map in maps.into_iter().filter(|map| !exists(*map)) {
        batch.add_set(&layout.table, &map.map(layout.family));
    }
    for chain in chains {
        let name = chain.name();
        batch.add_chain(&layout.table, &chain.chain());
        add_rules(
            batch,
            layout,
            &name,
            &chain.rules(layout.family, &layout.options),
        );
    }
    batch.ops() - before
}
