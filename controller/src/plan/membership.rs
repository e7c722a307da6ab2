//! The one membership policy (crd.md section 5): who is registered, kept, held, drained or released.
//!
//! Called by every provider's planner, once per target group. Pure: it knows neither Kubernetes objects
//! nor a cloud; time is an argument. Providers only translate the answer (`Drain` and `Release` are a
//! deregistration on AWS and local; on Azure `Drain` is admin state Down first).

mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::id::Zone;
use onehop_core::time::Time;

pub use types::{
    Action, CloudState, Decision, Guard, Kind, MassRemoval, Member, Owner, Policy, Readiness,
    Reason, Serving, State, TargetKey, Verdict, View,
};

/// Decides for one group.
///
/// `members` are all targets that Kubernetes knows something about: every endpoint or node, and for
/// every other target in `seen` what became of it (an address that is in neither counts as
/// [`State::Unexplained`]). `seen` is what the cloud has.
pub fn decide(
    policy: &Policy,
    members: &[Member],
    seen: &BTreeMap<TargetKey, CloudState>,
    view: View,
    now: Time,
) -> Decision {
    decide_in_zones(policy, members, (seen, &BTreeMap::new()), view, now)
}

/// The same for a load balancer whose zones stand each alone (ZD-23): a target with a zone waits for the healthy ones of its
/// own zone. A zone in which nothing is wanted any more is counted with the whole: it cannot be kept for good.
pub fn decide_in_zones(
    policy: &Policy,
    members: &[Member],
    (seen, zones): (&BTreeMap<TargetKey, CloudState>, &BTreeMap<IpAddr, Zone>),
    view: View,
    now: Time,
) -> Decision {
    let group = Tally::new(policy, members, seen, zones);
    let mut decision = Decision::default();
    for member in group.members.values() {
        let registered = seen.get(&member.key).is_some_and(|s| s.registered());
        let verdict = if registered {
            group.registered(member, now, &mut decision.next_look)
        } else if member.state == State::Ready {
            Verdict {
                action: Action::Register,
                reason: Reason::Ready,
            }
        } else {
            continue;
        };
        decision.verdicts.insert(member.key, verdict);
    }
    group.register_what_serves(now, &mut decision);
    group.keep_one_usable(&mut decision);
    group.mass_removal_check(view, &mut decision);
    decision.below_floor = group.below_floor(&decision);
    decision
}

/// The group counted once, so that each target is judged against the same numbers.
struct Tally<'a> {
    policy: &'a Policy,
    seen: &'a BTreeMap<TargetKey, CloudState>,
    members: BTreeMap<TargetKey, Member>,
    zones: &'a BTreeMap<IpAddr, Zone>,
    /// Of the whole group.
    whole: Count,
    /// Of each zone in which something is wanted.
    by_zone: BTreeMap<&'a Zone, Count>,
}

/// What a target is judged against.
#[derive(Clone, Copy)]
struct Count {
    /// Ready members that the LB reports usable.
    healthy: usize,
    /// How many have to be, before one that could go on serving leaves.
    floor: usize,
}

impl<'a> Tally<'a> {
    fn new(
        policy: &'a Policy,
        members: &[Member],
        seen: &'a BTreeMap<TargetKey, CloudState>,
        zones: &'a BTreeMap<IpAddr, Zone>,
    ) -> Self {
        let mut by_key: BTreeMap<TargetKey, Member> = BTreeMap::new();
        for member in members {
            // Two endpoints with one address and port: the better one speaks for both.
            let better = by_key
                .get(&member.key)
                .is_none_or(|known| rank(member.state) < rank(known.state));
            if better {
                by_key.insert(member.key, member.clone());
            }
        }
        for key in seen.keys() {
            by_key.entry(*key).or_insert_with(|| Member {
                key: *key,
                owner: Owner::Unknown,
                state: State::Unexplained,
                guard: Guard::Absent,
                held_since: None,
            });
        }
        let count = |of: &dyn Fn(&Member) -> bool| {
            let members = || by_key.values().filter(|m| of(m));
            let usable = |m: &&Member| seen.get(&m.key).is_some_and(|s| s.usable());
            let ready = members().filter(|m| m.state == State::Ready);
            let healthy = ready.filter(usable).count();
            let wanted = |m: &&Member| matches!(m.state, State::Ready | State::Displaced);
            (healthy, members().filter(wanted).count())
        };
        let (healthy, desired) = count(&|_| true);
        let whole = Count {
            healthy,
            floor: policy.floor(desired),
        };
        let by_zone = zones.values().collect::<BTreeSet<_>>().into_iter();
        let by_zone = by_zone.filter_map(|zone| {
            let (healthy, desired) = count(&|m| zones.get(&m.key.address) == Some(zone));
            let floor = policy.floor(desired);
            (desired > 0).then_some((zone, Count { healthy, floor }))
        });
        let by_zone = by_zone.collect();
        Self {
            policy,
            seen,
            members: by_key,
            zones,
            whole,
            by_zone,
        }
    }

    /// What a target is judged against: its zone, or the whole.
    fn count(&self, key: &TargetKey) -> Count {
        let zone = self.zones.get(&key.address);
        let of_zone = zone.and_then(|zone| self.by_zone.get(zone));
        of_zone.copied().unwrap_or(self.whole)
    }

    /// The verdict for a target that the cloud has.
    fn registered(&self, member: &Member, now: Time, next_look: &mut Option<Time>) -> Verdict {
        let verdict = |action, reason| Verdict { action, reason };
        let count = self.count(&member.key);
        let leave = |floor: usize, reason| {
            if count.healthy >= floor {
                verdict(Action::Drain, reason)
            } else if count.healthy == 0 {
                verdict(Action::Hold, Reason::LastServing)
            } else {
                verdict(Action::Hold, Reason::BelowFloor)
            }
        };
        match member.state {
            State::Ready | State::Waiting => verdict(Action::Keep, Reason::Ready),
            State::NotReady => match (self.policy.kind, self.policy.readiness) {
                (Kind::ZeroDrop, Readiness::ByHealth) => verdict(Action::Keep, Reason::NotReady),
                _ => leave(1, Reason::NotReady),
            },
            State::Displaced => leave(count.floor, Reason::NodeGoing),
            State::Withdrawn => leave(count.floor, Reason::Withdrawn),
            State::Unexplained => leave(count.floor, Reason::Unlisted),
            State::Terminating { since, .. } => {
                // Without a guard nobody can say how long the pod goes on accepting, so it leaves as
                // soon as anything else is healthy; with one it can wait for the whole floor (ZD-24).
                let floor = match member.guard {
                    Guard::Present => count.floor,
                    Guard::Absent => 1,
                };
                let since = member.held_since.or(since);
                self.bounded(leave(floor, Reason::Terminating), since, now, next_look)
            }
            // Only where somebody answers for it (ZD-24).
            State::Gone => match member.guard {
                Guard::Present => {
                    let leaves = leave(count.floor, Reason::Gone);
                    self.bounded(leaves, member.held_since, now, next_look)
                }
                Guard::Absent => verdict(Action::Release, Reason::Gone),
            },
            State::Reused => verdict(Action::Release, Reason::AddressReused),
        }
    }

    /// No hold is longer than its maximum (ZD-26).
    fn bounded(
        &self,
        decided: Verdict,
        since: Option<Time>,
        now: Time,
        next_look: &mut Option<Time>,
    ) -> Verdict {
        let (Action::Hold, Some(since)) = (decided.action, since) else {
            return decided;
        };
        let until = since + self.policy.hold_max;
        if until <= now {
            return Verdict {
                action: Action::Drain,
                reason: Reason::HoldMaximum,
            };
        }
        *next_look = Some(next_look.map_or(until, |t| t.min(until)));
        decided
    }

    /// When nothing is ready and nothing that stays can serve, what still serves comes (back) in (I2), unless it was
    /// let go for having been held for the longest time allowed: it would go and come for ever.
    fn register_what_serves(&self, now: Time, decision: &mut Decision) {
        let can_serve =
            |key: &TargetKey| self.members.get(key).is_some_and(|m| serves_now(m.state));
        let covered = decision
            .verdicts
            .iter()
            .any(|(key, v)| v.action != Action::Release && can_serve(key));
        if covered {
            return;
        }
        for (key, member) in &self.members {
            let back = match member.state {
                State::Displaced => true,
                State::Terminating {
                    serving: Serving::Yes,
                    since,
                } => since.is_none_or(|since| since + self.policy.hold_max > now),
                _ => false,
            };
            if back && !decision.verdicts.contains_key(key) {
                let verdict = Verdict {
                    action: Action::Register,
                    reason: Reason::LastServing,
                };
                decision.verdicts.insert(*key, verdict);
            }
        }
    }

    /// The registered set is never emptied while anything is ready or serving (ZD-02, I2): what would
    /// be the last to go waits for the registrations of this pass, or stays if there are none.
    fn keep_one_usable(&self, decision: &mut Decision) {
        let state = |key: &TargetKey| self.members.get(key).map_or(State::Gone, |m| m.state);
        let (leaving, staying): (Vec<_>, Vec<_>) = decision
            .verdicts
            .iter()
            .filter(|(_, v)| v.action != Action::Register)
            .partition(|(_, v)| matches!(v.action, Action::Drain | Action::Release));
        if staying.iter().any(|(key, _)| may_serve(state(key))) {
            return;
        }
        // Among those that would leave, the one that serves best stays (ZD-25).
        let Some(best) = leaving
            .iter()
            .map(|(key, _)| **key)
            .min_by_key(|k| rank(state(k)))
        else {
            return;
        };
        if !staying.is_empty() && !may_serve(state(&best)) {
            return;
        }
        let registering = decision.with(Action::Register).next().is_some();
        let Some(verdict) = decision.verdicts.get_mut(&best) else {
            return;
        };
        if registering {
            verdict.action = Action::Drain;
        } else if may_serve(state(&best)) && verdict.action == Action::Drain {
            *verdict = Verdict {
                action: Action::Hold,
                reason: Reason::LastServing,
            };
        }
    }

    /// Counts anew, from what was decided in the end, the targets that leave while fewer than the floor are healthy beside
    /// them and nothing says that they may: held for too long, nobody to answer for them, an address that is another pod's.
    fn below_floor(&self, decision: &Decision) -> usize {
        let stays = |(key, verdict): &(&TargetKey, &Verdict)| {
            matches!(verdict.action, Action::Keep | Action::Hold)
                && self.seen.get(key).is_some_and(|s| s.usable())
                && self.members.get(key).map(|m| m.state) == Some(State::Ready)
        };
        let healthy: BTreeSet<&TargetKey> = decision
            .verdicts
            .iter()
            .filter(stays)
            .map(|v| v.0)
            .collect();
        let leaves_too_soon = |key: &TargetKey, reason| {
            let Some(member) = self.members.get(key) else {
                return false;
            };
            let guarded = member.guard == Guard::Present;
            let floor = match member.state {
                _ if reason == Reason::HoldMaximum => return false,
                State::Reused => return false,
                State::Gone if !guarded => return false,
                // Not ready, or soon nobody's: one that is healthy is enough.
                State::NotReady => 1,
                State::Terminating { .. } if !guarded => 1,
                _ => self.count(key).floor,
            };
            let zone = self.zones.get(&key.address);
            let alone = zone.filter(|zone| self.by_zone.contains_key(zone));
            let beside = |other: &&&TargetKey| {
                alone.is_none_or(|zone| self.zones.get(&other.address) == Some(zone))
            };
            healthy.iter().filter(beside).count() < floor
        };
        let leaving = decision.verdicts.iter().filter(|(key, verdict)| {
            matches!(verdict.action, Action::Drain | Action::Release)
                && leaves_too_soon(key, verdict.reason)
        });
        leaving.count()
    }

    /// K-33: more than a share of the group leaving for no reason that we know needs a second look.
    fn mass_removal_check(&self, view: View, decision: &mut Decision) {
        let registered = self.seen.values().filter(|s| s.registered()).count();
        let unexplained: Vec<TargetKey> = decision
            .with(Action::Drain)
            .map(|(key, _)| key)
            .filter(|key| {
                self.members
                    .get(key)
                    .is_some_and(|m| m.state == State::Unexplained)
            })
            .collect();
        let share = registered * usize::from(self.policy.mass_percent) / 100;
        if view == View::Confirmed || unexplained.len() <= share.max(2) {
            return;
        }
        for key in &unexplained {
            let held = Verdict {
                action: Action::Hold,
                reason: Reason::MassRemovalCheck,
            };
            decision.verdicts.insert(*key, held);
        }
        decision.mass_removal = Some(MassRemoval {
            leaving: unexplained.len(),
            registered,
        });
    }
}

/// Whether a target in this state answers new flows.
const fn serves_now(state: State) -> bool {
    matches!(
        state,
        State::Ready
            | State::Waiting
            | State::Displaced
            | State::Withdrawn
            | State::Terminating {
                serving: Serving::Yes,
                ..
            }
    )
}

/// Whether a target in this state answers new flows, as far as anybody knows.
const fn may_serve(state: State) -> bool {
    serves_now(state) || matches!(state, State::NotReady | State::Unexplained)
}

/// How well a target in this state serves, best first.
const fn rank(state: State) -> u8 {
    match state {
        State::Ready => 0,
        State::Waiting | State::Displaced => 1,
        State::Withdrawn => 2,
        State::Terminating {
            serving: Serving::Yes,
            ..
        } => 3,
        State::NotReady => 4,
        State::Unexplained => 5,
        State::Terminating {
            serving: Serving::No,
            ..
        } => 6,
        State::Gone => 7,
        State::Reused => 8,
    }
}

#[cfg(test)]
mod tests;
