//! Endpoints of a Service: all its `EndpointSlices`, read and merged (S-03 to S-08).
//!
//! A slice is read once where the watch delivers it ([`Slice::read`]); each change of one of a
//! Service's slices merges them anew ([`Endpoints::merge`]). The result does not depend on the
//! order of slices or on copies of an endpoint.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::{self as api, EndpointSlice};

use crate::id::{IpFamily, NodeName, PodUid, PortKey, PortName, Protocol, ServiceKey, Zone};
use crate::service::HEADLESS_LABEL;

/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// All endpoints of a Service, by family and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    v4: BTreeMap<PortKey, Vec<Endpoint>>,
    v6: BTreeMap<PortKey, Vec<Endpoint>>,
}

/// One address and port that may serve a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port, from the slice, never from the Service (S-32).
    pub port: u16,
    /// Nodes it is on: none when the slice does not say, several only while copies disagree.
    pub nodes: Vec<NodeName>,
    /// Zone it is in.
    pub zone: Option<Zone>,
    /// Where it should be used from.
    pub hints: Hints,
    /// How it stands.
    pub conditions: Conditions,
    /// The pod behind it.
    pub pod: Option<PodRef>,
}

/// Topology hints of an endpoint (S-41).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Zones whose clients should use it.
    pub zones: Vec<Zone>,
    /// Nodes whose clients should use it.
    pub nodes: Vec<NodeName>,
}

/// The API's three conditions of an endpoint, defaults resolved (S-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// Takes new connections.
    pub ready: bool,
    /// Could take them, whether or not it is being removed.
    pub serving: bool,
    /// Is being removed.
    pub terminating: bool,
}

/// The pod behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: String,
}

impl Conditions {
    /// A plain ready endpoint.
    pub const READY: Self = Self {
        ready: true,
        serving: true,
        terminating: false,
    };
    /// Neither ready nor serving.
    pub const NOT_READY: Self = Self {
        ready: false,
        serving: false,
        terminating: false,
    };
    /// Serving while it is being removed: the last resort (S-47).
    pub const SERVING_TERMINATING: Self = Self {
        ready: false,
        serving: true,
        terminating: true,
    };

    /// Whether it may be used when nothing is ready: serving and terminating, not ready.
    pub const fn is_serving_terminating(self) -> bool {
        !self.ready && self.serving && self.terminating
    }

    /// Whether selection may use it at all (S-40).
    pub const fn is_usable(self) -> bool {
        self.ready || (self.serving && self.terminating)
    }

    /// What two copies of one endpoint say together (S-06).
    const fn merged(self, other: Self) -> Self {
        Self {
            ready: self.ready || other.ready,
            serving: self.serving || other.serving,
            terminating: self.terminating && other.terminating,
        }
    }
}

impl Endpoint {
    /// Whether it is on this node (S-08).
    pub fn is_local(&self, node: &NodeName) -> bool {
        self.nodes.contains(node)
    }

    /// The node it is on.
    pub fn node(&self) -> Option<&NodeName> {
        self.nodes.first()
    }
}

impl Endpoints {
    /// Merges all slices of one Service. The same address and port in several slices is one
    /// endpoint (S-06); endpoints come out ordered by address and port.
    pub fn merge<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> Self {
        let mut slices: Vec<_> = slices.into_iter().collect();
        slices.sort_by(|a, b| a.name.cmp(&b.name));
        let mut merged = Self::default();
        for slice in slices {
            let ports = merged.family_mut(slice.family);
            for port in &slice.ports {
                let list = ports.entry(port.key.clone()).or_default();
                list.extend(slice.endpoints.iter().map(|e| e.at(port.number)));
            }
        }
        for list in merged.v4.values_mut().chain(merged.v6.values_mut()) {
            // Stable: of equal address and port, the copy of the first slice by name stays first.
            list.sort_by_key(|e| (e.address, e.port));
            list.dedup_by(|copy, first| absorb(first, copy));
        }
        merged
    }

    /// Endpoints of one family for one port, ordered by address and port.
    pub fn port(&self, family: IpFamily, key: &PortKey) -> &[Endpoint] {
        self.ports(family).get(key).map_or(&[], Vec::as_slice)
    }

    /// All ports of one family that have an entry in some slice.
    pub const fn ports(&self, family: IpFamily) -> &BTreeMap<PortKey, Vec<Endpoint>> {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// Every endpoint with its port's key.
    pub fn iter(&self) -> impl Iterator<Item = (&PortKey, &Endpoint)> {
        let ports = self.v4.iter().chain(self.v6.iter());
        ports.flat_map(|(key, list)| list.iter().map(move |e| (key, e)))
    }

    /// Whether there is no endpoint at all, usable or not.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    fn family_mut(&mut self, family: IpFamily) -> &mut BTreeMap<PortKey, Vec<Endpoint>> {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }
}

/// Takes a copy of `first` into it; false if `copy` is another endpoint.
fn absorb(first: &mut Endpoint, copy: &Endpoint) -> bool {
    if (first.address, first.port) != (copy.address, copy.port) {
        return false;
    }
    first.conditions = first.conditions.merged(copy.conditions);
    for node in &copy.nodes {
        if !first.nodes.contains(node) {
            first.nodes.push(node.clone());
        }
    }
    true
}

/// One `EndpointSlice`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The Service it belongs to.
    pub service: ServiceKey,
    /// Name of the slice, in the Service's namespace.
    pub name: String,
    /// Family of its addresses.
    pub family: IpFamily,
    ports: Vec<SlicePort>,
    endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SlicePort {
    key: PortKey,
    number: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SliceEndpoint {
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
                ports,
                endpoints,
            },
            problems,
        ))
    }
}

impl SliceEndpoint {
    fn at(&self, port: u16) -> Endpoint {
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
    let pod = endpoint
        .target_ref
        .as_ref()
        .filter(|r| r.kind.as_deref() == Some("Pod"));
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
        pod: pod.map(|r| PodRef {
            uid: PodUid::new(r.uid.as_deref().unwrap_or_default()),
            name: r.name.clone().unwrap_or_default(),
        }),
    })
}
