//! Taking over from aws-load-balancer-controller, and giving back to it (AWS-013, AWS-120 to AWS-131). Pure.
//!
//! How far a Service has come is read off its finalizers and the tags of its objects, so that every part can be the last
//! before a crash. Targets are never touched here: they are the peer's until the end, and the membership policy's after it.

mod compare;
mod giving;
mod taking;

use std::borrow::Cow;

use onehop_core::crd::{SERVICE_FINALIZER, TakeOver, TakeOverStage};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use super::model::{Balancer, Observed};
use super::names::{self, Tags};
use super::settings::{BackendGroup, Flavour, PeerServices, Settings};
use super::stack::GroupRef;
use super::step::{AwsStep, BalancerChange};
use crate::plan::Intent;
use crate::plan::custody::{Act, Custody, Handover, Release};

pub(super) use giving::disown;

/// The peer's finalizer on Services.
pub const FINALIZER: &str = "service.k8s.aws/resources";
/// Who it is.
pub(super) const NAME: &str = "aws-load-balancer-controller";

/// Whether the peer may have a Service of this class: not before the cloud was looked at is that known.
pub(super) fn may_be_theirs(service: &ServiceSpec) -> bool {
    let flavour = Settings::flavour(service.class.as_deref());
    flavour == Flavour::Peer && !service.has_finalizer(SERVICE_FINALIZER)
}

/// What everything here is decided from.
#[derive(Clone, Copy)]
pub(super) struct Situation<'a> {
    pub(super) settings: &'a Settings,
    pub(super) service: &'a ServiceSpec,
    pub(super) intent: &'a Intent,
    pub(super) seen: &'a Observed,
    pub(super) now: Time,
}

/// Whose the load balancer is, and what is to be done about that.
pub(super) fn custody(of: Situation<'_>, release: Release) -> Custody<AwsStep> {
    if Settings::flavour(of.service.class.as_deref()) == Flavour::Own {
        return Custody::Ours;
    }
    let (ours, theirs) = (
        of.service.has_finalizer(SERVICE_FINALIZER),
        of.service.has_finalizer(FINALIZER),
    );
    let handover = match (ours, theirs) {
        (true, true) => conflict(),
        (_, _) if release == Release::GiveBack => giving::back(of, ours),
        (true, false) => return Custody::Ours,
        (false, false) if of.seen.peer.is_empty() => match of.settings.take_over.peer {
            PeerServices::Off => return Custody::Ours,
            // Both would make one.
            PeerServices::MayAct => look(TakeOverStage::Observing, vec![peer_may_act()]),
        },
        (false, _) => taking::over(of),
    };
    Custody::Theirs(Box::new(handover))
}

/// AWS-013: the peer acts on what we have taken over.
fn conflict() -> Handover<AwsStep> {
    let what = format!(
        "aws-load-balancer-controller has put its finalizer {FINALIZER} back: nothing is written until it is gone; run \
         that controller with feature gate EnableServiceController=false"
    );
    look(TakeOverStage::Conflict, vec![what])
}

fn peer_may_act() -> String {
    "aws-load-balancer-controller may still act on Services: run it with feature gate EnableServiceController=false, or \
     not at all, and say so by lbcServiceControllerDisabled (--lbc-service-controller-disabled)"
        .to_owned()
}

fn look(stage: TakeOverStage, blocked: Vec<String>) -> Handover<AwsStep> {
    Handover {
        report: TakeOver {
            stage,
            blocked,
            ..TakeOver::default()
        },
        act: Act::Look,
        again: None,
    }
}

/// What is seen, with the peer's objects taken for ours.
pub(super) fn view<'a>(
    settings: &Settings,
    intent: &Intent,
    seen: &'a Observed,
) -> Cow<'a, Observed> {
    let own = Settings::flavour(intent.spec.class.as_deref()) == Flavour::Own;
    if own || seen.peer.is_empty() {
        return Cow::Borrowed(seen);
    }
    let mut view = seen.clone();
    let peer = std::mem::take(&mut view.peer);
    view.balancers
        .extend(peer.balancers.into_iter().map(|mut balancer| {
            balancer
                .tags
                .extend(marks(settings, intent, &balancer.tags));
            balancer
        }));
    view.groups.extend(peer.groups.into_iter().map(|mut group| {
        group.tags.extend(marks(settings, intent, &group.tags));
        group
    }));
    let security = peer.security_groups.into_iter().map(|mut group| {
        group.tags.extend(marks(settings, intent, &group.tags));
        group
    });
    view.security_groups.extend(security);
    view.peer.backend = peer.backend;
    Cow::Owned(view)
}

/// The tags that make an object of the peer's one of ours (AWS-110).
fn marks(settings: &Settings, intent: &Intent, tags: &Tags) -> Tags {
    let mut marks = names::install_tags(settings);
    let mut put = |key: &str, value: String| marks.insert(key.to_owned(), value);
    put(names::SERVICE, intent.service.to_string());
    put(names::SERVICE_UID, intent.uid.to_string());
    if let Some(resource) = tags.get(names::PEER_RESOURCE) {
        put(names::RESOURCE, resource.clone());
    }
    marks
}

/// Id of the security group that targets know our load balancers by, once it is there.
fn our_backend(settings: &Settings, seen: &Observed) -> Option<String> {
    match &settings.backend {
        BackendGroup::Given(id) => Some(id.clone()),
        BackendGroup::Ours => seen.backend.as_ref().map(|group| group.id.clone()),
        BackendGroup::Off => None,
    }
}

/// The call that gives a load balancer these security groups.
fn set_groups(balancer: &Balancer, ids: impl Iterator<Item = String>) -> AwsStep {
    AwsStep::AdjustBalancer {
        name: balancer.name.clone(),
        change: BalancerChange::SecurityGroups(ids.map(GroupRef::Given).collect()),
    }
}

#[cfg(test)]
mod tests;
