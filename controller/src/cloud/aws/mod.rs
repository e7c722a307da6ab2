//! Provider `aws`: Network Load Balancers (spec page AWS).
//!
//! A shard is one Service. Everything is decided in pure modules (`annotations`, `resolve`, `stack`,
//! `plan`); `client` talks to `ELBv2` and EC2 and decides nothing.

pub mod annotations;
pub mod attributes;
pub mod client;
mod health;
pub mod interfaces;
mod listed;
pub mod model;
pub mod names;
mod outcome;
pub mod plan;
pub mod resolve;
pub mod rules;
pub mod settings;
pub mod stack;
pub mod step;
mod takeover;
mod tenants;
#[cfg(test)]
mod testkit;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use onehop_core::crd::{HealthCheck, LoadBalancerPort, LoadBalancerSpec, MembershipPolicy};
use onehop_core::id::{Cidr, IpFamily, PortKey, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

pub use self::takeover::FINALIZER as PEER_FINALIZER;

use self::client::Client;
use self::model::{Observed, Tagged};
use self::rules::RuleBook;
use self::settings::{LocalNodes, PeerServices, Settings};
use self::step::AwsStep;
use self::takeover::Situation;
use super::{AddressBook, CloudError, Holder};
use crate::lease::Fence;
use crate::plan::custody::{Custody, Release};
use crate::plan::{
    Effect, Existing, Found, Giver, Intent, Listed, Look, Machine, Market, MissingRight, Outcome,
    Placed, Plan, Provider, Resolution,
};

/// The provider.
#[derive(Debug)]
pub struct Aws {
    client: Client,
    settings: Settings,
    rules: Mutex<RuleBook>,
}

impl Aws {
    /// A provider over a client.
    pub fn new(client: Client, settings: Settings) -> Self {
        Self {
            client,
            settings,
            rules: Mutex::default(),
        }
    }
}

impl Provider for Aws {
    type Shard = ServiceKey;
    type Observed = Observed;
    type Step = AwsStep;

    fn name(&self) -> &'static str {
        "aws"
    }

    fn shards(&self, service: &ServiceKey) -> Vec<ServiceKey> {
        vec![service.clone()]
    }

    fn services(&self, shard: &ServiceKey) -> Vec<ServiceKey> {
        vec![shard.clone()]
    }

    fn resolve(&self, service: &ServiceSpec, last_good: Option<&LoadBalancerSpec>) -> Resolution {
        resolve::resolve(&self.settings, service, last_good)
    }

    fn agent_check(&self, service: &ServiceSpec, port: &LoadBalancerPort) -> Option<HealthCheck> {
        health::agent_check(service, port)
    }

    fn place(
        &self,
        _service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        market: &Market,
        _book: &mut AddressBook,
    ) -> Placed {
        Placed {
            giver: Giver::Cloud,
            refusal: tenants::forbidden(&market.policy, &self.settings, spec),
            ..Placed::default()
        }
    }

    fn restore(&self, _found: Found<'_>, _book: &mut AddressBook) -> Result<(), Holder> {
        // Addresses are the cloud's.
        Ok(())
    }

    async fn missing_rights(&self) -> Vec<MissingRight> {
        self.client.missing_rights().await
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

    fn target_families(
        &self,
        _service: &ServiceSpec,
        spec: &LoadBalancerSpec,
        _addresses: &[IpAddr],
    ) -> Vec<IpFamily> {
        vec![resolve::target_family(&self.settings, spec)]
    }

    fn is_unfit(&self, spec: &LoadBalancerSpec, machine: &Machine) -> bool {
        resolve::is_unfit(&self.settings, spec, machine)
    }

    fn waits_for_local_endpoints(&self, spec: &LoadBalancerSpec) -> bool {
        spec.membership.policy == MembershipPolicy::ZeroDrop
            && self.settings.local_nodes == LocalNodes::WithEndpoints
    }

    fn target_addresses(&self, seen: &Observed) -> BTreeSet<IpAddr> {
        seen.target_addresses()
    }

    fn plan(
        &self,
        shard: &ServiceKey,
        intents: &[Intent],
        seen: &Observed,
        now: Time,
    ) -> Plan<AwsStep> {
        let intent = intents.first();
        let rules = match intent.map(|intent| wanted::stack(&self.settings, intent, seen)) {
            None => Some(BTreeSet::new()),
            Some(Ok(stack)) => Some(wanted::target_rules(&self.settings, &stack, seen)),
            // Those that it had are needed on.
            Some(Err(_)) => None,
        };
        if let Some(rules) = rules {
            // No critical section can panic half-way.
            let mut book = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            book.note(shard, rules);
        }
        plan::plan(&self.settings, shard, intent, seen, now)
    }

    async fn tidy(&self, fence: &Fence) -> Result<(), CloudError> {
        Box::pin(self.client.revoke_surplus(&self.rules, fence)).await
    }

    fn their_finalizer(&self) -> Option<&'static str> {
        Some(takeover::FINALIZER)
    }

    fn their_name(&self) -> &'static str {
        takeover::NAME
    }

    fn they_bind(&self) -> bool {
        true
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
    ) -> Custody<AwsStep> {
        let of = Situation {
            settings: &self.settings,
            service,
            intent,
            seen,
            now,
        };
        takeover::custody(of, release)
    }

    fn disown(&self, shard: &ServiceKey, seen: &Observed) -> Plan<AwsStep> {
        takeover::disown(shard, seen)
    }

    fn distrust_members(&self, shard: &ServiceKey) {
        self.client.distrust_targets(shard);
    }

    fn supersede(&self, shard: &ServiceKey, plan: &Plan<AwsStep>) {
        self.client.supersede(shard, plan);
    }

    async fn execute(&self, step: &AwsStep, fence: &Fence) -> Result<Effect, CloudError> {
        Box::pin(self.client.execute(step, fence)).await
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
        // What the peer has is told as if it were ours already.
        let seen = takeover::view(&self.settings, intent, seen);
        outcome::outcome(&self.settings, intent, &seen, now)
    }

    fn left_of(&self, _service: &ServiceKey, seen: &Observed) -> BTreeSet<ServiceUid> {
        let balancers = seen.balancers.iter().filter_map(Tagged::uid);
        let groups = seen.groups.iter().filter_map(Tagged::uid);
        let security = seen.security_groups.iter().filter_map(Tagged::uid);
        balancers.chain(groups).chain(security).collect()
    }

    fn sources(&self, intent: &Intent, seen: &Observed) -> BTreeMap<PortKey, Vec<Cidr>> {
        listed::sources(&self.settings, intent, seen)
    }

    fn is_full(&self, intent: &Intent, port: &PortKey, seen: &Observed) -> bool {
        listed::is_full(self.settings.max_targets, intent, port, seen)
    }

    fn peer_gates(&self, intent: &Intent, seen: &Observed) -> BTreeMap<String, PortKey> {
        listed::peer_gates(intent, seen)
    }

    fn peer_gate_stem(&self, service: &ServiceKey) -> Option<String> {
        (self.settings.take_over.peer == PeerServices::Off).then(|| listed::peer_gate_stem(service))
    }

    fn listed(&self, intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
        listed::listed(intent, seen, now)
    }
}
