//! Reading one `EndpointSlice`: what cannot be read is left out and noted.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::text::{EndpointText, HintsText, NameText, PortText, SliceText, Text};
use super::{Conditions, Endpoint, Hints, PodRef, SERVICE_NAME_LABEL};
use crate::id::{IpFamily, NodeName, PodUid, PortKey, PortName, Protocol, ServiceKey, Zone};
use crate::service::HEADLESS_LABEL;
use crate::time::Time;

/// One `EndpointSlice`, read. An agent holds all of the cluster's, so nothing in it has room to spare.
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
    pub(super) ports: Box<[SlicePort]>,
    pub(super) endpoints: Box<[SliceEndpoint]>,
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
    /// Mostly there are none.
    hints: Option<Box<Hints>>,
    conditions: Conditions,
    pod: Option<Box<PodRef>>,
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
        SliceText::of(slice).read()
    }

    /// Forgets which pods are behind endpoints on other nodes than this one.
    pub fn forget_pods_elsewhere(&mut self, here: &NodeName) {
        for endpoint in &mut self.endpoints {
            endpoint
                .pod
                .take_if(|_| endpoint.node.as_ref() != Some(here));
        }
    }
}

impl SliceText<'_> {
    /// The typed slice, with the problems of parts that were left out.
    pub fn read(&self) -> Result<(Slice, Vec<SliceProblem>), SliceProblem> {
        let this = ServiceKey::new(self.namespace(), self.name());
        let service = self
            .service()
            .filter(|name| !name.is_empty())
            .map(|name| ServiceKey::new(self.namespace(), name))
            .ok_or_else(|| SliceProblem::NoService {
                slice: this.clone(),
            })?;
        let address_type = text(self.address_type.as_ref());
        let family = address_type
            .parse()
            .map_err(|_| SliceProblem::AddressType {
                slice: this.clone(),
                address_type: address_type.to_owned(),
            })?;
        let mut problems = Vec::new();
        let listed = self.ports.as_deref().unwrap_or_default();
        let mut ports = Vec::with_capacity(listed.len());
        for (index, port) in listed.iter().enumerate() {
            match read_port(port) {
                Ok(port) => ports.push(port),
                Err(what) => problems.push(SliceProblem::Port {
                    slice: this.clone(),
                    port: index,
                    what,
                }),
            }
        }
        let listed = self.endpoints.as_deref().unwrap_or_default();
        let mut endpoints = Vec::with_capacity(listed.len());
        for endpoint in listed {
            match read_endpoint(endpoint, family) {
                Ok(endpoint) => endpoints.push(endpoint),
                Err(address) => problems.push(SliceProblem::Address {
                    slice: this.clone(),
                    address,
                    family,
                }),
            }
        }
        let slice = Slice {
            service,
            name: this.name,
            family,
            triggered: self.triggered().and_then(|at| at.parse().ok()),
            ports: ports.into(),
            endpoints: endpoints.into(),
        };
        Ok((slice, problems))
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
            hints: self.hints.as_deref().cloned().unwrap_or_default(),
            conditions: self.conditions,
            pod: self.pod.as_deref().cloned(),
        }
    }
}

fn read_port(port: &PortText<'_>) -> Result<SlicePort, &'static str> {
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
        key: PortKey::new(PortName::shared(name), protocol),
        number,
    })
}

/// Reads one endpoint; the error is the address that is not of the slice's family.
fn read_endpoint(endpoint: &EndpointText<'_>, family: IpFamily) -> Result<SliceEndpoint, String> {
    let address = text(
        endpoint
            .addresses
            .as_ref()
            .and_then(|all| all.first.as_ref()),
    );
    let address = match address.parse() {
        Ok(address) if IpFamily::of(address) == family => address,
        _ => return Err(address.to_owned()),
    };
    let conditions = endpoint.conditions.as_ref();
    // A name alone is no identity: the next pod of a StatefulSet has it too (K-21).
    let pod = endpoint.target_ref.as_ref().and_then(|of| {
        let uid = of.uid.as_deref().filter(|uid| !uid.is_empty())?;
        (of.kind.as_deref() == Some("Pod")).then(|| {
            Box::new(PodRef {
                uid: PodUid::new(uid),
                name: text(of.name.as_ref()).to_owned(),
            })
        })
    });
    Ok(SliceEndpoint {
        address,
        node: named(endpoint.node_name.as_ref()).map(NodeName::shared),
        zone: named(endpoint.zone.as_ref()).map(Zone::shared),
        hints: endpoint.hints.as_ref().map(read_hints).map(Box::new),
        conditions: Conditions {
            ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        },
        pod,
    })
}

fn read_hints(hints: &HintsText<'_>) -> Hints {
    Hints {
        zones: names(hints.for_zones.as_deref())
            .map(Zone::shared)
            .collect(),
        nodes: names(hints.for_nodes.as_deref())
            .map(NodeName::shared)
            .collect(),
    }
}

fn named<'a>(text: Option<&'a Text<'_>>) -> Option<&'a str> {
    text.map(|text| &**text).filter(|text| !text.is_empty())
}

fn names<'a>(of: Option<&'a [NameText<'_>]>) -> impl Iterator<Item = &'a str> {
    let all = of.unwrap_or_default().iter();
    all.map(|one| text(one.name.as_ref()))
}

fn text<'a>(text: Option<&'a Text<'_>>) -> &'a str {
    text.map_or("", |text| text)
}
