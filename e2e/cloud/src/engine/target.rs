//! One target of a group: its life, each LB node's view of it, and the state that the API reports.
//!
//! Pure decisions over one target; the engine schedules, logs and counts around it.

use std::collections::BTreeMap;

use onehop_core::time::Time;

use super::model::{NodeId, Protocol, Reason, TargetState};
use super::probe::{Verdict, View};
use super::profile::{Established, Profile};

/// Where a target is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Registered.
    Registered,
    /// Deregistered, drain time runs.
    Draining {
        /// Its end.
        until: Time,
    },
    /// Drain time is over. Remembered while some LB node still chooses it or keeps its flows.
    Left,
}

/// Whether a registration has taken effect (FC-40).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// Not before this time.
    Pending(Time),
    /// Yes.
    Effective,
}

/// What is known about the group of a target when its state is reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    /// Whether the group is probed at all.
    pub(super) probed: bool,
    /// Whether targets are judged (a listener uses the group, or the profile judges all).
    pub(super) in_use: bool,
}

/// A target.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) zone: Option<String>,
    pub(super) life: Life,
    pub(super) registration: Registration,
    pub(super) views: BTreeMap<NodeId, View>,
    pub(super) state: TargetState,
    pub(super) reason: Option<Reason>,
    pub(super) since: Time,
}

impl Target {
    /// A target that is registered at `now`.
    pub(super) fn registered(zone: Option<String>, effective_at: Time, now: Time) -> Self {
        Self {
            zone,
            life: Life::Registered,
            registration: Registration::Pending(effective_at),
            views: BTreeMap::new(),
            state: TargetState::Unused,
            reason: Some(Reason::NotRegistered),
            since: now,
        }
    }

    /// State and reason as they should be reported now: the vote of the LB nodes (FC-36).
    pub(super) fn judge(&self, around: Surroundings) -> (TargetState, Option<Reason>) {
        match self.life {
            Life::Left => return (TargetState::Unused, Some(Reason::NotRegistered)),
            Life::Draining { .. } => {
                return (
                    TargetState::Draining,
                    Some(Reason::DeregistrationInProgress),
                );
            }
            Life::Registered if !around.in_use => {
                return (TargetState::Unused, Some(Reason::NotInUse));
            }
            Life::Registered => {}
        }
        if self.registration != Registration::Effective {
            return (TargetState::Initial, Some(self.initial_reason()));
        }
        if !around.probed || self.majority(Verdict::Healthy) {
            return (TargetState::Healthy, None);
        }
        if self.majority(Verdict::Unhealthy) {
            return (TargetState::Unhealthy, Some(Reason::FailedHealthChecks));
        }
        match self.state {
            // A split vote changes nothing.
            TargetState::Healthy | TargetState::Unhealthy => (self.state, self.reason),
            _ => (TargetState::Initial, Some(self.initial_reason())),
        }
    }

    fn initial_reason(&self) -> Reason {
        if self.views.values().any(|view| view.probed) {
            Reason::InitialHealthChecking
        } else {
            Reason::RegistrationInProgress
        }
    }

    fn majority(&self, verdict: Verdict) -> bool {
        let votes = self
            .views
            .values()
            .filter(|view| view.verdict == verdict)
            .count();
        votes * 2 > self.views.len()
    }

    /// Whether this LB node chooses the target for new flows by its own verdict and tails.
    pub(super) fn takes_new_flows(&self, node: NodeId, around: Surroundings) -> bool {
        let Some(view) = self.views.get(&node) else {
            return false;
        };
        match self.life {
            Life::Draining { .. } | Life::Left => view.tail.is_some(),
            Life::Registered if self.registration != Registration::Effective => false,
            Life::Registered if !around.probed => true,
            Life::Registered => match view.verdict {
                Verdict::Healthy => true,
                Verdict::Unhealthy => view.tail.is_some(),
                Verdict::Unknown => false,
            },
        }
    }

    /// Whether flows that already go to the target go on at this LB node (FC-23, FC-24).
    pub(super) fn keeps_flows(&self, node: NodeId, protocol: Protocol, profile: &Profile) -> bool {
        if self.life == Life::Left && profile.drained_flows == Established::Cut {
            return self.has_tail();
        }
        let down = self
            .views
            .get(&node)
            .is_some_and(|view| view.verdict == Verdict::Unhealthy);
        // Who is set Down loses its UDP flows like who is down (AZ-290).
        let (leaves, policy) = match protocol {
            Protocol::Tcp => (down, profile.unhealthy_flows),
            Protocol::Udp => (
                down || self.life != Life::Registered,
                profile.unhealthy_udp_flows,
            ),
        };
        !(leaves && policy == Established::Cut)
    }

    /// Whether some LB node goes on choosing the target although it should get nothing.
    pub(super) fn has_tail(&self) -> bool {
        self.views.values().any(|view| view.tail.is_some())
    }

    /// Whether the target can be forgotten: it has left and no flow may still go to it.
    pub(super) fn is_gone(&self, profile: &Profile) -> bool {
        self.life == Life::Left && !self.has_tail() && profile.drained_flows == Established::Cut
    }

    /// Whether probes go on: an LB node that may choose the target must know how it does.
    pub(super) fn wants_probes(&self) -> bool {
        self.life != Life::Left || self.has_tail()
    }
}
