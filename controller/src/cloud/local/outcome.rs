//! What to say about a Service, read off the last observation. Pure.

use std::collections::BTreeSet;

use onehop_core::node::EXCLUDE_LABEL;
use onehop_core::time::Time;

use super::model::{BalancerState, Group, ListenerKey, Observed};
use super::wanted::{balancer_of, decide, groups_of, members_of};
use crate::plan::membership::{Action, Decision, MassRemoval, Reason, State, TargetKey};
use crate::plan::{Intent, Notice, Outcome, PortCount, Programmed};

/// State, addresses, ids and counts.
pub(super) fn outcome(intent: &Intent, seen: &Observed, now: Time) -> Outcome {
    let balancer = balancer_of(intent, seen);
    let mut resources = Vec::new();
    if let Some(balancer) = balancer {
        resources.push(("loadBalancer", balancer.id.clone(), 1));
    }
    let mut mass_removal: Option<MassRemoval> = None;
    let mut ports = std::collections::BTreeMap::new();
    let mut last = BTreeSet::new();
    for port in &intent.spec.ports {
        let mut count = PortCount::default();
        for group in groups_of(intent, &port.key(), seen) {
            resources.push(("group", group.id.clone(), group.generation));
            let decision = decide(intent, group, seen, now);
            if group.retired.is_none() {
                last.extend(kept_as_last(intent, group, &decision, seen));
                count.judge(&decision);
                mass_removal = mass_removal.or(decision.mass_removal);
            }
            for state in group.targets.values() {
                count.add(*state);
            }
        }
        ports.insert(port.key(), count);
    }
    Outcome {
        host: None,
        notices: excluded(&last).into_iter().collect(),
        programmed: programmed(intent, seen),
        addresses: balancer
            .map(|b| b.spec.addresses.clone())
            .unwrap_or_default(),
        resources,
        ports,
        mass_removal,
    }
}

/// Targets whose node is excluded or going, and that stay since nothing else can serve (C-44).
fn kept_as_last(
    intent: &Intent,
    group: &Group,
    decision: &Decision,
    seen: &Observed,
) -> Vec<TargetKey> {
    let members = members_of(intent, group, seen).map_or(&[][..], |m| &m.list);
    let withdrawn = members.iter().filter(|m| m.state == State::Withdrawn);
    let last = |key: &TargetKey| {
        let verdict = decision.verdicts.get(key);
        verdict.is_some_and(|v| (v.action, v.reason) == (Action::Hold, Reason::LastServing))
    };
    withdrawn.map(|m| m.key).filter(last).collect()
}

fn excluded(last: &BTreeSet<TargetKey>) -> Option<Notice> {
    let list: Vec<_> = last.iter().map(ToString::to_string).collect();
    (!list.is_empty()).then(|| Notice {
        reason: "LastTargetsKept",
        message: format!(
            "the last targets that can serve are kept, although their nodes are excluded ({EXCLUDE_LABEL}) or going: {}",
            list.join(", ")
        ),
        degrades: true,
    })
}

fn programmed(intent: &Intent, seen: &Observed) -> Programmed {
    let Some(balancer) = balancer_of(intent, seen) else {
        return Programmed::Waiting("the load balancer is not made yet".to_owned());
    };
    match balancer.state {
        BalancerState::Provisioning => {
            return Programmed::Waiting(format!("load balancer {} is provisioning", balancer.id));
        }
        BalancerState::Failed => {
            return Programmed::Failed(format!("load balancer {} has failed", balancer.id));
        }
        BalancerState::Active => {}
    }
    if balancer.spec.addresses != intent.addresses {
        return Programmed::Waiting("the load balancer has yet to take its addresses".to_owned());
    }
    let missing = intent.spec.ports.iter().find(|port| {
        let key = ListenerKey {
            port: port.port,
            protocol: port.protocol,
        };
        !balancer.listeners.contains_key(&key)
    });
    match missing {
        Some(port) => Programmed::Waiting(format!("no listener yet for port {}", port.key())),
        None => Programmed::Yes,
    }
}
