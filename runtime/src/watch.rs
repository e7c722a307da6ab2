//! Watching objects: an endless, calm stream of events, and the cache that it fills.
//!
//! Errors never reach the caller: they are counted, logged and waited out with a back-off. An object
//! that cannot be read is skipped with a metric, and the watch goes on. The cache tells what changed
//! only once a list is complete, so that nothing is ever decided from half a view (I1).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::utils::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::de::DeserializeOwned;

use crate::backoff::Backoff;
use crate::log::Chain;
use crate::metrics::Metrics;

/// Namespace and name of an object; the namespace of a cluster-scoped one is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }

    fn from_meta(meta: &ObjectMeta) -> Self {
        let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
        Self {
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// Counters of all watches of the process.
#[derive(Clone, Debug, Default)]
pub struct WatchMetrics {
    errors: Family<Kind, Counter>,
    lists: Family<Kind, Counter>,
    bad: Family<Kind, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

impl WatchMetrics {
    /// Counters registered as `watch_*`.
    pub fn new(metrics: &Metrics) -> Self {
        let new = Self::default();
        metrics.register(|r| {
            r.register(
                "watch_errors",
                "Failed lists and watches",
                new.errors.clone(),
            );
            r.register("watch_lists", "Full lists begun", new.lists.clone());
            r.register(
                "watch_bad_objects",
                "Objects that could not be read",
                new.bad.clone(),
            );
        });
        new
    }
}

/// What a watch shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<K> {
    /// A list begins: everything that is there now follows.
    ListBegun,
    /// An object of the list.
    Listed(K),
    /// An object of the list that cannot be read: what was known of it still holds.
    Unreadable(ObjectKey),
    /// The list is complete: what was not in it is gone.
    ListDone,
    /// An object was made or changed.
    Applied(K),
    /// An object is gone.
    Deleted(ObjectKey),
}

/// Watches all objects of a kind that the selectors of `config` admit, for ever.
pub fn watch<K>(
    client: Client,
    config: watcher::Config,
    backoff: Backoff,
    metrics: &WatchMetrics,
) -> BoxStream<'static, Seen<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let kind = K::kind(&()).into_owned();
    let label = Kind { kind: kind.clone() };
    let metrics = metrics.clone();
    watcher::watcher(Api::<DeserializeGuard<K>>::all(client), config)
        .backoff(backoff)
        .filter_map(move |item| {
            ready(match item {
                Ok(event) => metrics.seen(&label, event),
                Err(error) => {
                    metrics.errors.get_or_create(&label).inc();
                    tracing::warn!(kind, error = %Chain(&error), "watch failed, trying again");
                    None
                }
            })
        })
        .boxed()
}

impl WatchMetrics {
    fn seen<K: Resource>(
        &self,
        label: &Kind,
        event: Event<DeserializeGuard<K>>,
    ) -> Option<Seen<K>> {
        match event {
            Event::Init => {
                self.lists.get_or_create(label).inc();
                Some(Seen::ListBegun)
            }
            Event::InitDone => Some(Seen::ListDone),
            Event::InitApply(guard) => Some(
                self.open(label, guard)
                    .map_or_else(Seen::Unreadable, Seen::Listed),
            ),
            // Without a readable successor the old view stands (I10).
            Event::Apply(guard) => self.open(label, guard).ok().map(Seen::Applied),
            Event::Delete(guard) => Some(Seen::Deleted(match guard.0 {
                Ok(object) => ObjectKey::of(&object),
                Err(invalid) => ObjectKey::from_meta(&invalid.metadata),
            })),
        }
    }

    /// The object, without `managedFields`: nobody here reads them and they make up much of it.
    fn open<K: Resource>(&self, label: &Kind, guard: DeserializeGuard<K>) -> Result<K, ObjectKey> {
        match guard.0 {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                Ok(object)
            }
            Err(invalid) => {
                self.bad.get_or_create(label).inc();
                let key = ObjectKey::from_meta(&invalid.metadata);
                tracing::warn!(kind = label.kind, %key, error = invalid.error, "object was skipped");
                Err(key)
            }
        }
    }
}

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
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self {
            live: BTreeMap::new(),
            listing: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            synced: false,
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
            Seen::Applied(object) => self.put(ObjectKey::of(&object), view(&object)),
            Seen::Deleted(key) => self.put(key, None),
        };
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
}
