//! The kubelet of one node: watches its pods and keeps a task for each; registers the node and its heartbeats.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use e2e_fabric::{Netns, NodeNet};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::container::RestartBackoff;
use crate::events::{EventHook, PodRef};
use crate::images::ImageTable;
use crate::node::{self, NodeInfo};
use crate::plan::{PodPlan, pod_ref};
use crate::pod::{Namespaces, Pids, PodTask, Seen};

/// What a kubelet is made from, beside its client and its node.
#[derive(Clone)]
pub struct KubeletConfig {
    /// Programs behind image names.
    pub images: ImageTable,
    /// The world's clock.
    pub clock: Clock,
    /// Told of every step of every pod.
    pub hook: EventHook,
    /// Label `topology.kubernetes.io/zone` of the node.
    pub zone: String,
    /// `spec.providerID` of the node, which is given once and never changes; none: one of the local cloud.
    pub provider_id: Option<String>,
    /// More labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Folder for the output of containers; none: it is thrown away.
    pub log_folder: Option<PathBuf>,
    /// Pauses before restarts.
    pub restart_backoff: RestartBackoff,
    /// Seed of the jitter between attempts to watch.
    pub seed: u64,
    /// How many times shorter than written grace and preStop times are (FC-04); at least 1.
    pub speed: u32,
}

impl KubeletConfig {
    /// The usual settings, zone `zone-a`.
    pub fn new(images: ImageTable, clock: Clock, hook: EventHook) -> Self {
        Self {
            images,
            clock,
            hook,
            zone: "zone-a".to_owned(),
            provider_id: None,
            labels: BTreeMap::new(),
            log_folder: None,
            restart_backoff: RestartBackoff::default(),
            seed: 0,
            speed: 1,
        }
    }
}

/// What the tasks of one kubelet share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) node: NodeNet,
    pub(crate) images: ImageTable,
    pub(crate) clock: Clock,
    pub(crate) hook: EventHook,
    pub(crate) log_folder: Option<PathBuf>,
    pub(crate) restart_backoff: RestartBackoff,
    pub(crate) speed: u32,
    pub(crate) pids: Pids,
    pub(crate) namespaces: Namespaces,
}

/// A running kubelet stand-in. Dropping it stops its tasks, as a kubelet's death would: processes run on until the
/// world ends.
pub struct Kubelet {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl Kubelet {
    /// Registers the node, then runs whatever pods are bound to it. Returns when the node is registered.
    pub async fn start(
        client: Client,
        node: NodeNet,
        config: KubeletConfig,
    ) -> Result<Self, kube::Error> {
        let info = NodeInfo {
            zone: config.zone,
            provider_id: config.provider_id,
            labels: config.labels,
        };
        node::register(&client, &node, &info, config.clock.now()).await?;
        let shared = Arc::new(Shared {
            client,
            node,
            images: config.images,
            clock: config.clock,
            hook: config.hook,
            log_folder: config.log_folder,
            restart_backoff: config.restart_backoff,
            speed: config.speed.max(1),
            pids: Arc::default(),
            namespaces: Arc::default(),
        });
        let heartbeats = tokio::spawn(node::heartbeats(
            shared.client.clone(),
            shared.node.name().to_owned(),
            shared.clock,
        ));
        let pods = tokio::spawn(run(
            Arc::clone(&shared),
            SmallRng::seed_from_u64(config.seed),
        ));
        Ok(Self {
            shared,
            tasks: vec![heartbeats, pods],
        })
    }

    /// Dies, as when it is dropped: pods' processes run on, and nobody ends or probes them any more.
    pub fn die(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }

    /// The node it runs pods on.
    pub fn node(&self) -> &NodeNet {
        &self.shared.node
    }

    /// Process ids of the pod's running containers, by container name.
    pub fn pids(&self, namespace: &str, pod: &str) -> BTreeMap<String, u32> {
        let pids = lock(&self.shared.pids);
        let of_pod = pids
            .iter()
            .filter(|((p, _), _)| p.namespace == namespace && p.name == pod);
        of_pod
            .map(|((_, container), pid)| (container.clone(), *pid))
            .collect()
    }

    /// Network namespace of a pod, while it has one.
    pub fn pod_netns(&self, namespace: &str, pod: &str) -> Option<Netns> {
        let namespaces = lock(&self.shared.namespaces);
        let mut of_pod = namespaces
            .iter()
            .filter(|(p, _)| p.namespace == namespace && p.name == pod);
        of_pod.next_back().map(|(_, netns)| netns.clone())
    }

    /// Where its pods are, now and later.
    pub fn places(&self) -> PodPlaces {
        PodPlaces(Arc::clone(&self.shared.namespaces))
    }

    /// The pods with a running process.
    pub fn pods(&self) -> Vec<PodRef> {
        let mut pods: Vec<PodRef> = lock(&self.shared.pids)
            .keys()
            .map(|(pod, _)| pod.clone())
            .collect();
        pods.dedup();
        pods
    }
}

/// The network namespaces of a kubelet's pods; outlives it, for reports.
#[derive(Clone)]
pub struct PodPlaces(Namespaces);

impl PodPlaces {
    /// Every pod that has a namespace now.
    pub fn all(&self) -> Vec<(PodRef, Netns)> {
        let places = lock(&self.0);
        let all = places
            .iter()
            .map(|(pod, netns)| (pod.clone(), netns.clone()));
        all.collect()
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.die();
    }
}

/// The pods of the node, each with the way to tell its task of its object.
#[derive(Default)]
struct Pods {
    tasks: JoinSet<String>,
    tellers: BTreeMap<String, watch::Sender<Seen>>,
    /// UIDs of the list that is being read.
    listed: Option<Vec<String>>,
}

/// Short pauses after a failed watch: a test waits for it.
const WATCH: Policy = Policy {
    first: Duration::from_millis(100),
    most: Duration::from_secs(1),
};

async fn run(shared: Arc<Shared>, mut rng: SmallRng) {
    let api: Api<Pod> = Api::all(shared.client.clone());
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={}", shared.node.name()));
    let mut objects = pin!(watch_objects(api, mine).backoff(WATCH.start(&mut rng)));
    let mut pods = Pods::default();
    loop {
        tokio::select! {
            event = objects.try_next() => match event {
                Ok(Some(event)) => pods.take(&shared, event),
                // The stream goes on after an error, with a pause.
                Err(error) => tracing::warn!(node = shared.node.name(), %error, "pod watch"),
                Ok(None) => return,
            },
            Some(ended) = pods.tasks.join_next() => match ended {
                Ok(uid) => {
                    pods.tellers.remove(&uid);
                }
                Err(error) => tracing::error!(node = shared.node.name(), %error, "a pod's task ended badly"),
            },
        }
    }
}

impl Pods {
    fn take(&mut self, shared: &Arc<Shared>, event: Event<Pod>) {
        match event {
            Event::Init => self.listed = Some(Vec::new()),
            Event::InitApply(pod) => {
                if let (Some(listed), Some(pod)) = (&mut self.listed, pod_ref(&pod)) {
                    listed.push(pod.uid);
                }
                self.apply(shared, pod);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                for (_, teller) in self.tellers.iter().filter(|(uid, _)| !listed.contains(uid)) {
                    teller.send_replace(Seen::Gone);
                }
            }
            Event::Apply(pod) => self.apply(shared, pod),
            Event::Delete(pod) => {
                if let Some(teller) = pod_ref(&pod).and_then(|p| self.tellers.get(&p.uid)) {
                    teller.send_replace(Seen::Gone);
                }
            }
        }
    }

    fn apply(&mut self, shared: &Arc<Shared>, pod: Pod) {
        let Some(plan) = PodPlan::read(&pod).map(|plan| plan.faster(shared.speed)) else {
            return;
        };
        let (uid, pod) = (plan.pod.uid.clone(), Arc::new(pod));
        if let Some(teller) = self.tellers.get(&uid) {
            teller.send_replace(Seen::Object(pod));
            return;
        }
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        if over && pod.metadata.deletion_timestamp.is_none() {
            return;
        }
        let (teller, seen) = watch::channel(Seen::Object(Arc::clone(&pod)));
        self.tellers.insert(uid.clone(), teller);
        let task = PodTask::new(Arc::clone(shared), pod, plan, seen);
        self.tasks.spawn(async move {
            task.run().await;
            uid
        });
    }
}

/// A panic elsewhere must not hide what is known about pods.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
