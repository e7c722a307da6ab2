//! The answer on a healthCheckNodePort (S-101 to S-103).
//!
//! The agent's health server asks for it on each request; what counts as local is decided here, so
//! that the answer and the packet path can never disagree about it by accident: a node with only
//! terminating endpoints answers 503 and still delivers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::endpoint::Endpoints;
use crate::id::{IpFamily, NodeName, ServiceKey};

/// Header with the number of local endpoints, which some load balancers use as a weight.
pub const WEIGHT_HEADER: &str = "X-Load-Balancing-Endpoint-Weight";

/// What a health port answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthAnswer {
    /// The Service.
    pub service: ServiceKey,
    /// Ready endpoints on this node, see [`count_local`].
    pub local_endpoints: usize,
    /// Whether the kernel has what the API says.
    pub proxy: ProxyHealth,
    /// Whether the node must look healthy without a ready endpoint (ZD-64).
    pub hold: Hold,
}

/// Health of the service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHealth {
    /// In sync, or not late by more than the time-out (S-110).
    Healthy,
    /// Late.
    Unhealthy,
}

/// Whether the controller asked for a good answer until other nodes are healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// No.
    None,
    /// Yes: the node's entry in `NodeTargets` is `held`.
    Held,
}

impl HealthAnswer {
    /// The status code: 200 or 503.
    pub fn status(&self) -> u16 {
        let wanted = self.local_endpoints > 0 || self.hold == Hold::Held;
        if wanted && self.proxy == ProxyHealth::Healthy {
            200
        } else {
            503
        }
    }

    /// The headers, the same for both codes.
    pub fn headers(&self) -> [(&'static str, String); 3] {
        [
            ("Content-Type", "application/json".to_owned()),
            ("X-Content-Type-Options", "nosniff".to_owned()),
            (WEIGHT_HEADER, self.local_endpoints.to_string()),
        ]
    }

    /// The body, byte for byte as kube-proxy's: tabs, no newline at the end. Namespace and name are
    /// DNS labels, so nothing in them needs to be escaped.
    pub fn body(&self) -> String {
        format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\t\"localEndpoints\": {},\n\t\"serviceProxyHealthy\": {}\n}}",
            self.service.namespace,
            self.service.name,
            self.local_endpoints,
            self.proxy == ProxyHealth::Healthy,
        )
    }
}

/// Ready endpoints of a Service on one node: distinct addresses over all ports; terminating ones never count (S-101).
///
/// Kept as a set and not as a number: where one local pod takes the place of another, the number says the same all the
/// time, while the rules for the new one are not in the kernel yet (I3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalReady(BTreeSet<IpAddr>);

impl LocalReady {
    /// Those among all endpoints of a Service.
    pub fn of(endpoints: &Endpoints, node: &NodeName) -> Self {
        let all = endpoints.iter().map(|(_, endpoint)| endpoint);
        let local =
            all.filter(|e| e.conditions.ready && !e.conditions.terminating && e.is_local(node));
        Self(local.map(|e| e.address).collect())
    }

    /// What both say.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Their addresses, in order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().copied()
    }

    /// How many they are. The pod of a dual-stack Service has an address in each family and is one endpoint.
    pub fn count(&self) -> usize {
        let of = |family| {
            let addresses = self.0.iter();
            addresses.filter(|a| IpFamily::of(**a) == family).count()
        };
        IpFamily::ALL.into_iter().map(of).max().unwrap_or_default()
    }
}

impl FromIterator<IpAddr> for LocalReady {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        Self(addresses.into_iter().collect())
    }
}

/// Number of ready endpoints on a node, see [`LocalReady`].
pub fn count_local(endpoints: &Endpoints, node: &NodeName) -> usize {
    LocalReady::of(endpoints, node).count()
}
