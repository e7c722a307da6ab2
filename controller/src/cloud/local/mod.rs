//! Provider `local`: the fake cloud's REST API (harness.md section 6), or whatever speaks it.
//!
//! A shard is one Service. Addresses are chosen here, from `AddressPool` objects; the cloud accepts
//! them or names the holder.

pub mod address;
pub mod annotations;
pub mod client;
mod listed;
pub mod model;
pub mod names;
mod outcome;
mod placing;
pub mod plan;
pub mod resolve;
pub mod step;
pub mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{
    AddressPool, AddressPoolStatus, HealthCheck, LoadBalancerPort, LoadBalancerSpec, TargetMode,
};
use onehop_core::id::{IpFamily, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use self::address::{AddressBook, Holder, Pools};
use self::client::Client;
use self::model::Observed;
use self::plan::Settings;
use self::resolve::Defaults;
use self::step::LocalStep;
use super::CloudError;
use crate::lease::Fence;
use crate::plan::{
    Effect, Existing, Found, Intent, Listed, Look, Market, Outcome, Placed, Plan, Provider,
    Resolution, first_family,
};

/// The provider.
#[derive(Debug)]
pub struct Local {
    client: Client,
    settings: Settings,
    defaults: Defaults,
}

impl Local {
    /// A provider over a client.
    pub fn new(client: Client, settings: Settings, defaults: impl Into<Defaults>) -> Self {
        Self {
            client,
            settings,
            defaults: defaults.into(),
        }
    }
}

impl Provider for Local {
    type Shard = ServiceKey;
    type Observed = Observed;
    type Step = LocalStep;

    fn name(&self) -> &'static str {
        "local"
    }

    fn shards(&self, service: &ServiceKey) -> Vec<ServiceKey> {
        vec![service.clone()]
    }

    fn services(&self, shard: &ServiceKey) -> Vec<ServiceKey> {
        vec![shard.clone()]
    }

    fn resolve(&self, service: &ServiceSpec, last_good: Option<&LoadBalancerSpec>) -> Resolution {
        resolve::resolve(self.defaults, service, last_good)
    }

    fn agent_check(&self, _service: &ServiceSpec, port: &LoadBalancerPort) -> Option<HealthCheck> {
        (port.mode == TargetMode::Pod).then(resolve::agent_check)
    }

    fn place(
        &self,
        service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        market: &Market,
        book: &mut AddressBook,
    ) -> Placed {
        placing::place(service, spec, market, book)
    }

    /// One group has targets of every family; the load balancer forwards to those of the family that was asked.
    fn target_families(
        &self,
        service: &ServiceSpec,
        _spec: &LoadBalancerSpec,
        addresses: &[IpAddr],
    ) -> Vec<IpFamily> {
        let asked = |family: &IpFamily| addresses.iter().any(|at| IpFamily::of(*at) == *family);
        let families: Vec<IpFamily> = service.families.iter().copied().filter(asked).collect();
        if families.is_empty() {
            return first_family(service);
        }
        families
    }

    fn restore(&self, found: Found<'_>, book: &mut AddressBook) -> Result<(), Holder> {
        placing::restore(found, book)
    }

    fn pool_statuses(
        &self,
        pools: &[AddressPool],
        book: &AddressBook,
    ) -> BTreeMap<String, AddressPoolStatus> {
        Pools::read(pools).statuses(book)
    }

    fn pool_use(
        &self,
        pools: &[AddressPool],
        book: &AddressBook,
    ) -> BTreeMap<IpFamily, (i64, i64)> {
        Pools::read(pools).in_use(book)
    }

    async fn inventory(&self) -> Result<Vec<Existing<ServiceKey>>, CloudError> {
        self.client.inventory().await
    }

    async fn observe(
        &self,
        shard: &ServiceKey,
        look: Look<'_, Observed>,
    ) -> Result<Observed, CloudError> {
        self.client.observe(shard, look).await
    }

    fn target_addresses(&self, seen: &Observed) -> BTreeSet<IpAddr> {
        seen.groups
            .iter()
            .flat_map(|g| g.targets.keys())
            .map(|key| key.address)
            .collect()
    }

    fn plan(
        &self,
        shard: &ServiceKey,
        intents: &[Intent],
        seen: &Observed,
        now: Time,
    ) -> Plan<LocalStep> {
        plan::plan(&self.settings, shard, intents.first(), seen, now)
    }

    async fn execute(&self, step: &LocalStep, fence: &Fence) -> Result<Effect, CloudError> {
        self.client.execute(step, fence).await
    }

    fn next_look(
        &self,
        _shard: &ServiceKey,
        intents: &[Intent],
        seen: &Observed,
        now: Time,
    ) -> Option<Time> {
        wanted::next_look(&self.settings, intents, seen, now)
    }

    fn outcome(&self, intent: &Intent, seen: &Observed, now: Time) -> Outcome {
        outcome::outcome(intent, seen, now)
    }

    fn left_of(&self, _service: &ServiceKey, seen: &Observed) -> BTreeSet<ServiceUid> {
        let balancers = seen.balancers.iter().map(|b| &b.uid);
        balancers
            .chain(seen.groups.iter().map(|g| &g.uid))
            .cloned()
            .collect()
    }

    fn listed(&self, intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
        listed::listed(intent, seen, now)
    }
}
