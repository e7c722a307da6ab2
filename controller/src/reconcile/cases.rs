//! Who wants what: the Services of a shard, what is to become of each, and their intents.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::crd::{LoadBalancer, LoadBalancerSpec, SERVICE_FINALIZER};
use onehop_core::id::{PortKey, ServiceKey, ServiceUid};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_runtime::events::Severity;

use super::memory::Memory;
use super::nodes_for_pods::{fit_nodes, local_nodes, nodes_for_pods};
use super::pod_health::wait_for_agents;
use super::proxied::wait_for_proxies;
use super::{Reconciler, lock};
use crate::index::KnownService;
use crate::plan::{Giver, Intent, Notice, Provider, Refusal};
use crate::snapshot::{self, Standing};
use crate::writes::WriteError;

/// A Service of the shard, and what is to become of it.
pub(super) enum Case {
    /// It is ours.
    Ours(Box<Wanted>),
    /// It was ours and is to be cleaned up after.
    Leaving(KnownService, Option<Arc<LoadBalancer>>),
    /// There is no such Service; an object of ours may be left.
    Absent(ServiceKey, Option<Arc<LoadBalancer>>),
    /// It is none of our business.
    Foreign,
}

impl Case {
    /// The Service and its UID, where it is or was ours.
    pub(super) fn identity(&self) -> Option<(&ServiceKey, &ServiceUid)> {
        match self {
            Self::Ours(wanted) => Some((&wanted.service.spec.key, &wanted.service.spec.uid)),
            Self::Leaving(service, _) => Some((&service.spec.key, &service.spec.uid)),
            Self::Absent(key, Some(object)) => Some((key, &object.spec.service_uid)),
            Self::Absent(_, None) | Self::Foreign => None,
        }
    }
}

/// A Service of ours.
pub(super) struct Wanted {
    pub(super) service: KnownService,
    pub(super) spec: Option<LoadBalancerSpec>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) giver: Giver,
    pub(super) refusals: Vec<Refusal>,
    pub(super) notices: Vec<Notice>,
}

impl Wanted {
    /// Whether enough is known to plan for it. A Service that cannot be carried out is left exactly
    /// as it is in the cloud: never does a mistake in an object tear anything down (I10).
    pub(super) fn plannable(&self) -> Option<&LoadBalancerSpec> {
        let placed = self.giver == Giver::Cloud || !self.addresses.is_empty();
        self.spec.as_ref().filter(|_| placed)
    }
}

impl<P: Provider> Reconciler<P> {
    /// What is to become of a Service.
    pub(super) fn case(&self, key: &ServiceKey) -> Case {
        let claim = &self.settings.claim;
        let (service, object) = {
            let index = lock(&self.index);
            (index.service(key).cloned(), index.balancer(key).cloned())
        };
        let made = |o: &Arc<LoadBalancer>| claim.made(o);
        let Some(service) = service else {
            return Case::Absent(key.clone(), object.filter(made));
        };
        let standing = claim.standing(&service.spec, object.as_deref());
        let object = object.filter(made);
        match standing {
            Standing::Foreign => Case::Foreign,
            Standing::Leaving => Case::Leaving(service, object),
            Standing::Ours => {
                self.elders_first(&service);
                let wanted = self.want(service, object.as_deref());
                self.pass_on_news();
                Case::Ours(Box::new(wanted))
            }
        }
    }

    /// What has to be written before the cloud is touched: our finalizer on what is ours (K-03), and
    /// no address on what is leaving (unpublish first).
    pub(super) async fn before_the_cloud(&self, cases: &[Case]) -> Result<(), WriteError> {
        for case in cases {
            match case {
                Case::Ours(wanted) => {
                    let spec = &wanted.service.spec;
                    if wanted.plannable().is_some() && !self.provider.may_be_theirs(spec) {
                        self.ensure_finalizer(spec).await?;
                    }
                }
                // What another program has published is its own.
                Case::Leaving(service, _) if self.provider.is_theirs(&service.spec) => {}
                Case::Leaving(service, _) => {
                    let spec = &service.spec;
                    let body =
                        crate::status::service_status(spec, &service.conditions, &[], None, None);
                    if let Some(body) = body {
                        self.writer.service_status(&spec.key, &body).await?;
                    }
                }
                Case::Absent(..) | Case::Foreign => {}
            }
        }
        Ok(())
    }

    /// Our finalizer, before anything of the Service is made in the cloud (K-03).
    pub(super) async fn ensure_finalizer(&self, service: &ServiceSpec) -> Result<(), WriteError> {
        if !service.finalizers.iter().any(|f| f == SERVICE_FINALIZER) {
            let written = self.writer.add_finalizer(service).await?;
            self.take_in(|index| index.wrote_service(&written));
            self.tell_of_finalizer(service);
        }
        Ok(())
    }

    /// An object of ours for this very Service shows that the finalizer had been there.
    fn tell_of_finalizer(&self, service: &ServiceSpec) {
        let object = lock(&self.index).balancer(&service.key).cloned();
        let made = |o: &Arc<LoadBalancer>| self.settings.claim.made(o);
        if object.is_some_and(|o| made(&o) && o.spec.service_uid == service.uid) {
            let text = format!(
                "Put back the finalizer {SERVICE_FINALIZER}, which somebody had removed: without it the load balancer \
                 would outlive the Service"
            );
            self.tell(service, Severity::Warning, "FinalizerRestored", &text);
        }
    }

    /// The intents of what can be planned for, from the newest view.
    pub(super) fn intents(
        &self,
        cases: &[Case],
        seen: &P::Observed,
        memory: &mut Memory<P>,
    ) -> Vec<Intent> {
        let targets = self.provider.target_addresses(seen);
        let mut index = lock(&self.index);
        let absent = lock(&self.presence).absent(self.clock.now());
        let mut intents = Vec::new();
        for case in cases {
            let Case::Ours(wanted) = case else { continue };
            let key = &wanted.service.spec.key;
            // The newest view: endpoints may have changed while the cloud was looked at.
            let known = index.service(key).cloned();
            let service = &known.as_ref().unwrap_or(&wanted.service).spec;
            let of = memory.services.entry(key.clone()).or_default();
            snapshot::remember(&index, key, &mut of.remembered);
            let endpoints: BTreeSet<IpAddr> = index
                .endpoints(key)
                .iter()
                .map(|(_, e)| e.address)
                .collect();
            let interest: BTreeSet<IpAddr> = endpoints.union(&targets).copied().collect();
            index.set_interest(key, &of.interest, &interest);
            of.remembered
                .retain(|address, _| interest.contains(address));
            of.interest = interest;
            let Some(spec) = wanted.plannable() else {
                continue;
            };
            let addresses = &wanted.addresses;
            let families = self.provider.target_families(service, spec, addresses);
            let departed: BTreeSet<IpAddr> = targets.difference(&endpoints).copied().collect();
            let mut intent = Intent {
                service: key.clone(),
                uid: service.uid.clone(),
                spec: spec.clone(),
                addresses: wanted.addresses.clone(),
                members: snapshot::members(
                    &index,
                    service,
                    snapshot::Scope {
                        families: &families,
                        policy: spec.membership.policy,
                        absent: &absent,
                    },
                ),
                departed: snapshot::departed(&index, service, (&of.remembered, &departed), &absent),
                machines: index.machines(),
                view: memory.view,
            };
            wait_for_agents(&index, &mut intent);
            let by_agent = self.settings.proxy.is_agent_of(service);
            if by_agent && wait_for_proxies(&index, &mut intent) {
                lock(&self.unproxied).insert(key.clone());
            } else {
                lock(&self.unproxied).remove(key);
            }
            let stands_in = |port: &PortKey| self.provider.only_nodes_with_pods(spec, port);
            nodes_for_pods(&index, &mut intent, stands_in);
            fit_nodes(&mut intent, |machine| self.provider.is_unfit(spec, machine));
            if service.external_policy == TrafficPolicy::Local
                && self.provider.waits_for_local_endpoints(spec)
            {
                let now = self.clock.now();
                local_nodes(&index, &mut intent, &mut of.without_endpoints, now);
            }
            intents.push(intent);
        }
        intents
    }
}

/// What the shard's Services want, unless one of them is leaving or cannot be planned for.
pub(super) fn wanted(
    cases: &[Case],
) -> Option<BTreeMap<ServiceKey, (LoadBalancerSpec, Vec<IpAddr>)>> {
    let one = |case: &Case| match case {
        Case::Ours(wanted) => {
            let spec = wanted.plannable()?.clone();
            Some((
                wanted.service.spec.key.clone(),
                (spec, wanted.addresses.clone()),
            ))
        }
        _ => None,
    };
    cases.iter().map(one).collect()
}
