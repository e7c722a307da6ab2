//! Azure over HTTPS: looks, and carries out steps. Everything that it writes is decided in pure modules.

mod arm;
mod error;
mod holders;
mod locker;
mod measures;
mod store;
mod throttle;
mod token;
mod writer;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::Mutex;

use self::arm::{Arm, Failed, Write};
use self::error::Then;
use self::holders::Turns;
use self::locker::{Last, Locker};
use self::measures::Measures;
use self::store::Store;
use self::token::Tokens;
use self::writer::{Done, Joined, Pile};
use super::balancer;
use super::demands::rules;
use super::document::{etag, name};
use super::model::{Documents, Observed, Rules};
use super::names;
use super::public_ip::{self, address_of, services_of};
use super::rights::{self, Missing, Shown};
use super::settings::{Kind, Settings, Side};
use super::step::AzureStep;
use super::zones;
use crate::cloud::{Class, CloudError, https};
use crate::lease::Fence;
use crate::plan::{Effect, Existing};

pub use token::Credential;

/// Longest time for one request; operations are waited for apart.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a write is planned anew after somebody else was faster (AZ-370).
const TRIES: usize = 5;
/// How long the zones of the region are believed (AZ-175).
const ZONES_FRESH: Duration = Duration::from_mins(30);

/// How to reach Azure.
#[derive(Clone, Debug)]
pub struct Access {
    /// The endpoint of Azure Resource Manager.
    pub endpoint: Url,
    /// Where tokens come from.
    pub authority: Url,
    /// Certificates of authorities beside those of the system, in PEM.
    pub ca: Option<Vec<u8>>,
    /// Who we are.
    pub credential: Credential,
}

/// A client of one subscription.
#[derive(Debug)]
pub struct Client {
    arm: Arm,
    clock: Clock,
    settings: Settings,
    store: Store,
    reading: Mutex<()>,
    balancers: BTreeMap<Kind, Pile<Wish>>,
    rules: BTreeMap<Side, Pile<()>>,
    public_ips: Turns,
    locker: Option<Locker>,
    measures: Measures,
}

/// What a step wants of a load balancer.
#[derive(Clone, Debug)]
enum Wish {
    Part(Box<super::part::Part>, Vec<balancer::PoolChange>),
    Remove(String),
    Members(balancer::PoolChange),
    Drop(String),
}

impl Client {
    /// A client. `caller` names us in the cloud's logs.
    pub fn new(
        access: Access,
        settings: Settings,
        clock: Clock,
        caller: &str,
    ) -> Result<Self, CloudError> {
        // The one that needs to trust somebody says whom: tokens come from there, too.
        let plain = access.endpoint.scheme() == "http";
        let strict = if plain {
            &access.authority
        } else {
            &access.endpoint
        };
        let builder = https::builder(strict, access.ca.as_deref())?
            .user_agent(format!("onehop-controller ({caller})"))
            .timeout(CALL_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT);
        let http = https::build(builder)?;
        let tokens = Tokens::new(
            http.clone(),
            access.authority,
            &access.endpoint,
            access.credential,
            clock,
        );
        Ok(Self {
            arm: Arm::new(http, access.endpoint, tokens, clock),
            clock,
            settings,
            store: Store::default(),
            reading: Mutex::default(),
            balancers: Kind::ALL.map(|kind| (kind, Pile::default())).into(),
            rules: Side::ALL.map(|side| (side, Pile::default())).into(),
            public_ips: Turns::default(),
            locker: None,
            measures: Measures::default(),
        })
    }

    /// With the API server that has the Lease for what AKS writes too (AZ-009).
    #[must_use]
    pub fn with_leases(mut self, kube: kube::Client) -> Self {
        self.locker = Some(Locker::new(kube, self.clock));
        self
    }

    /// With metrics (AZ-471).
    #[must_use]
    pub fn with_metrics(mut self, metrics: &Metrics) -> Self {
        self.measures = Measures::new(metrics);
        self.arm.measured_by(self.measures.clone());
        self.store.measured_by(self.measures.clone());
        self
    }

    /// Carries a write out, under the Lease where AKS writes too (AZ-009).
    async fn under_lease<T>(
        &self,
        id: &str,
        fence: &Fence,
        write: impl Future<Output = T>,
    ) -> Result<T, CloudError> {
        let shared = self.settings.place.is_under_lease(id);
        let Some(locker) = self.locker.as_ref().filter(|_| shared) else {
            return Ok(write.await);
        };
        let fresh = match locker.take(fence).await? {
            Last::Us => Ok(()),
            Last::Other => {
                self.store.doubt();
                self.freshen().await
            }
        };
        let done = match fresh {
            Ok(()) => Ok(write.await),
            Err(error) => Err(error),
        };
        locker.give_back(fence).await;
        done
    }

    /// Brings the rules of the security group up to date where no Service's pass would: somebody may have written old
    /// ones back after the last Service went (AZ-212).
    pub async fn tidy(&self, fence: &Fence) -> Result<(), CloudError> {
        let place = &self.settings.place;
        if Side::ALL.iter().all(|side| place.group(*side).is_none()) {
            return Ok(());
        }
        self.freshen().await?;
        let documents = self.store.documents();
        if rules(&self.settings, &self.store.roster(), &documents) == Rules::Due {
            self.submit_rules(fence).await?;
        }
        Ok(())
    }

    /// Notes a Service before it is looked at.
    pub fn meet(&self, service: &ServiceKey, uid: &ServiceUid) {
        self.store.meet(service, uid);
    }

    /// Notes what a Service asks for, at start: that is no change.
    pub fn wishes(&self, service: &ServiceKey, spec: &LoadBalancerSpec) {
        self.store.wishes(service, spec);
    }

    /// Notes what it asks for from now on.
    pub fn wishes_now(&self, service: &ServiceKey, spec: &LoadBalancerSpec) {
        if self.store.wishes(service, spec) {
            self.store.changed(service, self.clock.now());
        }
    }

    /// Notes that a Service is served as it asks, a healthy member included.
    pub fn served(&self, service: &ServiceKey) {
        if let Some(since) = self.store.served(service) {
            self.measures.served(self.clock.now().since(since));
        }
    }

    /// What was read last.
    pub fn documents(&self) -> Arc<Documents> {
        self.store.documents()
    }

    /// What names its Service: public IPs of this install.
    pub async fn inventory(&self) -> Result<Vec<Existing<ServiceKey>>, CloudError> {
        self.store.doubt();
        self.freshen().await?;
        let documents = self.store.documents();
        let ours = |pip: &&Value| {
            super::document::tag(pip, names::TAG_INSTALL) == Some(self.settings.install.as_str())
        };
        let of = |pip: &Value| {
            let addresses: Vec<_> = address_of(pip).into_iter().collect();
            let services = services_of(pip).into_iter().filter_map(|service| {
                let (namespace, name) = service.split_once('/')?;
                Some(ServiceKey::new(namespace, name))
            });
            let existing = services.map(move |service| Existing {
                shard: service.clone(),
                service,
                uid: ServiceUid::default(),
                addresses: addresses.clone(),
            });
            existing.collect::<Vec<_>>()
        };
        Ok(documents
            .public_ips
            .iter()
            .filter(ours)
            .flat_map(of)
            .collect())
    }

    /// AZ-019: what we may not do, at start and then as long as something is missing. What may not be looked at shows when
    /// it is tried; a look that fails is no answer.
    async fn look_for_rights(&self) -> Result<(), CloudError> {
        let known = self.store.missing();
        if known.as_ref().is_some_and(|missing| missing.is_empty()) {
            return Ok(());
        }
        let mut all = Vec::new();
        for place in rights::places(&self.settings) {
            let shown = self.shown_at(&place.scope).await?;
            all.extend(rights::missing(&place, &shown));
        }
        if known.is_none_or(|known| *known != all) {
            for missing in &all {
                tracing::error!("{}", missing.message());
            }
        }
        self.store.set_missing(all);
        Ok(())
    }

    /// What we may not do, looked up again while something is missing.
    pub async fn missing(&self) -> Arc<Vec<Missing>> {
        if let Err(error) = self.look_for_rights().await {
            tracing::info!(%error, "rights are looked up again later");
        }
        self.store.missing().unwrap_or_default()
    }

    async fn shown_at(&self, scope: &str) -> Result<Shown, CloudError> {
        let list = async |kind: &str| {
            let id = format!("{scope}/providers/Microsoft.Authorization/{kind}");
            match self.arm.list(&id, &format!("list {kind} at {scope}")).await {
                Ok(listed) => Ok(Some(listed)),
                Err(error) if error.class == Class::WrongInput => {
                    tracing::info!(%error, "rights are not checked there");
                    Ok(None)
                }
                Err(error) => Err(error),
            }
        };
        Ok(Shown {
            // Whoever may look has a permission: none at all is no answer.
            permissions: list("permissions").await?.filter(|list| !list.is_empty()),
            denials: list("denyAssignments").await?.unwrap_or_default(),
        })
    }

    /// Looks at one Service.
    pub async fn observe(&self, service: &ServiceKey) -> Result<Observed, CloudError> {
        self.freshen().await?;
        Ok(self.store.look(service))
    }

    /// Reads everything, unless that was done lately; whoever comes meanwhile waits for the same reading.
    async fn freshen(&self) -> Result<(), CloudError> {
        if !self.store.is_stale(self.clock.now()) {
            return Ok(());
        }
        let _reading = self.reading.lock().await;
        if !self.store.is_stale(self.clock.now()) {
            return Ok(());
        }
        self.look_for_rights().await?;
        let version = self.store.version();
        let place = &self.settings.place;
        let list = |kind: &str, group: &str| {
            let id = place.network(group, kind, "");
            id.trim_end_matches('/').to_owned()
        };
        let balancers = self
            .arm
            .list(
                &list("loadBalancers", &place.resource_group),
                "list load balancers",
            )
            .await?;
        let mut groups = self.store.resource_groups();
        groups.retain(|group| !group.eq_ignore_ascii_case(&place.resource_group));
        let mut public_ips = Vec::new();
        for group in groups.iter().chain([&place.resource_group]) {
            public_ips.extend(
                self.arm
                    .list(&list("publicIPAddresses", group), "list public IPs")
                    .await?,
            );
        }
        public_ips.sort_by(|a, b| name(a).cmp(name(b)));
        let security = self.security_group(Side::Nodes).await?;
        let pod_security = self.security_group(Side::Pods).await?;
        let of = |kind: Kind| {
            let wanted = place.balancer(kind);
            let found = balancers
                .iter()
                .find(|balancer| name(balancer).eq_ignore_ascii_case(&wanted));
            Some((kind, found?.clone()))
        };
        let balancers = Kind::ALL.into_iter().filter_map(of).collect();
        let documents = Documents {
            balancers,
            public_ips,
            security,
            pod_security,
            zones: self.zones().await?,
        };
        self.store.replace(documents, version, self.clock.now());
        Ok(())
    }

    /// AZ-175. Who may not read them leaves them to Azure.
    async fn zones(&self) -> Result<Vec<String>, CloudError> {
        let place = &self.settings.place;
        if place.edge_zone.is_some() {
            return Ok(Vec::new());
        }
        let now = self.clock.now();
        let known = self.store.zones();
        if let Some((zones, at)) = &known
            && now.since(*at) < ZONES_FRESH
        {
            return Ok(zones.clone());
        }
        let tried = "read the zones of the region";
        let read = self.arm.get(&place.provider_id(), tried).await;
        let zones = match (read, known) {
            (Ok(provider), _) => zones::of_region(&provider.unwrap_or_default(), &place.location),
            (Err(error), _) if error.class == Class::WrongInput => {
                tracing::warn!(%error, "new addresses are made without zones, in those that Azure chooses");
                Vec::new()
            }
            (Err(_), Some((zones, _))) => zones,
            (Err(error), None) => return Err(error),
        };
        self.store.set_zones(zones.clone(), now);
        Ok(zones)
    }

    async fn security_group(&self, side: Side) -> Result<Option<Value>, CloudError> {
        let place = &self.settings.place;
        let Some(group) = place.group(side) else {
            return Ok(None);
        };
        let id = place.security_group_id(group);
        self.arm.get(&id, "read the security group").await
    }

    /// Carries out one step, together with what others want of the same document.
    pub async fn execute(&self, step: &AzureStep, fence: &Fence) -> Done {
        let tried = step.to_string();
        match step {
            AzureStep::PutPublicIp { id, document } => {
                let write = self.put_public_ip(id, Some(document), &tried, fence);
                self.under_lease(id, fence, write).await.flatten()
            }
            AzureStep::DeletePublicIp { id } => {
                let write = self.put_public_ip(id, None, &tried, fence);
                self.under_lease(id, fence, write).await.flatten()
            }
            AzureStep::PutPart { part, members, .. } => {
                self.submit(part.kind, Wish::Part(part.clone(), members.clone()), fence)
                    .await
            }
            AzureStep::RemovePart { kind, base, .. } => {
                self.submit(*kind, Wish::Remove(base.clone()), fence).await
            }
            AzureStep::ChangeMembers { kind, change } => {
                self.submit(*kind, Wish::Members(change.clone()), fence)
                    .await
            }
            AzureStep::DropPool { kind, pool } => {
                self.submit(*kind, Wish::Drop(pool.clone()), fence).await
            }
            AzureStep::PutRules { .. } => self.submit_rules(fence).await,
            AzureStep::ReleaseRules { service, .. } => {
                self.store.wishes_nothing(service);
                self.submit_rules(fence).await
            }
        }
    }

    /// A public IP has a document of its own. Its `ETag` is another one each time that a frontend takes it or lets it go
    /// (AZ-367): that alone is no reason to plan anew.
    async fn put_public_ip(
        &self,
        id: &str,
        document: Option<&Value>,
        tried: &str,
        fence: &Fence,
    ) -> Done {
        let _turn = self.public_ips.of(id).await;
        let planned_from = document.and_then(etag);
        let known = self.store.public_ip(id);
        // Nor is one made anew over one that has come meanwhile: what is in that would be lost.
        if document.is_some() && planned_from != known.as_ref().and_then(etag) {
            let answer = "it was read again since this was planned";
            return Err(CloudError::new(Class::Conflict, tried, answer));
        }
        for _ in 0..TRIES {
            let known = self.store.public_ip(id);
            let guard = known.as_ref().filter(|_| document.is_some());
            let write = Write {
                id,
                body: document,
                etag: guard.and_then(etag),
                tried,
            };
            let written = self.arm.write(&write, fence).await;
            // Also after an answer that was lost: what came of it is read, not guessed (AZ-409).
            let there = match self.arm.get(id, tried).await {
                Ok(there) => there,
                Err(error) if written.is_ok() => return Err(error),
                Err(_) => {
                    self.store.doubt();
                    None
                }
            };
            let same = public_ip::is_same(known.as_ref(), there.as_ref());
            self.store.set_public_ip(id, there, self.clock.now());
            match written {
                Ok(()) => return Ok(Effect::Changed),
                Err(Failed::Refused(refused)) if refused.then() == Then::ReadAgain && same => {}
                Err(failed) => return Err(failed.error(tried)),
            }
        }
        Err(faster(tried))
    }

    async fn submit(&self, kind: Kind, wish: Wish, fence: &Fence) -> Done {
        let Some(pile) = self.balancers.get(&kind) else {
            return Ok(Effect::AlreadySo);
        };
        match pile.join(wish).await {
            Joined::Answered(done) => done,
            Joined::Turn(turn) => {
                let id = self.settings.place.balancer_id(kind);
                let write = self.write_balancer(kind, &turn.requests, fence);
                let done = self.under_lease(&id, fence, write).await;
                let all = turn.requests.len();
                turn.finish(done.unwrap_or_else(|error| vec![Err(error); all]))
            }
        }
    }

    /// Of every security group; each has a writer of its own (AZ-216).
    async fn submit_rules(&self, fence: &Fence) -> Done {
        let mut done = Effect::AlreadySo;
        for side in Side::ALL {
            if self.submit_rules_of(side, fence).await? == Effect::Changed {
                done = Effect::Changed;
            }
        }
        Ok(done)
    }

    async fn submit_rules_of(&self, side: Side, fence: &Fence) -> Done {
        let place = &self.settings.place;
        let (Some(group), Some(pile)) = (place.group(side), self.rules.get(&side)) else {
            return Ok(Effect::AlreadySo);
        };
        match pile.join(()).await {
            Joined::Answered(done) => done,
            Joined::Turn(turn) => {
                let id = place.security_group_id(group);
                let write = self.write_rules(side, fence);
                let done = self.under_lease(&id, fence, write);
                let done = vec![done.await.flatten(); turn.requests.len()];
                turn.finish(done)
            }
        }
    }
}

fn faster(tried: &str) -> CloudError {
    let answer = format!("somebody else was faster {TRIES} times");
    CloudError::new(Class::Conflict, tried, answer)
}
