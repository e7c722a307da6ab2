//! The cache that a watch fills.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;

use super::{ObjectKey, Seen};

/// What a watch has shown so far, as views of the objects.
///
/// A list replaces the content as a whole when it is complete; until then the old content stands.
#[derive(Clone, Debug)]
pub struct Cache<V> {
    live: BTreeMap<ObjectKey, V>,
    listing: BTreeMap<ObjectKey, V>,
    /// Objects of the list under way that could not be read.
    unreadable: BTreeSet<ObjectKey>,
    synced: bool,
    /// Newest resource version that the watch has shown.
    newest: u64,
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
            listing: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            synced: false,
            newest: 0,
        }
    }
}

/// A change of one object's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<V> {
    /// The object.
    pub key: ObjectKey,
    /// Its view before, if it had one. The view now is in the cache.
    pub old: Option<V>,
}

impl<V: PartialEq> Cache<V> {
    /// Takes in what was seen and tells which views changed. `view` makes the view of an object, or
    /// `None` for one that does not matter. A change that leaves the view equal is no change.
    pub fn apply<K: ResourceExt>(
        &mut self,
        seen: Seen<K>,
        view: impl FnOnce(&K) -> Option<V>,
    ) -> Vec<Change<V>> {
        let change = match seen {
            Seen::ListBegun => {
                self.listing.clear();
                self.unreadable.clear();
                None
            }
            Seen::Listed(object) => {
                self.saw(&object);
                if let Some(view) = view(&object) {
                    self.listing.insert(ObjectKey::of(&object), view);
                }
                None
            }
            Seen::Unreadable(key) => {
                self.unreadable.insert(key);
                None
            }
            Seen::ListDone => return self.replace(),
            Seen::Applied(object) => {
                self.saw(&object);
                self.put(ObjectKey::of(&object), view(&object))
            }
            Seen::Deleted(key) => self.put(key, None),
        };
        change.into_iter().collect()
    }

    /// Takes in what the server answered to a write of our own, so that nobody acts on what was there
    /// before it. A watch shows changes in the order of their versions: what it is past, it has shown,
    /// with everything that came later; then the answer is old news, of an object that may be gone.
    pub fn written<K: ResourceExt>(
        &mut self,
        object: &K,
        view: impl FnOnce(&K) -> Option<V>,
    ) -> Vec<Change<V>> {
        if version(object).is_none_or(|version| version <= self.newest) {
            return Vec::new();
        }
        let change = self.put(ObjectKey::of(object), view(object));
        change.into_iter().collect()
    }

    /// Whether a list has been completed. Nothing may be decided before (I1).
    pub const fn is_synced(&self) -> bool {
        self.synced
    }

    /// The view of an object.
    pub fn get(&self, key: &ObjectKey) -> Option<&V> {
        self.live.get(key)
    }

    /// All views by key.
    pub const fn all(&self) -> &BTreeMap<ObjectKey, V> {
        &self.live
    }

    fn saw<K: ResourceExt>(&mut self, object: &K) {
        self.newest = self.newest.max(version(object).unwrap_or_default());
    }

    fn put(&mut self, key: ObjectKey, view: Option<V>) -> Option<Change<V>> {
        if self.live.get(&key) == view.as_ref() {
            return None;
        }
        let old = match view {
            Some(view) => self.live.insert(key.clone(), view),
            None => self.live.remove(&key),
        };
        Some(Change { key, old })
    }

    fn replace(&mut self) -> Vec<Change<V>> {
        self.synced = true;
        let listed = std::mem::take(&mut self.listing);
        let unreadable = std::mem::take(&mut self.unreadable);
        let is_gone = |key: &&ObjectKey| !listed.contains_key(*key) && !unreadable.contains(*key);
        let gone: Vec<_> = self.live.keys().filter(is_gone).cloned().collect();
        let mut changes: Vec<_> = gone.into_iter().filter_map(|k| self.put(k, None)).collect();
        changes.extend(listed.into_iter().filter_map(|(k, v)| self.put(k, Some(v))));
        changes
    }
}

/// The version as a number, which every server of today has in it.
fn version<K: ResourceExt>(object: &K) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(name: &str, value: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.data = Some([("value".to_owned(), value.to_owned())].into());
        object
    }

    fn value(object: &ConfigMap) -> Option<String> {
        object.data.as_ref()?.get("value").cloned()
    }

    fn feed(cache: &mut Cache<String>, seen: Vec<Seen<ConfigMap>>) -> Vec<String> {
        let changes = seen.into_iter().flat_map(|s| cache.apply(s, value));
        changes.map(|change| change.key.name).collect()
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: String::new(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn i1_nothing_shows_before_the_list_is_complete() {
        let mut cache = Cache::default();
        let begun = vec![Seen::ListBegun, Seen::Listed(object("a", "1"))];
        assert!(feed(&mut cache, begun).is_empty());
        assert!(!cache.is_synced() && cache.all().is_empty());
        assert_eq!(feed(&mut cache, vec![Seen::ListDone]), ["a"]);
        assert!(cache.is_synced());
    }

    #[test]
    fn a_new_list_removes_what_is_gone_and_reports_only_what_differs() {
        let mut cache = Cache::default();
        let all = |names: &[&str]| {
            let listed = names.iter().map(|n| Seen::Listed(object(n, "1")));
            std::iter::once(Seen::ListBegun)
                .chain(listed)
                .chain([Seen::ListDone])
                .collect()
        };
        feed(&mut cache, all(&["a", "b", "c"]));
        assert_eq!(feed(&mut cache, all(&["b", "c", "d"])), ["a", "d"]);
        // A list that breaks off and begins anew leaves nothing of the first try.
        let broken = vec![Seen::ListBegun, Seen::Listed(object("x", "1"))];
        assert!(feed(&mut cache, broken).is_empty());
        assert!(feed(&mut cache, all(&["b", "c", "d"])).is_empty());
    }

    #[test]
    fn i10_an_object_that_cannot_be_read_any_more_keeps_its_last_view() {
        let mut cache = Cache::default();
        feed(
            &mut cache,
            vec![
                Seen::ListBegun,
                Seen::Listed(object("a", "1")),
                Seen::ListDone,
            ],
        );
        let bad = vec![Seen::ListBegun, Seen::Unreadable(key("a")), Seen::ListDone];
        assert!(feed(&mut cache, bad).is_empty());
        assert_eq!(cache.get(&key("a")).map(String::as_str), Some("1"));
        assert_eq!(feed(&mut cache, vec![Seen::Deleted(key("a"))]), ["a"]);
    }

    #[test]
    fn a_change_that_leaves_the_view_equal_is_no_change() {
        let mut cache = Cache::default();
        assert_eq!(
            feed(&mut cache, vec![Seen::Applied(object("a", "1"))]),
            ["a"]
        );
        let mut heartbeat = object("a", "1");
        heartbeat.metadata.resource_version = Some("2".to_owned());
        assert!(feed(&mut cache, vec![Seen::Applied(heartbeat)]).is_empty());
    }

    #[test]
    fn i6_an_answer_that_comes_after_later_news_changes_nothing() {
        let at = |name: &str, text: &str, version: &str| {
            let mut object = object(name, text);
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        let mut cache = Cache::default();
        feed(&mut cache, vec![Seen::ListBegun, Seen::ListDone]);
        assert_eq!(cache.written(&at("a", "made", "5"), value).len(), 1);
        let later = vec![
            Seen::Applied(at("a", "made", "5")),
            Seen::Applied(at("a", "ours", "7")),
            Seen::Applied(at("a", "theirs", "8")),
        ];
        feed(&mut cache, later);
        assert!(cache.written(&at("a", "ours", "7"), value).is_empty());
        let key = ObjectKey::of(&object("a", ""));
        assert_eq!(cache.get(&key).map(String::as_str), Some("theirs"));
        feed(&mut cache, vec![Seen::Deleted(key.clone())]);
        assert!(cache.written(&at("a", "theirs", "8"), value).is_empty());
        assert_eq!(cache.get(&key), None, "an object that is gone stays gone");
        assert!(cache.written(&object("b", "no version"), value).is_empty());
    }
}
