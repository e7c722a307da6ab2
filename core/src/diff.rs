//! The one keyed difference: between desired and observed, old and new, wanted and committed.
//!
//! Every planner, the kernel state and the status use it, so that "nothing changed" means the same
//! everywhere: an empty difference, and so no write (I4).

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What turns the old map into the new one, each part ordered by key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Diff<'a, K, V> {
    /// Only in the new map.
    pub added: Vec<(&'a K, &'a V)>,
    /// In both, with different values.
    pub changed: Vec<Changed<'a, K, V>>,
    /// Only in the old map.
    pub removed: Vec<(&'a K, &'a V)>,
}

/// An entry whose value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// The value in the old map.
    pub old: &'a V,
    /// The value in the new map.
    pub new: &'a V,
}

impl<K, V> Diff<'_, K, V> {
    /// Whether the maps are equal.
    pub const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

/// The difference between two maps, in one walk over both.
pub fn diff<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> Diff<'a, K, V> {
    let mut diff = Diff {
        added: Vec::new(),
        changed: Vec::new(),
        removed: Vec::new(),
    };
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some((o, _)), Some((n, _))) => o.cmp(n),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return diff,
        };
        let gone = if order.is_le() { old.next() } else { None };
        let come = if order.is_ge() { new.next() } else { None };
        match (gone, come) {
            (Some((key, old)), Some((_, new))) if old != new => {
                diff.changed.push(Changed { key, old, new });
            }
            (Some(entry), None) => diff.removed.push(entry),
            (None, Some(entry)) => diff.added.push(entry),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn applying_the_difference_to_the_old_map_gives_the_new_one(
            old: BTreeMap<u8, u8>, new: BTreeMap<u8, u8>,
        ) {
            let diff = diff(&old, &new);
            prop_assert_eq!(diff.is_empty(), old == new);
            let mut built = old.clone();
            for (key, value) in &diff.removed {
                prop_assert_eq!(built.remove(key), Some(**value));
            }
            for (key, value) in &diff.added {
                prop_assert_eq!(built.insert(**key, **value), None);
            }
            for changed in &diff.changed {
                prop_assert_ne!(changed.old, changed.new);
                prop_assert_eq!(built.insert(*changed.key, *changed.new), Some(*changed.old));
            }
            prop_assert_eq!(built, new);
        }
    }
}
