//! Faults of the API (fake-cloud.md section 10): what makes a polite cloud as rude as a real one.
//!
//! Knobs hold until they are changed; injections hit a number of calls and are gone. Both are set by
//! the control interface or by a test, never by the API itself. A fault never breaks the engine's own
//! rules: a refused call changes nothing, and a lost answer is the only one that lies by silence.

mod admit;
mod edits;
mod quotas;
mod seen;
mod throttle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use onehop_core::time::Time;
use serde::{Deserialize, Serialize};

use super::{Engine, Inventory, Lag, Operation};

pub use edits::Edit;
pub use quotas::Quotas;
pub use throttle::Throttle;

/// Faults that hold until they are changed. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Faults {
    /// How long reads lag behind writes (FC-90). States of targets and load balancers do not lag.
    pub describe_lag: Lag,
    /// Limits on calls a second (FC-91).
    pub throttle: Vec<Throttle>,
    /// Limits on numbers of objects (FC-93).
    pub quotas: Quotas,
    /// Operations that the caller has no right to.
    pub denied: BTreeSet<Operation>,
    /// A create or change whose body holds one of these texts is refused, each time (FC-99).
    pub bad_text: Vec<String>,
    /// Whether the probe protocol of a TCP group is fixed once made (FC-98).
    pub probe_protocol_fixed: bool,
    /// Whether IPv6 addresses of a load balancer are fixed once it has some (FC-98).
    pub ipv6_fixed: bool,
    /// Targets whose probes fail whatever they answer.
    pub failing_probes: BTreeSet<SocketAddr>,
}

/// What happens to a call that an [`Injection`] hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Refused: the cloud is not available just now. Nothing changes.
    Unavailable,
    /// Refused: the cloud broke. Nothing changes.
    InternalError,
    /// The connection drops before anything is done.
    LostBefore,
    /// The change is made, then the connection drops: a crash between two steps (FC-97).
    LostAfter,
    /// Of a batch of registrations some are refused or lost (FC-92); other calls are not hit.
    Partial {
        /// How many the answer says are not registered.
        #[serde(default)]
        refuse: usize,
        /// How many the answer says are registered although they are not.
        #[serde(default)]
        lose: usize,
    },
}

/// A fault that hits the next calls of some operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Injection {
    /// Operations that it hits; all when empty.
    #[serde(default)]
    pub operations: BTreeSet<Operation>,
    /// What happens.
    pub effect: Effect,
    /// How many calls it hits before it is gone.
    #[serde(default = "once")]
    pub times: u32,
    /// How many calls pass unharmed first.
    #[serde(default)]
    pub skip: u32,
}

const fn once() -> u32 {
    1
}

/// Faults as the engine keeps them.
#[derive(Debug, Default)]
pub(super) struct FaultState {
    knobs: Faults,
    buckets: Vec<throttle::Bucket>,
    injections: Vec<Injection>,
    /// What reads see from when on; only the first that is due counts. Empty: reads see what is.
    seen: VecDeque<(Time, Inventory)>,
    /// What was injected into the call under way.
    pub(super) under_way: Option<Effect>,
    /// Targets of the batch under way that do not make it.
    fates: BTreeMap<SocketAddr, admit::Fate>,
}

impl Engine {
    /// The faults that hold.
    pub fn faults(&self) -> &Faults {
        &self.faults.knobs
    }

    /// Sets the faults that hold from now on. Buckets start full, reads start from what is now.
    pub fn set_faults(&mut self, now: Time, faults: Faults) {
        self.advance(now);
        let bucket = |rule: &Throttle| throttle::Bucket::full(rule.clone(), self.now);
        self.faults.buckets = faults.throttle.iter().map(bucket).collect();
        self.faults.seen.clear();
        if faults.describe_lag != Lag::NONE {
            let base = self.inventory();
            self.faults.seen.push_back((self.now, base));
        }
        self.faults.knobs = faults;
    }

    /// Lets a fault hit calls to come, after those that were injected before.
    pub fn inject(&mut self, injection: Injection) {
        self.faults.injections.push(injection);
    }

    /// Injections that have not hit all their calls yet.
    pub fn injections(&self) -> &[Injection] {
        &self.faults.injections
    }

    /// Takes back every injection.
    pub fn clear_injections(&mut self) {
        self.faults.injections.clear();
    }
}
