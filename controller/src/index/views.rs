//! What the index keeps of each object: a view without what no rule reads. An object that cannot be read is left out,
//! with a line in the log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use onehop_core::crd::{AGENT_COMPONENT, COMPONENT_LABEL};
use onehop_core::crd::{AddressPool, AddressPoolStatus, Feature, NodeTargets};
use onehop_core::endpoint::Slice;
use onehop_core::gate;
use onehop_core::id::{InstallId, NodeName, PodUid, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

/// A Service as the rules see it, and its conditions (other writers' are kept).
#[derive(Clone, Debug, PartialEq)]
pub struct KnownService {
    /// The typed view.
    pub spec: Arc<ServiceSpec>,
    /// `status.conditions`.
    pub conditions: Vec<Condition>,
}

/// A pool and how it was last said to stand.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownPool {
    /// The object without its status.
    pub object: AddressPool,
    /// Its status.
    pub status: Option<AddressPoolStatus>,
}

/// What matters of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// Its UID.
    pub uid: PodUid,
    /// Its addresses; none on the host network, where the address is no identity of the pod.
    pub addresses: Vec<IpAddr>,
    /// Whether it lives.
    pub life: PodLife,
    /// The node whose Ready agent it is.
    pub ready_agent_of: Option<NodeName>,
    /// Its gates that are about targets.
    pub gates: Vec<KnownGate>,
    /// Since when its containers are ready.
    pub containers_ready: Option<Time>,
    /// Only such gates keep it from being ready (AWS-412).
    pub waits: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Duration,
}

/// A readiness gate that is about a target, and its condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGate {
    /// Type of the condition.
    pub kind: String,
    /// Its status; none: there is no condition.
    pub status: Option<String>,
    /// Its reason.
    pub reason: Option<String>,
    /// When the status changed last.
    pub since: Option<Time>,
}

impl KnownGate {
    /// Whether its pod no longer waits for it.
    pub fn is_open(&self) -> bool {
        self.status.as_deref() == Some("True")
    }
}

/// Whether a pod lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodLife {
    /// It does.
    Running,
    /// Its deletion was asked for at this time.
    Terminating(Time),
    /// Its containers have ended (phase Succeeded or Failed).
    Ended,
}

/// What was said to a node, and what its agent says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownTargets {
    pub(super) node: NodeName,
    pub(super) object: NodeTargets,
    /// Generation in which each address came, as far as was seen.
    pub(super) since: BTreeMap<(InstallId, ServiceUid, IpAddr), i64>,
}

impl KnownTargets {
    /// Whether the agent is in step, what it says that it can do, and what keeps it from more.
    pub(super) fn offers(&self) -> Option<(bool, &[Feature], &[String])> {
        let status = self.object.status.as_ref()?;
        Some((status.synced, &status.features, &status.problems))
    }

    pub(super) fn after(old: Option<&Self>, mut object: NodeTargets) -> Self {
        object.metadata.managed_fields = None;
        let generation = object.metadata.generation.unwrap_or(0);
        let mut since = BTreeMap::new();
        for (install, entry) in &object.spec.installs {
            for vip in &entry.vips {
                let key = (install.clone(), vip.service.uid.clone(), vip.address);
                let known = old.and_then(|old| old.since.get(&key)).copied();
                since.insert(key, known.unwrap_or(generation));
            }
        }
        let node = NodeName::from(object.metadata.name.clone().unwrap_or_default());
        Self {
            node,
            object,
            since,
        }
    }
}

pub(super) fn known_service(service: &Service) -> Option<KnownService> {
    let status = service.status.as_ref();
    let conditions = status
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default();
    match ServiceSpec::read(service) {
        Ok((spec, problems)) => {
            for problem in problems {
                tracing::warn!(%problem, "a field of a Service was left out");
            }
            Some(KnownService {
                spec: Arc::new(spec),
                conditions,
            })
        }
        Err(problem) => {
            tracing::warn!(%problem, "a Service was left out");
            None
        }
    }
}

pub(super) fn known_pool(pool: &AddressPool) -> KnownPool {
    let mut object = pool.clone();
    let status = object.status.take();
    object.metadata.resource_version = None;
    object.metadata.managed_fields = None;
    KnownPool { object, status }
}

pub(super) fn known_slice(slice: &EndpointSlice) -> Option<Slice> {
    let (slice, problems) = Slice::read(slice)
        .inspect_err(|problem| tracing::debug!(%problem, "an EndpointSlice was left out"))
        .ok()?;
    for problem in problems {
        tracing::warn!(%problem, "a part of an EndpointSlice was left out");
    }
    Some(slice)
}

pub(super) fn known_pod(pod: &Pod) -> Option<KnownPod> {
    let uid = pod.metadata.uid.as_deref()?.into();
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let host = pod
        .spec
        .as_ref()
        .and_then(|s| s.host_network)
        .unwrap_or(false);
    let listed = status
        .and_then(|s| s.pod_ips.as_deref())
        .unwrap_or_default();
    let addresses = listed
        .iter()
        .filter(|_| !host)
        .filter_map(|ip| ip.ip.parse().ok())
        .collect();
    let life = match &pod.metadata.deletion_timestamp {
        _ if ended => PodLife::Ended,
        Some(deadline) => {
            // The stamp is when the grace period ends; deletion was asked for that much earlier.
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let grace = Duration::from_secs(grace.try_into().unwrap_or(0));
            PodLife::Terminating(Time::from(deadline) - grace)
        }
        None => PodLife::Running,
    };
    Some(KnownPod {
        uid,
        addresses,
        life,
        ready_agent_of: ready_agent_of(pod),
        gates: gate::gates(pod).map(|kind| known_gate(pod, kind)).collect(),
        containers_ready: gate::condition(pod, "ContainersReady")
            .filter(|c| c.status == "True")
            .and_then(|c| c.last_transition_time.as_ref())
            .map(Time::from),
        waits: gate::waits(pod),
        grace: grace(pod),
    })
}

fn known_gate(pod: &Pod, kind: &str) -> KnownGate {
    let condition = gate::condition(pod, kind);
    KnownGate {
        kind: kind.to_owned(),
        status: condition.map(|c| c.status.clone()),
        reason: condition.and_then(|c| c.reason.clone()),
        since: condition
            .and_then(|c| c.last_transition_time.as_ref())
            .map(Time::from),
    }
}

fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    let seconds = spec.and_then(|s| s.termination_grace_period_seconds);
    // What the API server fills in.
    let seconds = seconds.unwrap_or(30).try_into().unwrap_or(0);
    Duration::from_secs(seconds)
}

/// Agents are known by a label that the chart puts on their pods (K-24).
fn ready_agent_of(pod: &Pod) -> Option<NodeName> {
    let labels = pod.metadata.labels.as_ref()?;
    if labels.get(COMPONENT_LABEL)? != AGENT_COMPONENT {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    ready.then(|| NodeName::from(node))
}
