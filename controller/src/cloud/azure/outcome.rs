//! What to say about a Service, and what agents are told of its targets, read off the last observation. Pure.

use std::collections::BTreeMap;

use onehop_core::crd::{LoadBalancerPort, TargetMode, TargetState};
use onehop_core::time::Time;

use super::balancer::{conflict, has_part, is_ours, is_there, room};
use super::document::{POOLS, child, text};
use super::grace;
use super::members::Filled;
use super::model::{Built, Observed, Rules, addresses, build, wishes};
use super::names;
use super::part::{Pool, has_own_pool};
use super::rights::{locked, notices};
use super::settings::Settings;
use super::takeover;
use crate::plan::membership::{Action, CloudState, State, TargetKey};
use crate::plan::{Intent, Listed, Notice, Outcome, PortCount, Programmed, Refusal};

/// State, addresses, ids and counts.
pub(super) fn outcome(settings: &Settings, intent: &Intent, seen: &Observed, now: Time) -> Outcome {
    let build_by = |by: &Settings| build(by, &intent.service, &intent.spec, &seen.documents);
    // What the peer has is told as if it were ours already.
    let built = build_by(settings).or_else(|why| {
        let assumed = takeover::assumed(settings, intent);
        let built = assumed.and_then(|assumed| build_by(&assumed).ok());
        built.ok_or(why)
    });
    let mut outcome = Outcome {
        programmed: Programmed::Yes,
        addresses: Vec::new(),
        host: None,
        notices: Vec::new(),
        resources: Vec::new(),
        ports: BTreeMap::new(),
        mass_removal: None,
    };
    match built {
        Ok(built) => fill(settings, intent, (&built, seen), now, &mut outcome),
        Err(why) => refuse(&mut outcome, &why),
    }
    outcome
}

fn refuse(outcome: &mut Outcome, why: &Refusal) {
    outcome.programmed = Programmed::Waiting(why.message.clone());
    outcome.notices.push(Notice {
        reason: why.reason,
        message: why.message.clone(),
        degrades: true,
    });
}

fn fill(
    settings: &Settings,
    intent: &Intent,
    (built, seen): (&Built, &Observed),
    now: Time,
    outcome: &mut Outcome,
) {
    let part = &built.part;
    outcome.addresses = addresses(part, &seen.documents);
    outcome.notices.extend(grace::lost(part, &seen.documents));
    if let Some((former, notice)) = grace::published(settings, part, seen, now) {
        outcome.addresses.extend(former);
        outcome.notices.push(notice);
    }
    // Beside our own: nodes accept them too, and they are rules' destinations (AZ-050).
    if outcome.addresses.len() >= part.frontends.len() {
        // Not before them: the first is the Service's own (AZ-186).
        outcome.addresses.extend(wishes(&intent.spec).additional);
    }
    let asked = wishes(&intent.spec);
    outcome.notices.extend(notices(&seen.missing, &asked));
    for id in &built.uses {
        outcome.resources.push(("publicIP", id.clone(), 1));
    }
    if let Some(why) = room(seen.balancer(part.kind), part, &seen.documents.ipv6()) {
        return refuse(outcome, &why);
    }
    let balancer = seen.balancer(part.kind);
    if let Some(why) = locked(&seen.missing, &asked)
        && !balancer.is_some_and(|balancer| has_part(balancer, &part.base))
    {
        return refuse(outcome, &why);
    }
    let Some(balancer) = balancer else {
        outcome.programmed = Programmed::Waiting("the load balancer is not made yet".to_owned());
        return;
    };
    outcome.resources.push((
        "loadBalancer",
        text(balancer, &["id"]).unwrap_or_default().to_owned(),
        1,
    ));
    // Each family has pools of its own.
    let mut counts = BTreeMap::new();
    for pool in &part.pools {
        let filled = Filled::read(settings, intent, (pool, part.kind), seen, now);
        outcome.notices.extend(filled.left_to_others());
        let decision = filled.decide(now);
        outcome.mass_removal = outcome.mass_removal.or(decision.mass_removal);
        for port in ports_of(intent, pool) {
            let mut count = PortCount::default();
            count.judge(&decision);
            let interfaces = std::iter::repeat_n(CloudState::Unjudged, filled.interfaces);
            for state in filled.seen.values().copied().chain(interfaces) {
                count.add(state);
            }
            counts.insert((port, pool.family), count);
        }
    }
    for ((port, _), count) in counts {
        outcome.ports.entry(port).or_default().join(count);
    }
    if !is_ours(balancer, settings) {
        let message = format!(
            "load balancer {} has no tag of this install, so it is somebody else's: give ours another name",
            settings.place.balancer(part.kind)
        );
        refuse(
            outcome,
            &Refusal {
                reason: "LoadBalancerForeign",
                message,
            },
        );
    } else if let Some(why) = conflict(balancer, part) {
        refuse(outcome, &why);
    } else if !is_there(balancer, part) {
        outcome.programmed =
            Programmed::Waiting("its part of the load balancer is not written yet".to_owned());
    } else if addresses(part, &seen.documents).len() < part.frontends.len() {
        outcome.programmed = Programmed::Waiting("its frontend has no address yet".to_owned());
    } else if !seen.lets_in(settings, &intent.spec) {
        match seen.rules(settings) {
            Rules::Refused(why) => refuse(outcome, why),
            Rules::Right | Rules::Due => {
                let message = "the rules of the security group are not written yet";
                outcome.programmed = Programmed::Waiting(message.to_owned());
            }
        }
    }
}

/// Ports of a Service that are on a pool: those of its mode, with or without a pool of the Service's own like it.
fn ports_of<'a>(
    intent: &'a Intent,
    pool: &'a Pool,
) -> impl Iterator<Item = onehop_core::id::PortKey> + 'a {
    let asked = wishes(&intent.spec);
    let own = names::is_of(&pool.name, &names::base(&intent.spec.service_uid));
    let same = move |port: &&LoadBalancerPort| {
        let apart = pool.mode == TargetMode::Vip && has_own_pool(&asked, port) != own;
        port.mode == pool.mode && !apart
    };
    intent
        .spec
        .ports
        .iter()
        .filter(same)
        .map(LoadBalancerPort::key)
}

/// Every target of every pool, and those that are about to be registered (K-20).
pub(super) fn listed(
    settings: &Settings,
    intent: &Intent,
    seen: &Observed,
    now: Time,
) -> Vec<Listed> {
    let Ok(built) = build(settings, &intent.service, &intent.spec, &seen.documents) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for pool in &built.part.pools {
        let filled = Filled::read(settings, intent, (pool, built.part.kind), seen, now);
        let known = seen
            .balancer(built.part.kind)
            .and_then(|balancer| child(balancer, POOLS, &pool.name));
        let decision = filled.decide(now);
        let mut states: BTreeMap<TargetKey, TargetState> = BTreeMap::new();
        if known.is_none() {
            let members = intent
                .members(&pool.port, pool.mode)
                .into_iter()
                .flat_map(|members| &members.list);
            let ready = members
                .filter(|member| member.state == State::Ready && pool.takes(member.key.address));
            states.extend(ready.map(|member| (member.key, TargetState::Active)));
        }
        states.extend(filled.seen.iter().map(|(key, state)| {
            let state = if *state == CloudState::Draining {
                TargetState::Draining
            } else {
                TargetState::Active
            };
            (*key, state)
        }));
        states.extend(
            decision
                .with(Action::Hold)
                .map(|(key, _)| (key, TargetState::Held)),
        );
        states.extend(
            decision
                .with(Action::Register)
                .map(|(key, _)| (key, TargetState::Active)),
        );
        for port in ports_of(intent, pool) {
            let number = number_of(intent, &port, pool);
            all.extend(states.iter().map(|(key, state)| Listed {
                port: port.clone(),
                mode: pool.mode,
                key: TargetKey {
                    port: number.unwrap_or(key.port),
                    ..*key
                },
                state: *state,
                // One document changes pools and probes together.
                health_port: None,
                seen: filled.seen.get(key).copied(),
                verdict: decision.verdicts.get(key).copied(),
            }));
        }
    }
    all
}

/// The port at which a Service's port is reached at the members of its pool.
fn number_of(intent: &Intent, port: &onehop_core::id::PortKey, pool: &Pool) -> Option<u16> {
    let members = intent.members(port, pool.mode)?;
    members.list.first().map(|member| member.key.port)
}
