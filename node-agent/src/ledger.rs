//! What the kernel holds, who wants it, and the change that makes the two agree.
//!
//! One map stands for both sides: an element has the data that the kernel holds (or will hold when
//! the commit under way succeeds) and the number of owners that want it. Several Services may want
//! the same element (hairpin pairs); what nobody wants is taken out. Used by the planner alone.

mod store;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use self::store::{Held, Keys, Store};
use crate::table::element::{Data, ElementChange, ElementKey, Elements};

/// What the kernel holds under a key before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Absent,
    Held(Option<Data>),
}

/// The kernel's elements with their owners. `O` names an owner.
#[derive(Debug)]
pub struct Ledger<O> {
    held: Store,
    /// The keys that each owner wants; what lies there is in `held`.
    owned: HashMap<O, Keys>,
    /// Changes with every element that comes, goes or gets other data, and depends on nothing else.
    digest: u64,
    /// What each element touched since the last [`Ledger::take_change`] was before.
    before: BTreeMap<ElementKey, Before>,
}

impl<O> Default for Ledger<O> {
    fn default() -> Self {
        Self {
            held: Store::default(),
            owned: HashMap::new(),
            digest: 0,
            before: BTreeMap::new(),
        }
    }
}

impl<O: Eq + Hash + Clone> Ledger<O> {
    /// Starts from what was read from the kernel. Nobody owns anything yet.
    pub fn from_kernel(elements: Elements) -> Self {
        let (mut held, mut digest) = (Store::default(), 0);
        for (key, data) in elements {
            digest ^= hash(&key, data.as_ref());
            held.insert(key, Held { data, owners: 0 });
        }
        Self {
            held,
            digest,
            ..Self::default()
        }
    }

    /// What the slots of a frontend hold from one to another, both included, in order.
    pub fn slots(&self, from: &ElementKey, to: &ElementKey) -> impl Iterator<Item = Option<Data>> {
        self.held.slots(from, to)
    }

    /// What an owner wants.
    pub fn wanted_by(&self, owner: &O) -> impl Iterator<Item = (ElementKey, Option<Data>)> {
        let keys = self.owned.get(owner).into_iter().flat_map(Keys::iter);
        keys.filter_map(|key| Some((key, self.held.get(&key)?.data)))
    }

    /// Replaces what an owner wants.
    pub fn set(&mut self, owner: &O, wanted: Elements) {
        let old = self.owned.remove(owner).unwrap_or_default();
        for (key, data) in &wanted {
            self.want(*key, *data, !old.contains(key));
        }
        for key in old.iter().filter(|key| !wanted.contains_key(key)) {
            self.release(key);
        }
        if !wanted.is_empty() {
            self.owned.insert(owner.clone(), Keys::of(wanted.keys()));
        }
    }

    /// Takes out what nobody owns, leftovers of an earlier process, and tells what it was.
    pub fn sweep(&mut self) -> Vec<ElementKey> {
        let unowned = self.held.iter().filter(|(_, held)| held.owners == 0);
        let unowned: Vec<ElementKey> = unowned.map(|(key, _)| key).collect();
        for key in &unowned {
            self.drop_held(key);
        }
        unowned
    }

    /// The change from what the kernel holds to what is wanted now; from here on it counts as held.
    pub fn take_change(&mut self) -> ElementChange {
        let before = std::mem::take(&mut self.before);
        let changed = before.into_iter().filter_map(|(key, before)| {
            let now = self.state(&key);
            (before != now).then_some((key, before, now))
        });
        let changed: Vec<_> = changed.collect();
        let removed = changed
            .iter()
            .filter(|(_, before, _)| *before != Before::Absent);
        // In order already, so that both are built as a whole and without a gap.
        ElementChange {
            remove: removed.map(|(key, ..)| *key).collect(),
            add: changed
                .iter()
                .filter_map(|(key, _, now)| match now {
                    Before::Held(data) => Some((*key, *data)),
                    Before::Absent => None,
                })
                .collect(),
            ..ElementChange::default()
        }
    }

    /// A digest of everything that the kernel holds; equal for equal elements.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Everything that the kernel holds.
    pub fn elements(&self) -> Elements {
        let held = self.held.iter();
        held.map(|(key, held)| (key, held.data)).collect()
    }

    fn want(&mut self, key: ElementKey, data: Option<Data>, first: bool) {
        let old = self.held.get(&key);
        let owners = old.map_or(0, |held| held.owners) + u32::from(first);
        let held = Held { data, owners };
        if old != Some(held) {
            self.held.insert(key, held);
        }
        let before = match old {
            Some(old) if old.data == data => return,
            Some(old) => {
                self.digest ^= hash(&key, old.data.as_ref());
                Before::Held(old.data)
            }
            None => Before::Absent,
        };
        self.digest ^= hash(&key, data.as_ref());
        self.before.entry(key).or_insert(before);
    }

    fn release(&mut self, key: ElementKey) {
        let Some(held) = self.held.get(&key) else {
            return;
        };
        match held.owners {
            0 | 1 => self.drop_held(&key),
            owners => {
                let owners = owners - 1;
                self.held.insert(key, Held { owners, ..held });
            }
        }
    }

    fn drop_held(&mut self, key: &ElementKey) {
        if let Some(held) = self.held.remove(key) {
            self.digest ^= hash(key, held.data.as_ref());
            self.before.entry(*key).or_insert(Before::Held(held.data));
        }
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
    let mut gathered = Gathered::default();
    (key, lasting).hash(&mut gathered);
    gathered.finish()
}

/// Bytes to be hashed at once: one by one they cost several times as much. The digest is the same.
struct Gathered {
    hasher: DefaultHasher,
    bytes: [u8; 256],
    len: usize,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            hasher: DefaultHasher::new(),
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl Gathered {
    fn flush(&mut self) {
        self.hasher.write(&self.bytes[..self.len]);
        self.len = 0;
    }
}

impl Hasher for Gathered {
    fn write(&mut self, bytes: &[u8]) {
        if self.bytes.len() - self.len < bytes.len() {
            self.flush();
        }
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.hasher.write(bytes),
        }
    }

    fn finish(&self) -> u64 {
        let mut hasher = self.hasher.clone();
        hasher.write(&self.bytes[..self.len]);
        hasher.finish()
    }
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
    fn bytes_that_are_gathered_hash_as_they_do_one_by_one() {
        let long = [7_u8; 300];
        let (mut gathered, mut plain) = (Gathered::default(), DefaultHasher::new());
        for length in [1, 2, 200, 57, 300, 4, 256, 255, 1, 0, 9] {
            gathered.write(&long[..length]);
            plain.write(&long[..length]);
            assert_eq!(gathered.finish(), plain.finish(), "S-109: {length}");
        }
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
