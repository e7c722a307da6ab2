//! What becomes of a Service's targets from one look to the next (ZD-120, ZD-121): how long one took to be healthy, how long
//! it was held, and how that ended. Pure; `reconcile::standing` measures and tells.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::crd::TargetState;
use onehop_core::id::PortKey;
use onehop_core::time::Time;

use super::Listed;
use super::membership::{Action, CloudState, Reason, TargetKey, Verdict};

/// Targets as they stood at the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    targets: BTreeMap<(PortKey, TargetKey), Stood>,
}

/// How one stood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stood {
    /// Since when its registration is under way, while it was never healthy.
    asked: Option<Time>,
    /// Since when it is held.
    held: Option<Time>,
}

/// Something that became of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The load balancer says that it is healthy, for the first time since its registration was asked for.
    Healthy(Duration),
    /// It is held from now on.
    Held,
    /// It is held no longer.
    Let(Cause, Duration),
}

/// Why a target is held no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Enough others are healthy.
    Replaced,
    /// It is wanted again.
    Returned,
    /// It was held for the longest time allowed (ZD-26).
    Maximum,
    /// Its address is another pod's (ZD-85).
    AddressReused,
    /// Nobody answers for it any more: its node or the agent there is gone (ZD-24).
    Unguarded,
    /// Its group or its Service goes.
    Removed,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Replaced,
        Self::Returned,
        Self::Maximum,
        Self::AddressReused,
        Self::Unguarded,
        Self::Removed,
    ];

    /// A static word, for metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Returned => "returned",
            Self::Maximum => "maximum",
            Self::AddressReused => "address-reused",
            Self::Unguarded => "unguarded",
            Self::Removed => "removed",
        }
    }

    fn of(verdict: Option<Verdict>) -> Self {
        let Some(verdict) = verdict else {
            return Self::Removed;
        };
        match (verdict.action, verdict.reason) {
            (_, Reason::AddressReused) => Self::AddressReused,
            (_, Reason::HoldMaximum) => Self::Maximum,
            (Action::Release, _) => Self::Unguarded,
            (Action::Drain, _) => Self::Replaced,
            (Action::Register | Action::Keep | Action::Hold, _) => Self::Returned,
        }
    }
}

impl Standing {
    /// Takes in a look; what has become of targets since the last one. `held_since` knows of holds that began before this
    /// process did.
    pub fn look(
        &mut self,
        listed: &[Listed],
        held_since: impl Fn(&Listed) -> Option<Time>,
        now: Time,
    ) -> Vec<Turn> {
        let mut turns = Vec::new();
        let mut stand = BTreeMap::new();
        for one in listed {
            let key = (one.port.clone(), one.key);
            let old = self.targets.remove(&key);
            let stood = old.unwrap_or_default();
            let held = (one.state == TargetState::Held)
                .then(|| stood.held.or_else(|| held_since(one)).unwrap_or(now));
            if let (Some(since), None) = (stood.held, held) {
                turns.push(Turn::Let(Cause::of(one.verdict), now.since(since)));
            }
            // One that an earlier process held was told of by it.
            if held == Some(now) && stood.held.is_none() {
                turns.push(Turn::Held);
            }
            let healthy = one.seen == Some(CloudState::Healthy);
            let asked = match (stood.asked, one.state) {
                (Some(since), TargetState::Active) if healthy => {
                    turns.push(Turn::Healthy(now.since(since)));
                    None
                }
                // One that is not registered yet: its registration begins now.
                (None, TargetState::Active) if one.seen.is_none_or(|s| !s.registered()) => {
                    Some(now)
                }
                (since, TargetState::Active) => since,
                _ => None,
            };
            stand.insert(key, Stood { asked, held });
        }
        // What is listed no more.
        let gone = std::mem::replace(&mut self.targets, stand);
        let held = gone.into_values().filter_map(|stood| stood.held);
        turns.extend(held.map(|since| Turn::Let(Cause::Removed, now.since(since))));
        turns
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.targets.values().filter(|s| s.held.is_some()).count()
    }
}

#[cfg(test)]
mod tests;
