//! Which of the observed objects are what a stack asks for, and what the membership policy says of a group
//! that exists. Pure; used by the planner, by what is said about a Service, and to know when to look.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{HealthBy, MembershipPolicy, ProviderOption, Scheme, TargetMode};
use onehop_core::id::{IpFamily, PortKey, Zone};
use onehop_core::time::Time;

use super::annotations::keys;
use super::model::{
    Balancer, BalancerState, Group, HealthState, IpType, Observed, RefusedTarget, Rule, RuleSource,
    SecurityGroup, Tagged, TargetHealth, TargetId, TargetType,
};
use super::names;
use super::settings::{BackendGroup, Settings};
use super::stack::{self, GroupSpec, Live, Mapping, Stack, TargetSource};
use crate::plan::membership::{
    self, Action, CloudState, Decision, Guard, Kind, Policy, Readiness, Reason, TargetKey, Verdict,
};
use crate::plan::{Intent, Machine, Refusal};

/// Between two looks at targets that are about to change (AWS-510).
const POLL: Duration = Duration::from_secs(5);
/// Between two looks at targets at rest (AWS-423).
pub(super) const RESYNC: Duration = Duration::from_mins(1);
/// Share of a group that may leave for no known reason without a second look (AWS-641).
const MASS_PERCENT: u8 = 50;

/// The Service's load balancers, the newest first. An earlier Service of the same name may have left one: that is the
/// Service's too (AWS-011).
pub(super) fn balancers<'a>(intent: &Intent, seen: &'a Observed) -> Vec<&'a Balancer> {
    let own = |b: &&Balancer| b.resource() == names::LOAD_BALANCER;
    let mut all: Vec<_> = seen.balancers.iter().filter(own).collect();
    all.sort_by(|a, b| (newness(*b, intent), &a.arn).cmp(&(newness(*a, intent), &b.arn)));
    all
}

/// Whether nothing tells which of two objects replaces the other one: then neither goes (AWS-115).
pub(super) fn are_alike(one: &dyn Tagged, other: &dyn Tagged, intent: &Intent) -> bool {
    newness(one, intent) == newness(other, intent)
}

/// Of two objects for one purpose the one with more of this is the newer: made for this very Service, and of a later
/// generation (AWS-115).
fn newness(object: &dyn Tagged, intent: &Intent) -> (bool, u32) {
    let own = object.uid().as_ref() == Some(&intent.uid);
    (own, object.generation())
}

/// The load balancer that lives: the newest that is not replaced.
pub(super) fn live<'a>(intent: &Intent, seen: &'a Observed) -> Option<&'a Balancer> {
    balancers(intent, seen)
        .into_iter()
        .find(|b| b.retired().is_none())
}

/// The load balancer of this scheme, if there is one: scheme is one of two causes of a replacement
/// (AWS-118).
pub(super) fn balancer_of<'a>(
    intent: &Intent,
    scheme: Scheme,
    seen: &'a Observed,
) -> Option<&'a Balancer> {
    let mut of: Vec<_> = balancers(intent, seen);
    of.retain(|b| b.scheme == scheme);
    // The first of those that are alike.
    of.sort_by_key(|b| b.retired().is_some());
    of.first().copied()
}

/// The security group that was made for the Service's load balancer.
pub(super) fn managed_group(seen: &Observed) -> Option<&SecurityGroup> {
    let mut all = seen.security_groups.iter();
    all.find(|group| group.resource() == names::MANAGED_GROUP)
}

/// What AWS should have.
pub(super) fn stack(
    settings: &Settings,
    intent: &Intent,
    seen: &Observed,
) -> Result<Stack, Vec<Refusal>> {
    let live = Live {
        balancer: live(intent, seen),
        managed: managed_group(seen).map(|group| group.name.as_str()),
    };
    stack::build(settings, intent, &seen.network, live)
}

/// The rules on targets, as far as their sources are there.
pub(super) fn target_rules(settings: &Settings, stack: &Stack, seen: &Observed) -> BTreeSet<Rule> {
    let backend = match &settings.backend {
        BackendGroup::Given(id) => Some(id.clone()),
        BackendGroup::Ours => seen.backend.as_ref().map(|group| group.id.clone()),
        BackendGroup::Off => None,
    };
    let rule = |rule: &stack::TargetRule| {
        let source = match &rule.source {
            TargetSource::Backend => RuleSource::Group(backend.clone()?),
            TargetSource::Range(source) => source.clone(),
        };
        Some(Rule {
            protocol: rule.protocol,
            from: rule.from.into(),
            to: rule.to.into(),
            source,
        })
    };
    stack.target_rules.iter().filter_map(rule).collect()
}

/// The subnets that a load balancer can be given at once, out of those that it should have. It cannot change the subnet of a
/// zone in one call: such a zone goes first, if another one stays meanwhile (AWS-207).
pub(super) fn subnets_now(
    there: &Balancer,
    wanted: &[Mapping],
    seen: &Observed,
) -> Option<Vec<Mapping>> {
    let zone = |id: &String| Some(&seen.network.subnets.get(id)?.zone);
    let had: Vec<&String> = there.subnets.keys().collect();
    let changes = |mapping: &Mapping| {
        let mut others = had.iter().filter(|id| ***id != mapping.subnet);
        others.any(|id| zone(id).is_some() && zone(id) == zone(&mapping.subnet))
    };
    let stay: Vec<Mapping> = wanted.iter().filter(|m| !changes(m)).cloned().collect();
    // Of those that stay one has to be there already, if any zone changes.
    let enough = stay.len() == wanted.len() || stay.iter().any(|m| had.contains(&&m.subnet));
    (enough && !stay.is_empty()).then_some(stay)
}

/// All groups of a port number of this Service.
pub(super) fn groups_of(service_port: u16, seen: &Observed) -> impl Iterator<Item = &Group> {
    let of = move |g: &&Group| g.service_port() == Some(service_port);
    seen.groups.iter().filter(of)
}

/// The group that a listener should use: the newest of the wanted kind that is not on its way out and
/// is used by no other load balancer (AWS-604, AWS-756).
pub(super) fn current_group<'a>(
    intent: &Intent,
    spec: &GroupSpec,
    balancer: Option<&Balancer>,
    seen: &'a Observed,
) -> Option<&'a Group> {
    let free = |group: &Group| {
        group.used_by.is_empty()
            || balancer.is_some_and(|balancer| group.used_by.contains(&balancer.arn))
    };
    groups_of(spec.service_port, seen)
        .filter(|group| group.retired().is_none() && same_kind(group, spec) && free(group))
        .max_by_key(|group| newness(*group, intent))
}

/// AWS-604: only type, protocol, family or check make another group.
fn same_kind(group: &Group, spec: &GroupSpec) -> bool {
    (group.target, group.protocol, group.ip_type) == (spec.target, spec.protocol, spec.ip_type)
        && group.check.same_kind(&spec.check)
}

/// Whether a group is of the kind that is asked for, for the same port.
pub(super) fn is_for(group: &Group, spec: &GroupSpec) -> bool {
    group.service_port() == Some(spec.service_port) && same_kind(group, spec)
}

/// Ports whose members a group has: those of its number, or, while it is replaced, what is left of them.
pub(super) fn port_of(intent: &Intent, group: &Group) -> Option<PortKey> {
    let number = group.service_port()?;
    let port = intent.spec.ports.iter().find(|port| port.port == number)?;
    Some(port.key()).filter(|key| intent.members.contains_key(key))
}

/// The mode that a group's targets have.
pub(super) const fn mode_of(target: TargetType) -> TargetMode {
    match target {
        TargetType::Instance => TargetMode::Node,
        TargetType::Ip => TargetMode::Pod,
    }
}

/// The id under which the cloud knows a target; none for a node without one (AWS-403).
pub(super) fn target_id(
    key: TargetKey,
    target: TargetType,
    machines: &BTreeMap<IpAddr, Machine>,
) -> Option<TargetId> {
    let id = match target {
        TargetType::Ip => key.address.to_string(),
        TargetType::Instance => instance_id(&machines.get(&key.address)?.provider_id)?.to_owned(),
    };
    Some(TargetId { id, port: key.port })
}

/// `aws:///<zone>/i-…`; nothing for another cloud's id or a hybrid node's.
pub(super) fn instance_id(provider_id: &str) -> Option<&str> {
    let rest = provider_id.strip_prefix("aws://")?;
    rest.rsplit('/').next().filter(|id| id.starts_with("i-"))
}

/// Targets of a group in the policy's words; and those that nobody knows: machines that are gone.
pub(super) fn known_targets(
    group: &Group,
    machines: &BTreeMap<IpAddr, Machine>,
) -> (BTreeMap<TargetKey, CloudState>, Vec<TargetId>) {
    let family = family_of(group.ip_type);
    let by_id: BTreeMap<&str, IpAddr> = machines
        .iter()
        .filter(|(address, _)| IpFamily::of(**address) == family)
        .filter_map(|(address, machine)| Some((instance_id(&machine.provider_id)?, *address)))
        .collect();
    let (mut known, mut strangers) = (BTreeMap::new(), Vec::new());
    for (target, health) in group.targets.iter().flatten() {
        let address = match group.target {
            TargetType::Ip => target.id.parse().ok(),
            TargetType::Instance => by_id.get(target.id.as_str()).copied(),
        };
        match address {
            Some(address) => {
                let key = TargetKey {
                    address,
                    port: target.port,
                };
                known.insert(key, cloud_state(health));
            }
            None if health.state != HealthState::Draining => strangers.push(target.clone()),
            None => {}
        }
    }
    (known, strangers)
}

/// A state in the policy's words (AWS-434, AWS-770).
pub(super) fn cloud_state(health: &TargetHealth) -> CloudState {
    match health.state {
        HealthState::Initial => CloudState::Initial,
        HealthState::Healthy => CloudState::Healthy,
        HealthState::Draining => CloudState::Draining,
        HealthState::Unavailable => CloudState::Unjudged,
        // No listener uses the group: nobody has looked at the target yet.
        HealthState::Unused if health.reason == "Target.NotInUse" => CloudState::Initial,
        HealthState::Unhealthy | HealthState::UnhealthyDraining | HealthState::Unused => {
            CloudState::Unhealthy
        }
    }
}

/// The membership policy's answer for a group that exists. A group whose port is gone keeps its targets: it
/// takes the flows that are under way until it goes as a whole.
pub(super) fn decide(intent: &Intent, group: &Group, now: Time) -> Decision {
    // A group whose targets were never read is not decided about (I1).
    let (Some(port), Some(_)) = (port_of(intent, group), &group.targets) else {
        return Decision::default();
    };
    let mode = mode_of(group.target);
    let (known, _) = known_targets(group, &intent.machines);
    if is_frozen(intent, group, &port) {
        return kept(&known);
    }
    let members = intent.explained(&port, mode, known.keys());
    let policy = policy(intent, &port, mode);
    // The peer's timing knows no zones (K-31), and with policy Local it is not known how many of a zone can be healthy.
    let counted = policy.kind == Kind::ZeroDrop && policy.at_most_healthy.is_none();
    let zones = if counted && zones_stand_alone(intent) {
        intent.zones(&port, mode)
    } else {
        BTreeMap::new()
    };
    membership::decide_in_zones(&policy, &members, (&known, &zones), intent.view, now)
}

/// The family of a group's targets.
const fn family_of(ip_type: IpType) -> IpFamily {
    match ip_type {
        IpType::Ipv6 => IpFamily::V6,
        IpType::Ipv4 | IpType::Dualstack => IpFamily::V4,
    }
}

/// Whether a group is of a kind that the Service has no targets of any more: it had node ports, or the other family. What
/// such a group has serves on until another one has taken over (AWS-623).
fn is_frozen(intent: &Intent, group: &Group, port: &PortKey) -> bool {
    let (mode, family) = (mode_of(group.target), family_of(group.ip_type));
    let members = intent.members(port, mode).map_or(&[][..], |m| &m.list);
    let of_kind = members
        .iter()
        .any(|m| IpFamily::of(m.key.address) == family);
    let mut ports = intent.spec.ports.iter().filter(|p| p.key() == *port);
    let other_mode = mode == TargetMode::Node && ports.any(|p| p.mode != mode);
    // A dualstack load balancer's groups are of either family, others' of one.
    let other_family = !members.is_empty();
    !of_kind && (other_mode || other_family)
}

/// Everything stays as it is.
fn kept(known: &BTreeMap<TargetKey, CloudState>) -> Decision {
    let registered = known.iter().filter(|(_, state)| state.registered());
    let keep = Verdict {
        action: Action::Keep,
        reason: Reason::BelowFloor,
    };
    Decision {
        verdicts: registered.map(|(key, _)| (*key, keep)).collect(),
        ..Decision::default()
    }
}

/// Whether load balancer nodes send to targets of their own zone only, as is AWS's default (ZD-23).
pub(super) fn zones_stand_alone(intent: &Intent) -> bool {
    const MIXES: &str = "load_balancing.cross_zone.enabled=true";
    let mixes = |option: &ProviderOption| {
        let own = option.name == keys::CROSS_ZONE && option.value == "true";
        let mut attributes = option.value.split(',');
        own || attributes.any(|one| one.trim() == MIXES)
    };
    !intent.spec.options.iter().any(mixes)
}

/// Zones that stand alone and lose their last target, while others keep some (ZD-23).
pub(super) fn zones_left(intent: &Intent, group: &Group, decision: &Decision) -> BTreeSet<Zone> {
    let Some(port) = port_of(intent, group).filter(|_| zones_stand_alone(intent)) else {
        return BTreeSet::new();
    };
    let zones = intent.zones(&port, mode_of(group.target));
    let of = |leave: bool| -> BTreeSet<Zone> {
        let leaves = |action| matches!(action, Action::Drain | Action::Release);
        let verdicts = decision.verdicts.iter();
        let targets = verdicts.filter(|(_, v)| leaves(v.action) == leave);
        let zones = targets.filter_map(|(key, _)| zones.get(&key.address));
        zones.cloned().collect()
    };
    let stay = of(false);
    if stay.is_empty() {
        return BTreeSet::new();
    }
    of(true).difference(&stay).cloned().collect()
}

/// The policy's answer for a group that is yet to be made.
pub(super) fn decide_new(intent: &Intent, spec: &GroupSpec, now: Time) -> Decision {
    let Some(port) = spec.ports.first() else {
        return Decision::default();
    };
    let members = intent.explained(port, spec.mode, []);
    let policy = policy(intent, port, spec.mode);
    membership::decide(&policy, &members, &BTreeMap::new(), intent.view, now)
}

/// The policy's numbers.
pub(super) fn policy(intent: &Intent, port: &PortKey, mode: TargetMode) -> Policy {
    let wishes = &intent.spec.membership;
    let mut ports = intent.spec.ports.iter();
    let health = ports
        .find(|p| p.key() == *port)
        .and_then(|p| p.health.as_ref());
    Policy {
        kind: match wishes.policy {
            MembershipPolicy::Compat => Kind::Compat,
            MembershipPolicy::ZeroDrop | MembershipPolicy::Unknown => Kind::ZeroDrop,
        },
        floor_percent: u8::try_from(wishes.floor_percent).unwrap_or(100),
        hold_max: Duration::from_secs(u64::from(wishes.hold_max_seconds)),
        // K-30: a check that is not answered by the target itself says nothing of its readiness.
        readiness: match health.map(|h| h.by) {
            Some(HealthBy::Custom) | None if mode == TargetMode::Pod => Readiness::ByMembership,
            _ => Readiness::ByHealth,
        },
        mass_percent: MASS_PERCENT,
        at_most_healthy: intent.members(port, mode).and_then(|m| m.at_most_healthy),
    }
}

/// Wanted targets of a group that the service did not take (AWS-430).
pub(super) fn refused<'a>(
    intent: &Intent,
    group: &'a Group,
    decision: &Decision,
) -> impl Iterator<Item = (&'a TargetId, &'a RefusedTarget)> {
    let wanted: BTreeSet<TargetId> = decision
        .with(Action::Register)
        .filter_map(|(key, _)| target_id(key, group.target, &intent.machines))
        .collect();
    let all = group.refused.iter();
    all.filter(move |(id, _)| wanted.contains(*id))
}

/// How many targets of a group take new flows, as far as the cloud tells.
pub(super) fn usable(group: &Group) -> usize {
    let states = group.targets.iter().flatten();
    states
        .filter(|(_, health)| cloud_state(health).usable())
        .count()
}

/// The share of a group's wanted targets that take new flows, in percent; all where none is wanted.
pub(super) fn healthy_percent(intent: &Intent, group: &Group) -> u8 {
    let Some(port) = port_of(intent, group) else {
        return 100;
    };
    let (known, _) = known_targets(group, &intent.machines);
    let members = intent.members(&port, mode_of(group.target));
    let ready = members.into_iter().flat_map(|members| &members.list);
    let ready = ready.filter(|m| m.state == membership::State::Ready);
    let healthy = ready.filter(|m| known.get(&m.key).is_some_and(|state| state.usable()));
    let share = match desired(intent, group, &port) {
        0 => 100,
        desired => (healthy.count() * 100 / desired).min(100),
    };
    u8::try_from(share).unwrap_or(100)
}

/// Targets of a group that an agent stands in for.
pub(super) fn guarded(intent: &Intent, group: &Group) -> BTreeSet<TargetKey> {
    let Some(port) = port_of(intent, group) else {
        return BTreeSet::new();
    };
    let (known, _) = known_targets(group, &intent.machines);
    let members = intent.explained(&port, mode_of(group.target), known.keys());
    let guarded = members.iter().filter(|m| m.guard == Guard::Present);
    guarded.map(|member| member.key).collect()
}

/// How many targets of a group should take flows.
fn desired(intent: &Intent, group: &Group, port: &PortKey) -> usize {
    intent
        .members(port, mode_of(group.target))
        .map_or(0, |members| {
            let ready = members.list.iter();
            let ready = ready
                .filter(|m| m.state == membership::State::Ready)
                .count();
            members
                .at_most_healthy
                .map_or(ready, |most| ready.min(most))
        })
}

/// How many have to before a group may take over (AWS-620): the policy's floor of those that are ready.
pub(super) fn floor(intent: &Intent, group: &Group) -> usize {
    let Some(port) = port_of(intent, group) else {
        return 0;
    };
    let mode = mode_of(group.target);
    let desired = desired(intent, group, &port);
    if desired == 0 {
        0
    } else {
        policy(intent, &port, mode).floor(desired)
    }
}

/// When to look again although nothing has happened.
pub(super) fn next_look(
    settings: &Settings,
    intents: &[Intent],
    seen: &Observed,
    now: Time,
) -> Option<Time> {
    let mut looks: Vec<Time> = Vec::new();
    for group in &seen.groups {
        for (_, health) in group.targets.iter().flatten() {
            looks.extend(match health.state {
                HealthState::Initial => Some(now + POLL),
                HealthState::Unused if seen.is_attached(group) => Some(now + POLL),
                HealthState::Draining if group.retired().is_some() => Some(now + POLL),
                _ => None,
            });
        }
        let tail = group.retired().map(|since| since + settings.switch_tail);
        looks.extend(tail.map(|at| at.max(now + POLL)));
    }
    for balancer in &seen.balancers {
        if balancer.state == BalancerState::Provisioning {
            looks.push(now + POLL);
        }
        let grace = balancer.retired().map(|since| since + settings.dns_grace);
        looks.extend(grace.map(|at| at.max(now + POLL)));
    }
    for intent in intents {
        for group in seen.groups.iter().filter(|g| g.retired().is_none()) {
            // By the last read, not by this look: other looks come between (AWS-423).
            let due = group.read_at.map(|at| at + RESYNC);
            looks.push(due.map_or(now + RESYNC, |at| at.max(now + POLL)));
            let decision = decide(intent, group, now);
            looks.extend(decision.next_look);
            let refused = refused(intent, group, &decision);
            let again = refused.map(|(_, refused)| refused.until);
            looks.extend(again.filter(|at| *at > now));
            if decision.with(Action::Hold).next().is_some() {
                looks.push(now + POLL);
            }
        }
    }
    looks.into_iter().min()
}
