//! Whether a load balancer can be given back, and what that does. Pure.

use k8s_openapi::api::core::v1::Service;
use onehop_core::crd::{LoadBalancer, ProviderKind, SERVICE_FINALIZER, TakeOverStage};

use super::{AZURE_FINALIZER, Finding, PEER_FINALIZER, State, class, has, is_theirs};

/// Whether a Service is one that may be given back without being named.
pub fn concerns(service: &Service, object: Option<&LoadBalancer>) -> bool {
    has(service, SERVICE_FINALIZER) && object.is_some() && !is_ours_alone(service)
}

/// Classes of our own are no other program's.
fn is_ours_alone(service: &Service) -> bool {
    class(service).is_some_and(|class| class.starts_with("onehop.dev/"))
}

/// How one stands, and what giving it back does.
pub fn judge(service: &Service, object: Option<&LoadBalancer>) -> Finding {
    let mut finding = Finding::of(service);
    let has = |finalizer| has(service, finalizer);
    let status = object.and_then(|o| o.status.as_ref());
    let report = status.and_then(|s| s.take_over.as_ref());
    if let Some(report) =
        report.filter(|r| matches!(r.stage, TakeOverStage::Returning | TakeOverStage::Returned))
    {
        finding.steps.clone_from(&report.steps);
        finding.stopped_by.clone_from(&report.blocked);
        finding.state = match (report.stage, report.blocked.is_empty()) {
            (TakeOverStage::Returned, _) => State::GivenBack,
            (_, true) => State::UnderWay,
            (_, false) => State::Stopped,
        };
        return finding;
    }
    let refused = if is_ours_alone(service) {
        Some(
            "its class is ours alone, and the class of a Service cannot be changed: no other program would take it",
        )
    } else if object.is_none() || !has(SERVICE_FINALIZER) && !is_theirs(service) {
        Some("it is not ours: there is nothing to give back")
    } else if has(SERVICE_FINALIZER) && is_theirs(service) {
        Some("both programs have their finalizer on it: take one off, or run one program only")
    } else {
        None
    };
    if let Some(why) = refused {
        finding.stopped_by.push(why.to_owned());
        return finding;
    }
    finding.state = State::Ready;
    if object.is_some_and(|object| object.spec.provider == ProviderKind::Azure) {
        // Names and tags are that program's already.
        finding.steps = vec![format!(
            "put {AZURE_FINALIZER} in place of {SERVICE_FINALIZER}; take our condition off"
        )];
        return finding;
    }
    finding.steps = steps(
        has(SERVICE_FINALIZER),
        status.map_or(&[][..], |s| &s.resources[..]),
    );
    finding
}

/// What the controller will do, in words.
fn steps(ours: bool, resources: &[onehop_core::crd::CloudResource]) -> Vec<String> {
    let mut steps = Vec::new();
    if ours {
        steps.push("put aws-load-balancer-controller's shared security group on the load balancer again, if there is one".to_owned());
        steps.push(format!(
            "put {PEER_FINALIZER} in place of {SERVICE_FINALIZER}; take our condition off"
        ));
    }
    let tagged = resources
        .iter()
        .map(|r| format!("remove our tags from {} {}", r.kind, r.id));
    steps.extend(tagged);
    steps.push(
        "once aws-load-balancer-controller has its TargetGroupBindings (run it with feature gate \
         EnableServiceController=true): take our security group off"
            .to_owned(),
    );
    steps
}
