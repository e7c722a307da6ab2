//! The one membership policy (crd.md section 5): who is registered, kept, held, drained or released.
//!
//! Called by every provider's planner, once per target group. Pure: it knows neither Kubernetes objects
//! nor a cloud; time is an argument. Providers only translate the answer (`Drain` and `Release` are a
//! deregistration on AWS and local; on Azure `Drain` is admin state Down first).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use onehop_core::id::{NodeName, PodUid};
use onehop_core::time::Time;
use serde::Serialize;

/// Address and port of a target; the protocol is the group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TargetKey {
    /// Pod or node address.
    pub address: IpAddr,
    /// Target port or node port.
    pub port: u16,
}

impl fmt::Display for TargetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// Whose address it is. With the key this is the identity of a target (K-21, ZD-12).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Owner {
    /// A pod.
    Pod(PodUid),
    /// A node.
    Node(NodeName),
    /// An address of an `EndpointSlice` that names no pod (AWS-411), or one not remembered.
    Unknown,
}

/// Whether something accepts new flows on behalf of a pod that is gone (the target guard, ZD-24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// The agent of the target's node is present and has the feature.
    Present,
    /// Nothing answers for a pod that is gone.
    Absent,
}

/// What Kubernetes says about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Ready: to be registered.
    Ready,
    /// Alive and not ready: readiness is carried by LB health where that asks the target (ZD-82).
    NotReady,
    /// Alive and to be replaced, since its node is going (ZD-76); counts as one of the desired number.
    Displaced,
    /// Serves, but is wanted no more: a node with the exclude label or a going signal (ZD-73, ZD-78),
    /// or a pod that a selector change has left.
    Withdrawn,
    /// The pod is being deleted and may still serve.
    Terminating {
        /// Its readiness probe still answers.
        serving: Serving,
        /// When deletion was asked for, where known; bounds the hold.
        since: Option<Time>,
    },
    /// The pod or node is provably gone.
    Gone,
    /// The address belongs to a new pod (ZD-85).
    Reused,
    /// In the group, and in no endpoint list, without a reason that we know.
    Unexplained,
}

/// Whether a terminating endpoint still serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Serving {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// A target as Kubernetes wants or knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Address and port.
    pub key: TargetKey,
    /// Whose it is.
    pub owner: Owner,
    /// What Kubernetes says.
    pub state: State,
    /// Whether the node's agent stands in for it.
    pub guard: Guard,
}

/// A target's state in the cloud, in the words that all clouds share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CloudState {
    /// Registered, not yet judged.
    Initial,
    /// Registered and healthy.
    Healthy,
    /// Registered and not healthy.
    Unhealthy,
    /// Registered; the cloud does not say more (unprobed group, group not in use).
    Unjudged,
    /// Deregistered, established flows may go on.
    Draining,
}

impl CloudState {
    /// Whether it is registered, that is, needs no registration.
    pub const fn registered(self) -> bool {
        !matches!(self, Self::Draining)
    }

    /// Whether the LB sends it new flows, as far as the cloud tells.
    pub const fn usable(self) -> bool {
        matches!(self, Self::Healthy | Self::Unjudged)
    }
}

/// Who tells the LB that a live target is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// Its health check (agent, node or traffic port): membership does not change (K-30).
    ByHealth,
    /// Nobody: an unprobed group, so membership has to.
    ByMembership,
}

/// Which policy (K-30, K-31).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// ZD-20 to ZD-29 and ZD-82.
    ZeroDrop,
    /// The peers' timing within K-31's limits.
    Compat,
}

/// The policy's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which policy.
    pub kind: Kind,
    /// Share of the desired number that must be healthy before an old target leaves (ZD-22), percent.
    pub floor_percent: u8,
    /// Longest hold (ZD-26).
    pub hold_max: Duration,
    /// Who carries readiness.
    pub readiness: Readiness,
    /// Share of a group, percent, that may leave unexplained without a second look (K-33).
    pub mass_percent: u8,
    /// How many targets can be healthy at once, where that is fewer than are registered.
    pub at_most_healthy: Option<usize>,
}

impl Policy {
    /// How many targets have to be healthy before one that could go on serving leaves, out of
    /// this many desired ones (ZD-22).
    pub fn floor(&self, desired: usize) -> usize {
        let desired = self
            .at_most_healthy
            .map_or(desired, |most| desired.min(most));
        match self.kind {
            Kind::ZeroDrop => (desired * usize::from(self.floor_percent))
                .div_ceil(100)
                .max(1),
            Kind::Compat => 1,
        }
    }
}

/// How far the endpoint list can be trusted (K-33).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// From a watch.
    Watched,
    /// Confirmed by a fresh list from the API server after the check was raised.
    Confirmed,
}

/// What to do with one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Action {
    /// Register it.
    Register,
    /// It is registered and stays.
    Keep,
    /// It is unwanted and stays for now.
    Hold,
    /// Take it out once the registrations of this pass were accepted (ZD-21).
    Drain,
    /// Take it out at once: it serves nobody.
    Release,
}

/// Why. One word each, for events, the CLI and golden plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Reason {
    /// A ready endpoint that is not registered.
    Ready,
    /// Not ready; the health check says so to the LB.
    NotReady,
    /// Terminating.
    Terminating,
    /// Its node is going.
    NodeGoing,
    /// Wanted no more.
    Withdrawn,
    /// Pod or node is gone.
    Gone,
    /// Its address belongs to another pod.
    AddressReused,
    /// In no endpoint list.
    Unlisted,
    /// Too few others are healthy (ZD-22).
    BelowFloor,
    /// Nothing else serves (I2).
    LastServing,
    /// Held for the longest time allowed (ZD-26).
    HoldMaximum,
    /// Waits for the second look (K-33).
    MassRemovalCheck,
}

/// Action and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// The mass-removal check was raised: this many of that many would leave for no known reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MassRemoval {
    /// Targets that would leave unexplained.
    pub leaving: usize,
    /// Targets registered.
    pub registered: usize,
}

/// The answer for one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// One verdict per target that is registered or to be.
    pub verdicts: BTreeMap<TargetKey, Verdict>,
    /// When time alone will change the answer.
    pub next_look: Option<Time>,
    /// Set while removals wait for a second look.
    pub mass_removal: Option<MassRemoval>,
}

impl Decision {
    /// The targets with this action.
    pub fn with(&self, action: Action) -> impl Iterator<Item = (TargetKey, Reason)> + '_ {
        self.verdicts
            .iter()
            .filter(move |(_, v)| v.action == action)
            .map(|(k, v)| (*k, v.reason))
    }
}

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
    let group = Tally::new(policy, members, seen);
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
    group.register_what_serves(&mut decision);
    group.keep_one_usable(&mut decision);
    group.mass_removal_check(view, &mut decision);
    decision
}

/// The group counted once, so that each target is judged against the same numbers.
struct Tally<'a> {
    policy: &'a Policy,
    seen: &'a BTreeMap<TargetKey, CloudState>,
    members: BTreeMap<TargetKey, Member>,
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
            });
        }
        let usable = |m: &&Member| seen.get(&m.key).is_some_and(|s| s.usable());
        let ready = by_key.values().filter(|m| m.state == State::Ready);
        let healthy = ready.filter(usable).count();
        let desired = by_key
            .values()
            .filter(|m| matches!(m.state, State::Ready | State::Displaced))
            .count();
        Self {
            policy,
            seen,
            members: by_key,
            healthy,
            floor: policy.floor(desired),
        }
    }

    /// The verdict for a target that the cloud has.
    fn registered(&self, member: &Member, now: Time, next_look: &mut Option<Time>) -> Verdict {
        let verdict = |action, reason| Verdict { action, reason };
        let leave = |floor: usize, reason| {
            if self.healthy >= floor {
                verdict(Action::Drain, reason)
            } else if self.healthy == 0 {
                verdict(Action::Hold, Reason::LastServing)
            } else {
                verdict(Action::Hold, Reason::BelowFloor)
            }
        };
        match member.state {
            State::Ready => verdict(Action::Keep, Reason::Ready),
            State::NotReady => match (self.policy.kind, self.policy.readiness) {
                (Kind::ZeroDrop, Readiness::ByHealth) => verdict(Action::Keep, Reason::NotReady),
                _ => leave(1, Reason::NotReady),
            },
            State::Displaced => leave(self.floor, Reason::NodeGoing),
            State::Withdrawn => leave(self.floor, Reason::Withdrawn),
            State::Unexplained => leave(self.floor, Reason::Unlisted),
            State::Terminating { since, .. } => {
                // Without a guard nobody can say how long the pod goes on accepting, so it leaves as
                // soon as anything else is healthy; with one it can wait for the whole floor (ZD-24).
                let floor = match member.guard {
                    Guard::Present => self.floor,
                    Guard::Absent => 1,
                };
                match (leave(floor, Reason::Terminating), since) {
                    (
                        held @ Verdict {
                            action: Action::Hold,
                            ..
                        },
                        Some(since),
                    ) => {
                        let until = since + self.policy.hold_max;
                        if until <= now {
                            return verdict(Action::Drain, Reason::HoldMaximum);
                        }
                        *next_look = Some(next_look.map_or(until, |t| t.min(until)));
                        held
                    }
                    (decided, _) => decided,
                }
            }
            State::Gone => match member.guard {
                Guard::Present => leave(self.floor, Reason::Gone),
                Guard::Absent => verdict(Action::Release, Reason::Gone),
            },
            State::Reused => verdict(Action::Release, Reason::AddressReused),
        }
    }

    /// When nothing is ready and nothing that stays can serve, what still serves comes (back) in (I2).
    fn register_what_serves(&self, decision: &mut Decision) {
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
            let back = matches!(
                member.state,
                State::Displaced
                    | State::Terminating {
                        serving: Serving::Yes,
                        ..
                    }
            );
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
        State::Displaced => 1,
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
