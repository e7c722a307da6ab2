//! Health checks: what annotations say, else the default of the class (crd.md section 6, AWS-074 to
//! AWS-079, AWS-092, AWS-093). Pure.

use onehop_core::crd::{HealthBy, HealthCheck, HealthProtocol, LoadBalancerPort, TargetMode};
use onehop_core::id::Protocol;
use onehop_core::service::{ServicePort, ServiceSpec, TargetPort, TrafficPolicy};

use super::annotations::{Health, HealthPort, keys};
use super::model::CheckProtocol;
use super::resolve::refusal;
use super::settings::{Flavour, Settings};
use crate::cloud::local::resolve::node_health_port;
use crate::plan::Refusal;

/// Path of every node health and `healthCheckNodePort`.
const NODE_HEALTH_PATH: &str = "/healthz";
/// Interval, time-out, healthy, unhealthy.
type Numbers = (u32, u32, u32, u32);
const OF_TCP: Numbers = (10, 10, 3, 3);
const OF_HTTP: Numbers = (10, 6, 2, 2);

/// The check of a port's group.
pub(super) fn check(
    settings: &Settings,
    service: &ServiceSpec,
    port: &ServicePort,
    mode: TargetMode,
    wishes: &Health,
) -> Result<HealthCheck, Refusal> {
    let default = match Settings::flavour(service.class.as_deref()) {
        Flavour::Own => own(settings, service, port, mode),
        Flavour::Peer => peer(service, mode),
    };
    let explicit = wishes.protocol.is_some() || wishes.port.is_some();
    let protocol = wishes.protocol.map_or(default.protocol, protocol);
    let at = match &wishes.port {
        // A check that the user has begun to describe is of the traffic port, unless told otherwise,
        // as with the peer (AA-32); that of externalTrafficPolicy Local keeps its port.
        None if wishes.protocol.is_some() && default.by == HealthBy::Node => None,
        None => default.port,
        Some(HealthPort::Traffic) => None,
        Some(HealthPort::Number(number)) => Some(*number),
        Some(HealthPort::Name(name)) => Some(named(service, mode, name)?),
    };
    // A protocol of the user's own kind of check brings that kind's numbers only with our class: the
    // peer keeps its own whatever the protocol.
    let path = match protocol {
        HealthProtocol::Tcp | HealthProtocol::Unknown => None,
        HealthProtocol::Http | HealthProtocol::Https => {
            let default = default.path.clone().unwrap_or_else(|| "/".to_owned());
            Some(wishes.path.clone().unwrap_or(default))
        }
    };
    Ok(HealthCheck {
        by: if explicit {
            HealthBy::Custom
        } else {
            default.by
        },
        protocol,
        port: at,
        path,
        interval_seconds: wishes.interval.unwrap_or(default.interval_seconds),
        timeout_seconds: wishes.timeout.unwrap_or(default.timeout_seconds),
        healthy: wishes.healthy.unwrap_or(default.healthy),
        unhealthy: wishes.unhealthy.unwrap_or(default.unhealthy),
    })
}

const fn protocol(protocol: CheckProtocol) -> HealthProtocol {
    match protocol {
        CheckProtocol::Tcp => HealthProtocol::Tcp,
        CheckProtocol::Http => HealthProtocol::Http,
        CheckProtocol::Https => HealthProtocol::Https,
    }
}

fn of(by: HealthBy, port: Option<u16>, path: Option<&str>, numbers: Numbers) -> HealthCheck {
    let (interval_seconds, timeout_seconds, healthy, unhealthy) = numbers;
    HealthCheck {
        by,
        protocol: if path.is_some() {
            HealthProtocol::Http
        } else {
            HealthProtocol::Tcp
        },
        port,
        path: path.map(str::to_owned),
        interval_seconds,
        timeout_seconds,
        healthy,
        unhealthy,
    }
}

/// AWS-092, AWS-093, where agents do not answer for pods (K-24): then pods are asked at the traffic port, and UDP ones at
/// the node's health where there is no TCP to ask.
fn own(
    settings: &Settings,
    service: &ServiceSpec,
    port: &ServicePort,
    mode: TargetMode,
) -> HealthCheck {
    let local = service
        .health_check_node_port
        .filter(|_| service.external_policy == TrafficPolicy::Local);
    let http = |by, port| of(by, Some(port), Some(NODE_HEALTH_PATH), OF_HTTP);
    match (mode, local) {
        (TargetMode::Pod, _) => {
            let tcp = service
                .ports
                .iter()
                .find(|p| p.key.protocol == Protocol::Tcp);
            let beside = match tcp.map(|p| &p.target) {
                Some(TargetPort::Number(number)) if port.key.protocol == Protocol::Udp => {
                    Some(*number)
                }
                _ => None,
            };
            of(HealthBy::Traffic, beside, None, OF_TCP)
        }
        (_, Some(port)) => http(HealthBy::Local, port),
        (_, None) => http(HealthBy::Node, node_health_port(settings.proxy, service)),
    }
}

/// The check of a pod port of our own class that no annotation describes: agents may answer it. A peer's class keeps the
/// peer's (crd.md section 6).
pub(super) fn agent_check(service: &ServiceSpec, port: &LoadBalancerPort) -> Option<HealthCheck> {
    let own = Settings::flavour(service.class.as_deref()) == Flavour::Own;
    let health = port
        .health
        .clone()
        .filter(|_| own && port.mode == TargetMode::Pod)?;
    matches!(health.by, HealthBy::Traffic | HealthBy::Agent).then_some(health)
}

/// The peer's defaults, exactly: its names hash them.
fn peer(service: &ServiceSpec, mode: TargetMode) -> HealthCheck {
    let local = service.external_policy == TrafficPolicy::Local && mode == TargetMode::Node;
    match service.health_check_node_port.filter(|_| local) {
        Some(port) => of(HealthBy::Local, Some(port), Some(NODE_HEALTH_PATH), OF_HTTP),
        None => of(HealthBy::Traffic, None, None, OF_TCP),
    }
}

/// AWS-075: a port of the Service by name.
fn named(service: &ServiceSpec, mode: TargetMode, name: &str) -> Result<u16, Refusal> {
    let wrong = |what: &str| {
        let key = format!("{}{}", keys::PREFIX, keys::HC_PORT);
        refusal("AnnotationInvalid", format!("{key}: {name:?} {what}"))
    };
    let port = service.ports.iter().find(|p| p.key.name.as_str() == name);
    let port =
        port.ok_or_else(|| wrong("is no port of the Service, no number, and not traffic-port"))?;
    match (mode, &port.target) {
        (TargetMode::Pod, TargetPort::Number(number)) => Ok(*number),
        (TargetMode::Pod, TargetPort::Name(_)) => Err(wrong(
            "is a port whose targetPort is a name, which has no one number",
        )),
        _ => port
            .node_port
            .ok_or_else(|| wrong("is a port without a nodePort")),
    }
}
