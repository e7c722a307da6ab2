//! The acceptance rows of section 19: Services in, complete models out, names byte for byte.

mod checks;
mod ports;
mod security;
mod subnets;

use onehop_core::crd::Scheme;
use onehop_core::id::IpFamily;
use onehop_core::service::{ServiceKind, ServiceSpec, TrafficPolicy};

use super::*;
use crate::cloud::aws::model::CheckProtocol;
use crate::cloud::aws::settings::Gate;
use crate::cloud::aws::testkit::{
    UID_A, UID_B, annotated, live, network, service, settings, stack_of, tcp, udp,
};

const TYPE: &str = "aws-load-balancer-type";
const TARGET: &str = "aws-load-balancer-nlb-target-type";

/// Of the SG-less rows.
fn gate_off() -> Settings {
    let mut settings = settings();
    settings.gates.security_groups = Gate::Off;
    settings
}

fn with_backend(id: &str) -> Settings {
    let mut settings = settings();
    settings.backend = crate::cloud::aws::settings::BackendGroup::Given(id.to_owned());
    settings
}

fn tls_service() -> ServiceSpec {
    let service = service(("default", "nlb-ip-svc-tls"), UID_A, &[(80, 80, 0)]);
    annotated(service, &[(TYPE, "nlb-ip"), (TARGET, "ip")])
}

fn traffic_local() -> ServiceSpec {
    let mut service = service(("app", "traffic-local"), UID_B, &[(80, 80, 31223)]);
    service.external_policy = TrafficPolicy::Local;
    service.health_check_node_port = Some(29123);
    let ranges = ["10.20.0.0/16", "1.2.3.4/19"].map(|range| range.parse().unwrap());
    service.source_ranges.allowed = ranges.to_vec();
    annotated(service, &[(TARGET, "instance")])
}

fn one() -> Network {
    network(&["192.168.0.0/19"])
}

fn three() -> Network {
    network(&["192.168.0.0/19", "192.168.32.0/19", "192.168.64.0/19"])
}

fn built(settings: &Settings, service: &ServiceSpec) -> Stack {
    stack_of(settings, service, &one(), None).unwrap_or_else(|e| panic!("refused: {e:?}"))
}

fn refused(settings: &Settings, service: &ServiceSpec, network: &Network) -> String {
    let refusals = stack_of(settings, service, network, None).expect_err("refused");
    let texts: Vec<_> = refusals.iter().map(|r| r.message.as_str()).collect();
    texts.join("; ")
}

/// Rules on targets in short: protocol, port, source.
fn rules(stack: &Stack) -> Vec<String> {
    let text = |rule: &TargetRule| {
        let source = match &rule.source {
            TargetSource::Backend => "backend".to_owned(),
            TargetSource::Range(RuleSource::Cidr(range)) => range.to_string(),
            TargetSource::Range(other) => format!("{other:?}"),
        };
        if rule.from == rule.to {
            format!("{} {} {source}", rule.protocol, rule.from)
        } else {
            format!("{} {}-{} {source}", rule.protocol, rule.from, rule.to)
        }
    };
    stack.target_rules.iter().map(text).collect()
}

fn frontend(stack: &Stack) -> Vec<String> {
    let managed = stack.managed.as_ref().unwrap();
    managed.rules.iter().map(ToString::to_string).collect()
}
