//! Taking over from cloud-provider-azure in place, and giving back to it (AZ-014): the load balancer, public IPs and rules
//! stay byte for byte, by the same names; what changes hands is the finalizer. Pure.

use onehop_core::crd::{SERVICE_FINALIZER, TakeOver, TakeOverStage};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use super::balancer::differing;
use super::document::{POOLS, at, child};
use super::model::{Observed, build};
use super::plan::plan;
use super::resolve::Flavour;
use super::settings::Settings;
use super::step::AzureStep;
use crate::plan::Intent;
use crate::plan::custody::{Act, Custody, Handover, PeerServices, Release};

/// The peer's finalizer on Services.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Who it is.
pub(super) const NAME: &str = "cloud-provider-azure";

/// Whether the peer may have a Service of this class.
pub(super) fn may_be_theirs(service: &ServiceSpec) -> bool {
    Flavour::of(service.class.as_deref()) == Flavour::Peer
        && !service.has_finalizer(SERVICE_FINALIZER)
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
pub(super) fn custody(of: Situation<'_>, release: Release) -> Custody<AzureStep> {
    if Flavour::of(of.service.class.as_deref()) == Flavour::Own {
        return Custody::Ours;
    }
    let (ours, theirs) = (
        of.service.has_finalizer(SERVICE_FINALIZER),
        of.service.has_finalizer(FINALIZER),
    );
    let handover = match (ours, theirs) {
        (true, true) => conflict(),
        (_, _) if release == Release::GiveBack => back(ours),
        (true, false) => return Custody::Ours,
        (false, false) if of.settings.take_over.peer == PeerServices::Off => return Custody::Ours,
        (false, _) => over(of),
    };
    Custody::Theirs(Box::new(handover))
}

/// Both act on it.
fn conflict() -> Handover<AzureStep> {
    let what = format!(
        "{NAME} has put its finalizer {FINALIZER} back: nothing is written until it is gone; run it with \
         --controllers=*,-service-lb-controller"
    );
    handover(TakeOverStage::Conflict, Act::Look, (vec![], vec![what]))
}

fn handover(
    stage: TakeOverStage,
    act: Act<AzureStep>,
    (steps, blocked): (Vec<String>, Vec<String>),
) -> Handover<AzureStep> {
    let report = TakeOver {
        stage,
        steps,
        differences: Vec::new(),
        blocked,
    };
    Handover {
        report,
        act,
        again: None,
    }
}

/// From the peer to us.
fn over(of: Situation<'_>) -> Handover<AzureStep> {
    let take_over = &of.settings.take_over;
    // Told before it is said that the peer is off: as it would be then.
    let assumed = assumed(of.settings, of.intent);
    let settings = assumed.as_ref().unwrap_or(of.settings);
    let (differences, mut blocked) = compare(Situation { settings, ..of });
    if take_over.peer == PeerServices::MayAct {
        blocked.push(format!(
            "{NAME} may still act on Services: run it with --controllers=*,-service-lb-controller, or not at all, and say \
             so by azure.serviceControllerDisabled (--azure-service-controller-disabled)"
        ));
    }
    if !differences.is_empty() && !take_over.accepted.has(&of.intent.service) {
        blocked.push(format!(
            "it would be written otherwise than it is: {}; make them alike, or accept it by takeOverWithDifferences \
             (--take-over-with-differences)",
            differences.join("; ")
        ));
    }
    let chosen = take_over.of.has(&of.intent.service);
    let (stage, act) = if chosen && blocked.is_empty() {
        (TakeOverStage::Switching, Act::Take)
    } else {
        (TakeOverStage::Observing, Act::Look)
    };
    let swap = format!("put {SERVICE_FINALIZER} in place of {FINALIZER}");
    let mut handover = handover(stage, act, (vec![swap], blocked));
    handover.report.differences = differences;
    handover
}

/// Settings as they would be with the peer off, where they say that it may act.
pub(super) fn assumed(settings: &Settings, intent: &Intent) -> Option<Settings> {
    let peers = Flavour::of(intent.spec.class.as_deref()) == Flavour::Peer;
    let mut assumed = settings.clone();
    assumed.take_over.peer = PeerServices::Off;
    (peers && settings.take_over.peer == PeerServices::MayAct).then_some(assumed)
}

/// What we would write, and what stands in the way.
fn compare(of: Situation<'_>) -> (Vec<String>, Vec<String>) {
    let (settings, seen) = (of.settings, of.seen);
    let service = &of.intent.service;
    let built = match build(settings, service, &of.intent.spec, &seen.documents) {
        Ok(built) => built,
        Err(refusal) => return (vec![], vec![refusal.message]),
    };
    let part = &built.part;
    let Some(balancer) = seen.balancer(part.kind) else {
        let name = settings.place.balancer(part.kind);
        return (vec![], vec![format!("there is no load balancer {name}")]);
    };
    let mut blocked = Vec::new();
    let pools = part
        .pools
        .iter()
        .filter_map(|pool| child(balancer, POOLS, &pool.name));
    // AZ-239.
    if pools.into_iter().any(|pool| interfaces(pool) > 0) {
        blocked.push(format!(
            "its pool holds network interfaces, which are not written here: move it to addresses \
             (loadBalancerBackendPoolConfigurationType nodeIP of {NAME}) first"
        ));
    }
    let planned = plan(settings, service, Some(of.intent), seen, of.now);
    let told = planned.steps().filter_map(|step| match step {
        // The pool is everybody's, and its members the membership policy's.
        AzureStep::ChangeMembers { .. } => None,
        AzureStep::PutRules { .. } if seen.lets_in(settings, &of.intent.spec) => None,
        AzureStep::PutPart { .. } => {
            Some(format!("{step}: {}", differing(balancer, part).join(", ")))
        }
        step => Some(step.to_string()),
    });
    (told.collect(), blocked)
}

/// How many network interfaces are in a pool: their membership is written at those (AZ-012).
pub(super) fn interfaces(pool: &serde_json::Value) -> usize {
    let interfaces = at(pool, &["properties", "backendIPConfigurations"]);
    interfaces
        .and_then(serde_json::Value::as_array)
        .map_or(0, Vec::len)
}

/// From us back to the peer: all that is there is named as it names it.
fn back(ours: bool) -> Handover<AzureStep> {
    if ours {
        let swap = format!("put {FINALIZER} in place of {SERVICE_FINALIZER}");
        return handover(TakeOverStage::Returning, Act::Give, (vec![swap], vec![]));
    }
    handover(TakeOverStage::Returned, Act::Look, (vec![], vec![]))
}

#[cfg(test)]
mod tests;
