//! Provider `azure`: Standard Load Balancers.
//!
//! A shard is one Service. Everything is decided in pure modules (`annotations`, `resolve`, `part`, `balancer`, `security`,
//! `public_ip`, `members`, `plan`); `client` talks to Azure Resource Manager. What all Services share, a load balancer's
//! document and the security group's rules, has one writer each in `client`, which carries out everything that waits in
//! one write (AZ-100).

pub mod annotations;
pub mod balancer;
pub mod client;
mod demands;
pub mod document;
mod families;
mod grace;
mod health;
#[cfg(test)]
mod lossless;
pub mod members;
pub mod model;
pub mod names;
mod outcome;
pub mod part;
pub mod plan;
mod ports;
pub mod public_ip;
pub mod resolve;
pub mod rights;
pub mod security;
pub mod settings;
pub mod step;
mod switch;
pub mod takeover;
mod tenants;
#[cfg(test)]
mod testkit;
pub mod zones;

use std::collections::BTreeSet;
use std::net::IpAddr;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{IpFamily, PortKey, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use self::client::Client;
use self::document::{MEMBERS, POOLS, children};
use self::members::Filled;
use self::model::{Observed, build};
use self::settings::Settings;
use self::step::AzureStep;
use super::{AddressBook, CloudError, Holder};
use crate::lease::Fence;
use crate::plan::custody::{Custody, Release};
use crate::plan::{
    Effect, Existing, Found, Giver, Intent, Listed, Look, Market, MissingRight, Named, Numbers,
    Outcome, Placed, Plan, Programmed, Provider, Resolution,
};

/// The provider.
#[derive(Debug)]
pub struct Azure {
    client: Client,
    settings: Settings,
}

impl Azure {
    /// A provider over a client.
    pub const fn new(client: Client, settings: Settings) -> Self {
        Self { client, settings }
    }
}

impl Provider for Azure {
    type Shard = ServiceKey;
    type Observed = Observed;
    type Step = AzureStep;

    fn name(&self) -> &'static str {
        "azure"
    }

    fn shards(&self, service: &ServiceKey) -> Vec<ServiceKey> {
        vec![service.clone()]
    }

    fn services(&self, shard: &ServiceKey) -> Vec<ServiceKey> {
        vec![shard.clone()]
    }

    fn meet(&self, service: &ServiceKey, uid: &ServiceUid) {
        self.client.meet(service, uid);
    }

    fn resolve(&self, service: &ServiceSpec, last_good: Option<&LoadBalancerSpec>) -> Resolution {
        resolve::resolve(&self.settings, service, last_good)
    }

    fn name_ports(
        &self,
        service: &ServiceSpec,
        last_good: Option<&LoadBalancerSpec>,
        numbers: &Numbers,
    ) -> Option<Named> {
        Some(ports::numbered(service, last_good, numbers))
    }

    /// Addresses are the cloud's; what is noted is who asks for what, since the security group's rules are those of all
    /// Services at once (AZ-212).
    fn place(
        &self,
        service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        market: &Market,
        _book: &mut AddressBook,
    ) -> Placed {
        let placed = Placed {
            giver: Giver::Cloud,
            ..Placed::default()
        };
        let refusal = tenants::forbidden(
            &market.policy,
            &service.key,
            &spec.families,
            &model::wishes(spec),
            &self.client.documents().public_ips,
        );
        if refusal.is_none() {
            self.client.wishes_now(&service.key, spec);
        }
        Placed { refusal, ..placed }
    }

    /// Comes before the first write for every Service that has an address: none of them is missing from the rules.
    fn restore(&self, found: Found<'_>, _book: &mut AddressBook) -> Result<(), Holder> {
        self.client.meet(&found.holder.service, &found.holder.uid);
        if let (Some(_), Some(spec)) = (found.service, found.spec) {
            self.client.wishes(&found.holder.service, spec);
        }
        Ok(())
    }

    /// Both: a pool is of one family, and takes from these what is of its own. One that the Service has lost is emptied by
    /// its part, not by a list without members.
    fn target_families(
        &self,
        _service: &ServiceSpec,
        _spec: &LoadBalancerSpec,
        _addresses: &[IpAddr],
    ) -> Vec<IpFamily> {
        IpFamily::ALL.to_vec()
    }

    fn only_nodes_with_pods(&self, spec: &LoadBalancerSpec, port: &PortKey) -> bool {
        let wishes = model::wishes(spec);
        let mut ports = spec.ports.iter();
        ports.any(|it| it.key() == *port && part::has_own_pool(&wishes, it))
    }

    async fn missing_rights(&self) -> Vec<MissingRight> {
        let missing = Box::pin(self.client.missing()).await;
        let right = |it: &rights::Missing| MissingRight {
            action: format!("{} at {}", it.action, it.scope),
            answer: it.message(),
        };
        missing.iter().map(right).collect()
    }

    /// Each needs what its own wishes need (AZ-019).
    fn rights_concern_all(&self) -> bool {
        false
    }

    async fn inventory(&self) -> Result<Vec<Existing<ServiceKey>>, CloudError> {
        Box::pin(self.client.inventory()).await
    }

    async fn observe(
        &self,
        shard: &ServiceKey,
        _look: Look<'_, Observed>,
    ) -> Result<Observed, CloudError> {
        // How deep a look goes is the store's to know: it reads what it lacks.
        Box::pin(self.client.observe(shard)).await
    }

    fn target_addresses(&self, seen: &Observed) -> BTreeSet<IpAddr> {
        let bases = seen.bases(&self.settings);
        let balancers = seen.documents.balancers.values();
        let pools = balancers.flat_map(|balancer| children(balancer, POOLS));
        // Of nodes nobody asks what became of them.
        let own = pools.filter(|pool| {
            bases
                .iter()
                .any(|base| names::is_pod_pool(document::name(pool), base))
        });
        own.flat_map(|pool| children(pool, MEMBERS))
            .filter_map(balancer::member_address)
            .collect()
    }

    fn plan(
        &self,
        shard: &ServiceKey,
        intents: &[Intent],
        seen: &Observed,
        now: Time,
    ) -> Plan<AzureStep> {
        plan::plan(&self.settings, shard, intents.first(), seen, now)
    }

    fn their_finalizer(&self) -> Option<&'static str> {
        Some(takeover::FINALIZER)
    }

    fn their_name(&self) -> &'static str {
        takeover::NAME
    }

    fn may_be_theirs(&self, service: &ServiceSpec) -> bool {
        takeover::may_be_theirs(service)
    }

    fn custody(
        &self,
        service: &ServiceSpec,
        intent: &Intent,
        seen: &Observed,
        release: Release,
        now: Time,
    ) -> Custody<AzureStep> {
        let of = takeover::Situation {
            settings: &self.settings,
            service,
            intent,
            seen,
            now,
        };
        takeover::custody(of, release)
    }

    async fn execute(&self, step: &AzureStep, fence: &Fence) -> Result<Effect, CloudError> {
        Box::pin(self.client.execute(step, fence)).await
    }

    async fn tidy(&self, fence: &Fence) -> Result<(), CloudError> {
        Box::pin(self.client.tidy(fence)).await
    }

    fn next_look(
        &self,
        _shard: &ServiceKey,
        intents: &[Intent],
        seen: &Observed,
        now: Time,
    ) -> Option<Time> {
        let intent = intents.first()?;
        let built = build(
            &self.settings,
            &intent.service,
            &intent.spec,
            &seen.documents,
        )
        .ok()?;
        let kind = built.part.kind;
        let pools = built
            .part
            .all_pools()
            .map(|pool| Filled::read(&self.settings, intent, (pool, kind), seen, now));
        let looks = pools.filter_map(|filled| filled.next_look(&self.settings, now));
        let grace = grace::end(&self.settings, &built.part, seen, now).filter(|end| *end > now);
        let unused = seen
            .times
            .unused
            .values()
            .map(|since| *since + self.settings.switch_tail);
        let looks = looks.chain(unused.filter(|at| *at > now));
        looks.chain(grace).min()
    }

    fn outcome(&self, intent: &Intent, seen: &Observed, now: Time) -> Outcome {
        let outcome = outcome::outcome(&self.settings, intent, seen, now);
        let served = outcome.ports.values().any(|port| port.healthy > 0);
        if served && outcome.programmed == Programmed::Yes {
            self.client.served(&intent.service);
        }
        outcome
    }

    fn left_of(&self, _service: &ServiceKey, seen: &Observed) -> BTreeSet<ServiceUid> {
        let bases = seen.bases(&self.settings);
        // Also while the rules are made with what it asks for: those of a Service that is gone go first.
        let left = bases
            .iter()
            .filter(|base| seen.asks || plan::is_left(&self.settings, seen, base));
        left.map(|base| ServiceUid::from(base.as_str())).collect()
    }

    fn listed(&self, intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
        outcome::listed(&self.settings, intent, seen, now)
    }
}
