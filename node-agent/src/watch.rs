//! The agent's watches: what is asked of the API server, and how its objects become [`Change`]s.
//!
//! Decoding runs in one task per kind; the app takes typed steps from one channel. An object that
//! cannot be read is left out and logged, and the watch goes on.

mod slice;

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::watcher::Config as WatchConfig;
use kube::{Client, Resource, ResourceExt};
use onehop_core::crd::NodeTargets;
use onehop_core::id::{NodeName, ServiceKey};
use onehop_core::node::NodeView;
use onehop_core::service::{HEADLESS_LABEL, PROXY_NAME_LABEL, ServiceSpec};
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use onehop_runtime::watch::{ObjectKey, Seen, WatchMetrics, watch};
use rand::rngs::SmallRng;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;

use crate::args::Mode;
use crate::collection::Step;
use crate::guard::PodView;
use crate::state::{Change, Ownership};
use crate::targets::OwnTargets;
use slice::SliceObject;

/// Objects of one page of a list.
const PAGE: u32 = 500;

/// What the watches share.
pub struct Watches {
    /// API server.
    pub client: Client,
    /// Source of jitter for retries.
    pub rng: SmallRng,
    /// Counters.
    pub metrics: WatchMetrics,
    /// Where the steps go.
    pub changes: Sender<Change>,
    /// Clock, for the wait for a kind that the API server does not know yet.
    pub clock: Clock,
}

impl Watches {
    /// Starts all watches. They run until the channel is closed.
    pub fn start(mut self, node: &NodeName, ownership: &Ownership, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.follow(service_filter(ownership), service));
        tasks.spawn(self.follow(slice_filter(), slice));
        tasks.spawn(self.follow(name_filter(node), own_node));
        tasks.spawn(self.follow_once_served(name_filter(node), own_targets));
        tasks.spawn(self.follow(pod_filter(node), own_pod));
        if ownership.mode == Mode::Replace {
            tasks.spawn(self.follow_once_served(WatchConfig::default(), service_cidr));
        }
    }

    /// Follows a kind once the API server knows it; until then its list is empty: without `NodeTargets` the agent is a
    /// plain service proxy (K-26), without `ServiceCIDRs` no range is closed (S-26).
    fn follow_once_served<K>(
        &mut self,
        config: WatchConfig,
        read: fn(Seen<K>) -> Change,
    ) -> impl Future<Output = ()> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let mut backoff = Policy::RETRY.start(&mut self.rng);
        let (client, changes, clock) = (self.client.clone(), self.changes.clone(), self.clock);
        let follow = self.follow(config, read);
        async move {
            let (mut told, kind) = (false, K::kind(&()));
            loop {
                match kind_is_served::<K>(&client).await {
                    Ok(true) => break,
                    Ok(false) if told => {}
                    Ok(false) => {
                        // The words of docs/bad-input.md.
                        if kind == NodeTargets::kind(&()) {
                            tracing::warn!(
                                "the API server has no NodeTargets: plain service proxy"
                            );
                        } else {
                            tracing::warn!(%kind, "the API server does not know this kind; there is none");
                        }
                        for seen in [Seen::ListBegun, Seen::ListDone] {
                            if changes.send(read(seen)).await.is_err() {
                                return;
                            }
                        }
                        told = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, %kind, "cannot ask whether the API server knows a kind");
                    }
                }
                clock.sleep(backoff.next_delay()).await;
            }
            follow.await;
        }
    }

    /// Follows one kind; `read` makes a step of what was seen.
    fn follow<K>(
        &mut self,
        config: WatchConfig,
        read: fn(Seen<K>) -> Change,
    ) -> impl Future<Output = ()> + Send + use<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let backoff = Policy::WATCH.start(&mut self.rng);
        let mut all = watch(self.client.clone(), config, backoff, &self.metrics);
        let changes = self.changes.clone();
        async move {
            while let Some(seen) = all.next().await {
                if changes.send(read(seen)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Headless Services have nothing to proxy (S-03). Beside kube-proxy the label splits the Services,
/// so the rest need not travel at all (S-02).
fn service_filter(ownership: &Ownership) -> WatchConfig {
    let config = WatchConfig::default()
        .page_size(PAGE)
        .fields("spec.clusterIP!=None");
    match ownership.mode {
        Mode::Beside => config.labels(&format!("{PROXY_NAME_LABEL}={}", ownership.proxy_name)),
        Mode::Replace => config,
    }
}

/// Slices are filtered by their own label, whatever their Service says (S-03).
fn slice_filter() -> WatchConfig {
    WatchConfig::default()
        .page_size(PAGE)
        .labels(&format!("!{HEADLESS_LABEL}"))
}

fn name_filter(node: &NodeName) -> WatchConfig {
    WatchConfig::default().fields(&format!("metadata.name={node}"))
}

fn pod_filter(node: &NodeName) -> WatchConfig {
    WatchConfig::default()
        .page_size(PAGE)
        .fields(&format!("spec.nodeName={node}"))
}

fn own_pod(seen: Seen<Pod>) -> Change {
    Change::Pod(step(
        seen,
        |key| key,
        |key, pod| Step::Apply(key, PodView::of(pod)),
    ))
}

fn service(seen: Seen<Service>) -> Change {
    let key = |key: ObjectKey| ServiceKey::new(key.namespace, key.name);
    let step = step(seen, key, |key, service| match ServiceSpec::read(service) {
        Ok((spec, problems)) => {
            log_problems(&problems);
            Step::Apply(key, Box::new(for_proxy(spec)))
        }
        Err(problem) => {
            // What was last read of it stays as it is (I10).
            tracing::warn!(%problem, "a Service cannot be read");
            Step::Keep(key)
        }
    });
    Change::Service(step)
}

/// Without what no proxy asks for, and without room to spare: users keep whole manifests in annotations, and what changes
/// there changes nothing here.
fn for_proxy(mut spec: ServiceSpec) -> ServiceSpec {
    spec.ports.shrink_to_fit();
    spec.cluster_ips.shrink_to_fit();
    // A map that was emptied would keep its room.
    let label = spec.labels.remove_entry(PROXY_NAME_LABEL);
    ServiceSpec {
        generation: 0,
        finalizers: Vec::new(),
        labels: label.into_iter().collect(),
        annotations: BTreeMap::new(),
        ..spec
    }
}

fn slice(seen: Seen<SliceObject>) -> Change {
    let step = step(
        seen,
        |key| key,
        |key, slice| match slice.read() {
            Ok((read, problems)) => {
                log_problems(problems);
                Step::Apply(key, read.clone())
            }
            Err(problem) => {
                // It belongs to no Service (any more) or is of no family of ours (S-04).
                tracing::error!(%problem, "an EndpointSlice cannot be used");
                Step::Delete(key)
            }
        },
    );
    Change::Slice(step)
}

fn own_targets(seen: Seen<NodeTargets>) -> Change {
    let key = |key: ObjectKey| NodeName::from(key.name);
    Change::Targets(step(seen, key, |key, targets| {
        Step::Apply(key, Box::new(OwnTargets::of(targets)))
    }))
}

fn service_cidr(seen: Seen<ServiceCIDR>) -> Change {
    let step = step(
        seen,
        |key| key.name,
        |name, object| {
            let listed = object.spec.as_ref().and_then(|spec| spec.cidrs.as_deref());
            let ranges = listed.unwrap_or_default().iter();
            // The API server admits only ranges.
            Step::Apply(
                name,
                ranges.filter_map(|range| range.parse().ok()).collect(),
            )
        },
    );
    Change::ServiceCidr(step)
}

/// Whether the API server serves a kind.
async fn kind_is_served<K: Resource<DynamicType = ()>>(
    client: &Client,
) -> Result<bool, kube::Error> {
    let version = K::api_version(&());
    match client.list_api_group_resources(&version).await {
        Ok(list) => Ok(list.resources.iter().any(|r| r.kind == K::kind(&()))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

fn own_node(seen: Seen<Node>) -> Change {
    let key = |key: ObjectKey| NodeName::from(key.name);
    Change::Node(step(seen, key, |key, node| {
        Step::Apply(key, NodeView::of(node))
    }))
}

fn step<O: ResourceExt, K, V>(
    seen: Seen<O>,
    key: impl FnOnce(ObjectKey) -> K,
    read: impl FnOnce(K, &O) -> Step<K, V>,
) -> Step<K, V> {
    match seen {
        Seen::ListBegun => Step::ListStarts,
        Seen::ListDone => Step::ListEnds,
        Seen::Listed(object) | Seen::Applied(object) => read(key(ObjectKey::of(&object)), &object),
        Seen::Unreadable(object) => Step::Keep(key(object)),
        Seen::Deleted(object) => Step::Delete(key(object)),
    }
}

fn log_problems(problems: &[impl std::fmt::Display]) {
    for problem in problems {
        tracing::warn!(%problem, "a part of an object was left out");
    }
}
