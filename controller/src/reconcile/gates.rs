//! Turning readiness gates: the conditions of pods that wait for their load balancer follow what the last look at it has
//! shown (AWS-500 to AWS-512, ZD-90). What is decided lies in `plan::gates`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures::{StreamExt, stream};
use onehop_core::gate;
use onehop_core::id::{PodUid, PortKey, ServiceKey};
use onehop_core::service::{ServiceKind, ServiceSpec};
use onehop_core::time::Time;
use onehop_runtime::events::Severity;
use onehop_runtime::watch::ObjectKey;

use super::cases::Case;
use super::{Reconciler, lock};
use crate::index::{Index, KnownGate, KnownPod, PodLife};
use crate::plan::gates::{self, FAIL_SAFE, NO_GROUP, Said, Standing};
use crate::plan::{Intent, Provider};
use crate::snapshot;

/// Between two looks while a gate is shut (AWS-510).
const POLL: Duration = Duration::from_secs(5);
/// Pods that are written to side by side.
const AT_ONCE: usize = 8;

/// How readiness gates are turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// How long a pod waits before its gate is opened all the same (AWS-507); none: for ever.
    pub limit: Option<Duration>,
    /// How long a gate waits for somebody to know of it (AWS-505): its Service may just be on its way.
    pub nobodys_after: Duration,
}

/// A condition to be written.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pod: ObjectKey,
    uid: PodUid,
    gate: KnownGate,
    said: Said,
}

impl<P: Provider> Reconciler<P> {
    /// Turns the gates of the Services' pods by what was just looked at, never by what was seen before (AWS-512). The answer
    /// is when to look again for those that are shut.
    pub(super) async fn turn_gates(
        &self,
        cases: &[Case],
        intents: &[Intent],
        seen: &P::Observed,
    ) -> Option<Time> {
        let limit = self.settings.gates?.limit;
        let now = self.clock.now();
        let mut shut = false;
        for intent in intents {
            let turns = {
                let index = lock(&self.index);
                let pods = pods_of(&index, &intent.service);
                if pods.is_empty() {
                    // Nothing below is about pods without gates, which most are.
                    continue;
                }
                let Some(service) = index.service(&intent.service) else {
                    // Gone meanwhile; the others' gates are turned all the same.
                    continue;
                };
                let service = service.spec.clone();
                let about = self.gates_of(&service, intent, seen);
                let listed = self.provider.listed(intent, seen, now);
                let mut turns = Vec::new();
                for (key, pod, addresses) in pods {
                    for gate in &pod.gates {
                        let Some(port) = about.get(&gate.kind) else {
                            continue;
                        };
                        let mode = intent.spec.ports.iter().find(|p| p.key() == *port);
                        let mode = mode.map(|p| p.mode).unwrap_or_default();
                        let mut standing = gates::standing(&addresses, port, mode, &listed);
                        let full = || self.provider.is_full(intent, port, seen);
                        if standing == Standing::Unregistered && full() {
                            standing = Standing::OverLimit;
                        }
                        // Flows of another Service still come to the address (ZD-86, AWS-429).
                        let leaves = |address: &IpAddr| {
                            lock(&self.register).leaves_another(*address, &intent.service)
                        };
                        if addresses.iter().any(leaves) && standing != Standing::NoGroup {
                            standing = Standing::Draining;
                        }
                        shut |= !matches!(standing, Standing::Healthy | Standing::NoGroup);
                        if let Some(said) = gates::decide(pod, gate, standing, now, limit) {
                            turns.push(turn(key, pod, gate, said));
                        }
                    }
                }
                turns
            };
            shut |= !self.write_turns(turns).await;
            shut |= self.open_forgotten(cases, intent, seen).await;
        }
        shut.then(|| now + POLL)
    }

    /// The gates that are about a Service, and the port that each is about.
    fn gates_of(
        &self,
        service: &ServiceSpec,
        intent: &Intent,
        seen: &P::Observed,
    ) -> BTreeMap<String, PortKey> {
        let install = &self.settings.claim.install;
        let own = service.ports.iter().map(|port| {
            let name = gates::name(install, &service.key, port.port, &port.key);
            (name, port.key.clone())
        });
        let mut about: BTreeMap<String, PortKey> = own.collect();
        about.extend(self.provider.peer_gates(intent, seen));
        about
    }

    /// Opens gates of the peer's that are left from a group of this Service which is gone (AWS-505). Whether some remain to
    /// be asked about.
    async fn open_forgotten(&self, cases: &[Case], intent: &Intent, seen: &P::Observed) -> bool {
        let Some(stem) = self.provider.peer_gate_stem(&intent.service) else {
            return false;
        };
        let known = self.provider.peer_gates(intent, seen);
        let left: Vec<(ObjectKey, PodUid, KnownGate)> = {
            let index = lock(&self.index);
            let pods = pods_of(&index, &intent.service);
            let of_pod = |(key, pod, _): (&ObjectKey, &KnownPod, BTreeSet<IpAddr>)| {
                let ours = |gate: &&KnownGate| {
                    gate.kind.starts_with(&stem)
                        && !known.contains_key(&gate.kind)
                        && !gate.is_open()
                };
                let gates = pod.gates.iter().filter(ours).cloned();
                let (key, uid) = (key.clone(), pod.uid.clone());
                gates
                    .map(|gate| (key.clone(), uid.clone(), gate))
                    .collect::<Vec<_>>()
            };
            pods.into_iter().flat_map(of_pod).collect()
        };
        let ours =
            |case: &Case| matches!(case, Case::Ours(w) if w.service.spec.key == intent.service);
        if left.is_empty() || !cases.iter().any(ours) {
            return false;
        }
        // Only what the API server says now: a binding of that name may be somebody's.
        let bindings = match self.writer.bindings(&intent.service).await {
            Ok(bindings) => bindings,
            Err(error) => {
                tracing::warn!(%error, "cannot tell whose readiness gates pods wait for");
                return true;
            }
        };
        let there: BTreeSet<_> = bindings
            .into_iter()
            .filter_map(|binding| binding.metadata.name)
            .map(|name| format!("{}{name}", gate::PEER_PREFIX))
            .collect();
        let gone = left
            .into_iter()
            .filter(|(_, _, gate)| !there.contains(&gate.kind));
        let turns = gone.map(|(pod, uid, gate)| Turn {
            pod,
            uid,
            gate,
            said: nobodys(),
        });
        !self.write_turns(turns.collect()).await
    }

    /// Writes conditions; whether all could be written.
    async fn write_turns(&self, turns: Vec<Turn>) -> bool {
        let now = self.clock.now();
        let writes = stream::iter(turns).map(|turn| async move {
            let since = turn.gate.since.filter(|_| {
                // A condition that says the same for another reason is as old as it was.
                turn.gate.status.as_deref() == Some(turn.said.status)
            });
            let written = self
                .writer
                .pod_condition(
                    &turn.pod,
                    &turn.uid,
                    &turn.gate.kind,
                    &turn.said,
                    since.unwrap_or(now),
                )
                .await;
            (turn, written)
        });
        let mut writes = pin!(writes.buffer_unordered(AT_ONCE));
        let mut all = true;
        while let Some((turn, written)) = writes.next().await {
            match written {
                Ok(Some(pod)) => {
                    self.take_in(|index| index.wrote_pod(&pod));
                    if turn.said.reason == FAIL_SAFE {
                        self.tell_of_fail_safe(&turn);
                    }
                }
                // Another pod has the name now.
                Ok(None) => {}
                Err(error) => {
                    all = false;
                    self.measures.write_failures.inc();
                    tracing::warn!(pod = ?turn.pod, %error, "cannot set a readiness gate, trying again");
                }
            }
        }
        all
    }

    /// Loud, since a pod takes traffic now that its load balancer may not send (AWS-507).
    fn tell_of_fail_safe(&self, turn: &Turn) {
        self.measures.gate_fail_safes.inc();
        let services: Vec<_> = {
            let index = lock(&self.index);
            let of = |key: &ServiceKey| {
                let mut pods = pods_of(&index, key).into_iter();
                pods.any(|(_, pod, _)| pod.uid == turn.uid)
            };
            let ours = index.services().filter(|s| {
                s.spec.key.namespace == turn.pod.namespace
                    && s.spec.kind == ServiceKind::LoadBalancer
            });
            ours.filter(|s| of(&s.spec.key))
                .map(|s| s.spec.clone())
                .collect()
        };
        for service in services {
            let text = format!(
                "pod {}: readiness gate {} was {}; see why the load balancer does not take it",
                turn.pod.name, turn.gate.kind, turn.said.message
            );
            self.tell(&service, Severity::Warning, FAIL_SAFE, &text);
        }
    }

    /// Opens gates that nobody knows, and those that no pass turns, until the reconciler ends.
    pub(super) async fn keep_gates(&self) {
        let Some(of) = self.settings.gates else {
            return std::future::pending().await;
        };
        loop {
            self.clock.sleep(POLL).await;
            let turns = {
                let index = lock(&self.index);
                let now = self.clock.now();
                let shut = index.shut_pods().count();
                let gauge = i64::try_from(shut).unwrap_or(i64::MAX);
                self.measures.gates_shut.set(gauge);
                let lacking = i64::try_from(self.pods_without_gate(&index)).unwrap_or(i64::MAX);
                self.measures.pods_without_gate.set(lacking);
                self.neglected(&index, of, now)
            };
            self.write_turns(turns).await;
        }
    }

    fn neglected(&self, index: &Index, of: Gates, now: Time) -> Vec<Turn> {
        let mut of_namespaces = BTreeMap::new();
        let mut turns = Vec::new();
        for (key, pod) in index.shut_pods() {
            let (own, others) = of_namespaces
                .entry(&key.namespace)
                .or_insert_with(|| self.known_gates(index, &key.namespace));
            let shut = |gate: &&KnownGate| !gate.is_open();
            let waited = |gate: &KnownGate| now.since(gates::waits_since(pod, gate, now));
            let nobodys_gates = gates::orphans(pod, own, others).into_iter().filter(shut);
            let nobodys_gates = nobodys_gates.filter(|gate| waited(gate) >= of.nobodys_after);
            turns.extend(nobodys_gates.map(|gate| turn(key, pod, gate, nobodys())));
            // The Service cannot be carried out, or its cloud cannot be looked at: no pass turns them.
            let late = |gate: &KnownGate| {
                let first = gate.status.is_none() && waited(gate) >= of.nobodys_after;
                first
                    || of
                        .limit
                        .is_some_and(|limit| waited(gate) >= limit + of.nobodys_after)
            };
            let ours = pod.gates.iter().filter(|gate| own.contains(&gate.kind));
            for gate in ours.filter(shut).filter(|gate| late(gate)) {
                let said = gates::decide(pod, gate, Standing::Unregistered, now, of.limit);
                turns.extend(said.map(|said| turn(key, pod, gate, said)));
            }
        }
        turns
    }

    /// The gates of our Services in a namespace, and the stems of gates of Services there that are not ours.
    fn known_gates(&self, index: &Index, namespace: &str) -> (BTreeSet<String>, BTreeSet<String>) {
        let claim = &self.settings.claim;
        let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
        for known in index.services() {
            let service = &known.spec;
            if service.key.namespace != namespace {
                continue;
            }
            let object = index.balancer(&service.key).map(AsRef::as_ref);
            if claim.standing(service, object) == snapshot::Standing::Ours {
                let names = service
                    .ports
                    .iter()
                    .map(|port| gates::name(&claim.install, &service.key, port.port, &port.key));
                own.extend(names);
            } else if service.kind == ServiceKind::LoadBalancer {
                others.insert(gates::stem(&service.key));
            }
        }
        (own, others)
    }
}

fn turn(key: &ObjectKey, pod: &KnownPod, gate: &KnownGate, said: Said) -> Turn {
    Turn {
        pod: key.clone(),
        uid: pod.uid.clone(),
        gate: gate.clone(),
        said,
    }
}

fn nobodys() -> Said {
    Said {
        status: "True",
        reason: NO_GROUP,
        message: "no Service port and no target group is known for this gate".to_owned(),
    }
}

/// The running pods behind a Service that have gates about targets, each once, with the addresses of their endpoints.
fn pods_of<'a>(
    index: &'a Index,
    service: &ServiceKey,
) -> Vec<(&'a ObjectKey, &'a KnownPod, BTreeSet<IpAddr>)> {
    let endpoints = index.endpoints(service);
    let mut addresses: BTreeMap<&PodUid, BTreeSet<IpAddr>> = BTreeMap::new();
    for (_, endpoint) in endpoints.iter() {
        if let Some(pod) = &endpoint.pod {
            addresses
                .entry(&pod.uid)
                .or_default()
                .insert(endpoint.address);
        }
    }
    let named = addresses.into_iter().filter_map(|(uid, addresses)| {
        let (key, pod) = index.named_pod(uid)?;
        Some((key, pod, addresses))
    });
    named
        .filter(|(_, pod, _)| pod.life == PodLife::Running && !pod.gates.is_empty())
        .collect()
}
