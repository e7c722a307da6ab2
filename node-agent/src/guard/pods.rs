//! The node's own pods, as far as the guard needs them: whether each lives, is being deleted, or has ended.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use onehop_core::gate;
use onehop_core::id::PodUid;
use onehop_runtime::watch::ObjectKey;

use crate::collection::{Collection, Step};

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// Its UID.
    pub uid: PodUid,
    /// Its addresses; none on the host network, where an address is no identity of the pod.
    pub addresses: Vec<IpAddr>,
    /// How it stands.
    pub life: Life,
    /// Only gates that wait for the load balancer keep it from being ready (AWS-412).
    pub waits: bool,
}

/// How a pod stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs, or is about to.
    Lives,
    /// Its deletion was asked for.
    Deleted,
    /// All of its containers have ended (W22 included: also without a deletion mark).
    Ended,
}

impl PodView {
    /// Reads the object.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let on_host = spec.and_then(|s| s.host_network).unwrap_or(false);
        let listed = status
            .and_then(|s| s.pod_ips.as_deref())
            .unwrap_or_default();
        let addresses = listed.iter().filter(|_| !on_host);
        let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
        let containers = status
            .and_then(|s| s.container_statuses.as_deref())
            .unwrap_or_default();
        let ended = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
            c.state.as_ref().is_some_and(|s| s.terminated.is_some())
        };
        let deleted = pod.metadata.deletion_timestamp.is_some();
        // A container that has ended in a pod that stays is started again.
        let all_ended = deleted && !containers.is_empty() && containers.iter().all(ended);
        let life = if all_ended || matches!(phase, "Succeeded" | "Failed") {
            Life::Ended
        } else if deleted {
            Life::Deleted
        } else {
            Life::Lives
        };
        Self {
            uid: PodUid::from(pod.metadata.uid.clone().unwrap_or_default()),
            addresses: addresses.filter_map(|ip| ip.ip.parse().ok()).collect(),
            life,
            waits: life == Life::Lives && gate::waits(pod),
        }
    }
}

/// The pods of the node.
#[derive(Debug, Default)]
pub struct Pods {
    all: Collection<ObjectKey, PodView>,
}

impl Pods {
    /// Takes a step of the watch; the pods that changed, as they were and as they are.
    pub fn step(&mut self, step: Step<ObjectKey, PodView>) -> Vec<PodView> {
        let mut touched = Vec::new();
        for changed in self.all.step(step) {
            touched.extend(self.all.get(&changed.key).cloned());
            touched.extend(changed.old);
        }
        touched
    }

    /// Whether the list has been complete once.
    pub fn synced(&self) -> bool {
        self.all.synced()
    }

    /// How a pod stands; none: there is no such pod on this node (any more).
    pub fn life(&self, uid: &PodUid) -> Option<Life> {
        self.all.values().find(|p| p.uid == *uid).map(|p| p.life)
    }

    /// Whether only gates that wait for the load balancer keep a pod from being ready.
    pub fn waits(&self, uid: &PodUid) -> bool {
        self.all.values().any(|p| p.uid == *uid && p.waits)
    }

    /// The pod that uses an address.
    pub fn owner(&self, address: IpAddr) -> Option<&PodUid> {
        let mut users = self.all.values();
        let uses = |p: &&PodView| p.life != Life::Ended && p.addresses.contains(&address);
        // While one is on its way out, the other is the newer one.
        let mut of_address: Vec<_> = users.by_ref().filter(uses).collect();
        of_address.sort_by_key(|p| p.life == Life::Deleted);
        of_address.first().map(|p| &p.uid)
    }
}
