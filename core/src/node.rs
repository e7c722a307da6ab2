//! Typed view of a Node: what target choice, selection and node health need of it, nothing else.
//!
//! Built once where the watch delivers the object; equality of views tells whether a change of the
//! Node (a heartbeat, say) concerns us at all (S-42).

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, NodeCondition};

use crate::id::{Cidr, IpFamily, NodeName, Zone};
use crate::time::Time;

/// Label that names a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Label that keeps a node out of every load balancer.
pub const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Taint of a node that has been declared dead.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Taints that say that a node is about to go (ZD-70): the cluster autoscaler's, Karpenter's and those of
/// aws-node-termination-handler.
pub const GOING_TAINTS: [&str; 6] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/rebalance-recommendation",
];

/// Label by which EKS tells what kind of machine is behind a node.
const COMPUTE_TYPE_LABEL: &str = "eks.amazonaws.com/compute-type";
/// Label that names a node's operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// A Node as the rules see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// Its UID: tells a node from a later one with the same name.
    pub uid: String,
    /// Its zone; `None` for a missing or empty label, which never matches a hint (S-46).
    pub zone: Option<Zone>,
    /// Addresses in the object's order, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// Ranges from which its pods take their addresses.
    pub pod_cidrs: Vec<Cidr>,
    /// The cloud's identifier of the machine (`spec.providerID`), empty if not set.
    pub provider_id: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// What its condition `Ready` says.
    pub ready: NodeReady,
    /// Whether its pods have a network.
    pub pod_network: PodNetwork,
    /// Whether it carries [`EXCLUDE_LABEL`].
    pub excluded: bool,
    /// Whether new pods are kept away (`spec.unschedulable`).
    pub unschedulable: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// When its deletion was asked for.
    pub deleted: Option<Time>,
}

/// What the condition `Ready` of a node says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeReady {
    /// `True`.
    Yes,
    /// `False`, or nothing yet.
    #[default]
    No,
    /// `Unknown`: nothing was heard of it for a while, and it may be well.
    Unknown,
}

/// Whether a network plugin is ready on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// Nothing says that it is not.
    #[default]
    Present,
    /// The object says that pods have no network.
    Missing,
}

/// Why no node agent can ever run on a node (C-131, C-132).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Agentless {
    /// A machine of one pod, which admits no DaemonSet.
    Fargate,
    /// Not Linux.
    Windows,
}

impl std::fmt::Display for Agentless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fargate => "Fargate",
            Self::Windows => "Windows",
        })
    }
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value, empty if not set.
    pub value: String,
    /// The effect, such as `NoSchedule`.
    pub effect: String,
}

impl NodeView {
    /// The view of a Node. Total: whatever is missing or unreadable is absent in the view.
    pub fn of(node: &Node) -> Self {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let labels = meta.labels.as_ref();
        let zone = labels
            .and_then(|l| l.get(ZONE_LABEL))
            .filter(|z| !z.is_empty());
        Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            uid: meta.uid.clone().unwrap_or_default(),
            zone: zone.map(Zone::new),
            addresses: addresses(node),
            pod_cidrs: spec.map(pod_cidrs).unwrap_or_default(),
            provider_id: spec.and_then(|s| s.provider_id.clone()).unwrap_or_default(),
            labels: labels.cloned().unwrap_or_default(),
            ready: ready(node),
            pod_network: pod_network(node),
            excluded: labels.is_some_and(|l| l.contains_key(EXCLUDE_LABEL)),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            taints: spec
                .and_then(|s| s.taints.as_deref())
                .unwrap_or_default()
                .iter()
                .map(taint)
                .collect(),
            deleted: meta.deletion_timestamp.as_ref().map(Time::from),
        }
    }

    /// The primary address of a family: where NodePorts answer by default (S-27).
    pub fn primary_address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|a| IpFamily::of(*a) == family)
    }

    /// Why no agent can ever run there; `None` where one can.
    pub fn agentless(&self) -> Option<Agentless> {
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        match (label(COMPUTE_TYPE_LABEL), label(OS_LABEL)) {
            (Some("fargate"), _) => Some(Agentless::Fargate),
            (_, Some("windows")) => Some(Agentless::Windows),
            _ => None,
        }
    }

    /// Whether it carries a taint with this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|t| t.key == key)
    }
}

fn addresses(node: &Node) -> Vec<IpAddr> {
    let listed = node
        .status
        .as_ref()
        .and_then(|s| s.addresses.as_deref())
        .unwrap_or_default();
    let of_type = |wanted: &'static str| {
        listed
            .iter()
            .filter(move |a| a.type_ == wanted)
            .filter_map(|a| a.address.parse().ok())
    };
    of_type("InternalIP").chain(of_type("ExternalIP")).collect()
}

fn pod_cidrs(spec: &k8s_openapi::api::core::v1::NodeSpec) -> Vec<Cidr> {
    let listed = spec.pod_cidrs.as_deref().unwrap_or_default();
    listed.iter().filter_map(|c| c.parse().ok()).collect()
}

fn conditions(node: &Node) -> &[NodeCondition] {
    let status = node.status.as_ref();
    status
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default()
}

fn ready(node: &Node) -> NodeReady {
    let condition = conditions(node).iter().find(|c| c.type_ == "Ready");
    match condition.map(|c| c.status.as_str()) {
        Some("True") => NodeReady::Yes,
        Some("Unknown") => NodeReady::Unknown,
        _ => NodeReady::No,
    }
}

/// Network plugins that make routes say it by a condition of their own. For all others the kubelet repeats in the message
/// of `Ready` what the container runtime says of its condition `NetworkReady`.
fn pod_network(node: &Node) -> PodNetwork {
    let none = |c: &NodeCondition| match c.type_.as_str() {
        "NetworkUnavailable" => c.status == "True",
        "Ready" => {
            c.status != "True"
                && c.message
                    .as_deref()
                    .is_some_and(|m| m.contains("NetworkReady=false"))
        }
        _ => false,
    };
    if conditions(node).iter().any(none) {
        PodNetwork::Missing
    } else {
        PodNetwork::Present
    }
}

fn taint(taint: &k8s_openapi::api::core::v1::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: taint.effect.clone(),
    }
}
