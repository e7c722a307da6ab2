//! What to say about a Service, read off the last observation. Pure.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::LoadBalancerPort;
use onehop_core::id::Protocol;
use onehop_core::time::Time;

use super::annotations::{self, keys};
use super::interfaces::Carried;
use super::listed::cuts_unhealthy;
use super::model::{Balancer, BalancerState, Group, HealthState, Observed, Tagged};
use super::settings::Settings;
use super::stack::{CUT_UNHEALTHY, Stack};
use super::wanted::{
    are_alike, balancer_of, balancers, cloud_state, current_group, decide, floor, groups_of, live,
    refused, stack, subnets_now, usable, zones_left,
};
use crate::plan::membership::{Decision, MassRemoval};
use crate::plan::{HostName, Intent, Notice, Outcome, PortCount, Programmed};

/// State, name, ids and counts.
pub(super) fn outcome(settings: &Settings, intent: &Intent, seen: &Observed, now: Time) -> Outcome {
    let built = stack(settings, intent, seen);
    let mut resources = Vec::new();
    for balancer in balancers(intent, seen) {
        resources.push(("loadBalancer", balancer.arn.clone(), balancer.generation()));
    }
    let mut mass_removal: Option<MassRemoval> = None;
    let mut ports = BTreeMap::new();
    let mut left_out = Vec::new();
    for port in &intent.spec.ports {
        let mut count = PortCount::default();
        for group in groups_of(port.port, seen) {
            resources.push(("targetGroup", group.arn.clone(), group.generation()));
            let decision = decide(intent, group, now);
            if group.retired().is_none() {
                left_out.extend(left_out_of(intent, group, &decision));
                left_out.extend(zones_left_of(intent, group, &decision));
                count.judge(&decision);
                left_out.extend(slow_to_leave(intent, port, group));
                mass_removal = mass_removal.or(decision.mass_removal);
            }
            for (_, health) in group.targets.iter().flatten() {
                count.add(cloud_state(health));
            }
        }
        ports.insert(port.key(), count);
    }
    let groups = seen.security_groups.iter();
    resources.extend(groups.map(|group| ("securityGroup", group.id.clone(), 1)));
    let mut notices = left_out;
    notices.extend(alike(intent, seen));
    notices.extend(other_name(settings, intent, seen));
    notices.extend(seen.chosen_groups.iter().map(chosen));
    if let Ok(stack) = &built {
        notices.extend(no_room_to_move(stack, intent, seen));
    }
    // A group that two ports share says it once.
    notices.dedup();
    let programmed = match &built {
        Ok(stack) => {
            notices.extend(stack.notices.iter().cloned());
            programmed(intent, stack, seen)
        }
        Err(refusals) => {
            notices.extend(refusals.iter().map(|refusal| Notice {
                reason: refusal.reason,
                message: refusal.message.clone(),
                degrades: true,
            }));
            let all: Vec<_> = refusals.iter().map(|r| r.message.as_str()).collect();
            Programmed::Waiting(all.join("; "))
        }
    };
    Outcome {
        programmed,
        addresses: Vec::new(),
        host: serving(intent, built.as_ref().ok(), seen).map(|balancer| host(intent, balancer)),
        notices,
        resources,
        ports,
        mass_removal,
    }
}

/// The user wants flows of unhealthy targets ended: then targets leave by deregistration alone (ZD-33).
fn slow_to_leave(intent: &Intent, port: &LoadBalancerPort, group: &Group) -> Option<Notice> {
    cuts_unhealthy(intent, port, group).then(|| Notice {
        reason: "SlowDeregistration",
        message: format!(
            "attribute {CUT_UNHEALTHY}=true would cut the flows of targets that leave, so their health does not fail before \
             they are deregistered, and new flows come to them for longer"
        ),
        degrades: false,
    })
}

/// AWS-311: which of several security groups of a target takes its rules.
fn chosen(carried: &Carried) -> Notice {
    let among: Vec<&str> = carried.among.iter().map(String::as_str).collect();
    Notice {
        reason: "SecurityGroupAmbiguous",
        message: format!(
            "targets carry the security groups {} and not exactly one of them has the tag of the cluster: rules go to {}; \
             tag the one that is to take them with kubernetes.io/cluster/<cluster name> and no other one",
            among.join(", "),
            carried.group
        ),
        degrades: false,
    }
}

/// AWS-115: load balancers of which nothing tells which one replaces the other one.
fn alike(intent: &Intent, seen: &Observed) -> Option<Notice> {
    let all = balancers(intent, seen);
    let [first, rest @ ..] = all.as_slice() else {
        return None;
    };
    let alike =
        |other: &&&Balancer| first.scheme == other.scheme && are_alike(*first, **other, intent);
    let alike: Vec<&str> = rest.iter().filter(alike).map(|b| b.arn.as_str()).collect();
    (!alike.is_empty()).then(|| Notice {
        reason: "OwnershipConflict",
        message: format!(
            "several load balancers carry the tags of this Service and nothing tells which of them is the newer one: {} \
             is served by, and {} is left alone; delete what nobody uses",
            first.arn,
            alike.join(", ")
        ),
        degrades: true,
    })
}

/// AWS-042, AWS-631: a name counts only when a load balancer is made, and one that replaces another cannot have its name.
fn other_name(settings: &Settings, intent: &Intent, seen: &Observed) -> Option<Notice> {
    let asked = annotations::of_options(settings, &intent.spec).name?;
    let there = live(intent, seen).filter(|balancer| balancer.name != asked)?;
    Some(Notice {
        reason: "AnnotationIgnored",
        message: format!(
            "{}{}: {asked:?} counts only when a load balancer is made, and not for one that replaces another of that name: \
             this one stays {}",
            keys::PREFIX,
            keys::NAME,
            there.name
        ),
        degrades: false,
    })
}

/// AWS-207: the only zone that a load balancer has cannot change its subnet.
fn no_room_to_move(stack: &Stack, intent: &Intent, seen: &Observed) -> Option<Notice> {
    let there = balancer_of(intent, stack.balancer.scheme, seen)?;
    let wanted: BTreeSet<&String> = stack.balancer.subnets.iter().map(|m| &m.subnet).collect();
    let moves = wanted != there.subnets.keys().collect();
    let stuck = moves && subnets_now(there, &stack.balancer.subnets, seen).is_none();
    let had: Vec<&str> = there.subnets.keys().map(String::as_str).collect();
    stuck.then(|| Notice {
        reason: "SubnetRejected",
        message: format!(
            "AWS does not change the subnet of a zone in one call, and no other zone of {} would serve meanwhile: it stays in \
             {}. Name a subnet of another zone too, for the time of the change",
            there.name,
            had.join(", ")
        ),
        degrades: true,
    })
}

/// AWS-430, AWS-432: targets that the service did not take, by what it said.
fn left_out_of(intent: &Intent, group: &Group, decision: &Decision) -> Vec<Notice> {
    let mut by_cause: BTreeMap<(bool, &str), Vec<String>> = BTreeMap::new();
    for (target, refused) in refused(intent, group, decision) {
        let cause = (refused.no_room, refused.why.as_str());
        by_cause.entry(cause).or_default().push(target.to_string());
    }
    let notice = |((no_room, why), targets): ((bool, &str), Vec<String>)| Notice {
        reason: if no_room {
            "QuotaExceeded"
        } else {
            "TargetInvalid"
        },
        message: format!(
            "target group {} does not take {}: {why}; the others are registered, these are tried again",
            group.name,
            targets.join(", ")
        ),
        degrades: true,
    };
    by_cause.into_iter().map(notice).collect()
}

/// ZD-23, ZD-102: nothing can be done for clients that know such a zone's address for longer than DNS says it.
fn zones_left_of(intent: &Intent, group: &Group, decision: &Decision) -> Option<Notice> {
    let zones = zones_left(intent, group, decision);
    let names: Vec<&str> = zones.iter().map(onehop_core::id::Zone::as_str).collect();
    (!names.is_empty()).then(|| Notice {
        reason: "ZoneLosesTargets",
        message: format!(
            "zones that lose their last target: {}. Clients that keep the load balancer's address there for longer than \
             its name in DNS lives (60 s) fail until they ask again: spread the pods, or switch cross-zone load balancing on",
            names.join(", ")
        ),
        degrades: false,
    })
}

/// The load balancer whose name is published: the wanted one, unless it replaces another that serves while
/// it is not ready (AWS-630, AWS-801).
pub(super) fn serving<'a>(
    intent: &Intent,
    stack: Option<&Stack>,
    seen: &'a Observed,
) -> Option<&'a Balancer> {
    let all = balancers(intent, seen);
    let Some(stack) = stack else {
        return all.into_iter().find(|b| b.retired().is_none());
    };
    let new = balancer_of(intent, stack.balancer.scheme, seen);
    let old = all
        .into_iter()
        .find(|b| b.retired().is_none() && new.is_none_or(|n| n.arn != b.arn));
    match (new, old) {
        (Some(new), Some(_)) if is_ready(intent, stack, new, seen) => Some(new),
        (_, Some(old)) => Some(old),
        (new, None) => new,
    }
}

/// Whether a load balancer can take over: active, every listener pointing at a group of which enough is
/// healthy.
pub(super) fn is_ready(
    intent: &Intent,
    stack: &Stack,
    balancer: &Balancer,
    seen: &Observed,
) -> bool {
    let active = matches!(
        balancer.state,
        BalancerState::Active | BalancerState::Impaired
    );
    let Some(listeners) = &balancer.listeners else {
        return false;
    };
    active
        && stack.listeners.iter().all(|(listener, spec)| {
            let Some(group) = current_group(intent, spec, Some(balancer), seen) else {
                return false;
            };
            let there = listeners.get(&listener.port);
            there.is_some_and(|l| l.groups.contains_key(&group.arn))
                && usable(group) >= floor(intent, group)
        })
}

/// AWS-800: in lower case, with the ports.
fn host(intent: &Intent, balancer: &Balancer) -> HostName {
    let ports = intent.spec.ports.iter();
    let ports: BTreeSet<(u16, Protocol)> = ports.map(|port| (port.port, port.protocol)).collect();
    HostName {
        name: balancer.dns.to_ascii_lowercase(),
        ports,
    }
}

fn programmed(intent: &Intent, stack: &Stack, seen: &Observed) -> Programmed {
    let Some(balancer) = balancer_of(intent, stack.balancer.scheme, seen) else {
        return Programmed::Waiting("the load balancer is not made yet".to_owned());
    };
    let name = &balancer.name;
    match balancer.state {
        BalancerState::Provisioning => {
            return Programmed::Waiting(format!("load balancer {name} is provisioning"));
        }
        BalancerState::Failed => {
            return Programmed::Failed(format!("load balancer {name} has failed"));
        }
        BalancerState::Active | BalancerState::Impaired => {}
    }
    let Some(listeners) = &balancer.listeners else {
        return Programmed::Waiting(format!(
            "the listeners of load balancer {name} are not read yet"
        ));
    };
    let missing = stack.listeners.iter().find(|(spec, _)| {
        listeners
            .get(&spec.port)
            .is_none_or(|there| there.protocol != spec.protocol)
    });
    match missing {
        Some((spec, _)) => Programmed::Waiting(format!(
            "no listener yet for {} {}",
            spec.protocol, spec.port
        )),
        None => Programmed::Yes,
    }
}

/// Whether a state is one that a look soon will find changed.
pub(super) const fn moves(state: HealthState) -> bool {
    matches!(
        state,
        HealthState::Initial | HealthState::Draining | HealthState::Unused
    )
}
