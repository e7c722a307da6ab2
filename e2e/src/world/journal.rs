//! What happened to pods, kept so that a lost connection can be joined with its cause (FC-83).

use e2e_cloud::assertions::PodSpan;
use e2e_kubelet::{EventHook, PodEvent, PodStep};
use onehop_core::time::Time;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// All pod events of a world, in order.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Vec<PodEvent>>);

impl Journal {
    /// What kubelets call.
    pub fn hook(self: &Arc<Self>) -> EventHook {
        let journal = Arc::clone(self);
        Arc::new(move |event| journal.lock().push(event.clone()))
    }

    /// Every event so far.
    pub fn events(&self) -> Vec<PodEvent> {
        self.lock().clone()
    }

    /// UID of the pod that had this address last before `at`.
    pub fn pod_at(&self, address: Ipv4Addr, at: Time) -> Option<String> {
        let had = |e: &&PodEvent| {
            e.at <= at && matches!(e.step, PodStep::Created { address: a } if a == address)
        };
        self.lock().iter().rfind(had).map(|e| e.pod.uid.clone())
    }

    /// When this pod was first sent SIGTERM.
    pub fn sigterm_of(&self, uid: &str) -> Option<Time> {
        let told = |e: &&PodEvent| e.pod.uid == uid && matches!(e.step, PodStep::Sigterm { .. });
        self.lock().iter().find(told).map(|e| e.at)
    }

    /// When which pod was ready, with its UID; a pod that turned unready and ready again has several spans. `zones` says
    /// where each node is.
    pub fn ready_spans(&self, zones: &BTreeMap<String, String>) -> Vec<(String, PodSpan)> {
        let mut addresses: BTreeMap<String, IpAddr> = BTreeMap::new();
        let mut spans: Vec<(String, PodSpan)> = Vec::new();
        for PodEvent {
            at,
            node,
            pod,
            step,
        } in self.lock().iter()
        {
            match step {
                PodStep::Created { address } => {
                    addresses.insert(pod.uid.clone(), (*address).into());
                }
                PodStep::Ready => {
                    let span = addresses.get(&pod.uid).map(|address| PodSpan {
                        address: *address,
                        zone: zones.get(node).cloned(),
                        ready: *at,
                        until: None,
                    });
                    spans.extend(span.map(|span| (pod.uid.clone(), span)));
                }
                PodStep::Started { .. } | PodStep::Trouble { .. } => {}
                _ => {
                    let mut open = spans.iter_mut().rev();
                    if let Some((_, span)) = open.find(|(uid, _)| *uid == pod.uid) {
                        span.until.get_or_insert(*at);
                    }
                }
            }
        }
        spans
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PodEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
