//! Which Services have changed while nobody wrote: after a start or a change of leaders theirs are the first passes
//! (AWS-424). Told from our own objects alone, since a look at the cloud is what they are to be first with. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{LoadBalancer, LoadBalancerPort, LoadBalancerSpec, TargetMode, TargetState};
use onehop_core::id::{InstallId, ServiceKey, ServiceUid};

use crate::index::{Index, KnownService};

/// What has changed, as far as our objects tell.
pub(super) struct Changes<'a> {
    index: &'a Index,
    /// Addresses that nodes were told of, by Service.
    told: BTreeMap<&'a ServiceUid, BTreeSet<IpAddr>>,
}

impl<'a> Changes<'a> {
    /// Since this install has said something last.
    pub(super) fn of(index: &'a Index, install: &InstallId) -> Self {
        let mut told: BTreeMap<&ServiceUid, BTreeSet<IpAddr>> = BTreeMap::new();
        let targets = index.told_by(install).flat_map(|(_, said)| &said.targets);
        for target in targets.filter(|target| target.state == TargetState::Active) {
            let of = told.entry(&target.service.uid).or_default();
            of.insert(target.address);
        }
        Self { index, told }
    }

    /// Whether a Service is another than our object of it says: it came, goes, asks for something else, or has other
    /// endpoints. `wished` gives what it asks for now.
    pub(super) fn has(
        &self,
        key: &ServiceKey,
        wished: impl FnOnce(&KnownService, &LoadBalancer) -> Option<LoadBalancerSpec>,
    ) -> bool {
        let service = self.index.service(key);
        let (Some(service), Some(object)) = (service, self.index.balancer(key)) else {
            return true;
        };
        if service.spec.deleted.is_some() || object.spec.service_uid != service.spec.uid {
            return true;
        }
        let asks = wished(service, object);
        asks.is_some_and(|asks| !alike(&asks, &object.spec))
            || self.has_other_endpoints(service, object)
    }

    fn has_other_endpoints(&self, service: &KnownService, object: &LoadBalancer) -> bool {
        if !object.spec.ports.iter().any(|p| p.mode == TargetMode::Pod) {
            return false;
        }
        let endpoints = self.index.endpoints(&service.spec.key);
        let ready = endpoints.iter().filter(|(_, one)| one.conditions.ready);
        let ready: BTreeSet<IpAddr> = ready.map(|(_, one)| one.address).collect();
        let none = BTreeSet::new();
        let told = self.told.get(&service.spec.uid).unwrap_or(&none);
        // Addresses of a family that the load balancer does not have are never told.
        let Some(one) = told.first() else {
            return !ready.is_empty();
        };
        let of_family: BTreeSet<_> = ready
            .into_iter()
            .filter(|address| address.is_ipv4() == one.is_ipv4())
            .collect();
        of_family != *told
    }
}

/// Whether two ask for the same. Who answers for targets, and where flows come from, is found out later and is no change of
/// the Service.
fn alike(one: &LoadBalancerSpec, other: &LoadBalancerSpec) -> bool {
    let asked = |spec: &LoadBalancerSpec| {
        let ports = spec.ports.iter().cloned();
        let ports: Vec<_> = ports
            .map(|port| LoadBalancerPort {
                health: None,
                ..port
            })
            .collect();
        (
            spec.scheme,
            spec.families.clone(),
            ports,
            spec.membership.clone(),
            spec.options.clone(),
        )
    };
    asked(one) == asked(other)
}
