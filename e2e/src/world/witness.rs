//! Whose pods were whose: Services and the labels of pods as they were while they were there, for the checks at a
//! world's end, when much of it is gone. Watches as any client does; a watch that breaks begins again.

use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::core::v1::{Pod, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use onehop_core::time::Time;
use onehop_runtime::{backoff::Policy, clock::Clock};
use rand::{SeedableRng, rngs::SmallRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::JoinHandle;

type Labels = BTreeMap<String, String>;

/// A Service of type `LoadBalancer` as it was.
#[derive(Clone, Debug)]
pub(super) struct SeenService {
    /// Namespace and name, as tags of the cloud have them.
    pub(super) key: String,
    pub(super) uid: String,
    namespace: String,
    selector: Labels,
    /// Since when it is deleted, is no load balancer any more, or selects other pods.
    pub(super) until: Option<Time>,
}

/// What was seen, by UID.
#[derive(Debug, Default)]
struct Seen {
    services: BTreeMap<String, SeenService>,
    pods: BTreeMap<String, (String, Labels)>,
    // UIDs of the list of Services that is being read.
    listed: Option<BTreeSet<String>>,
}

/// The watcher; stops when dropped.
pub(super) struct Witness {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A test may break every watch many times a second.
const AGAIN: Policy = Policy {
    first: Duration::from_millis(50),
    most: Duration::from_secs(1),
};

impl Witness {
    /// Starts to watch.
    pub(super) fn start(client: Client, clock: Clock, seed: u64) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut rng = SmallRng::seed_from_u64(seed);
        let services = watcher(Api::<Service>::all(client.clone()), Config::default());
        let services = services.backoff(AGAIN.start(&mut rng));
        let pods = watcher(Api::<Pod>::all(client), Config::default());
        let pods = pods.backoff(AGAIN.start(&mut rng));
        let of_services = Arc::clone(&seen);
        let of_pods = Arc::clone(&seen);
        let tasks = [
            tokio::spawn(follow(services, move |event| {
                lock(&of_services).take_service(event, clock.now());
            })),
            tokio::spawn(follow(pods, move |event| lock(&of_pods).take_pod(event))),
        ];
        Self { seen, tasks }
    }

    /// Every Service of type `LoadBalancer` that there was.
    pub(super) fn services(&self) -> Vec<SeenService> {
        lock(&self.seen).services.values().cloned().collect()
    }

    /// Whether a Service selected a pod, by the pod's UID.
    pub(super) fn selects(&self, service: &SeenService, pod: &str) -> bool {
        let seen = lock(&self.seen);
        let Some((namespace, labels)) = seen.pods.get(pod) else {
            return false;
        };
        let mut wanted = service.selector.iter();
        *namespace == service.namespace
            && !service.selector.is_empty()
            && wanted.all(|(key, value)| labels.get(key) == Some(value))
    }
}

async fn follow<K, E>(
    events: impl Stream<Item = Result<Event<K>, E>>,
    mut take: impl FnMut(Event<K>),
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        // An error is a broken watch; the stream goes on after a pause.
        if let Ok(event) = event {
            take(event);
        }
    }
}

impl Seen {
    fn take_service(&mut self, event: Event<Service>, now: Time) {
        let (service, gone) = match event {
            Event::Apply(service) | Event::InitApply(service) => {
                let leaves = service.metadata.deletion_timestamp.is_some();
                (service, leaves)
            }
            Event::Delete(service) => (service, true),
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                return;
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let known = self.services.iter_mut();
                for (_, gone) in known.filter(|(uid, _)| !listed.contains(*uid)) {
                    gone.until.get_or_insert(now);
                }
                return;
            }
        };
        let Some((namespace, name, uid)) = identity(&service.metadata) else {
            return;
        };
        if let Some(listed) = &mut self.listed {
            listed.insert(uid.clone());
        }
        let spec = service.spec.unwrap_or_default();
        let balanced = spec.type_.as_deref() == Some("LoadBalancer");
        let selector = spec.selector.unwrap_or_default();
        let known = self.services.get_mut(&uid);
        if let Some(known) = known {
            if gone || !balanced || known.selector != selector {
                known.until.get_or_insert(now);
            }
        } else if balanced && !gone {
            let seen = SeenService {
                key: format!("{namespace}/{name}"),
                uid: uid.clone(),
                namespace,
                selector,
                until: None,
            };
            self.services.insert(uid, seen);
        }
    }

    fn take_pod(&mut self, event: Event<Pod>) {
        let (Event::Apply(pod) | Event::InitApply(pod)) = event else {
            return;
        };
        if let Some((namespace, _, uid)) = identity(&pod.metadata) {
            let labels = pod.metadata.labels.unwrap_or_default();
            self.pods.insert(uid, (namespace, labels));
        }
    }
}

fn identity(metadata: &ObjectMeta) -> Option<(String, String, String)> {
    let ObjectMeta {
        namespace,
        name,
        uid,
        ..
    } = metadata;
    Some((namespace.clone()?, name.clone()?, uid.clone()?))
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
