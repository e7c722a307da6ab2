//! The answer on a healthCheckNodePort (S-101 to S-103).
//!
//! The agent's health server asks for it on each request; what counts as local is decided here, so
//! that the answer and the packet path can never disagree about it by accident: a node with only
//! terminating endpoints answers 503 and still delivers.

use std::collections::BTreeSet;

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

/// Ready endpoints on a node: distinct addresses over all ports; terminating ones never count
/// (S-101). The pod of a dual-stack Service has an address in each family and is one endpoint.
pub fn count_local(endpoints: &Endpoints, node: &NodeName) -> usize {
    let count = |family| {
        let all = endpoints.ports(family).values().flatten();
        let local =
            all.filter(|e| e.conditions.ready && !e.conditions.terminating && e.is_local(node));
        local.map(|e| e.address).collect::<BTreeSet<_>>().len()
    };
    IpFamily::ALL
        .into_iter()
        .map(count)
        .max()
        .unwrap_or_default()
}
