//! The parts of a world, each started by one function, in the order in which they need each other.

use super::{
    Controller, Folder, Journal, LbNode, Objects, Programs, Proxy, WorldConfig, address_pool,
    agent_name,
};
use anyhow::{Context, Result, ensure};
use e2e_apiserver::{
    ApiServer, Config as ApiConfig, ControllerOptions, Controllers, Identity, Serving,
};
use e2e_cloud::{
    Cloud, Driver, NetNode,
    engine::{Config as CloudConfig, Profile},
    scale::Scale,
};
use e2e_fabric::Fabric;
use e2e_kubelet::{ImageTable, Kubelet, KubeletConfig};
use kube::Client;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::task::JoinHandle;

/// Where the API server listens.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 6443);
/// Where the fake cloud's REST API listens.
pub(super) const CLOUD: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 9000);
/// The pool of load balancer addresses that a world has unless it says otherwise.
const POOL: &str = "198.51.100.10-198.51.100.99";
/// Seconds that an old target group is kept after a switch. The local cloud switches at once, so little is enough.
const SWITCH_TAIL_SECONDS: &str = "5";

/// Our object types, as the chart installs them.
const CRDS: [&str; 3] = [
    include_str!("../../../charts/onehop/crds/addresspools.yaml"),
    include_str!("../../../charts/onehop/crds/loadbalancers.yaml"),
    include_str!("../../../charts/onehop/crds/nodetargets.yaml"),
];

/// The API server with its controllers and our object types.
pub(super) struct ControlPlane {
    pub(super) api: ApiServer,
    pub(super) objects: Objects,
    clock: Clock,
    _serving: Serving,
    _controllers: Controllers,
}

impl ControlPlane {
    pub(super) async fn start(fabric: &Fabric, clock: Clock, seed: u64) -> Result<Self> {
        let config = ApiConfig {
            seed,
            service_cidrs: vec![Fabric::SERVICE_CIDR.into(), Fabric::SERVICE_CIDR6.into()],
            ..ApiConfig::default()
        };
        let api = ApiServer::start(clock, config);
        let serving = api.serve_tls(fabric.management().tcp_listener(API)?, &[])?;
        let controllers = api.run_controllers(&ControllerOptions::default());
        let objects = Objects::new(api.client(&Identity::admin()), clock);
        for crd in CRDS {
            objects.apply_yaml(crd).await?;
        }
        objects.create(address_pool("pool", POOL)).await?;
        Ok(Self {
            api,
            objects,
            clock,
            _serving: serving,
            _controllers: controllers,
        })
    }

    pub(super) fn client(&self) -> Client {
        self.api.client(&Identity::admin())
    }

    /// Writes a kubeconfig for a `ServiceAccount` of ours.
    fn kubeconfig(&self, folder: &Folder, account: &str) -> Result<PathBuf> {
        let identity = Identity::service_account("onehop-system", account);
        self.write_kubeconfig(folder, account, API, &identity)
    }

    pub(super) fn serve_on_loopback(&self, folder: &Folder) -> Result<(Serving, PathBuf)> {
        let listener =
            std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
        let serving = self.api.serve_tls(listener, &[])?;
        let path = self.write_kubeconfig(folder, "admin", serving.address(), &Identity::admin())?;
        Ok((serving, path))
    }

    fn write_kubeconfig(
        &self,
        folder: &Folder,
        name: &str,
        server: SocketAddr,
        identity: &Identity,
    ) -> Result<PathBuf> {
        let text = self
            .api
            .kubeconfig(&format!("https://{server}"), identity)?;
        let path = folder.path().join(format!("kubeconfig-{name}"));
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}

/// The local cloud: its engine, its API and a load balancer node in each zone.
pub(super) struct LocalCloud {
    pub(super) cloud: Cloud,
    pub(super) lbs: Vec<LbNode>,
    pub(super) server: JoinHandle<()>,
    pub(super) driver: Driver,
}

impl LocalCloud {
    pub(super) fn start(fabric: &Fabric, clock: Clock, world: &WorldConfig) -> Result<Self> {
        let config = CloudConfig {
            profile: Profile::local(),
            seed: world.seed,
            scale: Scale::new(clock.now(), 1),
            ranges: vec![Fabric::LB_CIDR.into(), Fabric::LB_CIDR6.into()],
        };
        let cloud = Cloud::new(config, clock);
        let driver = Driver::start(cloud.clone());
        ensure!(!world.zones.is_empty(), "a world needs a zone");
        let lb_node = |zone: &&str| {
            let net = fabric.add_lb_node(zone)?;
            let (_, packets) = NetNode::attach(net.clone(), fabric.router().clone(), &driver)?;
            anyhow::Ok(LbNode { net, packets })
        };
        let lbs = world.zones.iter().map(lb_node).collect::<Result<_>>()?;
        let server = serve(fabric, cloud.clone())?;
        Ok(Self {
            cloud,
            lbs,
            server,
            driver,
        })
    }
}

fn serve(fabric: &Fabric, cloud: Cloud) -> Result<JoinHandle<()>> {
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

/// Nodes with their kubelets, and an agent on each as a hostNetwork pod.
pub(super) async fn nodes(
    fabric: &Fabric,
    plane: &ControlPlane,
    config: &WorldConfig,
    folder: &Folder,
    journal: &Arc<Journal>,
) -> Result<Vec<Kubelet>> {
    let clock = plane.clock;
    let programs = Programs::of_this_build()?;
    let agent = programs.path("onehop-node-agent")?;
    let images = ImageTable::default()
        .with("pod-server", programs.path("pod-server")?, &[])
        .with("onehop-node-agent", &agent, &[]);
    let kubeconfig = plane.kubeconfig(folder, "node-agent")?;
    let mut kubelets = Vec::new();
    let zones = config.zones.iter().cycle();
    for ((name, zone), seed) in config.nodes.iter().zip(zones).zip(config.seed..) {
        let kubelet = KubeletConfig {
            zone: (*zone).to_owned(),
            log_folder: Some(folder.path().to_owned()),
            seed,
            ..KubeletConfig::new(images.clone(), clock, journal.hook())
        };
        kubelets.push(Kubelet::start(plane.client(), fabric.add_node(name)?, kubelet).await?);
        plane
            .objects
            .create(agent_pod(name, &agent, &kubeconfig, config.proxy))
            .await?;
    }
    Ok(kubelets)
}

fn agent_pod(node: &str, program: &Path, kubeconfig: &Path, proxy: Proxy) -> Value {
    let cluster_cidr = Fabric::CLUSTER_CIDR.to_string();
    let socket = format!("@onehop-ready-{node}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": agent_name(node), "namespace": "kube-system", "labels": {"app": "onehop-agent"}},
        "spec": {
            "nodeName": node, "hostNetwork": true,
            "containers": [{
                "name": "agent", "image": "onehop-node-agent",
                "args": ["--kubeconfig", kubeconfig, "--node-name", node, "--mode", proxy.flag(), "--cluster-cidr", cluster_cidr, "--ready-socket", socket],
                "readinessProbe": {
                    "exec": {"command": [program, "ready", "--ready-socket", socket]},
                    "periodSeconds": 1,
                },
            }],
        },
    })
}

/// Times of the election between two replicas: short, for a test waits for a Lease to run out.
const ELECTION: [(&str, &str); 3] = [
    ("--leader-elect-lease-duration", "4s"),
    ("--leader-elect-renew-deadline", "2500ms"),
    ("--leader-elect-retry-period", "300ms"),
];

/// The only replica of the controller.
pub(super) fn controller(start: &ControllerStart<'_>) -> Result<Controller> {
    start.run("controller", &["--leader-elect=false".to_owned()])
}

/// One of two replicas, by its number.
pub(super) fn replica(start: &ControllerStart<'_>, number: u16) -> Result<Controller> {
    let name = format!("controller-{number}");
    let own = [
        ("--pod-name", name.clone()),
        // They share the management namespace.
        (
            "--metrics-address",
            format!("0.0.0.0:{}", 8080 + 2 * number),
        ),
        ("--health-address", format!("0.0.0.0:{}", 8081 + 2 * number)),
    ];
    let times = ELECTION.map(|(flag, value)| (flag, value.to_owned()));
    start.run(&name, &flags(times.into_iter().chain(own)))
}

/// What every controller needs.
pub(super) struct ControllerStart<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) plane: &'a ControlPlane,
    pub(super) folder: &'a Folder,
    pub(super) proxy: Proxy,
}

impl ControllerStart<'_> {
    /// A supervised process in the management namespace.
    fn run(&self, name: &str, more: &[String]) -> Result<Controller> {
        let kubeconfig = self.plane.kubeconfig(self.folder, name)?;
        let args = [
            ("--provider", "local".to_owned()),
            ("--local-endpoint", format!("http://{CLOUD}")),
            ("--install-id", "e2e".to_owned()),
            ("--proxy", self.proxy.flag().to_owned()),
            ("--switch-tail-seconds", SWITCH_TAIL_SECONDS.to_owned()),
            ("--kubeconfig", kubeconfig.to_string_lossy().into_owned()),
        ];
        Controller::start(
            self.fabric.management().clone(),
            Programs::of_this_build()?.path("onehop-controller")?,
            [flags(args), more.to_vec()].concat(),
            self.folder.path().join(format!("{name}.log")),
            self.plane.clock,
        )
    }
}

fn flags<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> Vec<String> {
    let pairs = pairs.into_iter();
    pairs
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
}
