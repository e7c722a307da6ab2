//! `LoadBalancer`: what was resolved for a Service and how it stands. Written only by the
//! controller, whole, by one field manager; read by people and by the controller after a restart,
//! for which the spec is the last good intent (I10).

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClientIp, LateFlows, PROGRAMMED, TARGETS_READY, schema};
use crate::id::{Cidr, IpFamily, PortKey, PortName, Protocol, ServiceUid, Zone};
use crate::time::Time;

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

/// How a load balancer stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<Address>,
    /// What we made for it in the cloud.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<CloudResource>,
    /// Attributes and tags that we set, so that removal resets only these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub owned_keys: Vec<String>,
    /// Targets per port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<PortCounts>,
    /// What failed last and has not succeeded since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Accepted, Programmed, TargetsReady and Degraded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The columns of `kubectl get`, which cannot add up or join by themselves.
    #[serde(default)]
    pub summary: Summary,
}

/// An address of a load balancer: an IP address or a host name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The IP address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ip: Option<IpAddr>,
    /// The host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The family.
    pub family: IpFamily,
    /// The zone that it is in, where the cloud says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Zone>,
}

/// Something that we made in the cloud.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct CloudResource {
    /// The provider's word for it.
    pub kind: String,
    /// The cloud's identifier.
    pub id: String,
    /// Tells a replacement from what it replaces.
    pub generation: i64,
}

/// Targets of one port by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortCounts {
    /// Name of the port.
    pub name: PortName,
    /// All that are registered.
    pub registered: u32,
    /// Those that the cloud finds healthy.
    pub healthy: u32,
    /// Those that it has yet to judge.
    pub initial: u32,
    /// Those that it finds unhealthy.
    pub unhealthy: u32,
    /// Those that are leaving.
    pub draining: u32,
    /// Those that stay although they should leave.
    pub held: u32,
}

/// A failure that has not been followed by a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// The part that failed.
    pub part: String,
    /// Class of the error, a word from a fixed list.
    pub class: String,
    /// What was tried, on what, and what came back.
    pub message: String,
    /// Since when it fails.
    pub since: Time,
    /// When it is tried next.
    pub next_try: Time,
}

/// The columns of `kubectl get olb` (C-104).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Target modes, joined by commas where ports differ.
    #[serde(default)]
    pub mode: String,
    /// Addresses, joined by commas.
    #[serde(default)]
    pub address: String,
    /// healthy/registered over all ports.
    #[serde(default)]
    pub targets: String,
    /// Held targets over all ports.
    #[serde(default)]
    pub held: u32,
    /// Draining targets over all ports.
    #[serde(default)]
    pub draining: u32,
    /// Whether it is programmed and can serve: `True`, `False` or `Unknown`.
    #[serde(default)]
    pub ready: String,
    /// Reason of the condition that decides `ready`.
    #[serde(default)]
    pub reason: String,
}

impl LoadBalancerStatus {
    /// The columns that belong to this status and its spec.
    pub fn summarize(&self, spec: &LoadBalancerSpec) -> Summary {
        let sum = |count: fn(&PortCounts) -> u32| self.ports.iter().map(count).sum::<u32>();
        let mut modes: Vec<_> = spec.ports.iter().map(|p| p.mode.as_str()).collect();
        modes.dedup();
        let addresses: Vec<_> = self.addresses.iter().map(Address::to_string).collect();
        let (ready, reason) = self.readiness();
        Summary {
            mode: modes.join(","),
            address: addresses.join(","),
            targets: format!("{}/{}", sum(|p| p.healthy), sum(|p| p.registered)),
            held: sum(|p| p.held),
            draining: sum(|p| p.draining),
            ready,
            reason,
        }
    }

    /// The condition with this type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind)
    }

    /// The first of the two conditions that readiness needs which is not `True`, else the last.
    fn readiness(&self) -> (String, String) {
        let mut last = ("Unknown".to_owned(), String::new());
        for kind in [PROGRAMMED, TARGETS_READY] {
            match self.condition(kind) {
                Some(c) if c.status == "True" => last = (c.status.clone(), c.reason.clone()),
                Some(c) => return (c.status.clone(), c.reason.clone()),
                None => return ("Unknown".to_owned(), String::new()),
            }
        }
        last
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.hostname, self.ip) {
            (Some(name), _) => f.write_str(name),
            (None, Some(ip)) => ip.fmt(f),
            (None, None) => Ok(()),
        }
    }
}
