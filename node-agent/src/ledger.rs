//! What the kernel holds, who wants it, and the change that makes the two agree.
//!
//! One map stands for both sides: an element has the data that the kernel holds (or will hold when
//! the commit under way succeeds) and the number of owners that want it. Several Services may want
//! the same element (hairpin pairs); what nobody wants is taken out. Used by the planner alone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::table::element::{Data, ElementChange, ElementKey, Elements};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    data: Option<Data>,
    owners: u32,
}

/// What the kernel holds under a key before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Absent,
    Held(Option<Data>),
}

/// The kernel's elements with their owners. `O` names an owner.
#[derive(Debug)]
pub struct Ledger<O> {
    held: BTreeMap<ElementKey, Held>,
    /// The keys that each owner wants, in order; what lies there is in `held`.
    owned: HashMap<O, Box<[ElementKey]>>,
    /// Changes with every element that comes, goes or gets other data, and depends on nothing else.
    digest: u64,
    /// What each element touched since the last [`Ledger::take_change`] was before.
    before: BTreeMap<ElementKey, Before>,
}

impl<O> Default for Ledger<O> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            owned: HashMap::new(),
            digest: 0,
            before: BTreeMap::new(),
        }
    }
}

impl<O: Eq + Hash + Clone> Ledger<O> {
    /// Starts from what was read from the kernel. Nobody owns anything yet.
    pub fn from_kernel(elements: Elements) -> Self {
        let digest = elements
            .iter()
            .fold(0, |sum, (key, data)| sum ^ hash(key, data.as_ref()));
        let held = elements
            .into_iter()
            .map(|(key, data)| (key, Held { data, owners: 0 }))
            .collect();
        Self {
            held,
            digest,
            ..Self::default()
        }
    }

    /// The elements from one key to another, both included, in order.
    pub fn range(
        &self,
        from: ElementKey,
        to: ElementKey,
    ) -> impl Iterator<Item = (&ElementKey, Option<Data>)> {
        self.held
            .range(from..=to)
            .map(|(key, held)| (key, held.data))
    }

    /// What an owner wants, in order.
    pub fn wanted_by(&self, owner: &O) -> impl Iterator<Item = (&ElementKey, Option<Data>)> {
        let keys = self.owned.get(owner).into_iter().flatten();
        keys.filter_map(|key| Some((key, self.held.get(key)?.data)))
    }

    /// Replaces what an owner wants.
    pub fn set(&mut self, owner: &O, wanted: Elements) {
        let old = self.owned.remove(owner).unwrap_or_default();
        for (key, data) in &wanted {
            self.want(*key, *data, old.binary_search(key).is_err());
        }
        for key in old.iter().filter(|key| !wanted.contains_key(*key)) {
            self.release(*key);
        }
        if !wanted.is_empty() {
            self.owned
                .insert(owner.clone(), wanted.into_keys().collect());
        }
    }

    /// Takes out what nobody owns, leftovers of an earlier process, and tells what it was.
    pub fn sweep(&mut self) -> Vec<ElementKey> {
        let unowned: Vec<ElementKey> = self
            .held
            .iter()
            .filter(|(_, held)| held.owners == 0)
            .map(|(key, _)| *key)
            .collect();
        for key in &unowned {
            self.remember(*key);
            self.drop_held(key);
        }
        unowned
    }

    /// The change from what the kernel holds to what is wanted now; from here on it counts as held.
    pub fn take_change(&mut self) -> ElementChange {
        let mut change = ElementChange::default();
        for (key, before) in std::mem::take(&mut self.before) {
            let now = self.state(&key);
            if before == now {
                continue;
            }
            if before != Before::Absent {
                change.remove.insert(key);
            }
            if let Before::Held(data) = now {
                change.add.insert(key, data);
            }
        }
        change
    }

    /// A digest of everything that the kernel holds; equal for equal elements.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Everything that the kernel holds.
    pub fn elements(&self) -> Elements {
        self.held
            .iter()
            .map(|(key, held)| (*key, held.data))
            .collect()
    }

    fn want(&mut self, key: ElementKey, data: Option<Data>, first: bool) {
        let before = match self.held.entry(key) {
            Entry::Vacant(place) => {
                let owners = u32::from(first);
                place.insert(Held { data, owners });
                Before::Absent
            }
            Entry::Occupied(mut place) => {
                let held = place.get_mut();
                held.owners += u32::from(first);
                if held.data == data {
                    return;
                }
                let before = std::mem::replace(&mut held.data, data);
                self.digest ^= hash(&key, before.as_ref());
                Before::Held(before)
            }
        };
        self.digest ^= hash(&key, data.as_ref());
        self.before.entry(key).or_insert(before);
    }

    fn release(&mut self, key: ElementKey) {
        let Some(held) = self.held.get_mut(&key) else {
            return;
        };
        held.owners = held.owners.saturating_sub(1);
        if held.owners == 0 {
            self.remember(key);
            self.drop_held(&key);
        }
    }

    fn drop_held(&mut self, key: &ElementKey) {
        if let Some(held) = self.held.remove(key) {
            self.digest ^= hash(key, held.data.as_ref());
        }
    }

    fn remember(&mut self, key: ElementKey) {
        let now = self.state(&key);
        self.before.entry(key).or_insert(now);
    }

    fn state(&self, key: &ElementKey) -> Before {
        let held = self.held.get(key);
        held.map_or(Before::Absent, |held| Before::Held(held.data))
    }
}

fn hash(key: &ElementKey, data: Option<&Data>) -> u64 {
    // Read back, the end of an element is some milliseconds off.
    let lasting = match data {
        Some(Data::Timed(verdict, _)) => Some(Data::Verdict(*verdict)),
        Some(Data::Until(_)) => None,
        other => other.copied(),
    };
    let mut hasher = DefaultHasher::new();
    (key, lasting).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::table::element::{Family, Key, SetId, Verdict};

    fn pair(last: u8) -> ElementKey {
        let addr = IpAddr::from([10, 244, 0, last]);
        (Family::V4, SetId::Hairpin, Key::Pair(addr, addr))
    }

    fn verdict(last: u8) -> ElementKey {
        let addr = IpAddr::from([10, 96, 0, last]);
        (Family::V4, SetId::NoEndpointServices, Key::Addr(addr))
    }

    fn plain(keys: &[ElementKey]) -> Elements {
        keys.iter().map(|key| (*key, None)).collect()
    }

    #[test]
    fn s222_shared_element_stays_until_its_last_owner_goes() {
        let mut ledger = Ledger::default();
        ledger.set(&"a", plain(&[pair(1), pair(2)]));
        ledger.set(&"b", plain(&[pair(1)]));
        assert_eq!(ledger.take_change().add.len(), 2);
        ledger.set(&"a", Elements::new());
        let change = ledger.take_change();
        assert_eq!(change.remove.iter().copied().collect::<Vec<_>>(), [pair(2)]);
        ledger.set(&"b", Elements::new());
        assert!(ledger.take_change().remove.contains(&pair(1)));
        assert!(ledger.elements().is_empty());
    }

    #[test]
    fn s130_what_is_back_where_it_was_is_not_sent() {
        let mut ledger = Ledger::default();
        ledger.set(&"a", plain(&[pair(1)]));
        ledger.take_change();
        ledger.set(&"a", Elements::new());
        ledger.set(&"b", plain(&[pair(1)]));
        assert!(ledger.take_change().is_empty());
    }

    #[test]
    fn s109_what_is_left_of_an_elements_time_is_no_other_content() {
        use onehop_core::time::Time;
        let key = verdict(7);
        let held = |ms, verdict| {
            let timed = Data::Timed(verdict, Time::from_millis(ms));
            Ledger::<&str>::from_kernel(Elements::from([(key, Some(timed))])).digest()
        };
        assert_eq!(
            held(1000, Verdict::Drop),
            held(1003, Verdict::Drop),
            "S-109"
        );
        assert_ne!(held(1000, Verdict::Drop), held(1000, Verdict::Reject));
    }

    #[test]
    fn s121_read_back_sends_only_differences_and_sweeps_leftovers() {
        let drop = Some(Data::Verdict(Verdict::Drop));
        let reject = Some(Data::Verdict(Verdict::Reject));
        let kernel = Elements::from([(pair(1), None), (pair(2), None), (verdict(1), drop)]);
        let mut ledger = Ledger::from_kernel(kernel);
        ledger.set(
            &"a",
            Elements::from([(pair(1), None), (verdict(1), reject)]),
        );
        ledger.sweep();
        let same = Ledger::<&str>::from_kernel(ledger.elements());
        assert_eq!(
            ledger.digest(),
            same.digest(),
            "S-109: the same by whatever way"
        );
        let change = ledger.take_change();
        assert_eq!(change.add, Elements::from([(verdict(1), reject)]));
        assert_eq!(
            change.remove.into_iter().collect::<Vec<_>>(),
            [verdict(1), pair(2)]
        );
    }
}
