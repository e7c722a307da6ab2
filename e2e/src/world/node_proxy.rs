//! The Service proxy of a node: our agent, or a real kube-proxy in its place, as a hostNetwork pod.

use super::{Programs, Proxy, WorldConfig};
use crate::controlplane::{Account, ControlPlane};
use anyhow::Result;
use e2e_fabric::Fabric;
use onehop_core::crd::{AGENT_COMPONENT, COMPONENT_LABEL};
use serde_json::{Value, json};
use std::path::Path;

/// Name of the proxy's pod on a node.
pub(super) fn name(proxy: Proxy, node: &str) -> String {
    match proxy {
        Proxy::Beside | Proxy::Replace => super::agent_name(node),
        Proxy::KubeProxy => format!("kube-proxy-{node}"),
    }
}

/// Its pod.
pub(super) async fn pod(plane: &ControlPlane, config: &WorldConfig, node: &str) -> Result<Value> {
    let proxy = config.cluster.proxy;
    let container = match proxy.agent_flag() {
        Some(mode) => {
            let account = Account::NodeAgent {
                node: node.to_owned(),
            };
            let kubeconfig = plane.kubeconfig(&account).await?;
            agent(node, mode, &kubeconfig, &config.agent_flags)?
        }
        None => kube_proxy(node, &plane.kubeconfig(&Account::KubeProxy).await?),
    };
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(proxy, node), "namespace": "kube-system", "labels": {"app": "node-proxy", COMPONENT_LABEL: AGENT_COMPONENT}},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [container]},
    }))
}

fn agent(node: &str, mode: &str, kubeconfig: &Path, more: &[&str]) -> Result<Value> {
    let cluster_cidr = cluster_cidrs();
    let socket = format!("@onehop-ready-{node}");
    // As the chart has it, a file of the node; here all nodes have one file system.
    let kept = kubeconfig.with_file_name(format!("node-{node}.json"));
    let kept = kept.to_string_lossy();
    let kubeconfig = kubeconfig.to_string_lossy();
    let always = [
        ("--kubeconfig", kubeconfig.as_ref()),
        ("--node-name", node),
        ("--mode", mode),
        ("--cluster-cidr", &cluster_cidr),
        ("--ready-socket", &socket),
        ("--node-file", kept.as_ref()),
    ];
    let always = always.iter().flat_map(|(flag, value)| [*flag, *value]);
    let args: Vec<&str> = always.chain(more.iter().copied()).collect();
    let program = Programs::of_this_build()?.path("onehop-node-agent")?;
    Ok(json!({
        "name": "agent", "image": "onehop-node-agent",
        "args": args,
        "readinessProbe": {
            "exec": {"command": [program, "ready", "--ready-socket", socket]},
            "periodSeconds": 1,
        },
    }))
}

/// The ranges of pods, as either proxy's flag takes them.
fn cluster_cidrs() -> String {
    format!("{},{}", Fabric::CLUSTER_CIDR, Fabric::CLUSTER_CIDR6)
}

fn kube_proxy(node: &str, kubeconfig: &Path) -> Value {
    let flags = [
        ("proxy-mode", "nftables".to_owned()),
        ("hostname-override", node.to_owned()),
        ("kubeconfig", kubeconfig.to_string_lossy().into_owned()),
        ("cluster-cidr", cluster_cidrs()),
        ("kube-api-content-type", "application/json".to_owned()),
        // 0 leaves the kernel's value: the table's size is the whole machine's, and not to be set from a namespace.
        ("conntrack-max-per-core", "0".to_owned()),
        ("conntrack-min", "0".to_owned()),
        ("conntrack-tcp-timeout-established", "0s".to_owned()),
        ("conntrack-tcp-timeout-close-wait", "0s".to_owned()),
    ];
    let args = flags.map(|(flag, value)| format!("--{flag}={value}"));
    json!({
        "name": "kube-proxy", "image": "kube-proxy", "args": args,
        "readinessProbe": {
            "httpGet": {"port": Proxy::KubeProxy.health_port(), "path": "/healthz"},
            "periodSeconds": 1,
        },
    })
}
