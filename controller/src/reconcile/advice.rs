//! Says what is worth saying about pods' settings, once for as long as it is so (ZD-95, ZD-120).

use std::collections::BTreeSet;

use onehop_core::crd::{Feature, LoadBalancerSpec, TargetMode};
use onehop_core::id::{NodeName, PodUid};
use onehop_core::service::ServiceSpec;

use super::memory::OfService;
use super::{Reconciler, lock};
use crate::index::{Index, PodLife};
use crate::plan::advice::{self, Facts, REASONS};
use crate::plan::{Provider, gates};
use crate::snapshot::Standing;

impl<P: Provider> Reconciler<P> {
    /// Publishes what is new of it.
    pub(super) fn advise(
        &self,
        service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        of: &mut OfService,
    ) {
        let advice = advice::advise(&self.facts(&lock(&self.index), service, spec));
        for reason in REASONS {
            if advice.iter().all(|a| a.reason != reason) {
                of.said.over(reason);
            }
        }
        for one in advice {
            if of.said.is_news(one.reason, &one.message) {
                self.tell(service, one.severity, one.reason, &one.message);
            }
        }
    }

    fn facts<'a>(
        &self,
        index: &'a Index,
        service: &ServiceSpec,
        spec: &'a LoadBalancerSpec,
    ) -> Facts<'a> {
        let endpoints = index.endpoints(&service.key);
        let (mut uids, mut nodes) = (BTreeSet::<PodUid>::new(), BTreeSet::<NodeName>::new());
        for (_, endpoint) in endpoints.iter() {
            uids.extend(endpoint.pod.iter().map(|pod| pod.uid.clone()));
            nodes.extend(endpoint.node().cloned());
        }
        let now = self.clock.now();
        let guards = |node: &NodeName| {
            index.agent_offers(node, Feature::Guard) && !lock(&self.presence).is_absent(node, now)
        };
        let pods = uids.iter().filter_map(|uid| index.pod(uid));
        let install = &self.settings.claim.install;
        let labels = index.namespace_labels(&service.key.namespace);
        let asks = self.settings.gates.is_some() && gates::are_asked_for(&labels, service);
        let of_pods = spec
            .ports
            .iter()
            .filter(|p| asks && p.mode == TargetMode::Pod);
        let gates = of_pods.map(|p| gates::name(install, &service.key, p.port, &p.key()));
        Facts {
            spec,
            tail: index.tail(self.settings.tails, service, &spec.membership),
            pods: pods.filter(|pod| pod.life == PodLife::Running).collect(),
            guarded: nodes.iter().all(guards),
            gates: gates.collect(),
            rollouts: index.rollouts_of(service),
        }
    }

    /// How many pods lack a readiness gate that they should have.
    pub(super) fn pods_without_gate(&self, index: &Index) -> usize {
        let claim = &self.settings.claim;
        let lacking = index.services().filter_map(|known| {
            let service = &known.spec;
            let object = index.balancer(&service.key)?;
            let ours =
                claim.made(object) && claim.standing(service, Some(object)) == Standing::Ours;
            let labels = index.namespace_labels(&service.key.namespace);
            if !ours || !gates::are_asked_for(&labels, service) {
                return None;
            }
            advice::without_gate(&self.facts(index, service, &object.spec))
        });
        lacking.sum()
    }
}
