//! A world: one cluster on one cloud, with real programs and real packets. Fabric, control plane, fake cloud, kubelet
//! stand-ins, one Service proxy a node, the controller, and a client outside. Ends with everything that it started.

mod assertions;
mod aws;
mod azure;
mod cloud_view;
mod config;
mod controller;
mod family;
mod first;
mod folder;
mod images;
mod installation;
mod journal;
mod lb_node;
mod leader;
mod manifests;
mod node_proxy;
mod node_view;
mod objects;
mod programs;
mod queries;
mod real_nodes;
mod report;
mod rest;
mod sockets;
mod start;
mod wait;
mod witness;

pub use config::{CloudKind, Cluster, Install, Nodes, Proxy, Replicas, WorldConfig};
pub use controller::Controller;
pub use family::Family;
pub use first::first_answer;
pub use installation::{Commands, values as chart_values};
pub use journal::Journal;
pub use lb_node::LbNode;
pub use manifests::{OnTerm, POD_PORT, ServiceManifest, address_pool, deployment, pod};
pub use node_proxy::name as proxy_pod;
pub use node_view::{HttpAnswer, http_get};
pub use objects::{Objects, ProxyLabel};
pub use programs::Programs;
pub use sockets::{sockets_of, syn_retransmissions};
pub use wait::eventually;

use crate::{
    controlplane::{Account, Asked, Audit, BackEnd, ControlPlane, OnLoopback, Refused},
    traffic::SocketSource,
};
use anyhow::{Context, Result};
use e2e_cloud::Cloud;
use e2e_fabric::{ClientNet, Drop, Fabric, FabricConfig, Netns, NodeNet, WorldTag};
use e2e_kubelet::Kubelet;
use folder::{Folder, LastWords};
use installation::Installation;
use kube::Client;
use onehop_runtime::clock::Clock;
use real_nodes::RealNodes;
use start::{ControllerStart, LocalCloud, NodesStart};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use witness::Witness;

/// A running world.
pub struct World {
    /// Its clock.
    pub clock: Clock,
    /// Its seed.
    pub seed: u64,
    /// What it runs on.
    pub cluster: Cluster,
    /// Objects in the API server.
    pub objects: Objects,
    /// The fake cloud.
    pub cloud: Cloud,
    /// The networks of the nodes, in their order.
    pub nodes: Vec<NodeNet>,
    /// The kubelet stand-ins, in the order of the nodes; none where kubelets are real.
    pub kubelets: Vec<Kubelet>,
    /// The client outside.
    pub client: ClientNet,
    /// Sockets of the client outside; one source, so that no port is used twice.
    pub sockets: SocketSource,
    /// What happened to pods.
    pub journal: Arc<Journal>,
    /// The controller's process; of two replicas, either may lead.
    pub controller: Controller,
    /// The other replica, if there are two.
    pub second: Option<Controller>,
    // Zone of each node.
    zones: BTreeMap<String, String>,
    // Names of the pods of Service proxies.
    proxies: Vec<String>,
    witness: Witness,
    real_nodes: Option<RealNodes>,
    plane: ControlPlane,
    local: LocalCloud,
    last_words: LastWords,
    // Last: its end takes every process and namespace with it.
    fabric: Fabric,
}

impl World {
    /// Starts everything and waits until it is ready to serve.
    pub async fn start(config: WorldConfig) -> Result<Self> {
        let clock = Clock::system();
        let scale = config.speeds.scale(clock.now())?;
        let tag = WorldTag::new()?;
        let folder = Folder::make(tag.as_str(), config.keep_logs)?;
        let network = FabricConfig {
            cooldown: config.cooldown / config.speeds.cool_down.max(1),
            ..FabricConfig::new(clock)
        };
        let fabric = Fabric::new(tag, network)?;
        (config.progress)("network: router and management network");
        let cluster = config.cluster;
        let (plane, installation) = plane_of(&config, &fabric, clock, folder.path()).await?;
        let commands = &installation.commands;
        let objects = plane.objects.clone().of(cluster);
        if config.install != Install::ByHelm {
            objects
                .create(address_pool("pool", &cluster.family.pool()))
                .await?;
        }
        (config.progress)(words_of(cluster.back_end));
        let witness = Witness::start(plane.client(), clock, config.seed);
        let local = LocalCloud::start(&fabric, clock, scale, &config)?;
        if let Some(authority) = &local.azure_ca {
            std::fs::write(folder.path().join(azure::CA_FILE), authority)?;
        }
        (config.progress)("local cloud with its load balancer nodes");
        let journal = Arc::new(Journal::default());
        let nodes_start = NodesStart {
            fabric: &fabric,
            plane: &plane,
            config: &config,
            commands,
            folder: &folder,
            journal: &journal,
            clock,
        };
        let Started {
            nodes,
            kubelets,
            real_nodes,
        } = Started::all(&nodes_start, &installation).await?;
        if let Some(aws) = &local.aws {
            aws::machines(aws, &kubelets, &config.zones);
        }
        (config.progress)("nodes, each with an agent");
        let start = ControllerStart {
            fabric: &fabric,
            plane: &plane,
            folder: &folder,
            commands,
            clock,
            config: &config,
        };
        let (controller, second) = match config.replicas {
            _ if config.install == Install::ByHelm => (Controller::of_pods(), None),
            Replicas::One => (start::controller(&start).await?, None),
            Replicas::Two => {
                let second = start::replica(&start, 2).await?;
                (start::replica(&start, 1).await?, Some(second))
            }
        };
        (config.progress)("controller");
        let client = fabric.add_client("client", true)?;
        let sources = report::Sources {
            cloud: local.cloud.clone(),
            journal: Arc::clone(&journal),
            objects: plane.dump()?,
            namespaces: namespaces(&fabric, &local, &nodes, &client),
            router: fabric.router().clone(),
            topology: topology(&local, &nodes, &client),
            pods: kubelets.iter().map(Kubelet::places).collect(),
        };
        let world = Self {
            clock,
            seed: config.seed,
            objects,
            cluster,
            cloud: local.cloud.clone(),
            nodes,
            kubelets,
            sockets: sockets_of(client.netns(), client.address()),
            client,
            journal,
            controller,
            second,
            zones: start::places(&config),
            proxies: node_proxy::names(&config),
            witness,
            real_nodes,
            plane,
            local,
            last_words: LastWords { folder, sources },
            fabric,
        };
        world.proxies_ready().await?;
        (config.progress)("agents in sync");
        Ok(world)
    }

    /// The folder with logs and kubeconfigs of this world.
    pub fn folder(&self) -> &Path {
        self.last_words.folder.path()
    }

    /// The network.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The embedded API server itself, for what no client can do to it; an error if this world has a real one.
    pub fn api_server(&self) -> Result<&e2e_apiserver::ApiServer> {
        self.plane.embedded()
    }

    /// A client of the API server with every right.
    pub fn kube(&self) -> Client {
        self.plane.client()
    }

    /// What accounts write to the API server from now on.
    pub fn audit(&self) -> Result<Audit> {
        self.plane.audit()
    }

    /// What accounts asked of a real API server since it started.
    pub fn asked(&self) -> Result<BTreeSet<Asked>> {
        self.plane.asked()
    }

    /// A client of the API server with an account's rights only; an error on the embedded one, which knows none.
    pub async fn kube_as(&self, account: &Account) -> Result<Client> {
        self.plane.client_of(account).await
    }

    /// What our programs asked the API server for without the right to, since the last call. What nobody has called for
    /// by the world's end fails it.
    pub fn refused(&self) -> Result<Vec<Refused>> {
        self.plane.refused()
    }

    /// Opens the API on this machine's loopback, for kubectl; gives the kubeconfig of an administrator.
    pub fn on_loopback(&self) -> Result<(OnLoopback, PathBuf)> {
        self.plane.on_loopback()
    }

    /// Takes the API server away from all programs; kubelets and scenarios are in this process and keep it.
    pub fn without_api_server(&mut self) -> Result<()> {
        self.plane.go_away()
    }

    /// Gives it back.
    pub fn with_api_server(&mut self) -> Result<()> {
        self.plane.come_back(&self.fabric)
    }

    /// Takes it away from all programs for a moment: every connection and watch ends, as when it is started anew.
    pub async fn restart_api_server(&self, away: Duration) -> Result<()> {
        self.plane.go_away()?;
        self.clock.sleep(away).await;
        self.plane.come_back(&self.fabric)
    }

    /// The network of a node.
    pub fn node(&self, node: &str) -> Result<&NodeNet> {
        let found = self.nodes.iter().find(|n| n.name() == node);
        found.with_context(|| format!("no node {node}"))
    }

    /// The kubelet stand-in of a node.
    pub fn kubelet(&self, node: &str) -> Result<&Kubelet> {
        let found = self.kubelets.iter().find(|k| k.node().name() == node);
        found.with_context(|| format!("no node {node}"))
    }

    /// Checks the world and ends it: processes, namespaces, folder. An error says what did not hold, or what could not
    /// be removed.
    pub async fn end(self) -> Result<()> {
        self.end_with_drops(|_| false).await
    }

    /// Ends it as it is, whatever is in it: for those who are not scenarios. An error says that a program of control plane
    /// or nodes ended before.
    pub async fn end_early(self) -> Result<()> {
        self.remove().await
    }

    /// Keeps no report of its end.
    pub fn forget_logs(&mut self) {
        self.last_words.folder.done();
    }

    /// An administrator's kubeconfig for programs on the management network of a real control plane.
    pub fn kubeconfig_inside(&self) -> Result<PathBuf> {
        self.plane.kubeconfig_inside()
    }

    /// As [`World::end`], for a scenario in which the fabric's source check drops packets by design.
    pub async fn end_with_drops(self, expected: impl Fn(&Drop) -> bool) -> Result<()> {
        self.check(expected).await?;
        self.remove().await
    }

    async fn remove(self) -> Result<()> {
        self.plane.check()?;
        if let Some(real_nodes) = &self.real_nodes {
            real_nodes.check()?;
        }
        let Self {
            local,
            fabric,
            mut last_words,
            controller,
            second,
            kubelets,
            ..
        } = self;
        for controller in [Some(controller), second].into_iter().flatten() {
            controller.stop().await;
        }
        drop(kubelets);
        local.server.abort();
        fabric.end()?;
        last_words.folder.done();
        Ok(())
    }
}

/// The control plane, with what of ours this world has from the start.
async fn plane_of(
    config: &WorldConfig,
    fabric: &Fabric,
    clock: Clock,
    folder: &Path,
) -> Result<(ControlPlane, Installation)> {
    let cluster = config.cluster;
    if config.install == Install::ByHelm {
        let plane =
            ControlPlane::bare(cluster.back_end, fabric, clock, config.seed, folder).await?;
        let nothing = Installation::none(cluster)?;
        plane.grant(&nothing.rights).await?;
        return Ok((plane, nothing));
    }
    let plane = ControlPlane::start(cluster.back_end, fabric, clock, config.seed, folder).await?;
    let installation = installed(&plane, cluster, config.pod_health).await?;
    Ok((plane, installation))
}

/// Gives our programs the rights that the chart renders, and tells how it starts them.
async fn installed(plane: &ControlPlane, of: Cluster, pod_health: bool) -> Result<Installation> {
    let installation = tokio::task::spawn_blocking(move || Installation::of(of, pod_health));
    let installation = installation.await??;
    plane.grant(&installation.rights).await?;
    Ok(installation)
}

/// The nodes of a world that starts.
struct Started {
    nodes: Vec<NodeNet>,
    kubelets: Vec<Kubelet>,
    real_nodes: Option<RealNodes>,
}

impl Started {
    async fn all(start: &NodesStart<'_>, installation: &Installation) -> Result<Self> {
        match start.config.cluster.nodes {
            Nodes::StandIn => {
                let kubelets = start::nodes(start).await?;
                Ok(Self {
                    nodes: kubelets.iter().map(|k| k.node().clone()).collect(),
                    kubelets,
                    real_nodes: None,
                })
            }
            Nodes::Real => {
                let real = RealNodes::start(start, installation).await?;
                Ok(Self {
                    nodes: real.networks(),
                    kubelets: Vec::new(),
                    real_nodes: Some(real),
                })
            }
        }
    }
}

/// What a control plane consists of, for people who watch a world start.
const fn words_of(back_end: BackEnd) -> &'static str {
    match back_end {
        BackEnd::Embedded => "API server with our object types",
        BackEnd::Real => {
            "etcd, kube-apiserver, kube-controller-manager, kube-scheduler; our object types"
        }
    }
}

/// The namespaces that are there from start to end.
fn namespaces(
    fabric: &Fabric,
    local: &LocalCloud,
    nodes: &[NodeNet],
    client: &ClientNet,
) -> Vec<Netns> {
    let fixed = [fabric.router().netns(), fabric.management(), client.netns()];
    let lbs = local.lbs.iter().map(LbNode::netns);
    let nodes = nodes.iter().map(NodeNet::netns);
    fixed.into_iter().chain(lbs).chain(nodes).cloned().collect()
}

/// What stands where, a line each.
fn topology(local: &LocalCloud, nodes: &[NodeNet], client: &ClientNet) -> String {
    let client = format!("client {}\n", client.address());
    let lbs = local.lbs.iter();
    let lbs = lbs.map(|lb| format!("load balancer node of {}: {}\n", lb.zone(), lb.address()));
    let nodes = nodes.iter().map(|node| {
        format!(
            "node {}: {} at {}, {} at {}, pods {}\n",
            node.name(),
            node.address(),
            node.primary_port(),
            node.secondary_address(),
            node.secondary_port(),
            node.pod_cidr()
        )
    });
    std::iter::once(client).chain(lbs).chain(nodes).collect()
}

/// Name of the agent's pod on a node.
pub fn agent_name(node: &str) -> String {
    format!("onehop-agent-{node}")
}
