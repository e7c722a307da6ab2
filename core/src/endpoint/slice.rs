//! Reading one `EndpointSlice`: what cannot be read is left out and noted.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{self as api, EndpointSlice};

use super::{Conditions, Endpoint, Hints, PodRef, SERVICE_NAME_LABEL};
use crate::id::{IpFamily, NodeName, PodUid, PortKey, PortName, Protocol, ServiceKey, Zone};
use crate::service::HEADLESS_LABEL;
use crate::time::Time;

/// Annotation with the time of the change that a slice follows.
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// One `EndpointSlice`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The Service it belongs to.
    pub service: ServiceKey,
    /// Name of the slice, in the Service's namespace.
    pub name: String,
    /// Family of its addresses.
    pub family: IpFamily,
    /// When what it says last changed in the cluster, if its controller says so.
    pub triggered: Option<Time>,
    pub(super) ports: Vec<SlicePort>,
    pub(super) endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlicePort {
    pub(super) key: PortKey,
    pub(super) number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceEndpoint {
    address: IpAddr,
    node: Option<NodeName>,
    zone: Option<Zone>,
    hints: Hints,
    conditions: Conditions,
    pod: Option<PodRef>,
}

/// What is wrong with a slice or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceProblem {
    /// It does not say which Service it belongs to (S-04).
    #[error("EndpointSlice {slice}: no label {SERVICE_NAME_LABEL}: it was ignored")]
    NoService {
        /// Namespace and name of the slice.
        slice: ServiceKey,
    },
    /// Its addresses are of a type that no proxy uses.
    #[error(
        "EndpointSlice {slice}: addressType {address_type:?} is not IPv4 or IPv6: it was ignored"
    )]
    AddressType {
        /// Namespace and name of the slice.
        slice: ServiceKey,
        /// The type stated.
        address_type: String,
    },
    /// An endpoint has no address of the slice's family (S-05).
    #[error(
        "EndpointSlice {slice}: {address:?} is not an {family} address: the endpoint was ignored"
    )]
    Address {
        /// Namespace and name of the slice.
        slice: ServiceKey,
        /// The address stated, empty if there is none.
        address: String,
        /// The slice's family.
        family: IpFamily,
    },
    /// A port has no name, no number, number 0 or an unknown protocol (S-05).
    #[error("EndpointSlice {slice}: port {port} has {what}: it was ignored")]
    Port {
        /// Namespace and name of the slice.
        slice: ServiceKey,
        /// Position in the list.
        port: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl Slice {
    /// Whether the slice is of a headless Service, which no proxy serves (S-03).
    pub fn is_headless(slice: &EndpointSlice) -> bool {
        slice
            .metadata
            .labels
            .as_ref()
            .is_some_and(|l| l.contains_key(HEADLESS_LABEL))
    }

    /// The typed slice, with the problems of parts that were left out. Headless slices read like
    /// any other: who must ignore them filters them in the watch request.
    pub fn read(slice: &EndpointSlice) -> Result<(Self, Vec<SliceProblem>), SliceProblem> {
        let meta = &slice.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let this = ServiceKey::new(namespace.clone(), meta.name.clone().unwrap_or_default());
        let label = meta.labels.as_ref().and_then(|l| l.get(SERVICE_NAME_LABEL));
        let service = label
            .filter(|name| !name.is_empty())
            .map(|name| ServiceKey::new(namespace, name))
            .ok_or_else(|| SliceProblem::NoService {
                slice: this.clone(),
            })?;
        let family = slice
            .address_type
            .parse()
            .map_err(|_| SliceProblem::AddressType {
                slice: this.clone(),
                address_type: slice.address_type.clone(),
            })?;
        let mut problems = Vec::new();
        let mut ports = Vec::new();
        for (index, port) in slice
            .ports
            .as_deref()
            .unwrap_or_default()
            .iter()
            .enumerate()
        {
            match read_port(port) {
                Ok(port) => ports.push(port),
                Err(what) => problems.push(SliceProblem::Port {
                    slice: this.clone(),
                    port: index,
                    what,
                }),
            }
        }
        let mut endpoints = Vec::new();
        for endpoint in &slice.endpoints {
            match read_endpoint(endpoint, family) {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(address) => {
                    problems.push(SliceProblem::Address {
                        slice: this.clone(),
                        address,
                        family,
                    });
                }
            }
        }
        Ok((
            Self {
                service,
                name: this.name,
                family,
                triggered: meta
                    .annotations
                    .as_ref()
                    .and_then(|a| a.get(TRIGGER_ANNOTATION)?.parse().ok()),
                ports,
                endpoints,
            },
            problems,
        ))
    }
}

impl SliceEndpoint {
    /// The endpoint that it makes with one of the slice's ports.
    pub(super) fn at(&self, port: u16) -> Endpoint {
        Endpoint {
            address: self.address,
            port,
            nodes: self.node.iter().cloned().collect(),
            zone: self.zone.clone(),
            hints: self.hints.clone(),
            conditions: self.conditions,
            pod: self.pod.clone(),
        }
    }
}

fn read_port(port: &api::EndpointPort) -> Result<SlicePort, &'static str> {
    let name = port.name.as_deref().ok_or("no name")?;
    let number = port.port.ok_or("no number")?;
    let number = u16::try_from(number)
        .ok()
        .filter(|n| *n != 0)
        .ok_or("a number out of range")?;
    let protocol = match port.protocol.as_deref() {
        None | Some("") => Protocol::Tcp,
        Some(text) => text.parse().map_err(|_| "an unknown protocol")?,
    };
    Ok(SlicePort {
        key: PortKey::new(PortName::new(name), protocol),
        number,
    })
}

/// Reads one endpoint; the error is the address that is not of the slice's family.
fn read_endpoint(endpoint: &api::Endpoint, family: IpFamily) -> Result<SliceEndpoint, String> {
    let text = endpoint.addresses.first().cloned().unwrap_or_default();
    let address = match text.parse() {
        Ok(address) if IpFamily::of(address) == family => address,
        _ => return Err(text),
    };
    let conditions = endpoint.conditions.as_ref();
    let hints = endpoint.hints.as_ref();
    // A name alone is no identity: the next pod of a StatefulSet has it too (K-21).
    let pod = endpoint.target_ref.as_ref().and_then(|r| {
        let uid = r.uid.as_deref().filter(|uid| !uid.is_empty())?;
        (r.kind.as_deref() == Some("Pod")).then(|| PodRef {
            uid: PodUid::new(uid),
            name: r.name.clone().unwrap_or_default(),
        })
    });
    Ok(SliceEndpoint {
        address,
        node: endpoint
            .node_name
            .as_deref()
            .filter(|n| !n.is_empty())
            .map(NodeName::new),
        zone: endpoint
            .zone
            .as_deref()
            .filter(|z| !z.is_empty())
            .map(Zone::new),
        hints: Hints {
            zones: hints
                .and_then(|h| h.for_zones.as_deref())
                .unwrap_or_default()
                .iter()
                .map(|z| Zone::new(&z.name))
                .collect(),
            nodes: hints
                .and_then(|h| h.for_nodes.as_deref())
                .unwrap_or_default()
                .iter()
                .map(|n| NodeName::new(&n.name))
                .collect(),
        },
        conditions: Conditions {
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        },
        pod,
    })
}
