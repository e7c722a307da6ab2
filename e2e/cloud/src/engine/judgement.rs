//! Time passing: what falls due, tails, and the states that the API reports.

use std::net::SocketAddr;

use onehop_core::time::Time;

use super::Engine;
use super::log::{Seq, What};
use super::model::{GroupId, LbState, NodeId};
use super::probe::View;
use super::target::{Life, Registration, Surroundings, Target};
use super::timer::Timer;

impl Engine {
    /// Lets time pass up to `now`: everything that is due happens, in order, at its due time. Time
    /// never runs backwards; an earlier `now` counts as the latest one known.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some((due, timer, cause)) = self.agenda.take_due(self.now) {
            self.fire(due, timer, cause);
        }
    }

    fn fire(&mut self, due: Time, timer: Timer, cause: Option<Seq>) {
        match timer {
            Timer::Provisioned(lb) => {
                let waits = |lb: &super::Balancer| lb.state == LbState::Provisioning;
                if self
                    .balancers
                    .get(&lb)
                    .is_some_and(|found| waits(found) && found.ready_at <= due)
                {
                    self.set_lb_state(&lb, LbState::Active, due, cause);
                }
            }
            Timer::Registered(group, target) => {
                if let Some(found) = self.target_mut(&group, target)
                    && found.registration == Registration::Pending(due)
                {
                    found.registration = Registration::Effective;
                    self.revision += 1;
                    self.rejudge(&group, target, due, cause);
                }
            }
            Timer::Drained(group, target) => {
                if let Some(found) = self.target_mut(&group, target)
                    && found.life == (Life::Draining { until: due })
                {
                    found.life = Life::Left;
                    self.revision += 1;
                    self.rejudge(&group, target, due, cause);
                    self.forget_if_gone(&group, target);
                }
            }
            Timer::Probe(group, target, node) => self.start_probe(&group, target, node, due),
            Timer::TailEnd(group, target, node) => {
                self.end_tail(&group, target, node, due, cause);
            }
            Timer::Switched(lb, listener, node) => {
                let listeners = self.balancers.get_mut(&lb).map(|lb| &mut lb.listeners);
                if let Some(found) = listeners.and_then(|all| all.get_mut(&listener))
                    && found
                        .behind
                        .get(&node)
                        .is_some_and(|(_, until)| *until <= due)
                {
                    found.behind.remove(&node);
                    self.revision += 1;
                }
            }
        }
    }

    /// Lets an LB node go on choosing a target until `end`. Where a tail runs already, the earlier
    /// end counts (FC-44); a draining target without a tail gets none.
    pub(super) fn start_tail(
        &mut self,
        group: &GroupId,
        target: SocketAddr,
        node: NodeId,
        end: Time,
        cause: Option<Seq>,
    ) {
        let now = self.now;
        let Some(view) = self.view_mut(group, target, node) else {
            return;
        };
        let end = view.tail.map_or(end, |running| running.min(end));
        if end <= now {
            return self.stop_tail(group, target, node, cause);
        }
        view.tail = Some(end);
        let what = What::TailStarted {
            node,
            group: group.clone(),
            target,
            until: end,
        };
        let cause = self.log.push(now, cause, what);
        self.agenda.enter(
            end,
            Timer::TailEnd(group.clone(), target, node),
            Some(cause),
        );
    }

    /// Ends a tail before its time, if one runs.
    pub(super) fn stop_tail(
        &mut self,
        group: &GroupId,
        target: SocketAddr,
        node: NodeId,
        cause: Option<Seq>,
    ) {
        let now = self.now;
        if let Some(view) = self.view_mut(group, target, node)
            && view.tail.is_some()
        {
            view.tail = Some(now);
            self.end_tail(group, target, node, now, cause);
        }
    }

    fn end_tail(
        &mut self,
        group: &GroupId,
        target: SocketAddr,
        node: NodeId,
        due: Time,
        cause: Option<Seq>,
    ) {
        let Some(view) = self.view_mut(group, target, node) else {
            return;
        };
        if view.tail.take_if(|end| *end <= due).is_some() {
            self.log.push(
                due,
                cause,
                What::TailEnded {
                    node,
                    group: group.clone(),
                    target,
                },
            );
            self.revision += 1;
            self.forget_if_gone(group, target);
        }
    }

    pub(super) fn rejudge_group(&mut self, id: &GroupId, cause: Seq) {
        let targets: Vec<_> = self
            .groups
            .get(id)
            .into_iter()
            .flat_map(|group| group.targets.keys().copied())
            .collect();
        for target in targets {
            self.rejudge(id, target, self.now, Some(cause));
        }
    }

    /// Brings the reported state of a target up to date and logs a change.
    pub(super) fn rejudge(&mut self, id: &GroupId, at: SocketAddr, now: Time, cause: Option<Seq>) {
        let around = self.surroundings(id);
        let Some(target) = self.target_mut(id, at) else {
            return;
        };
        let told = target.zone.clone();
        let (state, reason) = target.judge(around);
        let from = target.state;
        if (state, reason) == (from, target.reason) {
            return;
        }
        target.state = state;
        target.reason = reason;
        target.since = now;
        let zone = self.zone_here(told.as_ref());
        self.revision += 1;
        let what = What::TargetState {
            group: id.clone(),
            target: at,
            from,
            state,
            reason,
            zone,
        };
        self.log.push(now, cause, what);
    }

    pub(super) fn surroundings(&self, id: &GroupId) -> Surroundings {
        let group = self.groups.get(id);
        let used = group.is_some_and(|group| !group.users.is_empty());
        Surroundings {
            probed: group.is_some_and(|group| group.spec.health.is_some()),
            in_use: used || self.profile_of(id).probe_unused_groups,
        }
    }

    pub(super) fn forget_if_gone(&mut self, id: &GroupId, target: SocketAddr) {
        let profile = self.profile_of(id).clone();
        if let Some(group) = self.groups.get_mut(id)
            && group
                .targets
                .get(&target)
                .is_some_and(|found| found.is_gone(&profile))
        {
            group.targets.remove(&target);
        }
    }

    fn target_mut(&mut self, group: &GroupId, target: SocketAddr) -> Option<&mut Target> {
        self.groups.get_mut(group)?.targets.get_mut(&target)
    }

    pub(super) fn view_mut(
        &mut self,
        group: &GroupId,
        target: SocketAddr,
        node: NodeId,
    ) -> Option<&mut View> {
        self.target_mut(group, target)?.views.get_mut(&node)
    }
}
