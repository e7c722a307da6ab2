//! Time passing: what falls due, probes and their outcomes, verdicts, tails, reported states.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use onehop_core::time::Time;

use super::log::{Seq, What};
use super::model::{GroupId, LbState, NodeId};
use super::probe::{Outcome, ProbeId, ProbeOrder, Verdict, View};
use super::target::{Life, Registration, Surroundings, Target};
use super::timer::Timer;
use super::{Engine, Flight};

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

    /// Takes the outcome of a probe that was handed out by `take_probes`.
    pub fn probe_result(&mut self, now: Time, id: ProbeId, outcome: Outcome) {
        self.advance(now);
        let Some(Flight {
            group,
            target,
            node,
        }) = self.flights.remove(&id)
        else {
            return;
        };
        let now = self.now;
        let check = self
            .groups
            .get(&group)
            .and_then(|found| found.spec.health.clone());
        let Some(view) = self.view_mut(&group, target, node) else {
            return;
        };
        let Some((_, started)) = view.under_way.take_if(|(under_way, _)| *under_way == id) else {
            return;
        };
        // The group lost its probe while this one was under way.
        let Some(check) = check else {
            return;
        };
        let before = view.verdict;
        let changed = view.record(outcome.is_ok(), &check);
        let what = What::Probe {
            node,
            group: group.clone(),
            target,
            outcome,
        };
        let cause = self.log.push(now, None, what);
        if let Some(verdict) = changed {
            self.verdict_changed(&group, target, node, (before, verdict), cause);
        }
        self.plan_probe(&group, target, node, (started + check.interval).max(now));
        self.rejudge(&group, target, now, Some(cause));
        self.advance(now);
    }

    fn verdict_changed(
        &mut self,
        group: &GroupId,
        target: SocketAddr,
        node: NodeId,
        (before, verdict): (Verdict, Verdict),
        cause: Seq,
    ) {
        let what = What::Verdict {
            node,
            group: group.clone(),
            target,
            verdict,
        };
        let cause = self.log.push(self.now, Some(cause), what);
        self.revision += 1;
        let Some(found) = self
            .groups
            .get(group)
            .and_then(|found| found.targets.get(&target))
        else {
            return;
        };
        let registered = found.life == Life::Registered;
        let effective = found.registration == Registration::Effective;
        match verdict {
            Verdict::Healthy if registered => {
                if let Some(view) = self.view_mut(group, target, node) {
                    view.tail = None;
                }
            }
            // Only a target that was being chosen goes on being chosen for a while (FC-44).
            Verdict::Unhealthy if before == Verdict::Healthy && effective => {
                let tail = self.profile_of(group).lags.unhealthy_tail.clone();
                let end = self.now + tail.draw(&mut self.rng);
                self.start_tail(group, target, node, end, Some(cause));
            }
            _ => {}
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
            view.tail = None;
            return;
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

    fn start_probe(&mut self, id: &GroupId, target: SocketAddr, node: NodeId, due: Time) {
        let http_up = self.profile_of(id).probe.http_up.clone();
        let probe = ProbeId(self.next_probe);
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let Some(check) = group.spec.health.clone() else {
            return;
        };
        let Some(found) = group
            .targets
            .get_mut(&target)
            .filter(|found| found.wants_probes())
        else {
            return;
        };
        let Some(view) = found
            .views
            .get_mut(&node)
            .filter(|view| view.next_probe == Some(due))
        else {
            return;
        };
        view.next_probe = None;
        view.under_way = Some((probe, due));
        self.next_probe += 1;
        self.flights.insert(
            probe,
            Flight {
                group: id.clone(),
                target,
                node,
            },
        );
        self.due_probes.push(ProbeOrder {
            id: probe,
            node,
            group: id.clone(),
            to: SocketAddr::new(target.ip(), check.port.unwrap_or(target.port())),
            protocol: check.protocol,
            path: check.path,
            http_up,
            timeout: check.timeout,
        });
    }

    fn plan_probe(&mut self, group: &GroupId, target: SocketAddr, node: NodeId, at: Time) {
        if let Some(view) = self.view_mut(group, target, node) {
            view.next_probe = Some(at);
            self.agenda
                .enter(at, Timer::Probe(group.clone(), target, node), None);
        }
    }

    /// Makes the LB nodes that judge a group's targets be those of the load balancers that use it.
    pub(super) fn refresh_views(&mut self, id: &GroupId, cause: Seq) {
        let nodes = self.judges(id);
        let skew = self.profile_of(id).lags.verdict_skew.clone();
        let now = self.now;
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let probed = group.spec.health.is_some();
        let mut new = Vec::new();
        for (at, target) in &mut group.targets {
            target.views.retain(|node, _| nodes.contains(node));
            for node in nodes.iter().filter(|node| !target.views.contains_key(node)) {
                new.push((*at, *node));
            }
            for (_, node) in new.iter().filter(|(of, _)| of == at) {
                target.views.insert(*node, View::new(Verdict::Unknown));
            }
        }
        for (target, node) in new.into_iter().filter(|_| probed) {
            let first = now + skew.draw(&mut self.rng);
            self.plan_probe(id, target, node, first);
        }
        self.revision += 1;
        self.rejudge_group(id, cause);
    }

    /// After a change of the health check: probes start where none ran, and none waits longer than
    /// the new interval.
    pub(super) fn reschedule_probes(&mut self, id: &GroupId, cause: Seq) {
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let interval = group.spec.health.as_ref().map(|check| check.interval);
        let mut plan = Vec::new();
        for (at, target) in &mut group.targets {
            for (node, view) in &mut target.views {
                let Some(interval) = interval else {
                    view.next_probe = None;
                    continue;
                };
                let latest = self.now + interval;
                match view.next_probe {
                    Some(next) if next <= latest => {}
                    Some(_) => plan.push((*at, *node, latest)),
                    None if view.under_way.is_none() => plan.push((*at, *node, self.now)),
                    None => {}
                }
            }
        }
        for (target, node, at) in plan {
            self.plan_probe(id, target, node, at);
        }
        self.rejudge_group(id, cause);
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
        let (state, reason) = target.judge(around);
        let from = target.state;
        if (state, reason) == (from, target.reason) {
            return;
        }
        target.state = state;
        target.reason = reason;
        target.since = now;
        self.revision += 1;
        let what = What::TargetState {
            group: id.clone(),
            target: at,
            from,
            state,
            reason,
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

    fn judges(&self, id: &GroupId) -> BTreeSet<NodeId> {
        let users = self.groups.get(id).map(|group| &group.users);
        let users = users
            .into_iter()
            .flatten()
            .filter_map(|(lb, _)| self.balancers.get(lb));
        let mut judges: BTreeSet<_> = users.flat_map(|lb| self.nodes_of(&lb.spec)).collect();
        if judges.is_empty() && self.surroundings(id).in_use {
            judges.extend(self.nodes.keys());
        }
        judges
    }

    fn forget_if_gone(&mut self, id: &GroupId, target: SocketAddr) {
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

    fn view_mut(&mut self, group: &GroupId, target: SocketAddr, node: NodeId) -> Option<&mut View> {
        self.target_mut(group, target)?.views.get_mut(&node)
    }
}
