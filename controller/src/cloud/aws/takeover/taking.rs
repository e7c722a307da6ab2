//! From the peer to us (AWS-129): compare; our group, rules and tags; wait; its bindings and its finalizer go.

use std::collections::BTreeMap;

use onehop_core::crd::{TakeOver, TakeOverStage};
use onehop_core::id::Cidr;

use super::compare::{Compared, compare};
use super::{FINALIZER, Situation, marks, our_backend, peer_may_act, set_groups, view};
use crate::cloud::aws::model::{Observed, Rule, RuleSource, SecurityGroup};
use crate::cloud::aws::names::{self, Tags};
use crate::cloud::aws::plan::missing_tags;
use crate::cloud::aws::settings::PeerServices;
use crate::cloud::aws::stack::{Stack, TargetRule, TargetSource};
use crate::cloud::aws::step::{AwsStep, BalancerChange, GroupChange};
use crate::cloud::aws::wanted;
use crate::plan::custody::{Act, Handover};
use crate::plan::{Intent, Plan, arrange};

/// Inbound rules of one security group (AWS-758).
const RULES: usize = 60;

/// The next part of a take-over.
pub(super) fn over(of: Situation<'_>) -> Handover<AwsStep> {
    let view = view(of.settings, of.intent, of.seen);
    let stack = match wanted::stack(of.settings, of.intent, &view) {
        Ok(stack) => stack,
        Err(refusals) => {
            let blocked = refusals.into_iter().map(|refusal| refusal.message);
            return super::look(TakeOverStage::Observing, blocked.collect());
        }
    };
    let compared = compare(of, &view);
    let halves = halves(of.seen, &stack);
    let phases = phases(of, &view, &stack, &compared, &halves);
    let blocked = blocked(of, &compared, &halves);
    let chosen = of.settings.take_over.of.has(&of.intent.service);
    let next = phases.iter().position(|steps| !steps.is_empty());
    let since = of.seen.balancers.iter().find_map(taken);
    let (stage, act, again) = match (chosen && blocked.is_empty(), next, since) {
        (false, ..) => (TakeOverStage::Observing, Act::Look, None),
        (true, Some(next), _) => {
            let plan = plan(of.intent, phases[next].clone());
            (TakeOverStage::Preparing, Act::Cloud(plan), None)
        }
        (true, None, Some(since)) if since + of.settings.take_over.settle > of.now => {
            let until = since + of.settings.take_over.settle;
            (TakeOverStage::Settling, Act::Look, Some(until))
        }
        (true, None, _) => (TakeOverStage::Switching, Act::Take, None),
    };
    let report = TakeOver {
        stage,
        steps: steps(of, &told(of, &stack, phases)),
        differences: compared.differences,
        blocked,
    };
    Handover { report, act, again }
}

fn plan(intent: &Intent, steps: Vec<AwsStep>) -> Plan<AwsStep> {
    arrange(std::slice::from_ref(&intent.service), steps)
}

/// Since when the load balancer is being taken over.
fn taken(balancer: &crate::cloud::aws::model::Balancer) -> Option<onehop_core::time::Time> {
    balancer.tags.get(names::TAKEN)?.parse().ok()
}

/// What stops a take-over, with what would let it go on.
fn blocked(of: Situation<'_>, compared: &Compared, halves: &[Halves<'_>]) -> Vec<String> {
    let mut blocked = Vec::new();
    if of.settings.take_over.peer == PeerServices::MayAct {
        blocked.push(peer_may_act());
    }
    let accepted = of.settings.take_over.accepted.has(&of.intent.service);
    if !compared.differences.is_empty() && !accepted {
        blocked.push(format!(
            "it would change the data path: {}; make them alike, or accept it by \
             takeOverWithDifferences (--take-over-with-differences)",
            compared.differences.join("; ")
        ));
    }
    // AWS-131.
    for (on, halves) in halves {
        if on.rules.len() + halves.len() <= RULES {
            continue;
        }
        blocked.push(format!(
            "security group {} has {} rules of at most {RULES}, and {} more are needed: make room there",
            on.id,
            on.rules.len(),
            halves.len()
        ));
    }
    blocked
}

/// A security group of targets with the rules that it needs before the peer revokes its own.
type Halves<'a> = (&'a SecurityGroup, Vec<Rule>);

/// AWS-131: rules that the peer revokes with its binding, of ranges, in two halves each: the whole would be a duplicate.
fn halves<'a>(seen: &'a Observed, stack: &Stack) -> Vec<Halves<'a>> {
    let of_group = seen.node_groups.iter().map(|on| {
        let halves = stack
            .target_rules
            .iter()
            .flat_map(|rule| halves_of(on, rule));
        (on, halves.collect())
    });
    let any = |(_, halves): &Halves<'_>| !halves.is_empty();
    of_group.filter(any).collect()
}

fn halves_of(on: &SecurityGroup, rule: &TargetRule) -> Vec<Rule> {
    let TargetSource::Range(RuleSource::Cidr(range)) = &rule.source else {
        return Vec::new();
    };
    let of = |range: Cidr| Rule {
        protocol: rule.protocol,
        from: rule.from.into(),
        to: rule.to.into(),
        source: RuleSource::Cidr(range),
    };
    if !on.rules.contains_key(&of(*range)) {
        return Vec::new();
    }
    let net = range.net();
    // A single address has no halves: the peer's rule of it is left to the drift pass.
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    let halves = halves.map(|half| of(half.into()));
    halves.filter(|half| !on.rules.contains_key(half)).collect()
}

/// The cloud's part, phase by phase: each begins when nothing is left to do of those before it.
fn phases(
    of: Situation<'_>,
    view: &Observed,
    stack: &Stack,
    compared: &Compared,
    halves: &[Halves<'_>],
) -> [Vec<AwsStep>; 4] {
    let mut rules = compared.ours.clone();
    rules.extend(halves.iter().map(|(on, halves)| AwsStep::Authorize {
        group: on.name.clone(),
        id: Some(on.id.clone()),
        rules: halves.clone(),
    }));
    [
        rules,
        attach(of, view, stack).into_iter().collect(),
        tags(of, compared),
        adopt(of),
    ]
}

/// Our shared security group beside the peer's.
fn attach(of: Situation<'_>, view: &Observed, stack: &Stack) -> Option<AwsStep> {
    let needed = stack
        .target_rules
        .iter()
        .any(|r| r.source == TargetSource::Backend);
    let ours = our_backend(of.settings, of.seen).filter(|_| needed)?;
    let balancer = wanted::live(of.intent, view)?;
    let have = &balancer.security_groups;
    if have.is_empty() || have.contains(&ours) {
        return None;
    }
    Some(set_groups(balancer, have.iter().cloned().chain([ours])))
}

/// Our tags on everything but the load balancer, whose install tag comes last.
fn tags(of: Situation<'_>, compared: &Compared) -> Vec<AwsStep> {
    let peer = &of.seen.peer;
    let lacks = |name: &str, have: &Tags| -> Tags {
        let mut wanted = marks(of.settings, of.intent, have);
        wanted.extend(compared.tags.get(name).cloned().unwrap_or_default());
        missing_tags(&wanted, have)
    };
    let mut steps = Vec::new();
    for group in &peer.groups {
        let (name, tags) = (group.name.clone(), lacks(&group.name, &group.tags));
        steps.push(AwsStep::AdjustGroup {
            name,
            change: GroupChange::Tags(tags),
        });
    }
    for group in &peer.security_groups {
        let (id, tags) = (group.id.clone(), lacks(&group.name, &group.tags));
        steps.push(AwsStep::TagSecurity { id, tags });
    }
    for balancer in &peer.balancers {
        let mut tags = lacks(&balancer.name, &balancer.tags);
        tags.remove(names::INSTALL);
        if !tags.is_empty() {
            steps.push(AwsStep::AdjustBalancer {
                name: balancer.name.clone(),
                change: BalancerChange::Tags(tags),
            });
        }
    }
    steps
}

/// The install tag of the load balancer and its listeners: everything else is ours by then.
fn adopt(of: Situation<'_>) -> Vec<AwsStep> {
    let tags = Tags::from([
        (names::INSTALL.to_owned(), of.settings.install.to_string()),
        (names::TAKEN.to_owned(), of.now.to_string()),
    ]);
    let adopt = |name: &String| AwsStep::AdjustBalancer {
        name: name.clone(),
        change: BalancerChange::Adopt(tags.clone()),
    };
    of.seen
        .peer
        .balancers
        .iter()
        .map(|b| adopt(&b.name))
        .collect()
}

/// The phases as they will be once our shared security group is there, so that they can be told before.
fn told(of: Situation<'_>, stack: &Stack, now: [Vec<AwsStep>; 4]) -> Vec<Vec<AwsStep>> {
    let Some(spec) = stack.backend.as_ref().filter(|_| of.seen.backend.is_none()) else {
        return now.into();
    };
    let mut later = of.seen.clone();
    later.backend = Some(SecurityGroup {
        id: spec.name.clone(),
        name: spec.name.clone(),
        tags: spec.tags.clone(),
        rules: BTreeMap::new(),
    });
    let of = Situation { seen: &later, ..of };
    let view = view(of.settings, of.intent, of.seen);
    let (compared, halves) = (compare(of, &view), halves(of.seen, stack));
    let then = phases(of, &view, stack, &compared, &halves);
    let made = vec![AwsStep::CreateSecurity(spec.clone())];
    std::iter::once(made).chain(then).collect()
}

/// Everything that is left to do, in words, in the order in which it is done.
fn steps(of: Situation<'_>, phases: &[Vec<AwsStep>]) -> Vec<String> {
    let stated = |step: &AwsStep| match step {
        // Its time is not the one at which it will be done.
        AwsStep::AdjustBalancer {
            name,
            change: BalancerChange::Adopt(_),
        } => format!(
            "add-tags {name} and its listeners {}={}",
            names::INSTALL,
            of.settings.install
        ),
        other => other.to_string(),
    };
    let mut all: Vec<String> = phases.iter().flatten().map(stated).collect();
    let wait = of.settings.take_over.settle.as_secs();
    if !all.is_empty() {
        all.push(format!("wait {wait} s"));
    }
    all.push("remove the Service's TargetGroupBindings without letting targets go".to_owned());
    all.push(format!("put our finalizer in place of {FINALIZER}"));
    let balancers = of.seen.balancers.iter().chain(&of.seen.peer.balancers);
    if let Some(shared) = &of.seen.peer.backend {
        let has = balancers.filter(|b| b.security_groups.contains(shared));
        all.extend(has.map(|b| format!("take security group {shared} off {}", b.name)));
    }
    all
}
