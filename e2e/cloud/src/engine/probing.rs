//! Probes: when each LB node starts one, what its outcome changes, and which LB nodes judge a group.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use onehop_core::time::Time;

use super::log::{Seq, What};
use super::model::{GroupId, NodeId};
use super::probe::{Outcome, ProbeId, ProbeOrder, Verdict, View};
use super::target::{Life, Registration};
use super::timer::Timer;
use super::{Engine, Flight};

impl Engine {
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
        let failing = self.faults().failing_probes.contains(&target);
        let outcome = if failing { Outcome::Refused } else { outcome };
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
            Verdict::Healthy if registered => self.stop_tail(group, target, node, Some(cause)),
            // Only a target that was being chosen goes on being chosen for a while (FC-44).
            Verdict::Unhealthy if before == Verdict::Healthy && effective => {
                let tail = self.profile_of(group).lags.unhealthy_tail.clone();
                let end = self.now + tail.draw(&mut self.rng);
                self.start_tail(group, target, node, end, Some(cause));
            }
            _ => {}
        }
    }

    pub(super) fn start_probe(
        &mut self,
        id: &GroupId,
        target: SocketAddr,
        node: NodeId,
        due: Time,
    ) {
        let http_up = self.profile_of(id).probe.http_up.clone();
        let probe = ProbeId(self.next_probe);
        let Some(group) = self.groups.get_mut(id) else {
            return;
        };
        let Some(check) = group.spec.health.clone() else {
            return;
        };
        let proxy_protocol = group.spec.proxy_protocol;
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
            proxy_protocol,
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
}
