//! What the local cloud should have for an intent, and which of its objects are that. Pure.
//!
//! Used by the planner, by what is said about a Service, and to know when to look again.

use std::time::Duration;

use onehop_core::crd::{HealthProtocol, LoadBalancerPort, MembershipPolicy};
use onehop_core::id::{InstallId, PortKey};
use onehop_core::time::Time;

use super::model::{
    Balancer, BalancerSpec, BalancerState, Group, GroupSpec, Observed, Probe, ProbeProtocol,
};
use super::names;
use super::placing;
use super::plan::Settings;
use super::resolve::OPTION_AFFINITY;
use crate::plan::membership::{self, Action, CloudState, Decision, Kind, Policy, Readiness};
use crate::plan::{Intent, Members};

/// How long established flows to a deregistered target go on.
const DRAIN_SECONDS: u32 = 10;
/// Between two looks at something that is about to change.
const SOON: Duration = Duration::from_millis(500);
/// Between two looks at what changes only what is said.
const LATER: Duration = Duration::from_secs(5);
/// Share of a group that may leave for no known reason without a second look (K-33).
const MASS_PERCENT: u8 = 50;

/// The load balancer that serves this Service: of its UID, the oldest if a crash has left two.
pub fn balancer_of<'a>(intent: &Intent, seen: &'a Observed) -> Option<&'a Balancer> {
    seen.balancers
        .iter()
        .filter(|b| b.uid == intent.uid)
        .min_by(|a, b| a.id.cmp(&b.id))
}

/// The group that a port should use: the newest of the wanted kind that is not on its way out.
pub fn current_group<'a>(
    intent: &Intent,
    port: &LoadBalancerPort,
    seen: &'a Observed,
) -> Option<&'a Group> {
    let wanted = group_spec_untagged(port);
    groups_of(intent, &port.key(), seen)
        .filter(|g| g.retired.is_none() && g.spec.same_kind(&wanted))
        // Of two with one generation the one that has its name to itself (C-124).
        .max_by_key(|g| (g.generation, !names::is_twin(&g.spec.name)))
}

/// All groups of a port of this Service.
pub fn groups_of<'a>(
    intent: &Intent,
    port: &PortKey,
    seen: &'a Observed,
) -> impl Iterator<Item = &'a Group> {
    let (uid, port) = (intent.uid.clone(), port.clone());
    seen.groups
        .iter()
        .filter(move |g| g.uid == uid && g.port == port)
}

/// The membership policy's answer for a group that exists. A group whose port is gone keeps its
/// targets: it takes the flows that are under way until it goes as a whole.
pub fn decide(intent: &Intent, group: &Group, seen: &Observed, now: Time) -> Decision {
    let Some(port) = port_of(intent, group, seen) else {
        return Decision::default();
    };
    let members = intent.explained(&port, group.spec.mode, group.targets.keys());
    let policy = policy(intent, &port, &group.spec);
    membership::decide(&policy, &members, &group.targets, intent.view, now)
}

/// The members that a group has.
pub fn members_of<'a>(intent: &'a Intent, group: &Group, seen: &Observed) -> Option<&'a Members> {
    intent.members(&port_of(intent, group, seen)?, group.spec.mode)
}

/// The port whose members a group has: that of its name or, after a rename, the one that its
/// listener is now.
fn port_of(intent: &Intent, group: &Group, seen: &Observed) -> Option<PortKey> {
    if intent.members.contains_key(&group.port) {
        return Some(group.port.clone());
    }
    let mut listeners = seen.balancers.iter().flat_map(|b| &b.listeners);
    let (listener, _) = listeners.find(|(_, id)| **id == group.id)?;
    let mut ports = intent.spec.ports.iter();
    let port = ports.find(|p| (p.port, p.protocol) == (listener.port, listener.protocol))?;
    Some(port.key()).filter(|key| intent.members.contains_key(key))
}

/// The policy's numbers for a group of this kind.
pub fn policy(intent: &Intent, port: &PortKey, spec: &GroupSpec) -> Policy {
    let wishes = &intent.spec.membership;
    Policy {
        kind: match wishes.policy {
            MembershipPolicy::Compat => Kind::Compat,
            MembershipPolicy::ZeroDrop | MembershipPolicy::Unknown => Kind::ZeroDrop,
        },
        floor_percent: u8::try_from(wishes.floor_percent).unwrap_or(100),
        hold_max: Duration::from_secs(u64::from(wishes.hold_max_seconds)),
        readiness: match spec.probe {
            Some(_) => Readiness::ByHealth,
            None => Readiness::ByMembership,
        },
        mass_percent: MASS_PERCENT,
        at_most_healthy: intent
            .members(port, spec.mode)
            .and_then(|m| m.at_most_healthy),
    }
}

/// The load balancer.
pub fn balancer_spec(install: &InstallId, intent: &Intent) -> BalancerSpec {
    BalancerSpec {
        name: names::load_balancer(install, &intent.service, &intent.uid),
        tags: names::owner_tags(install, &intent.service, &intent.uid),
        addresses: intent.addresses.clone(),
        sharing_key: placing::sharing(&intent.spec)
            .0
            .map(|key| key.in_cloud(&intent.service.namespace)),
    }
}

/// The group of a port in this generation.
pub fn group_spec(
    install: &InstallId,
    intent: &Intent,
    port: &LoadBalancerPort,
    generation: u32,
) -> GroupSpec {
    let key = port.key();
    let mut tags = names::owner_tags(install, &intent.service, &intent.uid);
    tags.insert(names::PORT.to_owned(), key.to_string());
    tags.insert(names::GENERATION.to_owned(), generation.to_string());
    GroupSpec {
        name: names::group(install, &intent.service, &intent.uid, &key, generation),
        tags,
        sticky: placing::option(&intent.spec, OPTION_AFFINITY).is_some(),
        ..group_spec_untagged(port)
    }
}

fn group_spec_untagged(port: &LoadBalancerPort) -> GroupSpec {
    GroupSpec {
        name: String::new(),
        tags: names::Tags::new(),
        protocol: port.protocol,
        mode: port.mode,
        probe: probe(port),
        drain_seconds: DRAIN_SECONDS,
        sticky: false,
    }
}

fn probe(port: &LoadBalancerPort) -> Option<Probe> {
    let health = port.health.as_ref()?;
    let http = health.protocol == HealthProtocol::Http;
    Some(Probe {
        protocol: if http {
            ProbeProtocol::Http
        } else {
            ProbeProtocol::Tcp
        },
        port: health.port,
        path: health.path.clone().filter(|_| http),
        interval_seconds: health.interval_seconds,
        timeout_seconds: health.timeout_seconds,
        healthy: health.healthy,
        unhealthy: health.unhealthy,
    })
}

/// When to look again although nothing has happened: soon while the cloud is about to change a state
/// that a decision waits for, else never (the slow sweep looks for drift).
pub fn next_look(
    settings: &Settings,
    intents: &[Intent],
    seen: &Observed,
    now: Time,
) -> Option<Time> {
    let mut looks: Vec<Time> = Vec::new();
    for group in &seen.groups {
        looks.extend(group.targets.values().filter_map(|state| match state {
            CloudState::Initial => Some(now + SOON),
            // The end of a drain is waited for only where the group goes after it.
            CloudState::Draining if group.retired.is_some() => Some(now + SOON),
            CloudState::Draining | CloudState::Unhealthy => Some(now + LATER),
            CloudState::Healthy | CloudState::Unjudged => None,
        }));
        looks.extend(
            group
                .retired
                .map(|since| (since + settings.switch_tail).max(now + SOON)),
        );
    }
    if seen
        .balancers
        .iter()
        .any(|b| b.state == BalancerState::Provisioning)
    {
        looks.push(now + SOON);
    }
    for intent in intents {
        for group in seen
            .groups
            .iter()
            .filter(|g| g.uid == intent.uid && g.retired.is_none())
        {
            let decision = decide(intent, group, seen, now);
            looks.extend(decision.next_look);
            if decision.with(Action::Hold).next().is_some() {
                looks.push(now + SOON);
            }
        }
    }
    looks.into_iter().min()
}
