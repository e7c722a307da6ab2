//! From a Service to the resolved spec of its load balancer. Pure.
//!
//! Everything wrong is collected; while anything is, the last good spec is carried out (I10, AWS-012).
//! What needs the network (subnets, addresses in them) is decided by `stack`, when a plan is made.

use std::collections::BTreeSet;

use onehop_core::crd::{
    ClientIp, LoadBalancerPort, LoadBalancerSpec, MembershipPolicy, ProviderKind, ProviderOption,
    TargetMode,
};
use onehop_core::id::{IpFamily, PortKey, Protocol};
use onehop_core::service::{ServiceKind, ServicePort, ServiceSpec, TargetPort};
use onehop_core::target::{self, Choice, NodePorts, Obstacle, Obstacles, Wish};

use super::annotations::{self, Hint, Wishes, keys};
use super::health;
use super::model::IpType;
use super::settings::{Flavour, Settings};
use super::stack;
use crate::plan::{Machine, Notice, Refusal, Resolution};

/// Option of the attribute that keeps the client's address.
pub const PRESERVE: &str = "preserve_client_ip.enabled";

/// Reads one Service.
pub fn resolve(
    settings: &Settings,
    service: &ServiceSpec,
    last_good: Option<&LoadBalancerSpec>,
) -> Resolution {
    let last_good = last_good.filter(|spec| spec.service_uid == service.uid);
    let (wishes, problems) = annotations::parse(settings, service);
    let problems = problems
        .iter()
        .map(|p| refusal("AnnotationInvalid", p.to_string()));
    let mut refusals: Vec<Refusal> = problems.collect();
    let mut notices: Vec<Notice> = wishes.hints.iter().map(hint).collect();
    refusals.extend(families(service, &wishes, &mut notices));
    refusals.extend(ssl_ports(service, &wishes));
    let (kept, pairs) = listeners(settings, service, &wishes, &mut notices);
    refusals.extend(pairs);
    let merged: BTreeSet<u16> = kept
        .iter()
        .filter(|port| kept.iter().filter(|p| p.port == port.port).count() > 1)
        .map(|port| port.port)
        .collect();
    let mut ports = Vec::new();
    for port in kept {
        let merged = merged.contains(&port.port);
        match resolve_port(
            settings,
            service,
            (port, merged),
            &wishes,
            last_good,
            &mut notices,
        ) {
            Ok(port) => ports.push(port),
            Err(refused) => refusals.push(refused),
        }
    }
    refusals.extend(node_ports(&ports));
    merged_see_clients(&mut ports);
    let spec = if refusals.is_empty() {
        Some(spec(settings, service, wishes, ports, last_good))
    } else {
        last_good.cloned()
    };
    Resolution {
        spec,
        refusals,
        notices,
    }
}

pub(super) fn refusal(reason: &'static str, message: impl Into<String>) -> Refusal {
    Refusal {
        reason,
        message: message.into(),
    }
}

fn notice(reason: &'static str, message: impl Into<String>) -> Notice {
    Notice {
        reason,
        message: message.into(),
        degrades: false,
    }
}

fn hint(hint: &Hint) -> Notice {
    let reason = match hint {
        Hint::Replaced(..) | Hint::NotYet(_) => "AnnotationIgnored",
        Hint::Unknown(_) | Hint::CountsAsInstance(_) => "AnnotationInvalid",
    };
    notice(reason, hint.to_string())
}

fn spec(
    settings: &Settings,
    service: &ServiceSpec,
    wishes: Wishes,
    ports: Vec<LoadBalancerPort>,
    last_good: Option<&LoadBalancerSpec>,
) -> LoadBalancerSpec {
    let default = match Settings::flavour(service.class.as_deref()) {
        Flavour::Own => MembershipPolicy::ZeroDrop,
        Flavour::Peer => MembershipPolicy::Compat,
    };
    let option =
        |(name, value, from): (String, String, String)| ProviderOption { name, value, from };
    let live = last_good.map(|spec| spec.scheme);
    LoadBalancerSpec {
        provider: ProviderKind::Aws,
        class: service.class.clone(),
        service_uid: service.uid.clone(),
        scheme: wishes.scheme.or(live).unwrap_or(settings.scheme),
        families: service.families.clone(),
        ports,
        sources: Vec::new(),
        membership: settings
            .bounds
            .membership(wishes.membership.or(settings.membership).unwrap_or(default)),
        options: wishes.origins.into_iter().map(option).collect(),
    }
}

/// AWS-222: an ipv4 load balancer has no IPv6 groups.
fn families(service: &ServiceSpec, wishes: &Wishes, notices: &mut Vec<Notice>) -> Option<Refusal> {
    let dualstack = wishes.ip_type == Some(IpType::Dualstack);
    if dualstack || !service.families.contains(&IpFamily::V6) {
        return None;
    }
    let key = format!("{}{}", keys::PREFIX, keys::IP_TYPE);
    if service.families.first() == Some(&IpFamily::V4) {
        let message = format!("only IPv4 is served: set {key} to dualstack for both families");
        notices.push(notice("AnnotationIgnored", message));
        return None;
    }
    let message = format!(
        "spec.ipFamilies: {:?} needs a dualstack load balancer: set {key} to dualstack, or put IPv4 first",
        service.families
    );
    Some(refusal("FailedBuildModel", message))
}

/// AWS-065: every entry must match a port.
fn ssl_ports(service: &ServiceSpec, wishes: &Wishes) -> Option<Refusal> {
    let entries = wishes.tls.ports.as_ref()?;
    let unused: Vec<_> = entries
        .iter()
        .filter(|entry| service.ports.iter().all(|port| !names(port, entry)))
        .map(String::as_str)
        .collect();
    let message = format!(
        "{}{}: no port of the Service is called {}",
        keys::PREFIX,
        keys::SSL_PORTS,
        unused.join(", ")
    );
    (!unused.is_empty()).then(|| refusal("AnnotationInvalid", message))
}

/// Whether an entry of a list of ports, a name or a number, means this port.
pub(super) fn names(port: &ServicePort, entry: &str) -> bool {
    port.key.name.as_str() == entry || port.port.to_string() == entry
}

/// Which ports get a listener: one number is one listener (AWS-081, AWS-606).
fn listeners<'a>(
    settings: &Settings,
    service: &'a ServiceSpec,
    wishes: &Wishes,
    notices: &mut Vec<Notice>,
) -> (Vec<&'a ServicePort>, Vec<Refusal>) {
    let merge = wishes.merge.unwrap_or(settings.gates.tcp_udp.is_on());
    let (mut kept, mut refusals) = (Vec::<&ServicePort>::new(), Vec::new());
    for port in &service.ports {
        let same: Vec<_> = kept
            .iter()
            .filter(|other| other.port == port.port)
            .copied()
            .collect();
        match same.as_slice() {
            [] => kept.push(port),
            [first] if merge && first.key.protocol != port.key.protocol => {
                if first.target != port.target {
                    refusals.push(unequal(&first.key, &port.key, port.port, "targetPort"));
                }
                kept.push(port);
            }
            _ if merge => {
                let message = format!(
                    "port {}: a listener takes one TCP and one UDP entry, and {} has more",
                    port.key, port.port
                );
                refusals.push(refusal("FailedBuildModel", message));
            }
            _ => {
                let message = format!(
                    "port {} is dropped: another one has number {}; set {}{} to true to serve both",
                    port.key,
                    port.port,
                    keys::PREFIX,
                    keys::TCP_UDP
                );
                notices.push(notice("PortDropped", message));
            }
        }
    }
    (kept, refusals)
}

fn unequal(a: &PortKey, b: &PortKey, number: u16, what: &str) -> Refusal {
    let message =
        format!("ports {a} and {b} are one listener on {number}: their {what} must be equal");
    refusal("FailedBuildModel", message)
}

/// A group of TCP and UDP shows targets the client's address, as one of UDP does (AWS-771).
fn merged_see_clients(ports: &mut [LoadBalancerPort]) {
    let of_udp = ports.iter().filter(|p| p.protocol == Protocol::Udp);
    let numbers: Vec<u16> = of_udp.map(|p| p.port).collect();
    for port in ports.iter_mut().filter(|p| numbers.contains(&p.port)) {
        if port.client_ip == ClientIp::Snat {
            port.client_ip = ClientIp::Preserve;
        }
    }
}

/// AWS-606: one group has one node port.
fn node_ports(ports: &[LoadBalancerPort]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let mut before = ports[..index].iter();
        if let Some(first) = before.find(|p| p.port == port.port && p.node_port != port.node_port) {
            refusals.push(unequal(&first.key(), &port.key(), port.port, "nodePort"));
        }
    }
    refusals
}

fn resolve_port(
    settings: &Settings,
    service: &ServiceSpec,
    (port, merged): (&ServicePort, bool),
    wishes: &Wishes,
    last_good: Option<&LoadBalancerSpec>,
    notices: &mut Vec<Notice>,
) -> Result<LoadBalancerPort, Refusal> {
    if port.key.protocol == Protocol::Sctp {
        let message = format!("port {}: this cloud has no SCTP listeners", port.key);
        return Err(refusal("ProtocolUnsupported", message));
    }
    let mode = choose_mode(settings, service, port, wishes, last_good, notices)?;
    let health = health::check(settings, service, port, mode, &wishes.health)?;
    Ok(LoadBalancerPort {
        name: port.key.name.clone(),
        protocol: port.key.protocol,
        port: port.port,
        mode,
        target_port: match (mode, &port.target) {
            (TargetMode::Pod, TargetPort::Number(number)) => Some(*number),
            _ => None,
        },
        node_port: port.node_port.filter(|_| mode == TargetMode::Node),
        client_ip: client_ip(port, mode, merged, wishes),
        health: Some(health),
    })
}

/// AWS-041, AWS-087, K-50, K-51.
fn choose_mode(
    settings: &Settings,
    service: &ServiceSpec,
    port: &ServicePort,
    wishes: &Wishes,
    last_good: Option<&LoadBalancerSpec>,
    notices: &mut Vec<Notice>,
) -> Result<TargetMode, Refusal> {
    let wish = Wish {
        explicit: wishes.mode,
        node_ports: if service.allocates_node_ports {
            NodePorts::Allocated
        } else {
            NodePorts::Refused
        },
        default: settings.mode,
    };
    let no_ports = service.kind == ServiceKind::ClusterIp || port.node_port.is_none();
    let gate = "the gate EnableIPTargetType is off".to_owned();
    let obstacles = Obstacles {
        node: no_ports.then_some(Obstacle::NoNodePort),
        vip: Some(Obstacle::NoVip),
        pod: (!settings.gates.ip_targets.is_on()).then_some(Obstacle::Other(gate)),
    };
    let live = last_good.and_then(|spec| spec.ports.iter().find(|p| p.key() == port.key));
    match target::choose(wish, &obstacles, live.map(|port| port.mode)) {
        Choice::Use { mode, instead_of } => {
            notices.extend(instead_of.iter().map(|denied| {
                let message = format!("port {}: {denied}; {mode} is used", port.key);
                notice("TargetModeFallback", message)
            }));
            Ok(mode)
        }
        Choice::Keep { mode, instead_of } => {
            let message = format!("port {}: {instead_of}; it stays {mode}", port.key);
            notices.push(notice("TargetModeFallback", message));
            Ok(mode)
        }
        Choice::Refused(denied) => {
            let reasons: Vec<_> = denied.iter().map(ToString::to_string).collect();
            let message = format!(
                "port {}: {} (allocateLoadBalancerNodePorts is {}): set {}{} to ip",
                port.key,
                reasons.join("; "),
                service.allocates_node_ports,
                keys::PREFIX,
                keys::TARGET_TYPE,
            );
            Err(refusal("TargetModeImpossible", message))
        }
    }
}

/// Labels of nodes that are no targets (AWS-400), beside the one that is excluded everywhere.
const UNFIT: [&str; 2] = [
    "node-role.kubernetes.io/master",
    "alpha.service-controller.kubernetes.io/exclude-balancer",
];

/// Whether a node can be no target: by what it is (AWS-400), or by the labels that the Service asks for (AWS-080).
pub(super) fn is_unfit(settings: &Settings, spec: &LoadBalancerSpec, machine: &Machine) -> bool {
    let labels = &machine.labels;
    let asked = annotations::of_options(settings, spec).node_labels;
    let fargate = labels.get("eks.amazonaws.com/compute-type");
    UNFIT.iter().any(|label| labels.contains_key(*label))
        || fargate.is_some_and(|kind| kind == "fargate")
        || asked
            .iter()
            .any(|(key, value)| labels.get(key) != Some(value))
}

/// The family of a Service's targets (AWS-049).
pub(super) fn target_family(settings: &Settings, spec: &LoadBalancerSpec) -> IpFamily {
    let asked = annotations::of_options(settings, spec).ip_type;
    stack::target_family(asked.unwrap_or(IpType::Ipv4), &spec.families)
}

/// Which address targets see (AWS-771).
fn client_ip(port: &ServicePort, mode: TargetMode, merged: bool, wishes: &Wishes) -> ClientIp {
    let proxied = wishes
        .proxy
        .ports
        .as_ref()
        .is_some_and(|p| p.contains(&port.port));
    if wishes.proxy.everywhere || proxied {
        return ClientIp::ProxyProtocol;
    }
    if keeps_client(port.key.protocol, port.port, mode, merged, wishes) {
        ClientIp::Preserve
    } else {
        ClientIp::Snat
    }
}

/// Whether packets keep the client's address on the way to targets, whatever a header says (AWS-771): always with UDP,
/// and with TCP that shares its listener and group with UDP (`merged`).
pub(super) fn keeps_client(
    protocol: Protocol,
    number: u16,
    mode: TargetMode,
    merged: bool,
    wishes: &Wishes,
) -> bool {
    let of_port = wishes.group_attributes_of.get(&number);
    let asked = of_port
        .and_then(|map| map.get(PRESERVE))
        .or_else(|| wishes.group_attributes.get(PRESERVE));
    let asked = asked.map_or(mode == TargetMode::Node, |value| value == "true");
    merged || protocol == Protocol::Udp || asked
}

#[cfg(test)]
mod tests;
