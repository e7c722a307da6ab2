//! Writes of the documents that all Services share: everything that waits in one, planned anew where somebody else was
//! faster (AZ-101, AZ-366, AZ-370).

use serde_json::Value;

use super::arm::{Failed, Write};
use super::error::{Refused, Then};
use super::holders::handed;
use super::writer::Done;
use super::{Client, TRIES, Wish, faster};
use crate::cloud::azure::balancer::{self, Changes, apply, is_empty, is_ours, may_go};
use crate::cloud::azure::demands::{demands, of_side};
use crate::cloud::azure::document::{POOLS, children, children_mut, etag, last_of_id, name};
use crate::cloud::azure::security;
use crate::cloud::azure::settings::{Kind, Side};
use crate::cloud::{Class, CloudError};
use crate::lease::Fence;
use crate::plan::Effect;

/// So many changed pools are written one by one rather than as one load balancer.
const POOLS_AT_MOST: usize = 4;

/// How much of a difference was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// All of it, with the whole document.
    Whole,
    /// All of it, pool by pool.
    Pools,
    /// The first of several pools.
    FirstPool,
}

impl Client {
    /// One write for all wishes; where that is refused for what it says, one for each, so that a bad one does not hold up
    /// the others (AZ-107).
    pub(super) async fn write_balancer(
        &self,
        kind: Kind,
        wishes: &[Wish],
        fence: &Fence,
    ) -> Vec<Done> {
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
        let mut changes = gather(wishes);
        changes.six = self.store.documents().ipv6();
        let (mut mended, mut wrote) = (false, Effect::AlreadySo);
        // Each pool at most once, beside the tries.
        for _ in 0..TRIES + POOLS_AT_MOST {
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
            let touched = handed(old.as_ref(), Some(&new));
            let turns = self.public_ips.of_all(&touched).await;
            let written = self
                .write_difference(&id, old.as_ref(), &new, (&tried, fence))
                .await;
            match self.arm.get(&id, &tried).await {
                Ok(there) => {
                    let really = handed(old.as_ref(), there.as_ref());
                    self.store.set_balancer(kind, there, self.clock.now());
                    self.read_again(&touched.intersection(&really).cloned().collect())
                        .await;
                }
                Err(error) => {
                    self.store.doubt();
                    self.freshen().await.map_err(|_| error)?;
                }
            }
            drop(turns);
            match written {
                Ok(Written::Whole) => {
                    let services = changes.parts.len() + changes.removed.len();
                    self.measures.together(services);
                    return Ok(Effect::Changed);
                }
                Ok(Written::Pools) => return Ok(Effect::Changed),
                Ok(Written::FirstPool) => wrote = Effect::Changed,
                Err(Failed::Refused(refused)) if refused.then() == Then::ReadAgain => {
                    tracing::info!(%tried, "somebody else was faster, planning anew");
                }
                Err(Failed::Refused(refused)) if !mended && refused.is_unprovisioned() => {
                    mended = true;
                    self.write_as_they_are(&refused, (&tried, fence)).await?;
                }
                Err(failed) => return Err(failed.error(&tried)),
            }
        }
        Err(unsettled(&tried))
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
        if is_empty(new) && old.is_none_or(|old| may_go(old, &self.settings)) {
            let write = Write {
                id,
                body: None,
                etag: None,
                tried,
            };
            self.arm.write(&write, fence).await?;
            return Ok(Written::Whole);
        }
        if let Some(pools) = old.and_then(|old| only_pools(old, new))
            && pools.len() <= POOLS_AT_MOST
        {
            let Some((pool, rest)) = pools.split_first() else {
                return Ok(Written::Pools);
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
                Written::Pools
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
        Ok(Written::Whole)
    }

    pub(super) async fn write_rules(&self, side: Side, fence: &Fence) -> Done {
        let Some(group) = self.settings.place.group(side) else {
            return Ok(Effect::AlreadySo);
        };
        let id = self.settings.place.security_group_id(group);
        let tried = format!("write security group {}", group.name);
        for _ in 0..TRIES {
            let documents = self.store.documents();
            let Some(old) = documents.group(side) else {
                return Err(CloudError::new(
                    Class::NotFound,
                    tried,
                    "there is no such security group",
                ));
            };
            let demands = demands(&self.settings, &self.store.roster(), &documents);
            let new = security::desired(&self.settings, old, &of_side(&demands, side))
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
                Ok(there) => self.store.set_security(side, there, self.clock.now()),
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

/// Neither the tries nor the pools have an end: somebody writes all the time, or gives back something else than was written.
fn unsettled(tried: &str) -> CloudError {
    let answer = "it was another one after each of our writes";
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
        children_mut(&mut document, POOLS).clear();
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
