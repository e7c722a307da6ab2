//! The real nodes of a world: machines, their Service proxy, DNS, and the journal of their pods.

use super::{
    Installation, Nodes, Proxy, World, eventually, node_proxy,
    start::{NodesStart, places},
};
use crate::{
    controlplane::Account,
    nodes::{Dns, Machine, MachineConfig, follow_pods},
};
use anyhow::{Context, Result, ensure};
use e2e_fabric::NodeNet;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_runtime::clock::Clock;
use serde_json::json;
use std::{net::SocketAddr, time::Duration};
use tokio_util::task::AbortOnDropHandle;

/// From the start of its programs, with images to unpack, on a busy machine.
const READY_WITHIN: Duration = Duration::from_mins(3);
/// For a Service proxy whose node is ready.
const IN_SYNC_WITHIN: Duration = Duration::from_mins(2);
const SYSTEM_NAMESPACE: &str = crate::chart::NAMESPACE;

/// Everything about a world's nodes that lives as long as they.
pub(super) struct RealNodes {
    machines: Vec<(NodeNet, Machine)>,
    _dns: Dns,
    _journal: AbortOnDropHandle<()>,
}

impl RealNodes {
    /// Starts them and waits until each is ready; then their proxy.
    pub(super) async fn start(start: &NodesStart<'_>, installation: &Installation) -> Result<Self> {
        let (config, plane) = (start.config, start.plane);
        debug_assert_eq!(config.cluster.nodes, Nodes::Real);
        ensure!(
            config.without_proxy.is_empty()
                && config.agent_flags.is_empty()
                && !config.kube_proxy_too,
            "real nodes have the chart's agent and nothing else"
        );
        let journal = follow_pods(
            plane.client(),
            start.clock,
            config.seed,
            start.journal.hook(),
        );
        let places = places(config);
        let mut machines = Vec::new();
        for name in &config.nodes {
            let node = start.fabric.add_real_node(name)?;
            let account = Account::Kubelet {
                node: (*name).to_owned(),
            };
            let kubeconfig = plane.kubeconfig(&account).await?;
            let machine = Machine::start(&MachineConfig {
                node: &node,
                zone: places.get(*name).map_or("", String::as_str),
                cgroup: start.fabric.tag().namespace(&format!("node-{name}")),
                folder: start.folder.path(),
                kubeconfig: &kubeconfig,
                more: node_proxy::of_machine(start, name).await?,
            })?;
            machines.push((node, machine));
        }
        let inside = plane.kubeconfig_inside()?;
        let dns = Dns::start(start.fabric, &plane.objects, start.folder.path(), &inside).await?;
        let nodes = Self {
            machines,
            _dns: dns,
            _journal: journal,
        };
        if let Some(agent) = installation
            .agent
            .clone()
            .filter(|_| config.cluster.proxy != Proxy::KubeProxy)
        {
            plane.objects.apply(agent).await?;
        }
        for (node, machine) in &nodes.machines {
            ready(&Api::all(plane.client()), start.clock, node, machine).await?;
        }
        Ok(nodes)
    }

    /// Their networks, in the order of the nodes.
    pub(super) fn networks(&self) -> Vec<NodeNet> {
        self.machines.iter().map(|(node, _)| node.clone()).collect()
    }

    /// Whether all of them still run.
    pub(super) fn check(&self) -> Result<()> {
        self.machines
            .iter()
            .try_for_each(|(_, machine)| machine.check())
    }

    /// Waits until the proxy of every node says that it is in sync.
    pub(super) async fn proxies_ready(&self, world: &World) -> Result<()> {
        if world.cluster.proxy == Proxy::KubeProxy {
            for (node, _) in &self.machines {
                let to = SocketAddr::from((node.address(), Proxy::KubeProxy.health_port()));
                let what = format!("the proxy of node {} is in sync", node.name());
                eventually(&world.clock, &what, IN_SYNC_WITHIN, async || {
                    self.check().map_err(|e| e.to_string())?;
                    match world.http_get_on_node(node.name(), to, "/healthz") {
                        Ok(answer) if answer.status == 200 => Ok(()),
                        other => Err(format!("{other:?}")),
                    }
                })
                .await?;
            }
            return Ok(());
        }
        let all = Api::<DaemonSet>::namespaced(world.kube(), SYSTEM_NAMESPACE);
        let nodes = i32::try_from(self.machines.len()).context("a number of nodes")?;
        eventually(
            &world.clock,
            "every node's agent is in sync",
            IN_SYNC_WITHIN,
            async || {
                self.check().map_err(|e| e.to_string())?;
                let agents = all
                    .get("onehop-node-agent")
                    .await
                    .map_err(|e| e.to_string())?;
                let status = agents.status.unwrap_or_default();
                let settled = status.observed_generation == agents.metadata.generation;
                if settled && status.number_ready == nodes {
                    Ok(())
                } else {
                    Err(format!("{status:?}"))
                }
            },
        )
        .await
    }
}

/// Waits until a node is ready, and writes which addresses its pods have.
async fn ready(nodes: &Api<Node>, clock: Clock, node: &NodeNet, machine: &Machine) -> Result<()> {
    let what = format!("node {} is ready", node.name());
    eventually(&clock, &what, READY_WITHIN, async || {
        // What has ended does not become ready.
        if let Err(ended) = machine.check() {
            return Ok(Err(ended));
        }
        let found = nodes.get(node.name()).await.map_err(|e| e.to_string())?;
        let conditions = found.status.and_then(|s| s.conditions).unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready");
        match ready {
            Some(condition) if condition.status == "True" => Ok(Ok(())),
            other => Err(format!("{other:?}")),
        }
    })
    .await??;
    let pods = node.pod_cidr();
    let all = [pods.to_string(), node.pod_cidr6().to_string()];
    let patch = json!({"spec": {"podCIDR": pods.to_string(), "podCIDRs": all}});
    nodes
        .patch(node.name(), &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}
