//! A world: one cluster on one cloud, with real programs and real packets. Fabric, control plane, fake cloud, kubelet
//! stand-ins, one Service proxy a node, the controller, and a client outside. Ends with everything that it started.

mod assertions;
mod aws;
mod azure;
mod cloud_view;
mod controller;
mod family;
mod first;
mod folder;
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
mod report;
mod rest;
mod sockets;
mod start;
mod wait;
mod witness;

pub use controller::Controller;
pub use family::Family;
pub use first::first_answer;
pub use installation::{Commands, values as chart_values};
pub use journal::Journal;
pub use lb_node::LbNode;
pub use manifests::{OnTerm, POD_PORT, ServiceManifest, address_pool, deployment, pod};
pub use node_proxy::name as proxy_pod;
pub use node_view::HttpAnswer;
pub use objects::{Objects, ProxyLabel};
pub use programs::Programs;
pub use sockets::{sockets_of, syn_retransmissions};
pub use wait::eventually;

use crate::{
    controlplane::{Account, Asked, Audit, BackEnd, ControlPlane, OnLoopback, Refused},
    traffic::SocketSource,
};
use anyhow::{Context, Result};
use clap::ValueEnum;
use e2e_cloud::{Cloud, engine::Profile, scale::Speeds};
use e2e_fabric::{ClientNet, Drop, Fabric, FabricConfig, Netns, WorldTag};
use e2e_kubelet::Kubelet;
use folder::{Folder, LastWords};
use installation::Installation;
use kube::Client;
use onehop_runtime::clock::Clock;
use start::{ControllerStart, LocalCloud, NodesStart};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use witness::Witness;

/// Who is the Service proxy of every node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// Our agent as it runs beside a kube-proxy (crd.md section 8): for Services with our label only.
    #[default]
    Beside,
    /// Our agent as the node's only proxy.
    Replace,
    /// A real kube-proxy (nftables mode), and no agent.
    KubeProxy,
}

impl Proxy {
    /// The port on which every node answers for the health of this proxy (crd.md section 8).
    pub const fn health_port(self) -> u16 {
        match self {
            Self::Beside | Self::Replace => 10356,
            Self::KubeProxy => 10256,
        }
    }

    /// The chart's value for how agents run; it also tells the controller who answers for a node.
    const fn mode(self) -> &'static str {
        match self {
            Self::Beside | Self::KubeProxy => "beside",
            Self::Replace => "replace",
        }
    }
}

/// What a scenario runs on. Each is written once, for all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Whose control plane.
    pub back_end: BackEnd,
    /// Whose Service proxy.
    pub proxy: Proxy,
    /// Whether Services keep our label.
    pub label: ProxyLabel,
    /// Of which family Services are that do not say it themselves.
    pub family: Family,
}

impl Cluster {
    /// With this control plane; agents beside a kube-proxy.
    pub const fn on(back_end: BackEnd) -> Self {
        Self {
            back_end,
            proxy: Proxy::Beside,
            label: ProxyLabel::AsWritten,
            family: Family::V4,
        }
    }

    /// With this proxy for every Service, so that two proxies are asked for the same.
    pub const fn proxied_by(proxy: Proxy) -> Self {
        Self {
            back_end: BackEnd::Embedded,
            proxy,
            label: ProxyLabel::Removed,
            family: Family::V4,
        }
    }

    /// The same in another family.
    #[must_use]
    pub const fn in_family(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// The same with another proxy.
    #[must_use]
    pub const fn with_proxy(self, proxy: Proxy) -> Self {
        Self { proxy, ..self }
    }
}

/// Whose APIs the fake cloud speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CloudKind {
    /// Its own.
    #[default]
    Local,
    /// Those of AWS, and it behaves as Network Load Balancers do.
    Aws,
    /// Those of Azure, and it behaves as Standard Load Balancers do.
    Azure,
}

/// How many controllers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// One, without an election.
    One,
    /// Two, of which one leads.
    Two,
}

/// What a world may choose.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Names of the nodes.
    pub nodes: Vec<&'static str>,
    /// Zones, each with a load balancer node. The nodes are spread over them, round and round.
    pub zones: Vec<&'static str>,
    /// Whose APIs the cloud speaks.
    pub cloud: CloudKind,
    /// Seed of every random choice.
    pub seed: u64,
    /// How the cloud behaves; as its kind does if none is given.
    pub profile: Option<Profile>,
    /// How long an ended pod's address stays with its node, in time of the cloud (FC-75).
    pub cooldown: Duration,
    /// How many times faster than the wall timers of the cloud, of pods and of the product run: all or none (FC-04).
    /// Clients, probes of kubelets and everything that the machine itself does keep the wall's time.
    pub speeds: Speeds,
    /// Control plane and Service proxy.
    pub cluster: Cluster,
    /// Flags of the agents beside those that every world gives.
    pub agent_flags: Vec<&'static str>,
    /// Nodes on which no Service proxy ever runs (FC-79a).
    pub without_proxy: Vec<&'static str>,
    /// A real kube-proxy lives on every node beside its agent.
    pub kube_proxy_too: bool,
    /// Load balancers ask agents for the health of pods, as the chart has it; else the pods themselves.
    pub pod_health: bool,
    /// How many controllers there are.
    pub replicas: Replicas,
    /// Leave a folder with logs when the world does not end well.
    pub keep_logs: bool,
    /// Told of each step of the start, in a few words.
    pub progress: fn(&str),
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            nodes: vec!["a", "b"],
            zones: vec!["zone-a"],
            cloud: CloudKind::Local,
            seed: 1,
            profile: None,
            cooldown: Duration::ZERO,
            speeds: Speeds::all(1),
            cluster: Cluster::default(),
            agent_flags: Vec::new(),
            without_proxy: Vec::new(),
            kube_proxy_too: false,
            pod_health: true,
            replicas: Replicas::One,
            keep_logs: true,
            progress: |_| {},
        }
    }
}

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
    /// The kubelet stand-ins, in the order of the nodes.
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
        let (cluster, pod_health) = (config.cluster, config.pod_health);
        let plane =
            ControlPlane::start(cluster.back_end, &fabric, clock, config.seed, folder.path())
                .await?;
        let installation =
            tokio::task::spawn_blocking(move || Installation::of(cluster, pod_health));
        let Installation { rights, commands } = installation.await??;
        plane.grant(&rights).await?;
        let objects = plane.objects.clone().of(cluster);
        objects
            .create(address_pool("pool", &cluster.family.pool()))
            .await?;
        (config.progress)(words_of(cluster.back_end));
        let witness = Witness::start(plane.client(), clock, config.seed);
        let local = LocalCloud::start(&fabric, clock, scale, &config)?;
        if let Some(authority) = &local.azure_ca {
            std::fs::write(folder.path().join(azure::CA_FILE), authority)?;
        }
        (config.progress)("local cloud with its load balancer nodes");
        let journal = Arc::new(Journal::default());
        let kubelets = start::nodes(&NodesStart {
            fabric: &fabric,
            plane: &plane,
            config: &config,
            commands: &commands,
            folder: &folder,
            journal: &journal,
            clock,
        })
        .await?;
        if let Some(aws) = &local.aws {
            aws::machines(aws, &kubelets, &config.zones);
        }
        (config.progress)("nodes, each with an agent");
        let start = ControllerStart {
            fabric: &fabric,
            plane: &plane,
            folder: &folder,
            commands: &commands,
            clock,
            cloud: config.cloud,
            speed: config.speeds.product,
        };
        let (controller, second) = match config.replicas {
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
            namespaces: namespaces(&fabric, &local, &kubelets, &client),
            router: fabric.router().clone(),
            topology: topology(&local, &kubelets, &client),
            pods: kubelets.iter().map(Kubelet::places).collect(),
        };
        let world = Self {
            clock,
            seed: config.seed,
            objects,
            cluster,
            cloud: local.cloud.clone(),
            kubelets,
            sockets: sockets_of(client.netns(), client.address()),
            client,
            journal,
            controller,
            second,
            zones: start::places(&config),
            proxies: node_proxy::names(&config),
            witness,
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

    /// The kubelet of a node.
    pub fn kubelet(&self, node: &str) -> Result<&Kubelet> {
        let found = self.kubelets.iter().find(|k| k.node().name() == node);
        found.with_context(|| format!("no node {node}"))
    }

    /// Checks the world and ends it: processes, namespaces, folder. An error says what did not hold, or what could not
    /// be removed.
    pub async fn end(self) -> Result<()> {
        self.end_with_drops(|_| false).await
    }

    /// As [`World::end`], for a scenario in which the fabric's source check drops packets by design.
    pub async fn end_with_drops(self, expected: impl Fn(&Drop) -> bool) -> Result<()> {
        self.check(expected).await?;
        self.plane.check()?;
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
    kubelets: &[Kubelet],
    client: &ClientNet,
) -> Vec<Netns> {
    let fixed = [fabric.router().netns(), fabric.management(), client.netns()];
    let lbs = local.lbs.iter().map(LbNode::netns);
    let nodes = kubelets.iter().map(|k| k.node().netns());
    fixed.into_iter().chain(lbs).chain(nodes).cloned().collect()
}

/// What stands where, a line each.
fn topology(local: &LocalCloud, kubelets: &[Kubelet], client: &ClientNet) -> String {
    let client = format!("client {}\n", client.address());
    let lbs = local.lbs.iter();
    let lbs = lbs.map(|lb| format!("load balancer node of {}: {}\n", lb.zone(), lb.address()));
    let nodes = kubelets.iter().map(|kubelet| {
        let node = kubelet.node();
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
