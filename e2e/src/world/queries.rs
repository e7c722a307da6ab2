//! What scenarios ask of a world, and the accidents that they cause in it.

use super::{Proxy, World, agent_name, eventually};
use anyhow::{Context, Result};
use e2e_fabric::Netns;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Pod, Service};
use kube::{Api, api::ListParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// How long any of it may take.
const WITHIN: Duration = Duration::from_secs(30);

impl World {
    /// Waits until every node's Service proxy says that it is in sync.
    pub async fn proxies_ready(&self) -> Result<()> {
        if let Some(real) = &self.real_nodes {
            return real.proxies_ready(self).await;
        }
        for pod in &self.proxies {
            self.objects.pod_ready("kube-system", pod, WITHIN).await?;
        }
        Ok(())
    }

    /// Waits until every node has rules for an address, as it has some time after the address was published.
    pub async fn captured(&self, address: IpAddr) -> Result<()> {
        for node in &self.nodes {
            let node = node.name();
            let what = format!("node {node} has rules for {address}");
            eventually(&self.clock, &what, WITHIN, async || {
                let rules = self.ruleset(node).map_err(|e| e.to_string())?;
                if rules.contains(&address.to_string()) {
                    Ok(())
                } else {
                    Err("it has none".to_owned())
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until a Service has an address of its load balancer, by itself or behind its name, and
    /// [`World::published`] for it.
    pub async fn lb_address(&self, name: &str) -> Result<IpAddr> {
        let what = format!("Service {name} gets the address of a load balancer");
        let address = eventually(&self.clock, &what, WITHIN, async || {
            let service = self
                .objects
                .service(name)
                .await
                .map_err(|e| e.to_string())?;
            let ingress = service
                .status
                .and_then(|s| s.load_balancer)
                .and_then(|l| l.ingress)
                .unwrap_or_default();
            let address = |i: &LoadBalancerIngress| match (&i.ip, &i.hostname) {
                (Some(ip), _) => ip.parse().ok(),
                (None, Some(host)) => self.aws().ok()?.resolve(host).first().copied(),
                (None, None) => None,
            };
            ingress
                .iter()
                .find_map(address)
                .ok_or_else(|| format!("ingress {ingress:?}"))
        })
        .await?;
        self.published(name, address).await?;
        Ok(address)
    }

    /// Where kube-proxy is the proxy, waits until every node has its rules for a Service's published address: K-27 is
    /// ours, kube-proxy learns of an address only by its publication, and until then nodes send back what they get for it.
    pub async fn published(&self, name: &str, address: IpAddr) -> Result<()> {
        if self.cluster.proxy != Proxy::KubeProxy {
            return Ok(());
        }
        // Its chains are named namespace/name/protocol/port, its comments namespace/name:port or, where a port has no
        // name, namespace/name.
        let service = ["/", ":", "\""].map(|end| format!("default/{name}{end}"));
        let address = format!("{address} .");
        for node in &self.nodes {
            let node = node.name();
            let what = format!("node {node} has rules for {address} of {name}");
            eventually(&self.clock, &what, WITHIN, async || {
                let rules = self.ruleset(node).map_err(|e| e.to_string())?;
                let mut lines = rules.lines();
                let known = lines.any(|line| {
                    line.contains(&address) && service.iter().any(|name| line.contains(name))
                });
                known.then_some(()).ok_or_else(|| "it has none".to_owned())
            })
            .await?;
        }
        Ok(())
    }

    /// Namespace and address of a pod of `default`.
    pub async fn pod_place(&self, name: &str) -> Result<(Netns, Ipv4Addr)> {
        let pod = self.objects.api::<Pod>().get(name).await?;
        let address = pod
            .status
            .and_then(|s| s.pod_ip)
            .context("the pod has no address")?
            .parse()?;
        let node = pod
            .spec
            .and_then(|s| s.node_name)
            .context("the pod has no node")?;
        let netns = self
            .kubelet(&node)?
            .pod_netns("default", name)
            .context("the pod does not run")?;
        Ok((netns, address))
    }

    /// Addresses of the ready pods of an app.
    pub async fn pod_addresses(&self, app: &str) -> Result<BTreeSet<Ipv4Addr>> {
        let params = ListParams::default().labels(&format!("app={app}"));
        let pods = self.objects.api::<Pod>().list(&params).await?;
        let running = pods
            .iter()
            .filter(|p| p.metadata.deletion_timestamp.is_none());
        Ok(running
            .filter_map(|p| p.status.as_ref()?.pod_ip.as_ref()?.parse().ok())
            .collect())
    }

    /// Waits until a Service is gone and the cloud has none of its load balancers.
    pub async fn service_gone(&self, name: &str) -> Result<()> {
        eventually(
            &self.clock,
            &format!("Service {name} is gone"),
            WITHIN,
            async || match self.objects.api::<Service>().get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
    }

    /// Kills (SIGKILL) a node's agent; its kubelet starts it again.
    pub fn kill_agent(&self, node: &str) -> Result<()> {
        self.signal_agent(node, Signal::SIGKILL)
    }

    /// Sends a signal to a node's agent.
    pub fn signal_agent(&self, node: &str, signal: Signal) -> Result<()> {
        let pids = self.kubelet(node)?.pids("kube-system", &agent_name(node));
        let pid = pids.values().next().context("the agent does not run")?;
        kill(Pid::from_raw(i32::try_from(*pid)?), signal).context("signal the agent")
    }

    /// Waits until a killed agent was started again and is in sync.
    pub async fn agent_restarted(&self, node: &str, within: Duration) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.kube(), "kube-system");
        let name = agent_name(node);
        eventually(
            &self.clock,
            &format!("{name} runs again"),
            within,
            async || {
                let pod = pods.get(&name).await.map_err(|e| e.to_string())?;
                let status = pod.status.unwrap_or_default();
                let restarted = status
                    .container_statuses
                    .iter()
                    .flatten()
                    .any(|c| c.restart_count > 0 && c.ready);
                if restarted {
                    Ok(())
                } else {
                    Err(format!("{status:?}"))
                }
            },
        )
        .await
    }
}
