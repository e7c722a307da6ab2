//! Our own Kubernetes objects, group `onehop.dev`, version `v1alpha1` (crd.md sections 2 to 4).
//!
//! Only types and their schemas. Readers accept what a later version may add: unknown fields are
//! ignored and an unknown value of an enum reads as `Unknown` (K-11), which we never write.

mod address_pool;
mod load_balancer;
mod node_targets;
mod schema;
mod status;

pub use address_pool::{
    AddressPool, AddressPoolSpec, AddressPoolStatus, AddressRange, ServiceAllocation,
};
pub use load_balancer::{
    HealthBy, HealthCheck, HealthProtocol, LoadBalancer, LoadBalancerPort, LoadBalancerSpec,
    Membership, MembershipPolicy, ProviderKind, ProviderOption, Scheme, TargetMode,
};
pub use node_targets::{
    AgentMode, ClusterFacts, Feature, FlowSources, LocalPort, NodeInstall, NodeTarget, NodeTargets,
    NodeTargetsSpec, NodeTargetsStatus, ServiceRef, Tail, TargetHealth, TargetState, Vip, VipPort,
};
pub use status::{
    Address, CloudResource, LastError, LoadBalancerStatus, PortCounts, Summary, TakeOver,
    TakeOverStage,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Group of all our objects, prefix of our labels, annotations and finalizers.
pub const GROUP: &str = "onehop.dev";
/// Label of the install that an object belongs to (K-02).
pub const INSTALL_LABEL: &str = "onehop.dev/install";
/// Label by which pods of ours are known.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Its value on the agents' pods (K-24).
pub const AGENT_COMPONENT: &str = "node-agent";
/// Our finalizer on Services (K-03).
pub const SERVICE_FINALIZER: &str = "onehop.dev/load-balancer";
/// Our finalizer on `LoadBalancer` objects, until every target is unused.
pub const TARGETS_FINALIZER: &str = "onehop.dev/targets";

/// Annotation of a `LoadBalancer` object, set by people: gives the load balancer back to the program that it was taken
/// over from (AWS-130), and keeps it from being taken over again.
pub const RELEASE_ANNOTATION: &str = "onehop.dev/release";

/// Our finalizer on `AddressPool` objects, while Services have addresses of them (C-27).
pub const POOL_FINALIZER: &str = "onehop.dev/addresses-in-use";

/// Condition of a `LoadBalancer`: the Service and its annotations make sense.
pub const ACCEPTED: &str = "Accepted";
/// Condition of a `LoadBalancer`: the cloud has what was asked for.
pub const PROGRAMMED: &str = "Programmed";
/// Condition of a `LoadBalancer`: every port has a target that can serve.
pub const TARGETS_READY: &str = "TargetsReady";
/// Condition of a `LoadBalancer`: it works, but something needs attention.
pub const DEGRADED: &str = "Degraded";

/// Which source address the target sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum ClientIp {
    /// The client's.
    #[default]
    Preserve,
    /// The load balancer's.
    Snat,
    /// The load balancer's, with the client's in a PROXY protocol header.
    ProxyProtocol,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// What a node does with new flows that arrive after its last endpoint left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum LateFlows {
    /// Sends them to an endpoint on another node.
    #[default]
    Forward,
    /// Drops them.
    Drop,
    /// A value that this version does not know (K-11).
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The three definitions, in the order in which they are installed.
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [LoadBalancer::crd(), NodeTargets::crd(), AddressPool::crd()].map(schema::settled)
}

/// The definitions as they are written to the chart, each with the name of its file.
pub fn manifests() -> impl Iterator<Item = (String, serde_json::Value)> {
    definitions().into_iter().map(|definition| {
        let file = format!("{}.yaml", definition.spec.names.plural);
        (file, schema::manifest(&definition))
    })
}
