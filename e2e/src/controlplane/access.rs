//! Who our programs are to the API server, and what is installed before they start: object types and rights.

use super::BackEnd;
use crate::{
    chart::{Chart, NAMESPACE, minimal_values},
    world::Objects,
};
use anyhow::Result;
use serde_json::json;
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
    /// The user that every cluster's own roles give the rights of a kube-proxy.
    KubeProxy,
}

impl Account {
    /// Name of the `ServiceAccount`, or of the user where it is none.
    pub fn name(&self) -> String {
        match self {
            Self::Controller { .. } => "onehop-controller".to_owned(),
            Self::NodeAgent { .. } => "onehop-node-agent".to_owned(),
            Self::KubeProxy => "system:kube-proxy".to_owned(),
        }
    }

    pub(super) fn file_name(&self) -> String {
        match self {
            Self::Controller { replica } => format!("kubeconfig-{replica}"),
            Self::NodeAgent { node } => format!("kubeconfig-node-agent-{node}"),
            Self::KubeProxy => "kubeconfig-kube-proxy".to_owned(),
        }
    }
}

/// Installs object types and rights, and waits until the types are served.
pub(super) async fn install(objects: &Objects, back_end: BackEnd) -> Result<()> {
    for crd in CRDS {
        objects.apply_yaml(crd).await?;
    }
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE},
    });
    objects.apply(namespace).await?;
    if back_end == BackEnd::Real {
        install_rights(objects).await?;
    }
    for kind in ["AddressPool", "LoadBalancer", "NodeTargets"] {
        objects.kind_served(kind, SERVED_WITHIN).await?;
    }
    Ok(())
}

/// Accounts, roles and the policy on agents: those of the chart, no more and no less.
async fn install_rights(objects: &Objects) -> Result<()> {
    let mut values = minimal_values();
    values["installId"] = json!(INSTALL_ID);
    let rendered = tokio::task::spawn_blocking(move || Chart::of_this_build()?.render(&values));
    for object in rendered.await??.rights() {
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
