//! What a new pod is given by the webhook: decided from the Services that choose it and what they ask for, so that one
//! which was applied just before its pods is enough (AWS-501).

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::TargetMode;
use onehop_core::service::ServiceSpec;

use super::{Reconciler, lock};
use crate::plan::{Provider, gates};
use crate::snapshot::{self, Standing};
use crate::webhook::{Ask, Injection};

impl<P: Provider> Reconciler<P> {
    /// What a pod with these labels is to have. Nothing where the caches are not full yet (I1): pods without gates are
    /// what the product is made for.
    pub(crate) fn injection(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        ask: Ask,
    ) -> Injection {
        let index = lock(&self.index);
        let claim = &self.settings.claim;
        let mut wanted = Injection::default();
        if !index.is_synced() {
            return wanted;
        }
        let mut gates = BTreeSet::new();
        for known in index.services() {
            let service = &known.spec;
            if service.key.namespace != namespace || !chooses(service, labels) {
                continue;
            }
            let object = index.balancer(&service.key).map(AsRef::as_ref);
            if claim.standing(service, object) != Standing::Ours {
                continue;
            }
            let last_good = snapshot::last_good(claim, service, object);
            let Some(spec) = self.provider.resolve(service, last_good).spec else {
                continue;
            };
            let tail = index.tail(self.settings.tails, service, &spec.membership);
            for port in spec.ports.iter().filter(|p| p.mode == TargetMode::Pod) {
                let gate = || gates::name(&claim.install, &service.key, port.port, &port.key());
                match ask {
                    Ask::Gates => drop(gates.insert(gate())),
                    Ask::PeersGates if gates::is_peers(service) => drop(gates.insert(gate())),
                    Ask::PeersGates => {}
                    Ask::Pause => wanted.pause = wanted.pause.max(tail),
                }
            }
        }
        // Without somebody to open them they are not given.
        if self.settings.gates.is_some() {
            wanted.gates.extend(gates);
        }
        wanted
    }
}

fn chooses(service: &ServiceSpec, labels: &BTreeMap<String, String>) -> bool {
    let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    !service.selector.is_empty() && service.selector.iter().all(has)
}
