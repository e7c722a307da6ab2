//! Throttling by token buckets in cloud time (FC-91).

use std::collections::BTreeSet;
use std::time::Duration;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use super::Operation;

/// One bucket for a set of operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Throttle {
    /// Operations that share the bucket; all when empty.
    #[serde(default)]
    pub operations: BTreeSet<Operation>,
    /// Calls a second of cloud time.
    pub per_second: u32,
    /// Calls that pass at once when there were none for long.
    pub burst: u32,
}

impl Throttle {
    /// Registration and deregistration in one bucket as AWS has it: 4 calls a second, burst 20.
    pub fn registrations() -> Self {
        Self {
            operations: [Operation::RegisterTargets, Operation::DeregisterTargets].into(),
            per_second: 4,
            burst: 20,
        }
    }
}

/// A [`Throttle`] with its level. Counts in thousandths of a call, so that milliseconds are exact.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    rule: Throttle,
    level: u64,
    at: Time,
}

const CALL: u64 = 1000;

impl Bucket {
    pub(super) fn full(rule: Throttle, now: Time) -> Self {
        let level = u64::from(rule.burst) * CALL;
        Self {
            rule,
            level,
            at: now,
        }
    }

    pub(super) fn covers(&self, operation: Operation) -> bool {
        self.rule.operations.is_empty() || self.rule.operations.contains(&operation)
    }

    /// Lets time pass; says how long a call has to wait for a token, nothing if there is one.
    pub(super) fn wait(&mut self, now: Time) -> Option<Duration> {
        let rate = u64::from(self.rule.per_second);
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let filled = self.level.saturating_add(passed.saturating_mul(rate));
        self.level = filled.min(u64::from(self.rule.burst) * CALL);
        self.at = now;
        let missing = CALL.saturating_sub(self.level);
        let wait = missing
            .checked_div(rate)
            .map(|wait| wait + u64::from(!missing.is_multiple_of(rate)));
        // Without a rate nothing ever comes; an hour says so to whoever waits.
        (missing > 0).then(|| wait.map_or(Duration::from_hours(1), Duration::from_millis))
    }

    /// Takes a token that [`Bucket::wait`] has found.
    pub(super) fn take(&mut self) {
        self.level = self.level.saturating_sub(CALL);
    }
}
