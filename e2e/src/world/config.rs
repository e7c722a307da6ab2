//! What a world may choose: control plane, nodes, Service proxy, cloud, and how fast it runs.

use super::{Family, ProxyLabel};
use crate::controlplane::BackEnd;
use clap::ValueEnum;
use e2e_cloud::{engine::Profile, scale::Speeds};
use std::time::Duration;

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
    pub(super) const fn mode(self) -> &'static str {
        match self {
            Self::Beside | Self::KubeProxy => "beside",
            Self::Replace => "replace",
        }
    }
}

/// What runs the pods of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nodes {
    /// The kubelet stand-in: every pod is a process in a namespace.
    #[default]
    StandIn,
    /// A real kubelet and containerd. Needs a real control plane; the only Service proxy is the chart's `DaemonSet` (or a
    /// kube-proxy), and Services without a class are ours.
    Real,
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
    /// What runs pods.
    pub nodes: Nodes,
}

impl Cluster {
    /// With this control plane; agents beside a kube-proxy.
    pub const fn on(back_end: BackEnd) -> Self {
        Self {
            back_end,
            proxy: Proxy::Beside,
            label: ProxyLabel::AsWritten,
            family: Family::V4,
            nodes: Nodes::StandIn,
        }
    }

    /// With this proxy for every Service, so that two proxies are asked for the same.
    pub const fn proxied_by(proxy: Proxy) -> Self {
        Self {
            back_end: BackEnd::Embedded,
            proxy,
            label: ProxyLabel::Removed,
            family: Family::V4,
            nodes: Nodes::StandIn,
        }
    }

    /// Real nodes and a real control plane, with this proxy ([`Proxy::Replace`] or [`Proxy::KubeProxy`]) for every Service.
    pub const fn of_real_nodes(proxy: Proxy) -> Self {
        Self {
            back_end: BackEnd::Real,
            nodes: Nodes::Real,
            ..Self::proxied_by(proxy)
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

/// Who installs our programs and what they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// The world itself, as the chart has it.
    ByWorld,
    /// Nobody: who starts the world installs the chart, whose pods then run as a container runtime runs them. Until then
    /// there are neither object types nor rights, programs or addresses. Needs a real control plane and stand-in kubelets.
    ByHelm,
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
    /// Longest hold, in time of the cloud (ZD-26).
    pub hold: Duration,
    /// Control plane and Service proxy.
    pub cluster: Cluster,
    /// Flags of the controller beside those that every world gives, or in place of them.
    pub controller_flags: Vec<&'static str>,
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
    /// Who installs us.
    pub install: Install,
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
            hold: Duration::from_mins(10),
            cluster: Cluster::default(),
            controller_flags: Vec::new(),
            agent_flags: Vec::new(),
            without_proxy: Vec::new(),
            kube_proxy_too: false,
            pod_health: true,
            replicas: Replicas::One,
            install: Install::ByWorld,
            keep_logs: true,
            progress: |_| {},
        }
    }
}
