//! How a Service is let go when its install is to end (C-80, C-81). Pure.

use k8s_openapi::api::core::v1::Service;
use onehop_core::crd::{LoadBalancer, SERVICE_FINALIZER, TARGETS_FINALIZER};
use onehop_core::id::InstallId;

use super::{Finding, How, State};
use crate::uninstall::is_held;

/// Whether the install's controller runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Nobody holds its Lease.
    Gone,
    /// Somebody does, in words.
    Runs(String),
}

/// How one stands.
pub fn judge(
    (service, object): (&Service, Option<&LoadBalancer>),
    install: &InstallId,
    how: Option<How>,
    controller: &Controller,
) -> Finding {
    let mut finding = Finding::of(service);
    if !is_held(service, object, install) {
        finding.state = State::LetGo;
        return finding;
    }
    let status = object.and_then(|object| object.status.as_ref());
    let resources = status.map_or(&[][..], |status| &status.resources[..]);
    let each = |what: &str| {
        let named = resources
            .iter()
            .map(|r| format!("{what} {} {}", r.kind, r.id));
        named.collect::<Vec<_>>()
    };
    let by_us = "the controller removes its load balancer, and then our finalizer";
    match (how, controller) {
        (None, _) => {
            finding.state = State::Held;
            finding.steps = each("holds");
        }
        (Some(How::Delete | How::Convert), Controller::Gone) => {
            finding.stopped_by.push(format!(
                "no controller of install {install} runs, which would remove its load balancer: start it, or let the \
                 load balancer stay by --how keep"
            ));
        }
        (Some(how @ (How::Delete | How::Convert)), Controller::Runs(_)) => {
            let (what, under_way) = match how {
                How::Convert => ("make it type ClusterIP", !is_balanced(service)),
                _ => ("delete it", false),
            };
            let under_way = under_way || service.metadata.deletion_timestamp.is_some();
            finding.state = if under_way {
                State::UnderWay
            } else {
                State::Ready
            };
            finding.steps = vec![format!("{what}: {by_us}")];
            finding.steps.extend(each("gone with it:"));
        }
        (Some(How::Keep), Controller::Runs(who)) => {
            finding.stopped_by.push(format!(
                "the controller of install {install} runs ({who}) and would put its finalizer back: uninstall it first \
                 (helm uninstall --no-hooks)"
            ));
        }
        (Some(How::Keep), Controller::Gone) => {
            finding.state = State::Ready;
            finding.steps = vec![format!("take {SERVICE_FINALIZER} off")];
            if object.is_some() {
                let step = format!("take {TARGETS_FINALIZER} off its LoadBalancer");
                finding.steps.push(step);
            }
            finding
                .steps
                .extend(each("leave in the cloud, with our tags:"));
        }
    }
    finding
}

/// Whether it asks for a load balancer.
fn is_balanced(service: &Service) -> bool {
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    kind == Some("LoadBalancer")
}
