//! The Service proxy of a node: our agent, or a real kube-proxy in its place, as a hostNetwork pod.

use super::{Install, Programs, Proxy, WorldConfig, start::NodesStart};
use crate::controlplane::Account;
use anyhow::{Context, Result};
use e2e_fabric::Fabric;
use onehop_core::crd::{AGENT_COMPONENT, COMPONENT_LABEL};
use serde_json::{Value, json};
use std::path::Path;

/// Who proxies on a node.
fn on_node(config: &WorldConfig, node: &str) -> Vec<Proxy> {
    if config.install == Install::ByHelm || config.without_proxy.contains(&node) {
        return Vec::new();
    }
    let too = config.kube_proxy_too.then_some(Proxy::KubeProxy);
    [config.cluster.proxy].into_iter().chain(too).collect()
}

/// Names of all their pods.
pub(super) fn names(config: &WorldConfig) -> Vec<String> {
    let of_node = |node: &&'static str| {
        let proxies = on_node(config, node).into_iter();
        proxies.map(|proxy| name(proxy, node)).collect::<Vec<_>>()
    };
    config.nodes.iter().flat_map(of_node).collect()
}

/// Name of a proxy's pod on a node.
pub fn name(proxy: Proxy, node: &str) -> String {
    match proxy {
        Proxy::Beside | Proxy::Replace => super::agent_name(node),
        Proxy::KubeProxy => format!("kube-proxy-{node}"),
    }
}

/// The pods of a node's proxies.
pub(super) async fn pods(start: &NodesStart<'_>, node: &str) -> Result<Vec<Value>> {
    let mut pods = Vec::new();
    for proxy in on_node(start.config, node) {
        pods.push(pod(start, node, proxy).await?);
    }
    Ok(pods)
}

async fn pod(start: &NodesStart<'_>, node: &str, proxy: Proxy) -> Result<Value> {
    let container = match proxy {
        Proxy::Beside | Proxy::Replace => {
            let account = Account::NodeAgent {
                node: node.to_owned(),
            };
            let kubeconfig = start.plane.kubeconfig(&account).await?;
            agent(start, node, &kubeconfig)?
        }
        Proxy::KubeProxy => kube_proxy(node, &start.plane.kubeconfig(&Account::KubeProxy).await?),
    };
    let mut labels = json!({"app": "node-proxy"});
    if proxy == start.config.cluster.proxy {
        labels[COMPONENT_LABEL] = json!(AGENT_COMPONENT);
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(proxy, node), "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": node, "hostNetwork": true, "containers": [container]},
    }))
}

/// As the chart renders it, but for what pods get by other ways than arguments, and for what is one per machine here:
/// the file system, so that its socket is an abstract one.
fn agent(start: &NodesStart<'_>, node: &str, kubeconfig: &Path) -> Result<Value> {
    const SOCKET: &str = "--ready-socket";
    let socket = format!("@onehop-ready-{node}");
    let args = start.commands.agent.clone().with(SOCKET, &socket)?;
    // As the chart has it, a file of the node; here all nodes have one file system.
    let kept = kubeconfig.with_file_name(format!("node-{node}.json"));
    let args = args.with("--node-file", &kept.to_string_lossy())?;
    let args = args.and([
        ("--kubeconfig", kubeconfig.to_string_lossy().into_owned()),
        ("--node-name", node.to_owned()),
    ]);
    // A world's own flags stand in place of the chart's.
    let own = start.config.agent_flags.iter().copied();
    let named: Vec<&str> = own
        .clone()
        .filter(|flag| flag.starts_with("--"))
        .map(|flag| flag.split('=').next().unwrap_or(flag))
        .collect();
    let args = args.without(&named);
    let more = own.map(str::to_owned);
    let args: Vec<String> = args.into_vec().into_iter().chain(more).collect();
    let ready = start.commands.agent_ready.clone().with(SOCKET, &socket)?;
    let mut ready = ready.into_vec();
    let program = ready.first_mut().context("a probe has a program")?;
    *program = Programs::of_this_build()?
        .path(program)?
        .to_string_lossy()
        .into_owned();
    Ok(json!({
        "name": "agent", "image": "onehop-node-agent",
        "args": args,
        "readinessProbe": {"exec": {"command": ready}, "periodSeconds": 1},
    }))
}

/// The ranges of pods, as its flag takes them.
fn cluster_cidrs() -> String {
    format!("{},{}", Fabric::CLUSTER_CIDR, Fabric::CLUSTER_CIDR6)
}

/// What runs as a proxy of a real node beside kubelet and containerd: a kube-proxy is a program of the machine, the agent
/// a pod.
pub(super) async fn of_machine(start: &NodesStart<'_>, node: &str) -> Result<Vec<Vec<String>>> {
    if start.config.cluster.proxy != Proxy::KubeProxy {
        return Ok(Vec::new());
    }
    let program = Programs::of_the_control_plane()?.path("kube-proxy")?;
    let kubeconfig = start.plane.kubeconfig(&Account::KubeProxy).await?;
    let mut command = vec![program.to_string_lossy().into_owned()];
    // Of its defaults only what is the whole machine's is not to be set.
    let settings = |flag: &String| !flag.starts_with("--conntrack-tcp");
    command.extend(
        kube_proxy_flags(node, &kubeconfig)
            .into_iter()
            .filter(settings),
    );
    Ok(vec![command])
}

fn kube_proxy_flags(node: &str, kubeconfig: &Path) -> Vec<String> {
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
    flags
        .map(|(flag, value)| format!("--{flag}={value}"))
        .to_vec()
}

fn kube_proxy(node: &str, kubeconfig: &Path) -> Value {
    let args = kube_proxy_flags(node, kubeconfig);
    json!({
        "name": "kube-proxy", "image": "kube-proxy", "args": args,
        "readinessProbe": {
            "httpGet": {"port": Proxy::KubeProxy.health_port(), "path": "/healthz"},
            "periodSeconds": 1,
        },
    })
}
