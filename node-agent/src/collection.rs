//! The agent's own copy of one watched kind: applies watch steps and tells which keys changed.
//!
//! A list that is read again says nothing about what it does not name until it is complete; only
//! then is what it left out removed (I1). Values are compared, so a re-list of unchanged objects
//! changes nothing (I4).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// One step of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<K, V> {
    /// A list begins; what it does not name by its end is gone.
    ListStarts,
    /// An object is, or became, this.
    Apply(K, V),
    /// An object is there but cannot be read: what was known of it still holds.
    Keep(K),
    /// An object is gone.
    Delete(K),
    /// The list is complete.
    ListEnds,
}

/// What a step did to one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed<K, V> {
    /// The object.
    pub key: K,
    /// Its value before; `None` if it is new.
    pub old: Option<V>,
}

/// All objects of one kind.
#[derive(Debug)]
pub struct Collection<K, V> {
    items: HashMap<K, V>,
    /// Keys that the running list has named so far.
    named: Option<HashSet<K>>,
    synced: bool,
}

impl<K, V> Default for Collection<K, V> {
    fn default() -> Self {
        Self {
            items: HashMap::new(),
            named: None,
            synced: false,
        }
    }
}

impl<K: Eq + Hash + Clone, V: PartialEq> Collection<K, V> {
    /// Applies a step and returns what changed by it.
    pub fn step(&mut self, step: Step<K, V>) -> Vec<Changed<K, V>> {
        match step {
            Step::ListStarts => {
                self.named = Some(HashSet::new());
                Vec::new()
            }
            Step::Apply(key, value) => {
                if let Some(named) = &mut self.named {
                    named.insert(key.clone());
                }
                self.apply(key, value).into_iter().collect()
            }
            Step::Keep(key) => {
                if let Some(named) = &mut self.named {
                    named.insert(key);
                }
                Vec::new()
            }
            Step::Delete(key) => self.delete(key).into_iter().collect(),
            Step::ListEnds => {
                self.synced = true;
                self.forget_unnamed()
            }
        }
    }

    /// Whether a list has been completed at least once.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// An object.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.items.get(key)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.items.keys()
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.items.values()
    }

    fn apply(&mut self, key: K, value: V) -> Option<Changed<K, V>> {
        if self.items.get(&key) == Some(&value) {
            return None;
        }
        let old = self.items.insert(key.clone(), value);
        Some(Changed { key, old })
    }

    fn delete(&mut self, key: K) -> Option<Changed<K, V>> {
        let old = self.items.remove(&key)?;
        Some(Changed {
            key,
            old: Some(old),
        })
    }

    fn forget_unnamed(&mut self) -> Vec<Changed<K, V>> {
        let Some(named) = self.named.take() else {
            return Vec::new();
        };
        let gone: Vec<K> = self
            .items
            .keys()
            .filter(|key| !named.contains(*key))
            .cloned()
            .collect();
        gone.into_iter()
            .filter_map(|key| self.delete(key))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(changed: Vec<Changed<&'static str, u8>>) -> Vec<&'static str> {
        changed.into_iter().map(|changed| changed.key).collect()
    }

    #[test]
    fn i1_a_list_removes_only_when_it_is_complete() {
        let mut all = Collection::default();
        all.step(Step::ListStarts);
        all.step(Step::Apply("a", 1));
        assert!(!all.synced());
        all.step(Step::Apply("b", 1));
        all.step(Step::ListEnds);
        assert!(all.synced());
        assert!(keys(all.step(Step::ListStarts)).is_empty());
        assert!(keys(all.step(Step::Apply("b", 1))).is_empty());
        assert_eq!(all.get(&"a"), Some(&1));
        assert_eq!(keys(all.step(Step::ListEnds)), ["a"]);
    }

    #[test]
    fn i10_an_unreadable_object_keeps_its_last_value() {
        let mut all = Collection::default();
        all.step(Step::Apply("a", 1));
        all.step(Step::ListStarts);
        all.step(Step::Keep("a"));
        assert!(keys(all.step(Step::ListEnds)).is_empty());
        assert_eq!(all.get(&"a"), Some(&1));
    }

    #[test]
    fn i4_an_equal_object_is_no_change() {
        let mut all = Collection::default();
        assert_eq!(keys(all.step(Step::Apply("a", 1))), ["a"]);
        assert!(keys(all.step(Step::Apply("a", 1))).is_empty());
        assert!(keys(all.step(Step::Delete("b"))).is_empty());
    }
}
