//! Watching objects: an endless, calm stream of events, and the cache that it fills.
//!
//! Errors never reach the caller: they are counted, logged and waited out with a back-off. An object
//! that cannot be read is skipped with a metric, and the watch goes on. The cache tells what changed
//! only once a list is complete, so that nothing is ever decided from half a view (I1).

mod cache;
mod guard;

use std::fmt::Debug;
use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::utils::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::de::DeserializeOwned;

pub use self::cache::{Cache, Change};
use self::guard::Guarded;
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
    watcher::watcher(Api::<Guarded<K>>::all(client), config)
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
    fn seen<K: Resource>(&self, label: &Kind, event: Event<Guarded<K>>) -> Option<Seen<K>> {
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
    fn open<K: Resource>(&self, label: &Kind, guard: Guarded<K>) -> Result<K, ObjectKey> {
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
