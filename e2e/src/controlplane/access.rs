//! Who our programs are to the API server, and what is installed before they start: object types and rights.

use crate::{chart::NAMESPACE, world::Objects};
use anyhow::Result;
use serde_json::{Value, json};
use std::time::Duration;

/// The namespace of our programs' accounts and of their Lease.
pub(crate) const SYSTEM_NAMESPACE: &str = NAMESPACE;
/// Install id of every world.
pub(crate) const INSTALL_ID: &str = "e2e";

/// Our object types, as the chart installs them.
const CRDS: [&str; 3] = [
    include_str!("../../../charts/onehop/files/crds/addresspools.yaml"),
    include_str!("../../../charts/onehop/files/crds/loadbalancers.yaml"),
    include_str!("../../../charts/onehop/files/crds/nodetargets.yaml"),
];

/// Time in which a server must serve what was installed.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// An account of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// The controller's `ServiceAccount`. Where there is no access control, each replica is told apart by its name.
    Controller {
        /// Name of the replica.
        replica: String,
    },
    /// The agent's `ServiceAccount`, by a token of this node's agent.
    NodeAgent {
        /// Name of the node.
        node: String,
    },
    /// The `ServiceAccount` of the chart's hook after an uninstall.
    CleanUp,
    /// The user that every cluster's own roles give the rights of a kube-proxy.
    KubeProxy,
    /// The user as which a node's kubelet is known to the authorizer of nodes.
    Kubelet {
        /// Name of the node.
        node: String,
    },
}

impl Account {
    /// The group of a user that is no `ServiceAccount`.
    pub(super) fn group(&self) -> Option<&'static str> {
        matches!(self, Self::Kubelet { .. }).then_some("system:nodes")
    }

    /// Name of the `ServiceAccount`, or of the user where it is none.
    pub fn name(&self) -> String {
        match self {
            Self::Controller { .. } => "onehop-controller".to_owned(),
            Self::NodeAgent { .. } => "onehop-node-agent".to_owned(),
            Self::CleanUp => "onehop-uninstall-clean-up".to_owned(),
            Self::KubeProxy => "system:kube-proxy".to_owned(),
            Self::Kubelet { node } => format!("system:node:{node}"),
        }
    }

    pub(super) fn file_name(&self) -> String {
        match self {
            Self::Controller { replica } => format!("kubeconfig-{replica}"),
            Self::NodeAgent { node } => format!("kubeconfig-node-agent-{node}"),
            Self::CleanUp => "kubeconfig-clean-up".to_owned(),
            Self::KubeProxy => "kubeconfig-kube-proxy".to_owned(),
            Self::Kubelet { node } => format!("kubeconfig-kubelet-{node}"),
        }
    }
}

/// Installs our object types and namespace, and waits until the types are served.
pub(super) async fn install(objects: &Objects) -> Result<()> {
    for crd in CRDS {
        objects.apply_yaml(crd).await?;
    }
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE},
    });
    objects.apply(namespace).await?;
    for kind in ["AddressPool", "LoadBalancer", "NodeTargets"] {
        objects.kind_served(kind, SERVED_WITHIN).await?;
    }
    Ok(())
}

/// Installs accounts, roles and the policy on agents, and waits until pods can be made.
pub(super) async fn grant(objects: &Objects, rights: &[Value]) -> Result<()> {
    for object in rights {
        objects.apply(object.clone()).await?;
    }
    // Pods are refused in a namespace that has no account for them yet.
    for namespace in ["default", "kube-system"] {
        objects
            .account_exists(namespace, "default", SERVED_WITHIN)
            .await?;
    }
    Ok(())
}
