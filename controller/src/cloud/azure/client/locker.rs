//! The Lease under which everybody writes AKS's node resource group (AZ-009): its resource provider, cloud-provider-azure
//! and we. Taken before the first of our writes there, and given back after the last.
//!
//! Held by all writes of this process together, but never for long: others must have their turn.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::Mutex;

use crate::cloud::{Class, CloudError};
use crate::lease::Fence;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "aks-managed-resource-locker";
/// Who we are in it.
const HOLDER: &str = "onehop";
/// Where it is said who had it last.
const PREVIOUS: &str = "aks-managed-resource-locker-previous-holder";
/// For how long it is taken, in seconds.
const DURATION: i32 = 900;
/// So long later writes join earlier ones.
const TOGETHER: Duration = Duration::from_secs(30);
/// When to ask again while somebody else has it.
const AGAIN: Duration = Duration::from_secs(5);

/// The Lease, as this process has it.
pub(super) struct Locker {
    leases: Api<Lease>,
    clock: Clock,
    state: Mutex<State>,
}

impl std::fmt::Debug for Locker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locker")
    }
}

#[derive(Debug, Default)]
struct State {
    /// Writes under way.
    writes: usize,
    /// Since when it is ours.
    since: Option<Time>,
    /// Another holder's Lease by its version, and since when it is seen so.
    rival: Option<(String, Time)>,
}

/// Who wrote last before us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// We did: what was read is true.
    Us,
    /// Perhaps somebody else: what was read may be old.
    Other,
}

/// How a Lease stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// It can be taken.
    Free(Last),
    /// This one has it.
    Held(String),
}

/// Whether it can be taken: also from a holder that has not renewed it for as long as it said, by our own clock.
fn standing(lease: &Lease, rival_since: Option<Time>, now: Time) -> Standing {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    match holder.filter(|holder| !holder.is_empty()) {
        // Nobody else could write since.
        Some(HOLDER) => Standing::Free(Last::Us),
        None => {
            let notes = lease.metadata.annotations.as_ref();
            let last = notes.and_then(|notes| notes.get(PREVIOUS));
            let us = last.is_some_and(|last| last == HOLDER);
            Standing::Free(if us { Last::Us } else { Last::Other })
        }
        Some(other) => {
            let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
            let seconds = u64::try_from(seconds.unwrap_or(DURATION)).unwrap_or_default();
            let over = |since: Time| now.since(since) >= Duration::from_secs(seconds);
            if rival_since.is_some_and(over) {
                Standing::Free(Last::Other)
            } else {
                Standing::Held(other.to_owned())
            }
        }
    }
}

impl Locker {
    pub(super) fn new(client: Client, clock: Clock) -> Self {
        Self {
            leases: Api::namespaced(client, NAMESPACE),
            clock,
            state: Mutex::default(),
        }
    }

    /// Takes it for one write. Each is given back by [`Self::give_back`].
    pub(super) async fn take(&self, fence: &Fence) -> Result<Last, CloudError> {
        let mut state = self.state.lock().await;
        let now = self.clock.now();
        if state.writes > 0 {
            if state
                .since
                .is_some_and(|since| now.since(since) >= TOGETHER)
            {
                let answer = "it was ours for a while: others have their turn";
                return Err(later(answer, Duration::from_secs(1)));
            }
            state.writes += 1;
            return Ok(Last::Us);
        }
        let last = self.acquire(&mut state.rival, fence).await?;
        state.writes = 1;
        state.since = Some(now);
        Ok(last)
    }

    async fn acquire(
        &self,
        rival: &mut Option<(String, Time)>,
        fence: &Fence,
    ) -> Result<Last, CloudError> {
        let (now, params) = (self.clock.now(), PostParams::default());
        let Some(mut lease) = self.leases.get_opt(NAME).await.map_err(|e| failed(&e))? else {
            let mut lease = Lease {
                metadata: ObjectMeta {
                    name: Some(NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: None,
            };
            hold(&mut lease, Some(HOLDER), now);
            let create = self.leases.create(&params, &lease);
            fenced(fence.call(create).await)?;
            return Ok(Last::Other);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = rival
            .as_ref()
            .filter(|(seen, _)| *seen == version)
            .map(|(_, since)| *since);
        match standing(&lease, since, now) {
            Standing::Held(by) => {
                *rival = Some((version, since.unwrap_or(now)));
                let answer = format!("{by} has it: what is in the node resource group waits");
                Err(later(&answer, AGAIN))
            }
            Standing::Free(last) => {
                *rival = None;
                hold(&mut lease, Some(HOLDER), now);
                let replace = self.leases.replace(NAME, &params, &lease);
                fenced(fence.call(replace).await)?;
                Ok(last)
            }
        }
    }

    /// Gives it back after the last write. What fails here is ours still, and found so next time.
    pub(super) async fn give_back(&self, fence: &Fence) {
        let mut state = self.state.lock().await;
        state.writes = state.writes.saturating_sub(1);
        if state.writes > 0 {
            return;
        }
        state.since = None;
        if let Err(error) = self.release(fence).await {
            tracing::warn!(%error, "the Lease of the node resource group is not given back yet");
        }
    }

    async fn release(&self, fence: &Fence) -> Result<(), CloudError> {
        let params = PostParams::default();
        let found = self.leases.get_opt(NAME).await.map_err(|e| failed(&e))?;
        let is_ours = |lease: &Lease| {
            let holder = lease.spec.as_ref()?.holder_identity.clone()?;
            Some(holder == HOLDER)
        };
        let Some(mut lease) = found.filter(|lease| is_ours(lease) == Some(true)) else {
            return Ok(());
        };
        hold(&mut lease, None, self.clock.now());
        let notes = lease.metadata.annotations.get_or_insert_default();
        notes.insert(PREVIOUS.to_owned(), HOLDER.to_owned());
        let replace = self.leases.replace(NAME, &params, &lease);
        fenced(fence.call(replace).await)
    }
}

/// Writes who has it.
fn hold(lease: &mut Lease, holder: Option<&str>, now: Time) {
    let at = Timestamp::from_millisecond(now.as_millis())
        .ok()
        .map(MicroTime);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if holder.is_some() {
        spec.acquire_time.clone_from(&at);
        spec.lease_duration_seconds = Some(DURATION);
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
    }
    spec.renew_time = at;
    spec.holder_identity = holder.map(str::to_owned);
}

const TRIED: &str = "take the Lease kube-system/aks-managed-resource-locker";

fn later(answer: &str, after: Duration) -> CloudError {
    CloudError {
        retry_after: Some(after),
        ..CloudError::new(Class::Conflict, TRIED, answer)
    }
}

fn failed(error: &kube::Error) -> CloudError {
    let conflict = matches!(error, kube::Error::Api(status) if status.code == 409);
    let class = if conflict {
        Class::Conflict
    } else {
        Class::Transient
    };
    CloudError::new(class, TRIED, error.to_string())
}

fn fenced<T>(
    answered: Result<Result<T, kube::Error>, crate::lease::Unanswered>,
) -> Result<(), CloudError> {
    let answer = answered.map_err(|unanswered| CloudError::unanswered(TRIED, unanswered))?;
    answer.map(drop).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: Option<&str>, previous: Option<&str>) -> Lease {
        let mut lease = Lease::default();
        hold(&mut lease, holder, Time::from_millis(0));
        let notes = previous.map(|last| [(PREVIOUS.to_owned(), last.to_owned())].into());
        lease.metadata.annotations = notes;
        lease
    }

    #[test]
    fn az009_the_lease_is_taken_from_nobody_and_from_those_who_let_it_lapse() {
        let now = Time::from_millis(1_800_000_000_000);
        let free = |holder, previous| standing(&lease(holder, previous), None, now);
        assert_eq!(free(None, Some(HOLDER)), Standing::Free(Last::Us));
        assert_eq!(free(Some(HOLDER), None), Standing::Free(Last::Us));
        for previous in [None, Some("aks")] {
            assert_eq!(
                free(None, previous),
                Standing::Free(Last::Other),
                "AZ-009: what was read is dropped"
            );
        }
        let aks = lease(Some("aks"), Some(HOLDER));
        let held = Standing::Held("aks".to_owned());
        let rows = [
            (None, held.clone()),
            (Some(Duration::from_secs(899)), held),
            (Some(Duration::from_mins(15)), Standing::Free(Last::Other)),
        ];
        for (ago, expected) in rows {
            let since = ago.map(|ago| now - ago);
            assert_eq!(standing(&aks, since, now), expected, "{ago:?}");
        }
    }
}
