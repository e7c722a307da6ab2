//! Reading the fields of a Service: what cannot be read is left out and noted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self as api, Service};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{
    DEFAULT_AFFINITY, Ingress, IpMode, ServiceKind, ServicePort, ServiceProblem, SourceRanges,
    TargetPort, TrafficPolicy,
};
use crate::id::{Cidr, IpFamily, PortKey, PortName, Protocol, ServiceKey};

/// Reads fields of one Service and collects what was wrong with them.
pub(super) struct Reader<'a> {
    /// The Service, for messages.
    pub(super) service: &'a ServiceKey,
    /// What was wrong so far.
    pub(super) problems: Vec<ServiceProblem>,
}

impl Reader<'_> {
    fn unreadable(&mut self, field: &'static str, value: impl ToString, wanted: &'static str) {
        self.problems.push(ServiceProblem::Unreadable {
            service: self.service.clone(),
            field,
            value: value.to_string(),
            wanted,
        });
    }

    pub(super) fn each<T: FromStr>(
        &mut self,
        field: &'static str,
        wanted: &'static str,
        values: Option<&[String]>,
    ) -> Vec<T> {
        let mut read = Vec::new();
        for value in values.unwrap_or_default() {
            match value.trim().parse() {
                Ok(item) => read.push(item),
                Err(_) => self.unreadable(field, value, wanted),
            }
        }
        read
    }

    pub(super) fn kind(&mut self, spec: &api::ServiceSpec) -> ServiceKind {
        match spec.type_.as_deref() {
            None | Some("ClusterIP" | "") => ServiceKind::ClusterIp,
            Some("NodePort") => ServiceKind::NodePort,
            Some("LoadBalancer") => ServiceKind::LoadBalancer,
            Some("ExternalName") => ServiceKind::ExternalName,
            Some(other) => {
                self.unreadable("type", other, "a type of Service");
                ServiceKind::ClusterIp
            }
        }
    }

    pub(super) fn policy(&mut self, field: &'static str, value: Option<&str>) -> TrafficPolicy {
        match value {
            None | Some("Cluster" | "") => TrafficPolicy::Cluster,
            Some("Local") => TrafficPolicy::Local,
            Some(other) => {
                self.unreadable(field, other, "Cluster or Local");
                TrafficPolicy::Cluster
            }
        }
    }

    pub(super) fn cluster_ips(&mut self, spec: &api::ServiceSpec) -> Vec<IpAddr> {
        // Servers fill both fields; objects made by hand in tests and old backups may have one.
        let single = spec.cluster_ip.clone().map(|ip| vec![ip]);
        let listed = spec.cluster_ips.clone().or(single).unwrap_or_default();
        let real: Vec<_> = listed
            .into_iter()
            .filter(|ip| !ip.is_empty() && ip != "None")
            .collect();
        self.each("clusterIPs", "an address", Some(&real))
    }

    pub(super) fn families(&mut self, spec: &api::ServiceSpec) -> Vec<IpFamily> {
        let stated = self.each("ipFamilies", "IPv4 or IPv6", spec.ip_families.as_deref());
        if stated.is_empty() {
            let addresses = spec.cluster_ips.as_deref().unwrap_or_default().iter();
            return addresses
                .filter_map(|a| a.parse().ok())
                .map(IpFamily::of)
                .collect();
        }
        stated
    }

    pub(super) fn ports(&mut self, spec: &api::ServiceSpec) -> Vec<ServicePort> {
        let listed = spec.ports.as_deref().unwrap_or_default();
        listed.iter().filter_map(|p| self.port(p)).collect()
    }

    fn port(&mut self, port: &api::ServicePort) -> Option<ServicePort> {
        let number = self.port_number("ports.port", port.port)?;
        let text = port.protocol.as_deref().filter(|p| !p.is_empty());
        let Ok(protocol) = text.map_or(Ok(Protocol::Tcp), str::parse) else {
            self.unreadable(
                "ports.protocol",
                text.unwrap_or_default(),
                "TCP, UDP or SCTP",
            );
            return None;
        };
        let target = match &port.target_port {
            Some(IntOrString::String(name)) => TargetPort::Name(name.clone()),
            Some(IntOrString::Int(n)) if *n != 0 => {
                TargetPort::Number(self.port_number("ports.targetPort", *n)?)
            }
            _ => TargetPort::Number(number),
        };
        Some(ServicePort {
            key: PortKey::new(
                PortName::new(port.name.as_deref().unwrap_or_default()),
                protocol,
            ),
            port: number,
            target,
            node_port: port
                .node_port
                .and_then(|p| self.port_number("ports.nodePort", p)),
            app_protocol: port.app_protocol.clone(),
        })
    }

    /// A port number; `None` for 0, which the API uses for "not set".
    pub(super) fn port_number(&mut self, field: &'static str, number: i32) -> Option<u16> {
        match u16::try_from(number) {
            Ok(0) => None,
            Ok(port) => Some(port),
            Err(_) => {
                self.unreadable(field, number, "a port number");
                None
            }
        }
    }

    pub(super) fn source_ranges(&mut self, spec: &api::ServiceSpec) -> SourceRanges {
        let listed = spec.load_balancer_source_ranges.as_deref();
        let allowed: Vec<Cidr> = self.each("loadBalancerSourceRanges", "an address range", listed);
        SourceRanges {
            has_bad: allowed.len() < listed.unwrap_or_default().len(),
            allowed,
        }
    }

    pub(super) fn ingress(&mut self, service: &Service) -> Vec<Ingress> {
        let status = service
            .status
            .as_ref()
            .and_then(|s| s.load_balancer.as_ref());
        let listed = status
            .and_then(|l| l.ingress.as_deref())
            .unwrap_or_default();
        let mut read = Vec::new();
        for entry in listed {
            let address = entry
                .ip
                .as_deref()
                .filter(|ip| !ip.is_empty())
                .map(str::parse);
            if let Some(Err(_)) = address {
                let value = entry.ip.as_deref().unwrap_or_default();
                self.unreadable("status.loadBalancer.ingress.ip", value, "an address");
                continue;
            }
            read.push(Ingress {
                address: address.and_then(Result::ok),
                hostname: entry.hostname.clone().filter(|h| !h.is_empty()),
                mode: match entry.ip_mode.as_deref() {
                    Some("Proxy") => IpMode::Proxy,
                    _ => IpMode::Vip,
                },
                ports: ingress_ports(entry),
            });
        }
        read
    }
}

/// The ports of an ingress entry that can be read.
fn ingress_ports(entry: &api::LoadBalancerIngress) -> BTreeSet<(u16, Protocol)> {
    let ports = entry.ports.iter().flatten();
    ports
        .filter_map(|p| Some((u16::try_from(p.port).ok()?, p.protocol.parse().ok()?)))
        .collect()
}

/// How long session affinity lasts, if it is asked for.
pub(super) fn affinity(spec: &api::ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let stated = spec
        .session_affinity_config
        .as_ref()
        .and_then(|c| c.client_ip.as_ref())
        .and_then(|c| c.timeout_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok());
    Some(stated.map_or(DEFAULT_AFFINITY, Duration::from_secs))
}
