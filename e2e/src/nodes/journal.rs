//! What happens to pods of real nodes, as the API tells it, for the journal of a world: a kubelet of its own could not be
//! asked. Times are those at which the harness learned of it.

use e2e_kubelet::{EventHook, PodEvent, PodRef, PodStep};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use onehop_runtime::{backoff::Policy, clock::Clock};
use rand::{SeedableRng, rngs::SmallRng};
use std::{collections::BTreeMap, pin::pin, time::Duration};
use tokio_util::task::AbortOnDropHandle;

const AGAIN: Policy = Policy {
    first: Duration::from_millis(50),
    most: Duration::from_secs(1),
};

/// Tells `hook` of every pod, until the handle is dropped.
pub(crate) fn follow_pods(
    client: Client,
    clock: Clock,
    seed: u64,
    hook: EventHook,
) -> AbortOnDropHandle<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let pods = watcher(Api::<Pod>::all(client), Config::default()).backoff(AGAIN.start(&mut rng));
    let mut followed = Followed {
        clock,
        hook,
        seen: BTreeMap::new(),
    };
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pods = pin!(pods);
        while let Some(event) = pods.next().await {
            // An error is a broken watch; the stream goes on after a pause.
            match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => followed.look(&pod),
                Ok(Event::Delete(pod)) => followed.gone(&pod),
                _ => {}
            }
        }
    }))
}

/// What was told of a pod.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    created: bool,
    ready: bool,
    deleted: bool,
}

struct Followed {
    clock: Clock,
    hook: EventHook,
    seen: BTreeMap<String, Told>,
}

impl Followed {
    fn look(&mut self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        let status = pod.status.as_ref();
        let mut told = self.seen.get(&uid).copied().unwrap_or_default();
        let address = status.and_then(|s| s.pod_ip.as_ref()?.parse().ok());
        if let Some(address) = address.filter(|_| !told.created) {
            told.created = true;
            self.tell(pod, PodStep::Created { address });
        }
        let conditions = status.and_then(|s| s.conditions.as_ref());
        let ready = conditions
            .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        if let Some(since) = pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .filter(|_| !told.deleted)
        {
            told.deleted = true;
            tracing::debug!(uid, ?since, "pod is deleted");
            let grace = pod
                .metadata
                .deletion_grace_period_seconds
                .unwrap_or_default();
            let grace = Duration::from_secs(grace.unsigned_abs());
            self.tell(pod, PodStep::DeletionMarked { grace });
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            for container in containers {
                let container = container.name.clone();
                self.tell(pod, PodStep::Sigterm { container });
            }
        }
        if ready != told.ready && told.created {
            told.ready = ready;
            self.tell(
                pod,
                if ready {
                    PodStep::Ready
                } else {
                    PodStep::NotReady
                },
            );
        }
        self.seen.insert(uid, told);
    }

    fn gone(&mut self, pod: &Pod) {
        self.look(pod);
        self.tell(pod, PodStep::Gone);
    }

    fn tell(&self, pod: &Pod, step: PodStep) {
        let metadata = &pod.metadata;
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
        (self.hook)(&PodEvent {
            at: self.clock.now(),
            node: node.unwrap_or_default(),
            pod: PodRef {
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone().unwrap_or_default(),
                uid: metadata.uid.clone().unwrap_or_default(),
            },
            step,
        });
    }
}
