//! Endpoints of a Service: all its `EndpointSlices`, read and merged (S-03 to S-08).
//!
//! A slice is read once where the watch delivers it ([`Slice::read`]); each change of one of a
//! Service's slices merges them anew ([`Endpoints::merge`]). The result does not depend on the
//! order of slices or on copies of an endpoint.

mod slice;
mod text;

use std::collections::BTreeMap;
use std::net::IpAddr;

pub use self::slice::{Slice, SliceProblem};
pub use self::text::SliceText;
use crate::id::{IpFamily, NodeName, PodUid, PortKey, Zone};
use crate::service::{ServicePort, ServiceSpec, TargetPort};

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

    /// Endpoints of a port of a Service in one family.
    ///
    /// A port's new name is in the Service a moment before it is in the slices, and a second port
    /// forces the first to take a name. Until the slices follow, a name which only they still have
    /// stands for the port, if its endpoints are on the port's target number: a moment without endpoints
    /// would be a moment of refused connections. Slices made by hand may never follow, so there a name
    /// means what it says.
    pub fn of(&self, service: &ServiceSpec, port: &ServicePort, family: IpFamily) -> &[Endpoint] {
        let ports = self.ports(family);
        if ports.contains_key(&port.key) || service.selector.is_empty() {
            return self.port(family, &port.key);
        }
        let TargetPort::Number(number) = port.target else {
            return &[];
        };
        let same = |list: &[Endpoint]| list.iter().all(|e| e.port == number);
        ports
            .iter()
            .filter(|(key, _)| key.protocol == port.key.protocol && service.port(key).is_none())
            .find(|(_, list)| same(list))
            .map_or(&[], |(_, list)| list)
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
