//! How the Lease stands, decided purely: from what it said, since when we have seen it say so by our
//! own clock, and the time. The times in the Lease are the holder's and only tell whether it renewed.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use onehop_core::time::Time;

/// Share of the gap between renew deadline and lease duration that a call may last.
const CALL_SHARE: f64 = 0.8;
/// Most by which jitter makes a pause longer.
pub(super) const JITTER: f64 = 0.2;

/// The election's times. Only [`Timing::new`] makes one, so that they always fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    deadline: Duration,
    retry: Duration,
}

/// Times that do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The Lease holds whole seconds.
    #[error("the lease duration must be a whole number of seconds, at least one")]
    Lease,
    /// A leader must have given up before a rival takes over.
    #[error("the renew deadline must be shorter than the lease duration")]
    Deadline,
    /// A renewal must be possible before the deadline.
    #[error("the retry period with its jitter (1.2 times) must be shorter than the renew deadline")]
    Retry,
}

impl Timing {
    /// Times: how long a Lease lasts without renewal, after which time without a renewal a leader
    /// gives up, and between two tries.
    pub fn new(lease: Duration, deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease.is_zero() || lease.subsec_nanos() != 0 || i32::try_from(lease.as_secs()).is_err() {
            return Err(TimingError::Lease);
        }
        if deadline >= lease {
            return Err(TimingError::Deadline);
        }
        if retry.is_zero() || retry.mul_f64(1.0 + JITTER) >= deadline {
            return Err(TimingError::Retry);
        }
        Ok(Self {
            lease,
            deadline,
            retry,
        })
    }

    /// Longest time for one mutating call: one that starts just before the fence goes down has ended
    /// before a rival may write.
    pub fn call_limit(&self) -> Duration {
        self.lease.saturating_sub(self.deadline).mul_f64(CALL_SHARE)
    }

    /// How long a Lease lasts without renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a leader writes without a renewal.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Between two tries, jitter apart.
    pub fn retry(&self) -> Duration {
        self.retry
    }
}

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; none after a release.
    pub holder: Option<String>,
    /// When the holder renewed it, by the holder's clock: only to be compared for equality.
    pub renewed: Option<Time>,
    /// How long the holder said that it lasts.
    pub duration: Duration,
    /// How often it has changed hands.
    pub transitions: i32,
}

impl From<&Lease> for Record {
    fn from(lease: &Lease) -> Self {
        let Some(spec) = &lease.spec else {
            return Self::default();
        };
        let seconds = spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok());
        Self {
            holder: spec.holder_identity.clone().filter(|h| !h.is_empty()),
            renewed: spec.renew_time.as_ref().map(Time::from),
            duration: Duration::from_secs(seconds.unwrap_or_default()),
            transitions: spec.lease_transitions.unwrap_or_default(),
        }
    }
}

/// A record, and since when we have seen it say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The record.
    pub record: Record,
    /// When it was first seen, by our clock.
    pub since: Time,
}

impl Sighting {
    /// What is known after a look which ended `now`.
    pub fn after(before: Option<Self>, record: Record, now: Time) -> Self {
        match before {
            Some(before) if before.record == record => before,
            _ => Self { record, since: now },
        }
    }

    /// When the holder has lost it unless it renews; none if nobody holds it. Who says that it lasts
    /// shorter than we think is not believed: it may have other flags than we have.
    pub fn expires(&self, timing: &Timing) -> Option<Time> {
        self.record.holder.as_ref()?;
        Some(self.since + self.record.duration.max(timing.lease))
    }
}

/// How the Lease stands to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody holds it: take it.
    Vacant,
    /// We hold it, by its own words. Whether we may write is the fence's to say.
    Mine,
    /// Its holder has not renewed it in time: take it.
    Expired,
    /// A rival holds it at least until then.
    Held {
        /// Who.
        by: String,
        /// Until when, by our clock.
        until: Time,
    },
}

/// How the Lease stands to `me`.
pub fn evaluate(seen: Option<&Sighting>, me: &str, timing: &Timing, now: Time) -> Verdict {
    let Some(seen) = seen else {
        return Verdict::Vacant;
    };
    match (&seen.record.holder, seen.expires(timing)) {
        (Some(holder), _) if holder == me => Verdict::Mine,
        (Some(holder), Some(until)) if now < until => Verdict::Held {
            by: holder.clone(),
            until,
        },
        (Some(_), Some(_)) => Verdict::Expired,
        (None, _) | (_, None) => Verdict::Vacant,
    }
}

/// What to write to hold the Lease from `now` on.
pub fn held(before: Option<&LeaseSpec>, me: &str, timing: &Timing, now: Time) -> LeaseSpec {
    let before = before.cloned().unwrap_or_default();
    let ours = before.holder_identity.as_deref() == Some(me);
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(timing.lease.as_secs()).ok(),
        renew_time: Some(now.into()),
        acquire_time: before.acquire_time.filter(|_| ours).or(Some(now.into())),
        lease_transitions: Some(if ours || before.renew_time.is_none() {
            transitions
        } else {
            transitions.saturating_add(1)
        }),
        ..before
    }
}

/// What to write to give it up. As client-go does it, the shortest duration: who goes by that alone
/// waits no longer than it must.
pub fn released(before: LeaseSpec, now: Time) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(now.into()),
        acquire_time: Some(now.into()),
        ..before
    }
}

#[cfg(test)]
mod tests;
