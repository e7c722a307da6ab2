//! The frontends of a Service: what clients may connect to, and by which policy (section 2).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::id::PortKey;
use onehop_core::service::{ServicePort, ServiceSpec};

use crate::claims::Front;
use crate::table::element::{Family, Frontend};

/// By whose policy a frontend is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// ClusterIP: internalTrafficPolicy.
    Internal,
    /// External IP or node port: externalTrafficPolicy.
    External,
    /// Load balancer address: externalTrafficPolicy and source ranges (S-70).
    LoadBalancer,
}

/// What leads to a Service although its spec does not say so: controllers do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Load balancer addresses (S-22).
    pub vips: BTreeSet<IpAddr>,
    /// Node ports that it had, to which a load balancer still sends (ZD-68).
    pub node_ports: BTreeMap<PortKey, BTreeSet<u16>>,
}

impl Beyond {
    /// Whether something leads to this port.
    pub fn leads_to(&self, port: &PortKey) -> bool {
        !self.vips.is_empty() || self.node_ports.contains_key(port)
    }
}

/// Families in which the Service exists: those of its cluster IPs.
pub fn families(service: &ServiceSpec) -> Vec<Family> {
    Family::ALL
        .into_iter()
        .filter(|family| {
            service
                .cluster_ips
                .iter()
                .any(|ip| Family::of(*ip) == *family)
        })
        .collect()
}

/// All frontends of one port. An address that is named twice counts once: as cluster IP before
/// load balancer address before external IP.
pub fn of_port(
    service: &ServiceSpec,
    port: &ServicePort,
    beyond: &Beyond,
) -> BTreeMap<Front, Reach> {
    let families = families(service);
    let protocol = port.key.protocol;
    let vip = |address: IpAddr| {
        Front::Vip(Frontend {
            address,
            protocol,
            port: port.port,
        })
    };
    let addresses = service
        .cluster_ips
        .iter()
        .map(|ip| (*ip, Reach::Internal))
        .chain(beyond.vips.iter().map(|ip| (*ip, Reach::LoadBalancer)))
        .chain(service.external_ips.iter().map(|ip| (*ip, Reach::External)));
    let mut fronts = BTreeMap::new();
    for (addr, reach) in addresses {
        // Each family is a proxy of its own (S-10): without a cluster IP of it there is no Service in it.
        if families.contains(&Family::of(addr)) {
            fronts.entry(vip(addr)).or_insert(reach);
        }
    }
    let retired = beyond.node_ports.get(&port.key).into_iter().flatten();
    for node_port in port.node_port.into_iter().chain(retired.copied()) {
        for family in families.iter().copied() {
            fronts.insert(
                Front::NodePort(family, protocol, node_port),
                Reach::External,
            );
        }
    }
    fronts
}
