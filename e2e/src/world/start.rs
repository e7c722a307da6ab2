//! The parts of a world, each started by one function, in the order in which they need each other.

use super::{
    CloudKind, Controller, Folder, Journal, LbNode, Programs, Proxy, WorldConfig, aws,
    installation::{Arguments, Commands, SWITCH_TAIL_SECONDS},
    node_proxy,
};
use crate::controlplane::{Account, ControlPlane};
use anyhow::{Result, ensure};
use e2e_cloud::{
    Cloud, Driver, NetNode,
    aws::Aws,
    engine::{Config as CloudConfig, Profile},
    scale::Scale,
};
use e2e_fabric::Fabric;
use e2e_kubelet::{ImageTable, Kubelet, KubeletConfig};
use onehop_runtime::clock::Clock;
use std::{net::SocketAddr, sync::Arc};
use tokio::task::JoinHandle;

/// Where the fake cloud's REST API listens.
pub(super) const CLOUD: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Fabric::MANAGEMENT), 9000);

/// The local cloud: its engine, its API and a load balancer node in each zone.
pub(super) struct LocalCloud {
    pub(super) cloud: Cloud,
    pub(super) lbs: Vec<LbNode>,
    /// AWS over the same engine, in a world on it.
    pub(super) aws: Option<Aws>,
    pub(super) server: JoinHandle<()>,
    pub(super) driver: Driver,
}

impl LocalCloud {
    pub(super) fn start(
        fabric: &Fabric,
        clock: Clock,
        scale: Scale,
        world: &WorldConfig,
    ) -> Result<Self> {
        let config = CloudConfig {
            profile: match (&world.profile, world.cloud) {
                (Some(profile), _) => profile.clone(),
                (None, CloudKind::Local) => Profile::local(),
                (None, CloudKind::Aws) => Profile::nlb(),
            },
            seed: world.seed,
            scale,
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
        let account = || aws::account(cloud.clone(), &world.zones);
        let aws = (world.cloud == CloudKind::Aws).then(account);
        let server = serve(fabric, cloud.clone(), aws.clone())?;
        Ok(Self {
            cloud,
            lbs,
            aws,
            server,
            driver,
        })
    }
}

fn serve(fabric: &Fabric, cloud: Cloud, aws: Option<Aws>) -> Result<JoinHandle<()>> {
    let listener = fabric.management().tcp_listener(CLOUD)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        // Ends with the world; an error before shows as a cloud that does not answer.
        let ended = match aws {
            Some(aws) => aws.serve(listener).await,
            None => e2e_cloud::rest::serve(cloud, listener).await,
        };
        if let Err(error) = ended {
            tracing::error!(%error, "the cloud's API ended");
        }
    }))
}

/// What every node is started with.
pub(super) struct NodesStart<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) plane: &'a ControlPlane,
    pub(super) config: &'a WorldConfig,
    pub(super) commands: &'a Commands,
    pub(super) folder: &'a Folder,
    pub(super) journal: &'a Arc<Journal>,
    pub(super) clock: Clock,
}

/// Nodes with their kubelets, and on each the world's Service proxy as a hostNetwork pod.
pub(super) async fn nodes(start: &NodesStart<'_>) -> Result<Vec<Kubelet>> {
    let config = start.config;
    let speed = config.speeds.pod_grace;
    let images = images(config.cluster.proxy, speed)?;
    let mut kubelets = Vec::new();
    let zones = config.zones.iter().cycle();
    for ((name, zone), seed) in config.nodes.iter().zip(zones).zip(config.seed..) {
        let kubelet = KubeletConfig {
            zone: (*zone).to_owned(),
            speed,
            log_folder: Some(start.folder.path().to_owned()),
            seed,
            ..KubeletConfig::new(images.clone(), start.clock, start.journal.hook())
        };
        let node = start.fabric.add_node(name)?;
        kubelets.push(Kubelet::start(start.plane.client(), node, kubelet).await?);
        let pod = node_proxy::pod(start, name).await?;
        start.plane.objects.create(pod).await?;
    }
    Ok(kubelets)
}

/// Image names of this world's pods, each with its program.
fn images(proxy: Proxy, speed: u32) -> Result<ImageTable> {
    let ours = Programs::of_this_build()?;
    let images = ImageTable::default().with(
        "pod-server",
        ours.path("pod-server")?,
        &["--speed", &speed.to_string()],
    );
    Ok(match proxy {
        Proxy::Beside | Proxy::Replace => {
            images.with("onehop-node-agent", ours.path("onehop-node-agent")?, &[])
        }
        Proxy::KubeProxy => {
            let program = Programs::of_the_control_plane()?.path("kube-proxy")?;
            images.with("kube-proxy", program, &[])
        }
    })
}

/// The only replica of the controller.
pub(super) async fn controller(start: &ControllerStart<'_>) -> Result<Controller> {
    let args = start.commands.controller.clone();
    let alone = args.and([("--leader-elect", "false".to_owned())]);
    start.run("controller", alone).await
}

/// One of two replicas, by its number.
pub(super) async fn replica(start: &ControllerStart<'_>, number: u16) -> Result<Controller> {
    let name = format!("controller-{number}");
    // They share the management namespace, where pods would have one each.
    let own = start.commands.controller.clone();
    let own = own.with(
        "--metrics-address",
        &format!("0.0.0.0:{}", 8080 + 2 * number),
    )?;
    let own = own.with(
        "--health-address",
        &format!("0.0.0.0:{}", 8081 + 2 * number),
    )?;
    let own = own.and([("--pod-name", name.clone())]);
    start.run(&name, own).await
}

/// What every controller needs.
pub(super) struct ControllerStart<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) plane: &'a ControlPlane,
    pub(super) folder: &'a Folder,
    pub(super) commands: &'a Commands,
    pub(super) clock: Clock,
    pub(super) cloud: CloudKind,
    /// How many times shorter the product's own bounds are.
    pub(super) speed: u32,
}

impl ControllerStart<'_> {
    /// A supervised process in the management namespace.
    async fn run(&self, name: &str, args: Arguments) -> Result<Controller> {
        let account = Account::Controller {
            replica: name.to_owned(),
        };
        let kubeconfig = self.plane.kubeconfig(&account).await?;
        let switch_tail = SWITCH_TAIL_SECONDS / f64::from(self.speed);
        let args = self
            .in_cloud(args)
            .with("--switch-tail-seconds", &switch_tail.to_string())?
            // In place of the pod's account.
            .and([("--kubeconfig", kubeconfig.to_string_lossy().into_owned())]);
        Controller::start(
            self.fabric.management().clone(),
            Programs::of_this_build()?.path("onehop-controller")?,
            args.into_vec(),
            self.folder.path().join(format!("{name}.log")),
            self.clock,
        )
    }

    /// The chart knows the local cloud only.
    fn in_cloud(&self, args: Arguments) -> Arguments {
        match self.cloud {
            CloudKind::Local => args,
            CloudKind::Aws => args
                .without(&["--provider", "--cluster-name", "--local-endpoint"])
                .and([
                    ("--provider", "aws".to_owned()),
                    ("--cluster-name", aws::CLUSTER.to_owned()),
                    ("--aws-region", aws::REGION.to_owned()),
                    ("--aws-vpc-id", aws::VPC.to_owned()),
                    (
                        "--aws-api-endpoints",
                        format!("elasticloadbalancing=http://{CLOUD},ec2=http://{CLOUD}"),
                    ),
                ]),
        }
    }
}
