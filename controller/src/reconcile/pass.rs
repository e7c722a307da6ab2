//! One pass over one shard: who wants what, a look at the cloud, a plan, lanes, and what to say.

use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;

use super::cases::{Case, wanted};
use super::lanes::Mark;
use super::memory::{Memory, WriteTrouble};
use super::{Orphans, Reconciler, Suspicion, lock};
use crate::cloud::{Class, CloudError};
use crate::plan::{Depth, Intent, Lane, Look, Plan, Programmed, Provider};
use crate::writes::WriteError;

/// How old a full look may be for a members-only one to be enough.
const FULL_LOOK_LASTS: Duration = Duration::from_secs(30);

impl<P: Provider> Reconciler<P> {
    /// Runs one pass; the answer is when the shard wants the next one.
    pub(super) async fn pass(
        self: &Arc<Self>,
        shard: &P::Shard,
        memory: &mut Memory<P>,
    ) -> Option<Time> {
        let failures = memory.writes.failures;
        let again = self.look_plan_say(shard, memory).await;
        if memory.writes.failures == failures {
            memory.writes = WriteTrouble::default();
        }
        again
    }

    async fn look_plan_say(
        self: &Arc<Self>,
        shard: &P::Shard,
        memory: &mut Memory<P>,
    ) -> Option<Time> {
        let mut cases: Vec<Case> = self
            .provider
            .services(shard)
            .iter()
            .map(|key| self.case(key))
            .collect();
        let strange = |case: &Case| matches!(case, Case::Foreign | Case::Absent(_, None));
        if cases.iter().all(strange) {
            // Nothing of ours, unless the cloud has something: from before, or by the listing.
            let known = memory.seen.is_some() || lock(&self.suspects).contains_key(shard);
            if !known {
                self.forget(memory);
                return None;
            }
        } else {
            lock(&self.suspects).remove(shard);
        }
        if let Err(error) = self.before_the_cloud(&cases).await {
            return Some(self.write_failed(shard, &error, &mut memory.writes));
        }
        for (service, uid) in cases.iter().filter_map(Case::identity) {
            self.provider.meet(service, uid);
        }
        let lanes = self.lanes_of(shard);
        let mark = lock(&lanes).mark();
        if wanted(&cases).is_some_and(|wanted| wanted != memory.wanted) {
            lock(&lanes).forgive();
        }
        let depth = self.depth(&cases, memory);
        let look = Look {
            depth,
            last: memory.seen.as_ref(),
        };
        match self.provider.observe(shard, look).await {
            Ok(seen) => {
                lock(&lanes).looked();
                memory.seen = Some(seen);
            }
            Err(error) => return self.look_failed(shard, &cases, memory, error).await,
        }
        let seen = memory.seen.clone()?;
        let now = self.clock.now();
        let intents = self.intents(&cases, &seen, memory);
        let custody = self.custody(shard, &mut cases, &intents, memory).await;
        let (plan, custody_again) = match custody {
            Ok(Some(theirs)) => theirs,
            Ok(None) => (self.plan(shard, &cases, &intents, &seen, now), None),
            Err(error) => return Some(self.write_failed(shard, &error, &mut memory.writes)),
        };
        let shaped = plan.groups.iter().all(|g| g.lane == Lane::Members)
            && intents.iter().all(|intent| {
                self.provider.outcome(intent, &seen, now).programmed == Programmed::Yes
            });
        memory.settled_at = match (shaped, depth) {
            (true, Depth::Full) => Some(now),
            (true, Depth::Members) => memory.settled_at,
            (false, _) => None,
        };
        if shaped && mark.is_quiet() {
            self.confirm_addresses(&intents);
        }
        memory.wanted = wanted(&cases).unwrap_or_default();
        // Nodes hear of targets first: this process may end at any time (ZD-12).
        let ours = memory.ours(&intents);
        self.list_targets(&cases, &ours, &seen, memory);
        self.start_lanes(shard, &plan, &mark, now);
        let next_try = lock(&lanes).next_try();
        let looks = [
            self.provider.next_look(shard, &intents, &seen, now),
            next_try,
            custody_again,
            self.agents_awaited(&cases),
            self.turn_gates(&cases, &ours, &seen).await,
            self.say(shard, &cases, &intents, memory).await,
            self.second_look(&intents, &seen, memory).await,
            self.clean_up(shard, &cases, &mark, &seen, memory).await,
            (!memory.is_empty()).then(|| self.next_sweep(now)),
        ];
        looks.into_iter().flatten().min()
    }

    /// The cloud does not answer: says so on the strength of the last look, and tries again.
    async fn look_failed(
        &self,
        shard: &P::Shard,
        cases: &[Case],
        memory: &mut Memory<P>,
        error: CloudError,
    ) -> Option<Time> {
        tracing::warn!(%shard, cause = error.class.as_str(), %error, "cannot look at the cloud, trying again");
        let again = {
            let mut rng = self.fork_rng();
            let lanes = self.lanes_of(shard);
            let now = self.clock.now();
            lock(&lanes).look_failed(error, now, &mut rng)
        };
        let intents = match memory.seen.clone() {
            Some(seen) => {
                let intents = self.intents(cases, &seen, memory);
                let ours = memory.ours(&intents);
                self.list_targets(cases, &ours, &seen, memory);
                intents
            }
            None => Vec::new(),
        };
        let said = self.say(shard, cases, &intents, memory).await;
        [Some(again), said].into_iter().flatten().min()
    }

    /// Notes a failed write; the answer is when to try again.
    pub(super) fn write_failed(
        &self,
        shard: &P::Shard,
        error: &WriteError,
        trouble: &mut WriteTrouble,
    ) -> Time {
        self.measures.write_failures.inc();
        if error.is_conflict() && trouble.failures == 0 {
            tracing::debug!(%error, "somebody was faster, trying again");
        } else {
            tracing::warn!(%shard, cause = error.cause(), %error, "a write to the API server failed, trying again");
        }
        trouble.failures += 1;
        let backoff = trouble
            .backoff
            .get_or_insert_with(|| Policy::RETRY.start(&mut lock(&self.rng)));
        self.clock.now() + backoff.next_delay()
    }

    /// Members only, if everything was looked at lately, nothing of the shape was left to do then and
    /// nothing else is wanted now.
    fn depth(&self, cases: &[Case], memory: &Memory<P>) -> Depth {
        let now = self.clock.now();
        let fresh = memory
            .settled_at
            .is_some_and(|at| now.since(at) < FULL_LOOK_LASTS);
        if fresh && wanted(cases).as_ref() == Some(&memory.wanted) {
            Depth::Members
        } else {
            Depth::Full
        }
    }

    fn plan(
        &self,
        shard: &P::Shard,
        cases: &[Case],
        intents: &[Intent],
        seen: &P::Observed,
        now: Time,
    ) -> Plan<P::Step> {
        let may_plan = cases.iter().all(|case| match case {
            Case::Ours(wanted) => wanted.plannable().is_some(),
            Case::Leaving(..) | Case::Absent(_, Some(_)) => true,
            Case::Absent(_, None) | Case::Foreign => self.may_delete_orphan(shard, seen),
        });
        if !may_plan {
            return Plan::default();
        }
        // Another program has it: our marks go, and nothing else.
        let theirs = |case: &Case| matches!(case, Case::Leaving(service, _) if self.provider.is_theirs(&service.spec));
        if cases.iter().any(theirs) {
            return self.provider.disown(shard, seen);
        }
        self.provider.plan(shard, intents, seen, now)
    }

    /// Cloud objects of ours which no Service wants and no clean-up of ours is about (C-123).
    fn may_delete_orphan(&self, shard: &P::Shard, seen: &P::Observed) -> bool {
        let services = self.provider.services(shard);
        let mut suspects = lock(&self.suspects);
        let is_gone = |key| self.provider.left_of(key, seen).is_empty();
        let now = self.clock.now();
        let mut since = now;
        if services.iter().all(is_gone) {
            suspects.remove(shard);
        } else if let Some(Suspicion::Orphan(known)) = suspects.get(shard) {
            since = *known;
        } else {
            tracing::warn!(%shard, "cloud objects of ours which no Service wants");
            suspects.insert(shard.clone(), Suspicion::Orphan(now));
        }
        let orphans = suspects
            .values()
            .filter(|s| matches!(s, Suspicion::Orphan(_)))
            .count();
        self.measures
            .orphans
            .set(i64::try_from(orphans).unwrap_or(i64::MAX));
        let over = now.since(since) >= self.settings.orphan_grace;
        self.settings.orphans == Orphans::Delete && over
    }

    fn start_lanes(
        self: &Arc<Self>,
        shard: &P::Shard,
        plan: &Plan<P::Step>,
        mark: &Mark,
        now: Time,
    ) {
        for lane in Lane::ALL {
            let shared = self.lanes_of(shard);
            let groups = plan.runnable(lane);
            if lane == Lane::Members && lock(&shared).runs(lane) {
                lock(&shared).supersede(&groups);
                self.provider.supersede(shard, plan);
            }
            if groups.is_empty() {
                // Nothing wanted of the lane at all, not even later.
                if plan.groups.iter().all(|g| g.lane != lane) {
                    lock(&shared).idle(lane);
                }
                continue;
            }
            if !lock(&shared).take(lane, mark, now) {
                continue;
            }
            let this = Arc::clone(self);
            let shard = shard.clone();
            tokio::spawn(async move {
                let result = this.run_lane(&shard, groups).await;
                if let Err(error) = &result
                    && error.class != Class::Superseded
                {
                    if let Some(taken) = &error.taken {
                        this.address_taken(&shard, taken);
                    }
                    let labels = crate::metrics::LaneFailure {
                        lane: lane.as_str(),
                        class: error.class.as_str(),
                    };
                    this.measures.lane_failures.get_or_create(&labels).inc();
                }
                let makes_room = lane == Lane::Delete && result.is_ok();
                let mut rng = this.fork_rng();
                lock(&shared).ended(lane, result, this.clock.now(), &mut rng);
                this.touch(&shard);
                if makes_room {
                    this.retry_what_had_no_room();
                }
            });
        }
    }

    /// A delete of ours makes room for what a limit has refused (AWS-760).
    fn retry_what_had_no_room(&self) {
        let all: Vec<_> = {
            let lanes = lock(&self.lanes);
            let all = lanes.iter();
            all.map(|(shard, of)| (shard.clone(), Arc::clone(of)))
                .collect()
        };
        for (shard, lanes) in all {
            if lock(&lanes).has_room() {
                self.touch(&shard);
            }
        }
    }
}
