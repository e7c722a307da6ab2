//! The parts of a world, each started by one function, in the order in which they need each other.

use super::{
    CloudKind, Controller, Folder, Install, Journal, LbNode, Programs, Proxy, WorldConfig, aws,
    azure, images,
    installation::{Arguments, Commands, SWITCH_TAIL_SECONDS},
    node_proxy,
};
use crate::controlplane::{Account, ControlPlane};
use anyhow::{Result, ensure};
use e2e_apiserver::pki::Authority;
use e2e_cloud::{
    Cloud, Driver, NetNode,
    aws::Aws,
    azure::{Azure, Certificate},
    engine::{Config as CloudConfig, Profile},
    scale::Scale,
};
use e2e_fabric::Fabric;
use e2e_kubelet::{ImageTable, Kubelet, KubeletConfig};
use onehop_runtime::clock::Clock;
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};
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
    /// Azure over the same engine, in a world on it.
    pub(super) azure: Option<Azure>,
    /// The authority of its certificate, in PEM.
    pub(super) azure_ca: Option<String>,
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
                (None, CloudKind::Azure) => Profile::azure(),
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
        let lbs = world
            .zones
            .iter()
            .map(lb_node)
            .collect::<Result<Vec<_>>>()?;
        let account = || aws::account(cloud.clone(), &world.zones);
        let aws = (world.cloud == CloudKind::Aws).then(account);
        if let Some(aws) = &aws {
            aws.on_rules(aws::rules_on_packets(fabric, &lbs));
        }
        let azure = (world.cloud == CloudKind::Azure).then(|| azure::subscription(cloud.clone()));
        let mut azure_ca = None;
        let api = match (&aws, &azure) {
            (Some(aws), _) => Api::Aws(aws.clone()),
            (_, Some(azure)) => {
                let authority = Authority::new()?;
                let issued = authority.server(&[CLOUD.ip().to_string()])?;
                azure_ca = Some(authority.pem().to_owned());
                let certificate = Certificate {
                    certificate: issued.certificate_pem(),
                    key: issued.key_pem(),
                };
                Api::Azure(azure.clone(), certificate)
            }
            (None, None) => Api::Local(cloud.clone()),
        };
        let server = serve(fabric, api)?;
        Ok(Self {
            cloud,
            lbs,
            aws,
            azure,
            azure_ca,
            server,
            driver,
        })
    }
}

/// What the cloud's address speaks.
enum Api {
    Local(Cloud),
    Aws(Aws),
    Azure(Azure, Certificate),
}

fn serve(fabric: &Fabric, api: Api) -> Result<JoinHandle<()>> {
    let listener = fabric.management().tcp_listener(CLOUD)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        // Ends with the world; an error before shows as a cloud that does not answer.
        let ended = match api {
            Api::Aws(aws) => aws.serve(listener).await,
            Api::Azure(azure, certificate) => azure.serve_tls(listener, certificate).await,
            Api::Local(cloud) => e2e_cloud::rest::serve(cloud, listener).await,
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

/// The zone of each node: spread round and round.
pub(super) fn places(config: &WorldConfig) -> BTreeMap<String, String> {
    let zones = config.zones.iter().cycle();
    let nodes = config.nodes.iter().zip(zones);
    nodes
        .map(|(node, zone)| ((*node).to_owned(), (*zone).to_owned()))
        .collect()
}

/// Nodes with their kubelets, and on each the world's Service proxy as a hostNetwork pod.
pub(super) async fn nodes(start: &NodesStart<'_>) -> Result<Vec<Kubelet>> {
    let config = start.config;
    let speed = config.speeds.pod_grace;
    let images = if config.install == Install::ByHelm {
        images::with_ours(images(config, speed)?, start.folder.path())?
    } else {
        images(config, speed)?
    };
    let mut kubelets = Vec::new();
    let places = places(config);
    for (index, (name, seed)) in config.nodes.iter().zip(config.seed..).enumerate() {
        let zone = places.get(*name).cloned().unwrap_or_default();
        let of_aws = (config.cloud == CloudKind::Aws).then(|| aws::provider_id(&zone, index));
        let kubelet = KubeletConfig {
            zone,
            provider_id: of_aws,
            speed,
            log_folder: Some(start.folder.path().to_owned()),
            seed,
            ..KubeletConfig::new(images.clone(), start.clock, start.journal.hook())
        };
        let node = if config.install == Install::ByHelm {
            start.fabric.add_node_inside(name)?
        } else {
            start.fabric.add_node(name)?
        };
        kubelets.push(Kubelet::start(start.plane.client(), node, kubelet).await?);
        for pod in node_proxy::pods(start, name).await? {
            start.plane.objects.create(pod).await?;
        }
    }
    Ok(kubelets)
}

/// Image names of this world's pods, each with its program.
fn images(config: &WorldConfig, speed: u32) -> Result<ImageTable> {
    let ours = Programs::of_this_build()?;
    let proxy = config.cluster.proxy;
    let mut images = ImageTable::default().with(
        "pod-server",
        ours.path("pod-server")?,
        &["--speed", &speed.to_string()],
    );
    if proxy != Proxy::KubeProxy {
        images = images.with("onehop-node-agent", ours.path("onehop-node-agent")?, &[]);
    }
    if proxy == Proxy::KubeProxy || config.kube_proxy_too {
        let program = Programs::of_the_control_plane()?.path("kube-proxy")?;
        images = images.with("kube-proxy", program, &[]);
    }
    Ok(images)
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

/// Tails of the clouds, in their seconds (ZD-51).
const AWS_TAIL_SECONDS: u32 = 180;
const AZURE_TAIL_SECONDS: u32 = 30;

/// What every controller needs.
pub(super) struct ControllerStart<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) plane: &'a ControlPlane,
    pub(super) folder: &'a Folder,
    pub(super) commands: &'a Commands,
    pub(super) clock: Clock,
    pub(super) config: &'a WorldConfig,
}

impl ControllerStart<'_> {
    /// A supervised process in the management namespace.
    async fn run(&self, name: &str, args: Arguments) -> Result<Controller> {
        let account = Account::Controller {
            replica: name.to_owned(),
        };
        let kubeconfig = self.plane.kubeconfig(&account).await?;
        let speed = self.config.speeds.product;
        let switch_tail = SWITCH_TAIL_SECONDS / f64::from(speed);
        let hold = (self.config.hold / speed).as_secs().max(1);
        let tail = match self.config.cloud {
            CloudKind::Local => 0,
            CloudKind::Aws => AWS_TAIL_SECONDS.div_ceil(speed),
            CloudKind::Azure => AZURE_TAIL_SECONDS.div_ceil(speed),
        };
        let args = self
            .in_cloud(args)
            .with("--switch-tail-seconds", &switch_tail.to_string())?
            .with("--hold-max-seconds", &hold.to_string())?
            .with("--tail-max-seconds", &tail.to_string())?
            // In place of the pod's account.
            .and([("--kubeconfig", kubeconfig.to_string_lossy().into_owned())]);
        let own = &self.config.controller_flags;
        let names = own
            .iter()
            .map(|flag| flag.split('=').next().unwrap_or(flag));
        let mut args = args.without(&names.collect::<Vec<_>>()).into_vec();
        args.extend(own.iter().map(|flag| (*flag).to_owned()));
        Controller::start(
            self.fabric.management().clone(),
            Programs::of_this_build()?.path("onehop-controller")?,
            args,
            self.folder.path().join(format!("{name}.log")),
            self.clock,
        )
    }

    /// Of another cloud than the local one, by the flags of its world.
    fn in_cloud(&self, args: Arguments) -> Arguments {
        match self.config.cloud {
            CloudKind::Local => args,
            CloudKind::Azure => args
                .without(&["--provider", "--cluster-name", "--local-endpoint"])
                .and(azure::flags(CLOUD, self.folder.path())),
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
