//! What agents are told of a Service's targets (K-20). Pure.

use std::collections::BTreeMap;

use onehop_core::crd::TargetState;
use onehop_core::time::Time;

use super::model::Observed;
use super::wanted::{current_group, decide, groups_of};
use crate::plan::membership::{Action, CloudState, State, TargetKey};
use crate::plan::{Intent, Listed};

/// Every target of every group, and those that are about to be registered in a group that does not exist yet.
pub(super) fn listed(intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
    let mut all = Vec::new();
    for port in &intent.spec.ports {
        let key = port.key();
        for group in groups_of(intent, &key, seen) {
            let decision = decide(intent, group, seen, now);
            let mut states: BTreeMap<TargetKey, TargetState> = BTreeMap::new();
            for (target, cloud) in &group.targets {
                states.insert(*target, state_of(*cloud, group.retired.is_some()));
            }
            for (target, _) in decision.with(Action::Hold) {
                states.insert(target, TargetState::Held);
            }
            if group.retired.is_none() {
                for (target, _) in decision.with(Action::Register) {
                    states.insert(target, TargetState::Active);
                }
            }
            all.extend(states.into_iter().map(|(target, state)| {
                Listed {
                    port: key.clone(),
                    mode: group.spec.mode,
                    key: target,
                    state,
                    health_port: group.spec.probe.as_ref().and_then(|probe| probe.port),
                    seen: group
                        .targets
                        .get(&target)
                        .copied()
                        .filter(|_| group.retired.is_none()),
                    verdict: decision
                        .verdicts
                        .get(&target)
                        .copied()
                        .filter(|_| group.retired.is_none()),
                }
            }));
        }
        if current_group(intent, port, seen).is_none() {
            let members = intent.members(&key, port.mode);
            let ready = members.into_iter().flat_map(|m| &m.list);
            let ready = ready.filter(|m| m.state == State::Ready);
            all.extend(ready.map(|member| Listed {
                port: key.clone(),
                mode: port.mode,
                key: member.key,
                state: TargetState::Active,
                health_port: None,
                seen: None,
                verdict: None,
            }));
        }
    }
    all
}

/// Targets of a group that is on its way out drain, whatever the cloud says of them yet.
const fn state_of(cloud: CloudState, retired: bool) -> TargetState {
    match (cloud, retired) {
        (CloudState::Draining, _) | (_, true) => TargetState::Draining,
        (_, false) => TargetState::Active,
    }
}
