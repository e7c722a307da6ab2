//! The members of one group: what the policy says, in calls of at most 200 targets (AWS-421, AWS-610).

use std::collections::{BTreeMap, BTreeSet};

use super::Planner;
use crate::cloud::aws::model::{Group, RefusedTarget, TargetId, TargetType};
use crate::cloud::aws::stack::GroupSpec;
use crate::cloud::aws::step::{AwsStep, When};
use crate::cloud::aws::wanted;
use crate::plan::Intent;
use crate::plan::membership::{Action, Decision, Guard, Reason, TargetKey};

/// Most targets of one call.
const AT_ONCE: usize = 200;

/// The group that a decision is carried out on.
struct Of<'a> {
    /// Its name.
    group: &'a str,
    /// What its targets are.
    target: TargetType,
    /// How many it has.
    registered: usize,
    /// Those that it did not take.
    refused: Option<&'a BTreeMap<TargetId, RefusedTarget>>,
    /// The share of its wanted targets that take flows, in percent.
    healthy: u8,
    /// Targets that somebody stands in for.
    guarded: BTreeSet<TargetKey>,
}

impl Planner<'_> {
    /// Steps for a group that is there.
    pub(super) fn members(&mut self, intent: &Intent, group: &Group) {
        let decision = wanted::decide(intent, group, self.now);
        let of = Of {
            group: &group.name,
            target: group.target,
            registered: group.registered().count(),
            refused: Some(&group.refused),
            healthy: wanted::healthy_percent(intent, group),
            guarded: wanted::guarded(intent, group),
        };
        self.carry_out(intent, &of, &decision);
        let (_, strangers) = wanted::known_targets(group, &intent.machines);
        if wanted::port_of(intent, group).is_some() {
            // Machines that are gone: nothing serves there.
            let gone: Vec<_> = strangers.into_iter().map(|id| (id, Reason::Gone)).collect();
            self.deregister(&group.name, gone, When::AtOnce, Guard::Absent);
        }
    }

    /// Steps for a group that this plan makes.
    pub(super) fn first_members(&mut self, intent: &Intent, spec: &GroupSpec, name: &str) {
        let decision = wanted::decide_new(intent, spec, self.now);
        let of = Of {
            group: name,
            target: spec.target,
            registered: 0,
            refused: None,
            healthy: 0,
            guarded: BTreeSet::new(),
        };
        self.carry_out(intent, &of, &decision);
    }

    fn carry_out(&mut self, intent: &Intent, of: &Of<'_>, decision: &Decision) {
        let Of { group, target, .. } = *of;
        let now = self.now;
        // AWS-430: one that was refused just now is tried again later, and alone is no reason for a call.
        let rests = |id: &TargetId| {
            let refused = of.refused.and_then(|all| all.get(id));
            refused.is_some_and(|refused| refused.until > now)
        };
        let id = |key: TargetKey| wanted::target_id(key, target, &intent.machines);
        let all: Vec<(TargetId, Option<String>)> = decision
            .with(Action::Register)
            .filter_map(|(key, _)| Some((id(key)?, self.zone(target, key))))
            .filter(|(id, _)| !rests(id))
            .collect();
        let room = match self.settings.max_targets {
            0 => all.len(),
            most => most.saturating_sub(of.registered),
        };
        let batches: Vec<Vec<_>> = all[..room.min(all.len())]
            .chunks(AT_ONCE)
            .map(<[_]>::to_vec)
            .collect();
        for targets in batches {
            let group = group.to_owned();
            self.steps.push(AwsStep::Register {
                group,
                targets,
                healthy: of.healthy,
            });
        }
        let out = [
            (Action::Release, When::AtOnce),
            (Action::Drain, When::AfterRegister),
        ];
        for (action, when) in out {
            let leaving: Vec<_> = decision.with(action).collect();
            let guard = if leaving.iter().all(|(key, _)| of.guarded.contains(key)) {
                Guard::Present
            } else {
                Guard::Absent
            };
            let targets = leaving
                .into_iter()
                .filter_map(|(key, reason)| Some((id(key)?, reason)))
                .collect();
            self.deregister(group, targets, when, guard);
        }
    }

    pub(super) fn deregister(
        &mut self,
        group: &str,
        targets: Vec<(TargetId, Reason)>,
        when: When,
        guard: Guard,
    ) {
        for targets in targets.chunks(AT_ONCE) {
            self.steps.push(AwsStep::Deregister {
                group: group.to_owned(),
                targets: targets.to_vec(),
                when,
                guard,
            });
        }
    }

    /// AWS-425: an address outside the VPC has no zone of its own.
    fn zone(&self, target: TargetType, key: TargetKey) -> Option<String> {
        let cidrs = &self.seen.network.cidrs;
        let outside = target == TargetType::Ip
            && !cidrs.is_empty()
            && !cidrs.iter().any(|range| range.contains(key.address));
        outside.then(|| "all".to_owned())
    }
}
