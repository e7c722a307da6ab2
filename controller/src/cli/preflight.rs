//! What a take-over would do to each Service of the other program, by what the controller says of it. Pure.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use onehop_core::crd::{LoadBalancer, RELEASE_ANNOTATION, SERVICE_FINALIZER, TakeOverStage};

use super::{Finding, PEER_CLASS, PEER_FINALIZER, State, class, has};

/// Whether a Service is, or was, the other program's.
pub fn concerns(service: &Service, object: Option<&LoadBalancer>) -> bool {
    let told = object
        .and_then(|o| o.status.as_ref())
        .is_some_and(|s| s.take_over.is_some());
    let taken = has(service, SERVICE_FINALIZER) && class(service).is_none();
    has(service, PEER_FINALIZER) || told || taken || class(service) == Some(PEER_CLASS)
}

/// How one stands.
pub fn judge(service: &Service, object: Option<&LoadBalancer>) -> Finding {
    let mut finding = Finding::of(service);
    let report = object.and_then(|o| o.status.as_ref()?.take_over.clone());
    let Some(report) = report else {
        if has(service, SERVICE_FINALIZER) {
            finding.state = State::TakenOver;
        } else if object.is_some() {
            finding
                .stopped_by
                .push("the controller has not looked at it yet".to_owned());
        } else {
            finding.stopped_by.push(format!(
                "no install claims it: add {PEER_CLASS} to loadBalancerClass (--load-balancer-class) or set \
                 claimClassless, which writes nothing yet, and ask again"
            ));
        }
        return finding;
    };
    let asked_back = object.is_some_and(|o| o.annotations().contains_key(RELEASE_ANNOTATION));
    finding.steps = report.steps;
    finding.differences = report.differences;
    finding.stopped_by = report.blocked;
    finding.state = match report.stage {
        TakeOverStage::Returned => State::GivenBack,
        _ if !finding.stopped_by.is_empty() => State::Stopped,
        TakeOverStage::Observing if !asked_back => State::Ready,
        _ => State::UnderWay,
    };
    finding
}
