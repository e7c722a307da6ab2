//! The lanes of one shard: which run, which wait after a failure, and how a lane's groups are run.
//!
//! At most one task per lane and shard. A pass may start a lane only on what it saw after the lane's
//! last task had ended, so that no call is made twice (I6).

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use onehop_core::id::ServiceKey;
use onehop_core::time::Time;
use onehop_runtime::backoff::{Backoff, Policy};
use rand::rngs::SmallRng;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{Reconciler, lock};
use crate::cloud::{Class, CloudError};
use crate::metrics::Call;
use crate::plan::{Effect, Group, Lane, Provider, Step};

/// Groups of one lane that run side by side: a Service may have hundreds of ports, and clouds count
/// calls.
const AT_ONCE: usize = 16;

/// State of all lanes of a shard.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_lane: BTreeMap<Lane, LaneState>,
    /// Looks at the cloud that fail.
    look: Option<Failure>,
    /// Registrations that wait until nodes are told of them.
    telling: Option<Telling>,
    /// Since when any of them has waited, one after the other.
    untold_since: Option<Time>,
}

/// Registrations that wait until nodes are told of them.
#[derive(Debug)]
struct Telling {
    /// What they register.
    of: Vec<String>,
    give_up: CancellationToken,
}

/// What a plan's groups register, in words.
fn registrations<S: Step>(groups: &[Group<S>]) -> Vec<String> {
    let steps = groups.iter().flat_map(|group| &group.steps);
    steps
        .filter(|s| s.registers())
        .map(ToString::to_string)
        .collect()
}

#[derive(Debug, Default)]
struct LaneState {
    running: bool,
    /// Counts tasks that have ended.
    ended: u64,
    failure: Option<Failure>,
}

/// A lane that failed and has not succeeded since.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: CloudError,
    pub(super) since: Time,
    pub(super) next_try: Time,
    backoff: Backoff,
}

impl Failure {
    /// The failure that follows another one, if there was one.
    fn after(before: Option<Self>, error: CloudError, now: Time, rng: &mut SmallRng) -> Self {
        let full = error.class == Class::Quota;
        let policy = if full { Policy::QUOTA } else { Policy::RETRY };
        let (since, mut backoff) = match before {
            Some(old) if old.is_of_quota() == full => (old.since, old.backoff),
            Some(old) => (old.since, policy.start(rng)),
            None => (now, policy.start(rng)),
        };
        let delay = error
            .retry_after
            .unwrap_or_default()
            .max(backoff.next_delay());
        Self {
            error,
            since,
            next_try: now + delay,
            backoff,
        }
    }

    /// Whether a limit of the cloud is what it met.
    fn is_of_quota(&self) -> bool {
        self.error.class == Class::Quota
    }
}

/// What the lanes were like before a look at the cloud.
#[derive(Clone, Debug)]
pub(super) struct Mark(BTreeMap<Lane, Option<u64>>);

impl Mark {
    /// Whether no task ran then.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.values().all(Option::is_some)
    }
}

impl Lanes {
    /// To be taken before a look at the cloud.
    pub(super) fn mark(&self) -> Mark {
        let one = |lane| {
            let state = self.by_lane.get(&lane);
            let running = state.is_some_and(|s| s.running);
            (lane, (!running).then(|| state.map_or(0, |s| s.ended)))
        };
        Mark(Lane::ALL.into_iter().map(one).collect())
    }

    /// Takes the lane for a task, if what was seen since `mark` is still true of it and no failure
    /// makes it wait.
    pub(super) fn take(&mut self, lane: Lane, mark: &Mark, now: Time) -> bool {
        let state = self.by_lane.entry(lane).or_default();
        let fresh = mark.0.get(&lane).copied().flatten() == Some(state.ended) && !state.running;
        let waits = state.failure.as_ref().is_some_and(|f| f.next_try > now);
        if fresh && !waits {
            state.running = true;
        }
        fresh && !waits
    }

    /// Registrations begin to wait for their nodes: since when any of them does, and what makes them give up.
    fn tells(&mut self, of: Vec<String>, now: Time) -> (Time, CancellationToken) {
        let give_up = CancellationToken::new();
        self.telling = Some(Telling {
            of,
            give_up: give_up.clone(),
        });
        (*self.untold_since.get_or_insert(now), give_up)
    }

    /// Nodes are told.
    fn told(&mut self) {
        self.telling = None;
        self.untold_since = None;
    }

    /// A later plan: registrations that wait for their nodes and are not all that it wants give up, so that the next
    /// call carries everything (AWS-421).
    pub(super) fn supersede<S: Step>(&self, later: &[Group<S>]) {
        let waiting = self.telling.as_ref();
        if let Some(telling) = waiting.filter(|t| t.of != registrations(later)) {
            telling.give_up.cancel();
        }
    }

    /// Whether a task of the lane runs.
    pub(super) fn runs(&self, lane: Lane) -> bool {
        self.by_lane.get(&lane).is_some_and(|state| state.running)
    }

    /// The lane's task has ended.
    pub(super) fn ended(
        &mut self,
        lane: Lane,
        result: Result<(), CloudError>,
        now: Time,
        rng: &mut SmallRng,
    ) {
        let state = self.by_lane.entry(lane).or_default();
        state.running = false;
        state.ended += 1;
        let error = match result {
            Ok(()) => {
                state.failure = None;
                return;
            }
            // Nothing has failed and nothing was done: what is known of an earlier failure stays.
            Err(error) if error.class == Class::Superseded => return,
            Err(error) => error,
        };
        state.failure = Some(Failure::after(state.failure.take(), error, now, rng));
    }

    /// A look at the cloud has failed; the answer is when to look again.
    pub(super) fn look_failed(&mut self, error: CloudError, now: Time, rng: &mut SmallRng) -> Time {
        let failure = Failure::after(self.look.take(), error, now, rng);
        let next_try = failure.next_try;
        self.look = Some(failure);
        next_try
    }

    /// A look at the cloud has succeeded.
    pub(super) fn looked(&mut self) {
        self.look = None;
    }

    /// The lane has nothing to do: what failed is no longer wanted or was done by other means.
    pub(super) fn idle(&mut self, lane: Lane) {
        if let Some(state) = self.by_lane.get_mut(&lane).filter(|s| !s.running) {
            state.failure = None;
        }
    }

    /// What was asked for has changed: try again at once.
    pub(super) fn forgive(&mut self) {
        for failure in self.by_lane.values_mut().filter_map(|s| s.failure.as_mut()) {
            failure.next_try = Time::EPOCH;
        }
    }

    /// Something has gone from the cloud: what had no room is tried again at once (AWS-760). Tells whether anything waits for
    /// that.
    pub(super) fn has_room(&mut self) -> bool {
        let failures = self.by_lane.values_mut().filter_map(|s| s.failure.as_mut());
        let full = failures.filter(|failure| failure.is_of_quota());
        full.map(|failure| failure.next_try = Time::EPOCH).count() > 0
    }

    /// The failure to show: that of the lane that matters most.
    pub(super) fn failure(&self) -> Option<(&'static str, &Failure)> {
        let look = self.look.as_ref().map(|failure| ("look", failure));
        let lane = |lane: Lane| Some((lane.as_str(), self.by_lane.get(&lane)?.failure.as_ref()?));
        look.or_else(|| Lane::ALL.into_iter().find_map(lane))
    }

    /// When the next lane may be tried again.
    pub(super) fn next_try(&self) -> Option<Time> {
        self.by_lane
            .values()
            .filter_map(|s| Some(s.failure.as_ref()?.next_try))
            .min()
    }
}

impl<P: Provider> Reconciler<P> {
    /// Runs the groups of one lane: those of one subject one after the other, others side by side. A
    /// failure stops the rest of its group and the groups after it; the first one is the answer.
    pub(super) async fn run_lane(
        &self,
        shard: &P::Shard,
        groups: Vec<Group<P::Step>>,
    ) -> Result<(), CloudError> {
        // One for all groups: a Service may have hundreds of ports.
        let told = &OnceCell::new();
        let registered = registrations(&groups);
        let wait = (!registered.is_empty()).then(|| {
            let lanes = self.lanes_of(shard);
            lock(&lanes).tells(registered, self.clock.now())
        });
        let wait = wait.as_ref();
        let mut waiting = groups;
        let mut done = BTreeSet::new();
        let mut busy = BTreeSet::new();
        let (mut first_error, mut superseded) = (None, None);
        let mut tasks = FuturesUnordered::new();
        loop {
            let mut held = Vec::new();
            for group in waiting {
                let ready = group.after.iter().all(|id| done.contains(id));
                if ready && !busy.contains(&group.subject) && tasks.len() < AT_ONCE {
                    busy.insert(group.subject.clone());
                    tasks.push(async move {
                        let result = match self.all_told(shard, &group, (told, wait)).await {
                            Ok(()) => self.run_group(shard, &group).await,
                            Err(error) => Err(error),
                        };
                        if result.is_ok() {
                            self.tell_of(&group);
                        }
                        (group.id, group.subject, result)
                    });
                } else {
                    held.push(group);
                }
            }
            waiting = held;
            let Some((id, subject, result)) = tasks.next().await else {
                break;
            };
            busy.remove(&subject);
            match result {
                Ok(()) => {
                    done.insert(id);
                }
                // One that failed says more than one that has yet to be made.
                Err(error) if error.class == Class::Superseded => superseded = Some(error),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.or(superseded).map_or(Ok(()), Err)
    }

    /// Waits until the nodes of a group's targets are told of them (K-20); fails where a later plan wants others.
    async fn all_told(
        &self,
        shard: &P::Shard,
        group: &Group<P::Step>,
        (told, wait): (&OnceCell<()>, Option<&(Time, CancellationToken)>),
    ) -> Result<(), CloudError> {
        let Some((since, give_up)) = wait.filter(|_| group.steps.iter().any(Step::registers))
        else {
            return Ok(());
        };
        if told.get().is_some() {
            return Ok(());
        }
        tokio::select! {
            biased;
            &() = told.get_or_init(|| self.nodes_told(&group.services, *since)) => {}
            () = give_up.cancelled() => {
                let answer = "a later plan carries more";
                return Err(CloudError::new(Class::Superseded, group.id.to_string(), answer));
            }
        }
        let lanes = self.lanes_of(shard);
        lock(&lanes).told();
        Ok(())
    }

    async fn run_group(&self, shard: &P::Shard, group: &Group<P::Step>) -> Result<(), CloudError> {
        let (lane, service) = (group.lane.as_str(), names(&group.services));
        for step in &group.steps {
            let result = self.provider.execute(step, &self.fence).await;
            let word = match &result {
                Ok(Effect::Changed) => "ok",
                Ok(Effect::AlreadySo) => "already-so",
                Err(error) => error.class.as_str(),
            };
            self.measures
                .calls
                .get_or_create(&Call {
                    operation: step.verb(),
                    result: word,
                })
                .inc();
            match result {
                Ok(_) => {
                    tracing::info!(%shard, service, lane, %step, result = word, "cloud call");
                }
                Err(error) => {
                    if ![Class::Fenced, Class::Superseded].contains(&error.class) {
                        tracing::warn!(%shard, service, lane, %step, cause = word, %error, "cloud call failed");
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Services as logs name them (C-113).
fn names(services: &[ServiceKey]) -> String {
    let names = services.iter().map(ToString::to_string);
    names.collect::<Vec<_>>().join(",")
}
