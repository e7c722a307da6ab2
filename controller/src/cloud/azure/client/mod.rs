//! Azure over HTTPS: looks, and carries out steps. Everything that it writes is decided in pure modules.

mod arm;
mod error;
mod store;
mod throttle;
mod token;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::LoadBalancerSpec;
use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_runtime::clock::Clock;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::Mutex;

use self::arm::{Arm, Failed, Write};
use self::error::{Refused, Then};
use self::store::Store;
use self::token::Tokens;
use self::writer::{Done, Joined, Pile};
use super::balancer::{self, Changes, apply, is_empty, is_ours};
use super::document::{POOLS, children, etag, last_of_id, name};
use super::model::{Documents, Observed, demands};
use super::names;
use super::public_ip::{self, address_of, services_of};
use super::rights::{self, Shown};
use super::security;
use super::settings::{Kind, Settings};
use super::step::AzureStep;
use crate::cloud::{Class, CloudError, https};
use crate::lease::Fence;
use crate::plan::{Effect, Existing};

pub use token::Credential;

/// Longest time for one request; operations are waited for apart.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a write is planned anew after somebody else was faster (AZ-370).
const TRIES: usize = 5;
/// So many changed pools are written as one load balancer rather than one by one.
const POOLS_AT_MOST: usize = 4;

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
    rules: Pile<()>,
}

/// What a step wants of a load balancer.
#[derive(Clone, Debug)]
enum Wish {
    Part(Box<super::part::Part>, Vec<balancer::PoolChange>),
    Remove(String),
    Members(balancer::PoolChange),
    Drop(String),
}

/// How much of a difference was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// All of it.
    All,
    /// The first of several pools.
    FirstPool,
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
            rules: Pile::default(),
        })
    }

    /// Notes a Service before it is looked at.
    pub fn meet(&self, service: &ServiceKey, uid: &ServiceUid) {
        self.store.meet(service, uid);
    }

    /// Notes what a Service asks for.
    pub fn wishes(&self, service: &ServiceKey, spec: &LoadBalancerSpec) {
        self.store.wishes(service, spec);
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

    /// AZ-019: what we may not do, at start and then as long as something is missing. What cannot be found out shows when
    /// it is tried.
    async fn look_for_rights(&self) {
        let known = self.store.missing();
        if known.as_ref().is_some_and(|missing| missing.is_empty()) {
            return;
        }
        let mut all = Vec::new();
        for place in rights::places(&self.settings) {
            let shown = self.shown_at(&place.scope).await;
            all.extend(rights::missing(&place, &shown));
        }
        if known.is_none_or(|known| *known != all) {
            for missing in &all {
                tracing::error!("{}", missing.message());
            }
        }
        self.store.set_missing(all);
    }

    async fn shown_at(&self, scope: &str) -> Shown {
        let list = async |kind: &str| {
            let id = format!("{scope}/providers/Microsoft.Authorization/{kind}");
            let listed = self.arm.list(&id, &format!("list {kind} at {scope}")).await;
            if let Err(error) = &listed {
                tracing::info!(%error, "rights are not checked there");
            }
            listed.ok()
        };
        Shown {
            // Whoever may look has a permission: none at all is no answer.
            permissions: list("permissions").await.filter(|list| !list.is_empty()),
            denials: list("denyAssignments").await.unwrap_or_default(),
        }
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
        self.look_for_rights().await;
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
        let security = match &place.security_group {
            Some(group) => {
                self.arm
                    .get(&place.security_group_id(group), "read the security group")
                    .await?
            }
            None => None,
        };
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
        };
        self.store.replace(documents, version, self.clock.now());
        Ok(())
    }

    /// Carries out one step, together with what others want of the same document.
    pub async fn execute(&self, step: &AzureStep, fence: &Fence) -> Done {
        let tried = step.to_string();
        match step {
            AzureStep::PutPublicIp { id, document } => {
                self.put_public_ip(id, Some(document), &tried, fence).await
            }
            AzureStep::DeletePublicIp { id } => self.put_public_ip(id, None, &tried, fence).await,
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
                let done = self.write_balancer(kind, &turn.requests, fence).await;
                turn.finish(done)
            }
        }
    }

    async fn submit_rules(&self, fence: &Fence) -> Done {
        match self.rules.join(()).await {
            Joined::Answered(done) => done,
            Joined::Turn(turn) => {
                let done = vec![self.write_rules(fence).await; turn.requests.len()];
                turn.finish(done)
            }
        }
    }

    /// One write for all wishes; where that is refused for what it says, one for each, so that a bad one does not hold up
    /// the others (AZ-107).
    async fn write_balancer(&self, kind: Kind, wishes: &[Wish], fence: &Fence) -> Vec<Done> {
        let all: Vec<&Wish> = wishes.iter().collect();
        let together = self.write_once(kind, &all, fence).await;
        match &together {
            Err(error)
                if wishes.len() > 1
                    && matches!(error.class, Class::WrongInput | Class::InUse | Class::Quota) =>
            {
                tracing::warn!(%error, wishes = wishes.len(), "refused together, trying one by one");
                let mut each = Vec::new();
                for wish in wishes {
                    each.push(self.write_once(kind, &[wish], fence).await);
                }
                each
            }
            _ => vec![together; wishes.len()],
        }
    }

    async fn write_once(&self, kind: Kind, wishes: &[&Wish], fence: &Fence) -> Done {
        let place = &self.settings.place;
        let id = place.balancer_id(kind);
        let tried = format!("write load balancer {}", place.balancer(kind));
        let changes = gather(wishes);
        let (mut tries, mut mended, mut wrote) = (0, false, Effect::AlreadySo);
        while tries < TRIES {
            let old = self.store.documents().balancers.get(&kind).cloned();
            if old
                .as_ref()
                .is_some_and(|old| !is_ours(old, &self.settings))
            {
                let answer = "it has no tag of this install, so it is somebody else's";
                return Err(CloudError::new(Class::WrongInput, tried, answer));
            }
            let mut new = old.clone().unwrap_or_else(|| balancer::new(&self.settings));
            apply(&mut new, &self.settings, &changes);
            if old.as_ref() == Some(&new) || (old.is_none() && is_empty(&new)) {
                return Ok(wrote);
            }
            let written = self
                .write_difference(&id, old.as_ref(), &new, (&tried, fence))
                .await;
            match self.arm.get(&id, &tried).await {
                Ok(there) => self.store.set_balancer(kind, there, self.clock.now()),
                Err(error) => {
                    self.store.doubt();
                    self.freshen().await.map_err(|_| error)?;
                }
            }
            match written {
                Ok(Written::All) => return Ok(Effect::Changed),
                Ok(Written::FirstPool) => wrote = Effect::Changed,
                Err(Failed::Refused(refused)) if refused.then() == Then::ReadAgain => {
                    tries += 1;
                    tracing::info!(%tried, "somebody else was faster, planning anew");
                }
                Err(Failed::Refused(refused)) if !mended && refused.is_unprovisioned() => {
                    mended = true;
                    self.write_as_they_are(&refused, (&tried, fence)).await?;
                }
                Err(failed) => return Err(failed.error(&tried)),
            }
        }
        Err(faster(&tried))
    }

    /// AZ-184: public IPs whose last operation failed hold up every load balancer that uses them, until they are written
    /// once more as they are.
    async fn write_as_they_are(
        &self,
        refused: &Refused,
        (tried, fence): (&str, &Fence),
    ) -> Result<(), CloudError> {
        let unwell = refused.public_ips();
        if unwell.is_empty() {
            return Err(refused.error(tried));
        }
        for id in unwell {
            let tried = format!("write public IP {} as it is", last_of_id(&id));
            let there = self.arm.get(&id, &tried).await?;
            let write = Write {
                id: &id,
                body: there.as_ref(),
                etag: there.as_ref().and_then(etag),
                tried: &tried,
            };
            // Gone: then the load balancer must not name it, which the next plan finds out.
            if there.is_some() {
                let written = self.arm.write(&write, fence).await;
                written.map_err(|failed| failed.error(&tried))?;
                let there = self.arm.get(&id, &tried).await?;
                self.store.set_public_ip(&id, there, self.clock.now());
            }
        }
        Ok(())
    }

    /// The whole document, or only the pools where nothing else differs (AZ-106); a load balancer without frontends goes
    /// (AZ-082).
    async fn write_difference(
        &self,
        id: &str,
        old: Option<&Value>,
        new: &Value,
        (tried, fence): (&str, &Fence),
    ) -> Result<Written, Failed> {
        if is_empty(new) {
            let write = Write {
                id,
                body: None,
                etag: None,
                tried,
            };
            self.arm.write(&write, fence).await?;
            return Ok(Written::All);
        }
        if let Some(pools) = old.and_then(|old| only_pools(old, new))
            && pools.len() <= POOLS_AT_MOST
        {
            let Some((pool, rest)) = pools.split_first() else {
                return Ok(Written::All);
            };
            let write = Write {
                id: &format!("{id}/{POOLS}/{}", name(pool)),
                body: Some(pool),
                etag: etag(pool),
                tried,
            };
            self.arm.write(&write, fence).await?;
            // The others have another `ETag` now (AZ-106, AZ-367).
            return Ok(if rest.is_empty() {
                Written::All
            } else {
                Written::FirstPool
            });
        }
        let write = Write {
            id,
            body: Some(new),
            etag: old.and_then(etag),
            tried,
        };
        self.arm.write(&write, fence).await?;
        Ok(Written::All)
    }

    async fn write_rules(&self, fence: &Fence) -> Done {
        let Some(group) = &self.settings.place.security_group else {
            return Ok(Effect::AlreadySo);
        };
        let id = self.settings.place.security_group_id(group);
        let tried = format!("write security group {}", group.name);
        for _ in 0..TRIES {
            let documents = self.store.documents();
            let Some(old) = &documents.security else {
                return Err(CloudError::new(
                    Class::NotFound,
                    tried,
                    "there is no such security group",
                ));
            };
            let demands = demands(&self.settings, &self.store.roster(), &documents);
            let new = security::desired(&self.settings, old, &demands)
                .map_err(|why| CloudError::new(Class::Quota, &tried, why.message))?;
            if !security::differs(&new, old) {
                return Ok(Effect::AlreadySo);
            }
            let write = Write {
                id: &id,
                body: Some(&new),
                etag: etag(old),
                tried: &tried,
            };
            let written = self.arm.write(&write, fence).await;
            match self.arm.get(&id, &tried).await {
                Ok(there) => self.store.set_security(there, self.clock.now()),
                Err(error) if written.is_ok() => return Err(error),
                Err(_) => self.store.doubt(),
            }
            match written {
                Ok(()) => return Ok(Effect::Changed),
                Err(Failed::Refused(refused)) if refused.then() == Then::ReadAgain => {}
                Err(failed) => return Err(failed.error(&tried)),
            }
        }
        Err(faster(&tried))
    }
}

fn faster(tried: &str) -> CloudError {
    let answer = format!("somebody else was faster {TRIES} times");
    CloudError::new(Class::Conflict, tried, answer)
}

/// All wishes as changes of one document.
fn gather(wishes: &[&Wish]) -> Changes {
    let mut changes = Changes::default();
    for wish in wishes {
        match wish {
            Wish::Part(part, members) => {
                changes.parts.push(Box::as_ref(part).clone());
                changes.members.extend(members.iter().cloned());
            }
            Wish::Remove(base) => drop(changes.removed.insert(base.clone())),
            Wish::Members(change) => changes.members.push(change.clone()),
            Wish::Drop(pool) => drop(changes.pools.insert(pool.clone())),
        }
    }
    changes
}

/// The pools that differ, if nothing else does and each was there before.
fn only_pools<'a>(old: &Value, new: &'a Value) -> Option<Vec<&'a Value>> {
    let without = |document: &Value| {
        let mut document = document.clone();
        super::document::children_mut(&mut document, POOLS).clear();
        document
    };
    let (before, after) = (children(old, POOLS), children(new, POOLS));
    let fewer = before
        .iter()
        .any(|pool| !after.iter().any(|other| name(other) == name(pool)));
    if fewer || without(old) != without(new) {
        return None;
    }
    Some(after.iter().filter(|pool| !before.contains(pool)).collect())
}
