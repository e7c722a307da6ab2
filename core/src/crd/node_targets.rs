//! `NodeTargets`: the targets on one node and their state, the only channel from controllers to
//! that node's agent. Cluster-scoped, named as the Node; spec by controllers, status by the agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClientIp, LateFlows};
use crate::id::{Cidr, InstallId, PodUid, PortName, Protocol, ServiceKey, ServiceUid};
use crate::time::Time;

/// The targets on one node.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "onehop.dev",
    version = "v1alpha1",
    kind = "NodeTargets",
    plural = "nodetargets",
    status = "NodeTargetsStatus",
    derive = "PartialEq",
    doc = "The load balancer targets on the Node of the same name. Spec written by onehop controllers only, status by the node's agent.",
    printcolumn = r#"{"name": "SYNCED", "type": "boolean", "jsonPath": ".status.synced"}"#,
    printcolumn = r#"{"name": "MODE", "type": "string", "jsonPath": ".status.mode"}"#,
    printcolumn = r#"{"name": "VERSION", "type": "string", "jsonPath": ".status.version"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeTargetsSpec {
    /// One entry per install, each written by its own field manager.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-kubernetes-map-type" = "granular"))]
    pub installs: BTreeMap<InstallId, NodeInstall>,
}

/// What one install has on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeInstall {
    /// Pods that are targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub targets: Vec<NodeTarget>,
    /// Ports of the node that are targets of Services with policy Local.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub local: Vec<LocalPort>,
    /// Load balancer addresses that will be delivered to the node (K-27).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub vips: Vec<Vip>,
    /// Facts about the cluster.
    #[serde(default)]
    pub cluster: ClusterFacts,
}

/// A Service with its UID.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: ServiceUid,
}

impl ServiceRef {
    /// A reference from a key and a UID.
    pub fn new(key: &ServiceKey, uid: &ServiceUid) -> Self {
        Self {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: uid.clone(),
        }
    }

    /// Namespace and name.
    pub fn key(&self) -> ServiceKey {
        ServiceKey::new(&self.namespace, &self.name)
    }
}

/// A pod that is a target. Its identity is pod UID, address, protocol and port (K-21).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTarget {
    /// The Service.
    pub service: ServiceRef,
    /// Name of the Service's port.
    pub port_name: PortName,
    /// Protocol.
    pub protocol: Protocol,
    /// Address of the pod.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// Port of the pod.
    pub target_port: u16,
    /// UID of the pod.
    #[serde(rename = "podUID")]
    pub pod_uid: PodUid,
    /// Name of the pod.
    pub pod_name: String,
    /// Who answers its health check.
    pub health: TargetHealth,
    /// Where the load balancer's flows come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub sources: Vec<Cidr>,
    /// Flows come from anywhere outside the cluster; `sources` is empty then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_outside: bool,
    /// Which source address the pod sees.
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
    /// Clients that are let in; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub allowed: Option<Vec<Cidr>>,
    /// How it stands.
    pub state: TargetState,
    /// Since when it stands so.
    pub since: Time,
}

/// Where a load balancer's flows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSources<'a> {
    /// From anywhere outside the cluster (the client's address is kept).
    AnyOutside,
    /// From these addresses.
    Of(&'a [Cidr]),
}

impl NodeTarget {
    /// Where its flows come from.
    pub fn flows(&self) -> FlowSources<'_> {
        if self.any_outside {
            FlowSources::AnyOutside
        } else {
            FlowSources::Of(&self.sources)
        }
    }
}

/// Who answers the health check of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum TargetHealth {
    /// Not the agent.
    #[default]
    None,
    /// The agent, for the pod.
    Agent,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// State of a target, as membership decides (K-20). An unknown one counts like a lost entry (K-21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum TargetState {
    /// Registered, or about to be.
    Active,
    /// Leaving, but still needed.
    Held,
    /// Told to leave; flows may still arrive.
    Draining,
    /// No flow arrives any more.
    Released,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// A port of the node that is a target of a Service with policy Local (node and vip mode).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalPort {
    /// The Service.
    pub service: ServiceRef,
    /// Name of the Service's port.
    pub port_name: PortName,
    /// Protocol.
    pub protocol: Protocol,
    /// Port on the node, in node mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
    /// Port that answers for local endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    /// How it stands.
    pub state: TargetState,
    /// Since when it stands so.
    pub since: Time,
    /// What the node does with flows that come after its last endpoint left.
    pub late_flows: LateFlows,
}

/// A load balancer address that is delivered to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vip {
    /// The Service.
    pub service: ServiceRef,
    /// The address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// The ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<VipPort>,
}

/// A port of an address.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct VipPort {
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

/// What agents must know about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterFacts {
    /// Ranges of pod addresses.
    #[serde(rename = "podCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_cidrs: Vec<Cidr>,
    /// Ranges of node addresses.
    #[serde(rename = "nodeCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub node_cidrs: Vec<Cidr>,
    /// Longest time for which the cloud sends new flows after it was told to stop.
    #[serde(default)]
    pub tail_max_seconds: u32,
    /// Longest time for which a leaving target is held.
    #[serde(default)]
    pub hold_max_seconds: u32,
}

/// What the agent says about itself. Written on change of content only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeTargetsStatus {
    /// Generation of the spec that it acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version of the agent.
    #[serde(default)]
    pub version: String,
    /// How it runs.
    #[serde(default)]
    pub mode: AgentMode,
    /// Whether the kernel has what the API says.
    #[serde(default)]
    pub synced: bool,
    /// What it can do on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub features: Vec<Feature>,
    /// Tails that it has seen: how long flows came after deregistration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub tails: Vec<Tail>,
    /// What it cannot do, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<String>,
}

/// How an agent runs (crd.md section 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum AgentMode {
    /// Beside kube-proxy.
    #[default]
    Beside,
    /// As the node's only service proxy.
    Replace,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Something that an agent can do.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum Feature {
    /// Target guard.
    Guard,
    /// Pod target health.
    PodHealth,
    /// Local window for late flows.
    LocalWindow,
    /// Service proxy.
    ServiceProxy,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// How long flows of a Service came after deregistration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tail {
    /// The Service.
    pub service: ServiceRef,
    /// The time.
    pub seconds: u32,
}
