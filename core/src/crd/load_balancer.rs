//! `LoadBalancer`: what was resolved for a Service and how it stands. Written only by the
//! controller, whole, by one field manager; read by people and by the controller after a restart,
//! for which the spec is the last good intent (I10).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClientIp, LateFlows, LoadBalancerStatus};
use crate::id::{Cidr, IpFamily, PortKey, PortName, Protocol, ServiceUid};

/// The resolved intent of a Service.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "onehop.dev",
    version = "v1alpha1",
    kind = "LoadBalancer",
    plural = "loadbalancers",
    shortname = "olb",
    namespaced,
    status = "LoadBalancerStatus",
    derive = "PartialEq",
    doc = "What onehop resolved for the Service of the same name, and how it stands. Written by the controller only.",
    printcolumn = r#"{"name": "SERVICE", "type": "string", "jsonPath": ".metadata.name"}"#,
    printcolumn = r#"{"name": "MODE", "type": "string", "jsonPath": ".status.summary.mode"}"#,
    printcolumn = r#"{"name": "ADDRESS", "type": "string", "jsonPath": ".status.summary.address"}"#,
    printcolumn = r#"{"name": "TARGETS", "type": "string", "jsonPath": ".status.summary.targets", "description": "healthy/registered"}"#,
    printcolumn = r#"{"name": "HELD", "type": "integer", "jsonPath": ".status.summary.held"}"#,
    printcolumn = r#"{"name": "DRAINING", "type": "integer", "jsonPath": ".status.summary.draining"}"#,
    printcolumn = r#"{"name": "READY", "type": "string", "jsonPath": ".status.summary.ready"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "PROVIDER", "type": "string", "jsonPath": ".spec.provider", "priority": 1}"#,
    printcolumn = r#"{"name": "CLASS", "type": "string", "jsonPath": ".spec.class", "priority": 1}"#,
    printcolumn = r#"{"name": "REASON", "type": "string", "jsonPath": ".status.summary.reason", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    /// The provider that makes it.
    pub provider: ProviderKind,
    /// Class of the Service; absent for a Service without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// UID of the Service, which tells it from a later one with the same name.
    #[serde(rename = "serviceUID")]
    pub service_uid: ServiceUid,
    /// Who can reach it.
    pub scheme: Scheme,
    /// IP families, primary first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub families: Vec<IpFamily>,
    /// One entry per port of the Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<LoadBalancerPort>,
    /// Addresses or CIDRs from which the load balancer's flows and probes come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<Cidr>,
    /// How targets come and go.
    pub membership: Membership,
    /// Provider's options in canonical form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub options: Vec<ProviderOption>,
}

/// A cloud.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum ProviderKind {
    /// AWS, Network Load Balancers.
    Aws,
    /// Azure, Standard Load Balancers.
    Azure,
    /// The local provider.
    Local,
    /// A value that this version does not know (K-11).
    #[default]
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ProviderKind {
    /// The spelling in objects, flags and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Azure => "azure",
            Self::Local => "local",
            Self::Unknown => "unknown",
        }
    }
}

/// Who can reach a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Scheme {
    /// The network it is in.
    #[default]
    Internal,
    /// Everybody.
    InternetFacing,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Where a load balancer sends what arrives at a port (crd.md section 7).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum TargetMode {
    /// To nodeIP:nodePort.
    Node,
    /// To a node, with the load balancer's address still as destination.
    Vip,
    /// To podIP:targetPort.
    Pod,
    /// A value that this version does not know (K-11).
    #[default]
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl TargetMode {
    /// The spelling in objects, annotations and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Vip => "vip",
            Self::Pod => "pod",
            Self::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for TargetMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One port of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerPort {
    /// Name of the Service's port, empty for the only, unnamed one.
    pub name: PortName,
    /// Protocol.
    pub protocol: Protocol,
    /// Port on the load balancer.
    pub port: u16,
    /// Where traffic goes.
    pub mode: TargetMode,
    /// Port on the pods; absent where pods differ (a named port) and in node and vip mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_port: Option<u16>,
    /// Port on the nodes, in node mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
    /// Which source address the target sees.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
    /// How health is found out; absent where targets are not probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
}

impl LoadBalancerPort {
    /// Name and protocol.
    pub fn key(&self) -> PortKey {
        PortKey {
            name: self.name.clone(),
            protocol: self.protocol,
        }
    }
}

/// A health check (crd.md section 6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Who answers it.
    pub by: HealthBy,
    /// Protocol of the probe.
    pub protocol: HealthProtocol,
    /// Port probed; absent for the port that takes the traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Path of an HTTP probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Time between probes.
    pub interval_seconds: u32,
    /// Time after which a probe counts as failed.
    pub timeout_seconds: u32,
    /// Good probes in a row that make a target healthy.
    pub healthy: u32,
    /// Bad probes in a row that make it unhealthy.
    pub unhealthy: u32,
}

/// Who answers a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum HealthBy {
    /// The node agent, for a pod (K-24, K-28).
    Agent,
    /// The node's service proxy, for the node.
    Node,
    /// The node's service proxy, for its local endpoints (healthCheckNodePort).
    Local,
    /// Whoever takes the traffic.
    Traffic,
    /// What the user's annotations say.
    Custom,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Protocol of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum HealthProtocol {
    /// A connection that opens.
    Tcp,
    /// A response that counts as good.
    Http,
    /// The same over TLS.
    Https,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How targets come and go (crd.md section 5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The policy.
    pub policy: MembershipPolicy,
    /// Share of the targets, in percent, that stays registered whatever readiness says.
    pub floor_percent: u32,
    /// Longest time for which a leaving target is held.
    pub hold_max_seconds: u32,
    /// Longest time for which the cloud still sends new flows after it was told to stop.
    pub tail_max_seconds: u32,
    /// What a node does with flows that come after its last endpoint left.
    pub late_flows: LateFlows,
}

/// A membership policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum MembershipPolicy {
    /// Ours (K-30).
    #[default]
    ZeroDrop,
    /// The peer's timing (K-31).
    Compat,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// One provider option in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderOption {
    /// The option's canonical name.
    pub name: String,
    /// Its canonical value.
    pub value: String,
    /// The annotation, field or default that it came from.
    pub from: String,
}
