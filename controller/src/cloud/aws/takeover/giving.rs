//! From us back to the peer (AWS-130): its security group, its finalizer, our tags; our security group once it has
//! bindings of its own. No call is about members.

use onehop_core::crd::{TakeOver, TakeOverStage};
use onehop_core::id::ServiceKey;

use super::{FINALIZER, Situation, our_backend, set_groups};
use crate::cloud::aws::attributes;
use crate::cloud::aws::model::{Observed, Tagged};
use crate::cloud::aws::names::{self, Tags};
use crate::cloud::aws::step::{AwsStep, BalancerChange, GroupChange};
use crate::plan::custody::{Act, Handover};
use crate::plan::{Plan, arrange};

/// Keys of our tags on listeners, which are not read.
const OF_LISTENERS: [&str; 8] = [
    names::INSTALL,
    names::CLUSTER,
    names::SERVICE,
    names::SERVICE_UID,
    names::RESOURCE,
    names::TAKEN,
    attributes::OWNED,
    attributes::SEEN,
];

/// The next part of the way back; `ours` while our finalizer is there.
pub(super) fn back(of: Situation<'_>, ours: bool) -> Handover<AwsStep> {
    let service = std::slice::from_ref(&of.intent.service);
    let (put_back, untag, take_off) = (put_back(of), disown_steps(of.seen), take_off(of));
    let mut steps: Vec<String> = put_back.iter().map(ToString::to_string).collect();
    if ours {
        steps.push(format!("put {FINALIZER} in place of our finalizer"));
    }
    steps.extend(untag.iter().map(ToString::to_string));
    steps.extend(take_off.iter().map(|step| {
        format!("once aws-load-balancer-controller has its TargetGroupBindings: {step}")
    }));
    let blocked: Vec<String> = in_between(of.seen).into_iter().filter(|_| ours).collect();
    let (stage, act) = if !blocked.is_empty() {
        (TakeOverStage::Returning, Act::Look)
    } else if ours && !put_back.is_empty() {
        (
            TakeOverStage::Returning,
            Act::Cloud(arrange(service, put_back)),
        )
    } else if ours {
        (TakeOverStage::Returning, Act::Give)
    } else if !untag.is_empty() {
        (
            TakeOverStage::Returning,
            Act::Cloud(disown(&of.intent.service, of.seen)),
        )
    } else if !take_off.is_empty() {
        (
            TakeOverStage::Returned,
            Act::OnceBound(arrange(service, take_off)),
        )
    } else {
        (TakeOverStage::Returned, Act::Look)
    };
    let report = TakeOver {
        stage,
        steps,
        blocked,
        differences: Vec::new(),
    };
    // Nobody tells when the peer has its bindings.
    let awaits = matches!(act, Act::OnceBound(_));
    let again = awaits.then(|| of.now + of.settings.take_over.settle / 2);
    Handover { report, act, again }
}

/// A replacement that is under way: two load balancers or groups for one thing, of which the peer would see either.
fn in_between(seen: &Observed) -> Option<String> {
    let retired = seen.groups.iter().any(|g| g.retired().is_some());
    (seen.balancers.len() > 1 || retired).then(|| {
        "a load balancer or a target group is being replaced: it goes on when the old one is gone".to_owned()
    })
}

/// The peer's shared security group beside ours.
fn put_back(of: Situation<'_>) -> Vec<AwsStep> {
    let (Some(theirs), Some(ours)) = (&of.seen.peer.backend, our_backend(of.settings, of.seen))
    else {
        return Vec::new();
    };
    let lacks = of
        .seen
        .balancers
        .iter()
        .filter(|b| b.security_groups.contains(&ours) && !b.security_groups.contains(theirs));
    lacks
        .map(|b| set_groups(b, b.security_groups.iter().cloned().chain([theirs.clone()])))
        .collect()
}

/// Ours off the load balancer, where the peer's is there.
fn take_off(of: Situation<'_>) -> Vec<AwsStep> {
    let Some(ours) = our_backend(of.settings, of.seen) else {
        return Vec::new();
    };
    let all = of.seen.balancers.iter().chain(&of.seen.peer.balancers);
    let has = all.filter(|b| b.security_groups.contains(&ours));
    let rest = |have: &[String]| -> Vec<String> {
        have.iter().filter(|id| **id != ours).cloned().collect()
    };
    has.map(|b| set_groups(b, rest(&b.security_groups).into_iter()))
        .collect()
}

/// The calls that take our tags off: the load balancer comes last, so that what is left is found after a crash.
pub(in crate::cloud::aws) fn disown(service: &ServiceKey, seen: &Observed) -> Plan<AwsStep> {
    let all = disown_steps(seen);
    let last = |step: &AwsStep| matches!(step, AwsStep::AdjustBalancer { .. });
    let first: Vec<_> = all.iter().filter(|step| !last(step)).cloned().collect();
    let now = if first.is_empty() { all } else { first };
    arrange(std::slice::from_ref(service), now)
}

fn disown_steps(seen: &Observed) -> Vec<AwsStep> {
    let keys = |tags: &Tags| -> Vec<String> {
        tags.keys()
            .filter(|key| key.starts_with(names::PREFIX))
            .cloned()
            .collect()
    };
    let groups = seen.groups.iter().map(|group| AwsStep::AdjustGroup {
        name: group.name.clone(),
        change: GroupChange::Untag(keys(&group.tags)),
    });
    let security = seen
        .security_groups
        .iter()
        .map(|group| AwsStep::UntagSecurity {
            id: group.id.clone(),
            keys: keys(&group.tags),
        });
    let balancers = seen.balancers.iter().map(|balancer| {
        let mut all = keys(&balancer.tags);
        let of_listeners = OF_LISTENERS
            .iter()
            .filter(|key| !balancer.tags.contains_key(**key));
        all.extend(of_listeners.map(|key| (*key).to_owned()));
        AwsStep::AdjustBalancer {
            name: balancer.name.clone(),
            change: BalancerChange::Disown(all),
        }
    });
    groups.chain(security).chain(balancers).collect()
}
