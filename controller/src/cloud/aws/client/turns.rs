//! Calls about members that wait: for the pace of their group, and for a token (AWS-421, AWS-712). What they carry was
//! decided when they began to wait; once that is out of date they give up, so that the next plan carries everything.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;
use tokio_util::sync::CancellationToken;

use super::Client;
use super::throttle::{Family, Ticket, Turn};
use crate::cloud::aws::model::TargetId;
use crate::cloud::aws::step::AwsStep;
use crate::cloud::{Class, CloudError};
use crate::plan::membership::Guard;
use crate::plan::{Act, Plan, Step};

/// From the first call of a group to the second one.
const SHORT: Duration = Duration::from_millis(100);
/// Longest time between two registrations of a group: a ready endpoint is in a call within 2 s (AWS-420).
const REGISTER_LONG: Duration = Duration::from_millis(1500);
/// The same of deregistrations: a load balancer sends on for much longer whatever it is told.
const DEREGISTER_LONG: Duration = Duration::from_secs(3);
/// A group that nothing was called for in so long is not under pressure.
const CALM: Duration = Duration::from_secs(10);

/// What tells calls apart: name of the group, and what is done.
type Errand = (String, Act);

/// Targets as they are compared.
type Targets = Vec<TargetId>;

/// The errands of all groups.
#[derive(Debug, Default)]
pub(super) struct Turns {
    errands: BTreeMap<Errand, State>,
}

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    /// Its place in the line, kept while it gives up and comes back.
    ticket: Option<Ticket>,
    waits: Option<Waits>,
}

#[derive(Debug)]
struct Waits {
    targets: Targets,
    give_up: CancellationToken,
}

/// How soon a group may be called for again: at once after a while, then less and less often.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    last: Option<Time>,
    wait: Duration,
}

impl Pace {
    fn not_before(self) -> Option<Time> {
        Some(self.last? + self.wait)
    }

    fn called(&mut self, now: Time, long: Duration) {
        let calm = self.last.is_none_or(|last| now.since(last) >= CALM);
        self.wait = if calm { SHORT } else { self.wait * 2 }.min(long);
        self.last = Some(now);
    }
}

/// How urgent a step about members is (AWS-712).
pub(super) fn turn(step: &AwsStep) -> Turn {
    match step {
        AwsStep::Register { healthy, .. } => Turn::Register(*healthy),
        AwsStep::Deregister {
            guard: Guard::Present,
            ..
        } => Turn::DeregisterGuarded,
        AwsStep::Deregister { .. } => Turn::Deregister,
        _ => Turn::Other,
    }
}

/// What a step about members is about.
fn errand(step: &AwsStep) -> Option<(Errand, Targets)> {
    let (group, targets) = match step {
        AwsStep::Register { group, targets, .. } => (
            group,
            targets.iter().map(|(target, _)| target.clone()).collect(),
        ),
        AwsStep::Deregister { group, targets, .. } => (
            group,
            targets.iter().map(|(target, _)| target.clone()).collect(),
        ),
        _ => return None,
    };
    Some(((group.clone(), step.facts().act), targets))
}

impl Client {
    /// Waits for the turn of a step about members. Fails when a later plan says otherwise meanwhile.
    pub(super) async fn turn_of(&self, step: &AwsStep) -> Result<(), CloudError> {
        let Some((errand, targets)) = errand(step) else {
            return Ok(());
        };
        let give_up = CancellationToken::new();
        let (not_before, ticket) = self.with_turns(|turns| {
            let state = turns.errands.entry(errand.clone()).or_default();
            let ticket = *state
                .ticket
                .get_or_insert_with(|| self.throttle.ticket(Family::Members));
            state.waits = Some(Waits {
                targets,
                give_up: give_up.clone(),
            });
            (state.pace.not_before(), ticket)
        });
        // A group that has nothing to send to waits for no pace.
        let at_once = turn(step) == Turn::Register(0);
        let waited = async {
            if let Some(at) = not_before.filter(|_| !at_once) {
                self.clock.sleep_until(at).await;
            }
            self.throttle
                .enter(Family::Members, turn(step), ticket)
                .token()
                .await;
        };
        let came = tokio::select! {
            biased;
            () = give_up.cancelled() => false,
            () = waited => true,
        };
        let long = match errand.1 {
            Act::Fill => REGISTER_LONG,
            _ => DEREGISTER_LONG,
        };
        let now = self.clock.now();
        self.with_turns(|turns| {
            let old = |state: &State| {
                let recent = state.pace.last.is_some_and(|last| now.since(last) < CALM);
                recent || state.ticket.is_some()
            };
            turns.errands.retain(|_, state| old(state));
            if let Some(state) = turns.errands.get_mut(&errand) {
                state.waits = None;
                if came {
                    state.ticket = None;
                    state.pace.called(now, long);
                }
            }
        });
        if came {
            return Ok(());
        }
        let answer = "a later plan carries more";
        Err(CloudError::new(Class::Superseded, step.to_string(), answer))
    }

    /// Lets calls of a Service that wait give up where a later plan says otherwise.
    pub fn supersede(&self, service: &ServiceKey, plan: &Plan<AwsStep>) {
        let groups = self.store().groups_of(service);
        let mut later: BTreeMap<Errand, Targets> = BTreeMap::new();
        for (errand, targets) in plan.steps().filter_map(errand) {
            // The first of several: the others follow it.
            later.entry(errand).or_insert(targets);
        }
        self.with_turns(|turns| {
            let of = turns.errands.iter();
            let waiting: BTreeMap<&Errand, &Waits> = of
                .filter(|((group, _), _)| groups.contains(group))
                .filter_map(|(errand, state)| Some((errand, state.waits.as_ref()?)))
                .collect();
            let same =
                |(errand, waits): (&&Errand, &&Waits)| later.get(*errand) == Some(&waits.targets);
            let nothing_new = later.keys().all(|errand| waiting.contains_key(errand));
            if !nothing_new || !waiting.iter().all(same) {
                for waits in waiting.values() {
                    waits.give_up.cancel();
                }
            }
        });
    }

    fn with_turns<T>(&self, act: impl FnOnce(&mut Turns) -> T) -> T {
        let mut turns = self
            .turns
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        act(&mut turns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn aws421_aws420_calls_for_one_group_come_less_and_less_often_but_within_the_promise() {
        let mut pace = Pace::default();
        assert_eq!(pace.not_before(), None, "AWS-421: the first one at once");
        let (mut now, mut calls) = (at(0), Vec::new());
        while now < at(12_000) {
            calls.push(now.as_millis());
            pace.called(now, REGISTER_LONG);
            now = pace.not_before().unwrap();
        }
        assert_eq!(calls[..5], [0, 100, 300, 700, 1500], "AWS-421");
        assert!(calls.len() <= 13, "AWS-421: {calls:?}");
        let apart = calls.windows(2).map(|two| two[1] - two[0]).max();
        assert!(apart < Some(2000), "AWS-420");
        pace.called(at(30_000), REGISTER_LONG);
        assert_eq!(pace.not_before(), Some(at(30_100)), "AWS-421: calm again");
    }
}
