//! What agents are told of a Service's targets (K-20). Pure.

use std::collections::BTreeMap;

use onehop_core::crd::TargetState;
use onehop_core::id::Cidr;
use onehop_core::time::Time;

use super::model::{GroupProtocol, Observed, Tagged};
use super::wanted::{decide, groups_of, known_targets, mode_of, port_of};
use crate::plan::membership::{Action, CloudState, State, TargetKey};
use crate::plan::{Intent, Listed};

/// Every target of every group, and those that are about to be registered in a group that does not exist
/// yet.
pub(super) fn listed(intent: &Intent, seen: &Observed, now: Time) -> Vec<Listed> {
    let mut all = Vec::new();
    for port in &intent.spec.ports {
        let key = port.key();
        let mut in_mode = false;
        for group in groups_of(intent, port.port, seen) {
            // Of a merged group both ports have all targets.
            let merged = group.protocol == GroupProtocol::TcpUdp;
            if !merged && port_of(intent, group).as_ref() != Some(&key) {
                in_mode = true;
                continue;
            }
            let retired = group.retired().is_some();
            in_mode |= !retired && mode_of(group.target) == port.mode;
            let decision = decide(intent, group, now);
            let (known, _) = known_targets(group, &intent.machines);
            let mut states: BTreeMap<TargetKey, TargetState> = BTreeMap::new();
            for (target, cloud) in known {
                states.insert(target, state_of(cloud, retired));
            }
            for (target, _) in decision.with(Action::Hold) {
                states.insert(target, TargetState::Held);
            }
            if !retired {
                for (target, _) in decision.with(Action::Register) {
                    states.insert(target, TargetState::Active);
                }
            }
            all.extend(states.into_iter().map(|(target, state)| Listed {
                port: key.clone(),
                mode: mode_of(group.target),
                key: target,
                state,
            }));
        }
        if !in_mode {
            let members = intent.members(&key, port.mode);
            let ready = members.into_iter().flat_map(|m| &m.list);
            let ready = ready.filter(|m| m.state == State::Ready);
            all.extend(ready.map(|member| Listed {
                port: key.clone(),
                mode: port.mode,
                key: member.key,
                state: TargetState::Active,
            }));
        }
    }
    all
}

/// The subnets in which the Service's load balancers have their interfaces (ZD-14).
pub(super) fn sources(intent: &Intent, seen: &Observed) -> Vec<Cidr> {
    let own = seen
        .balancers
        .iter()
        .filter(|b| b.uid().as_ref() == Some(&intent.uid));
    let subnets = own.flat_map(|b| b.subnets.keys());
    let known = subnets.filter_map(|id| seen.network.subnets.get(id));
    Cidr::aggregate(known.flat_map(|subnet| subnet.cidr.iter().chain(&subnet.ipv6).copied()))
}

/// Targets of a group that is on its way out drain, whatever the cloud says of them yet.
const fn state_of(cloud: CloudState, retired: bool) -> TargetState {
    match (cloud, retired) {
        (CloudState::Draining, _) | (_, true) => TargetState::Draining,
        (_, false) => TargetState::Active,
    }
}
