//! A world: one cluster on one cloud, with real programs and real packets. Fabric, embedded API server, fake cloud,
//! kubelet stand-ins, one agent a node, the controller, and a client outside. Ends with everything that it started.

mod cloud_view;
mod controller;
mod flow;
mod journal;
mod manifests;
mod node_view;
mod objects;
mod programs;
mod sockets;
mod wait;

pub use controller::Controller;
pub use flow::{first_answer, flow_of};
pub use journal::Journal;
pub use manifests::{OnTerm, POD_PORT, ServiceManifest, address_pool, deployment, pod};
pub use node_view::HttpAnswer;
pub use objects::Objects;
pub use programs::Programs;
pub use sockets::{sockets_of, syn_retransmissions};
pub use wait::eventually;

use anyhow::{Context, Result};
use e2e_apiserver::{
    ApiServer, Config as ApiConfig, ControllerOptions, Controllers, Identity, Serving,
};
use e2e_cloud::{
    Cloud, Driver, NetNode,
    engine::{Config as CloudConfig, Profile},
    scale::Scale,
};
use e2e_fabric::{ClientNet, Fabric, FabricConfig, Netns, WorldTag};
use e2e_kubelet::{ImageTable, Kubelet, KubeletConfig};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, Client, api::ListParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinHandle;

/// Where the API server listens.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 6443);
/// Where the fake cloud's REST API listens.
const CLOUD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 9000);
/// How long starting any part may take.
const START_WITHIN: Duration = Duration::from_secs(30);
/// The pool of load balancer addresses that a world has unless it says otherwise.
const POOL: &str = "198.51.100.10-198.51.100.99";

/// Our object types, as the chart installs them.
const CRDS: [&str; 3] = [
    include_str!("../../../charts/onehop/crds/addresspools.yaml"),
    include_str!("../../../charts/onehop/crds/loadbalancers.yaml"),
    include_str!("../../../charts/onehop/crds/nodetargets.yaml"),
];

/// What a world may choose.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Names of the nodes.
    pub nodes: Vec<&'static str>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Told of each step of the start, in a few words.
    pub progress: fn(&str),
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            nodes: vec!["a", "b"],
            seed: 1,
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
    /// Objects in the API server.
    pub objects: Objects,
    /// The fake cloud.
    pub cloud: Cloud,
    /// The cloud's one LB node.
    pub lb: NetNode,
    /// The LB node's namespace.
    pub lb_netns: Netns,
    lb_node_address: Ipv4Addr,
    /// The kubelet stand-ins, in the order of the nodes.
    pub kubelets: Vec<Kubelet>,
    /// The client outside.
    pub client: ClientNet,
    /// What happened to pods.
    pub journal: Arc<Journal>,
    /// The controller's process.
    pub controller: Controller,
    folder: PathBuf,
    api: ApiServer,
    _serving: Serving,
    _controllers: Controllers,
    cloud_server: JoinHandle<()>,
    _driver: Driver,
    // Last: its end takes every process and namespace with it.
    fabric: Fabric,
}

impl World {
    /// Starts everything and waits until it is ready to serve.
    pub async fn start(config: WorldConfig) -> Result<Self> {
        let programs = Programs::of_this_build()?;
        let clock = Clock::system();
        let tag = WorldTag::new()?;
        let folder = std::env::temp_dir().join(format!("onehop-world-{}", tag.as_str()));
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let fabric = Fabric::new(tag, FabricConfig::new(clock))?;
        (config.progress)("network: router and management network");

        let (api, serving, controllers) = start_api(&fabric, &clock, config.seed)?;
        let client = api.client(&Identity::admin());
        let objects = Objects::new(client.clone(), clock);
        for crd in CRDS {
            objects.apply_yaml(crd).await?;
        }
        (config.progress)("API server with our object types");

        let cloud = Cloud::new(
            CloudConfig {
                profile: Profile::local(),
                seed: config.seed,
                scale: Scale::new(clock.now(), 1),
                ranges: vec![Fabric::LB_CIDR.into()],
            },
            clock,
        );
        let driver = Driver::start(cloud.clone());
        let lb_net = fabric.add_lb_node("zone-a")?;
        let (lb_netns, lb_node_address) = (lb_net.netns().clone(), lb_net.address());
        let (_, lb) = NetNode::attach(lb_net, fabric.router().clone(), &driver)?;
        let cloud_server = serve_cloud(&fabric, cloud.clone())?;
        (config.progress)("local cloud with one load balancer node");

        let journal = Arc::new(Journal::default());
        let images = images(&programs)?;
        let mut kubelets = Vec::new();
        for (index, name) in config.nodes.iter().enumerate() {
            let hook = journal.hook();
            let kubelet = KubeletConfig {
                log_folder: Some(folder.clone()),
                seed: config.seed + index as u64,
                ..KubeletConfig::new(images.clone(), clock, hook)
            };
            let node = fabric.add_node(name)?;
            kubelets.push(Kubelet::start(client.clone(), node, kubelet).await?);
        }
        let kubeconfig = folder.join("kubeconfig-agent");
        write(
            &kubeconfig,
            &api.kubeconfig(
                &format!("https://{API}"),
                &Identity::service_account("onehop-system", "node-agent"),
            )?,
        )?;
        for name in &config.nodes {
            objects
                .create(agent_pod(
                    name,
                    &programs.path("onehop-node-agent")?,
                    &kubeconfig,
                ))
                .await?;
        }
        (config.progress)("nodes, each with an agent");

        objects.create(address_pool("pool", POOL)).await?;
        let kubeconfig = folder.join("kubeconfig-controller");
        write(
            &kubeconfig,
            &api.kubeconfig(
                &format!("https://{API}"),
                &Identity::service_account("onehop-system", "controller"),
            )?,
        )?;
        let controller = Controller::start(
            fabric.management().clone(),
            programs.path("onehop-controller")?,
            controller_args(&kubeconfig),
            folder.join("controller.log"),
            clock,
        )?;
        (config.progress)("controller");

        let client = fabric.add_client("client", true)?;
        let world = Self {
            clock,
            seed: config.seed,
            objects,
            cloud,
            lb,
            lb_netns,
            lb_node_address,
            kubelets,
            client,
            journal,
            controller,
            folder,
            api,
            _serving: serving,
            _controllers: controllers,
            cloud_server,
            _driver: driver,
            fabric,
        };
        world.agents_ready().await?;
        (config.progress)("agents in sync");
        Ok(world)
    }

    /// The folder with logs and kubeconfigs of this world.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The network.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// A client of the API server with every right.
    pub fn kube(&self) -> Client {
        self.api.client(&Identity::admin())
    }

    /// The kubelet of a node.
    pub fn kubelet(&self, node: &str) -> Result<&Kubelet> {
        self.kubelets
            .iter()
            .find(|k| k.node().name() == node)
            .with_context(|| format!("no node {node}"))
    }

    /// Waits until every agent says that it is in sync.
    pub async fn agents_ready(&self) -> Result<()> {
        for kubelet in &self.kubelets {
            self.objects
                .pod_ready(
                    "kube-system",
                    &agent_name(kubelet.node().name()),
                    START_WITHIN,
                )
                .await?;
        }
        Ok(())
    }

    /// Waits until a Service has an address of its load balancer.
    pub async fn lb_address(&self, name: &str) -> Result<Ipv4Addr> {
        let what = format!("Service {name} gets the address of a load balancer");
        eventually(&self.clock, &what, START_WITHIN, async || {
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
            ingress
                .iter()
                .find_map(|i| i.ip.as_ref()?.parse().ok())
                .ok_or_else(|| format!("ingress {ingress:?}"))
        })
        .await
    }

    /// Address of the load balancer node itself.
    pub fn lb_node_address(&self) -> Ipv4Addr {
        self.lb_node_address
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
            START_WITHIN,
            async || match self.objects.api::<Service>().get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
    }

    /// Kills (SIGKILL) a node's agent; its kubelet starts it again.
    pub fn kill_agent(&self, node: &str) -> Result<()> {
        let pids = self.kubelet(node)?.pids("kube-system", &agent_name(node));
        let pid = pids.values().next().context("the agent does not run")?;
        kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGKILL).context("kill the agent")
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

    /// Ends the world: processes, namespaces, folder. An error says what could not be removed.
    pub async fn end(self) -> Result<()> {
        let Self {
            cloud_server,
            fabric,
            folder,
            controller,
            kubelets,
            ..
        } = self;
        controller.stop().await;
        drop(kubelets);
        cloud_server.abort();
        fabric.end()?;
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))
    }
}

fn start_api(
    fabric: &Fabric,
    clock: &Clock,
    seed: u64,
) -> Result<(ApiServer, Serving, Controllers)> {
    let api = ApiServer::start(
        *clock,
        ApiConfig {
            seed,
            ..ApiConfig::default()
        },
    );
    let listener = fabric.management().tcp_listener(API)?;
    let serving = api.serve_tls(listener, &[])?;
    let controllers = api.run_controllers(&ControllerOptions::default());
    Ok((api, serving, controllers))
}

fn serve_cloud(fabric: &Fabric, cloud: Cloud) -> Result<JoinHandle<()>> {
    let listener = fabric.management().tcp_listener(CLOUD)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        // Ends with the world; an error before shows as a cloud that does not answer.
        if let Err(error) = e2e_cloud::rest::serve(cloud, listener).await {
            tracing::error!(%error, "the cloud's REST API ended");
        }
    }))
}

fn images(programs: &Programs) -> Result<ImageTable> {
    Ok(ImageTable::default()
        .with("pod-server", programs.path("pod-server")?, &[])
        .with(
            "onehop-node-agent",
            programs.path("onehop-node-agent")?,
            &[],
        ))
}

/// Name of the agent's pod on a node.
pub fn agent_name(node: &str) -> String {
    format!("onehop-agent-{node}")
}

fn agent_pod(node: &str, program: &Path, kubeconfig: &Path) -> Value {
    let cluster_cidr = Fabric::CLUSTER_CIDR.to_string();
    let socket = format!("@onehop-ready-{node}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": agent_name(node), "namespace": "kube-system", "labels": {"app": "onehop-agent"}},
        "spec": {
            "nodeName": node, "hostNetwork": true,
            "containers": [{
                "name": "agent", "image": "onehop-node-agent",
                "args": ["--kubeconfig", kubeconfig, "--node-name", node, "--cluster-cidr", cluster_cidr, "--ready-socket", socket],
                "readinessProbe": {
                    "exec": {"command": [program, "ready", "--ready-socket", socket]},
                    "periodSeconds": 1,
                },
            }],
        },
    })
}

fn controller_args(kubeconfig: &Path) -> Vec<String> {
    [
        "--provider",
        "local",
        "--local-endpoint",
        &format!("http://{CLOUD}"),
        "--install-id",
        "e2e",
        "--kubeconfig",
        &kubeconfig.to_string_lossy(),
    ]
    .map(str::to_owned)
    .to_vec()
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
