//! Flags of the node agent (S-303, S-305) and what they resolve to.
//!
//! Two types: [`Args`] is what was typed, [`Config`] is what it means, with the defaults of the way to run filled in. Only `main` reads
//! [`Args`]; everything else takes [`Config`] or parts of it. Upstream's names and defaults are kept where they apply.

pub mod duration;
pub mod file;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use onehop_core::id::NodeName;

use crate::guard::uplinks;
use crate::sys::sysctl::{Liberal, Settings};
use crate::table::layout::{Detector, Options};

/// Port of `/healthz` and `/livez` in both ways to run (crd.md section 8).
pub const HEALTH_PORT: u16 = 10356;
/// Port of `/healthz` that cloud load balancers know from kube-proxy; ours only in replace mode.
pub const KUBE_PROXY_HEALTH_PORT: u16 = 10256;
/// Port of metrics and `/proxyMode` beside kube-proxy.
pub const METRICS_PORT: u16 = 10349;
/// Port of metrics and `/proxyMode` as the only proxy.
pub const KUBE_PROXY_METRICS_PORT: u16 = 10249;
/// Where `ready` asks when no other socket is named. Abstract names belong to the network namespace, so agents of other nodes never meet.
pub const READY_SOCKET: &str = "@onehop-node-agent";

/// Longest name of an interface.
const IFNAME_MAX: usize = 15;

/// Way to run (crd.md section 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Beside kube-proxy, for Services that carry our proxy name.
    Beside,
    /// As the node's only service proxy.
    Replace,
}

/// How a pod's address is told from an outside one (S-61).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DetectLocalMode {
    /// The source is inside `--cluster-cidr`.
    #[value(name = "ClusterCIDR", alias = "clustercidr")]
    ClusterCidr,
    /// The source is inside a pod range of the own Node object.
    #[value(name = "NodeCIDR", alias = "nodecidr")]
    NodeCidr,
    /// The packet comes by `--pod-bridge-interface`.
    #[value(name = "BridgeInterface", alias = "bridgeinterface")]
    BridgeInterface,
    /// The packet comes by an interface whose name begins with `--pod-interface-name-prefix`.
    #[value(name = "InterfaceNamePrefix", alias = "interfacenameprefix")]
    InterfaceNamePrefix,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// What else the binary can do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Asks the agent of this network namespace whether it is in sync (exec probe): exit status 0 when it is, 1 when not.
    Ready,
}

/// Service proxy, target guard and health answers of one node.
#[derive(Debug, Clone, Parser)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[command(
    name = "onehop-node-agent",
    version,
    about,
    after_help = "Exit status: 0 stopped by SIGTERM or SIGINT (rules stay in place), 1 it could not go on and a restart may \
                  help, 2 wrong flags, 3 the node lacks a privilege or a part of the kernel."
)]
pub struct Args {
    /// Another job than running the agent.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// File with a `KubeProxyConfiguration`; what it says wins over flags.
    #[arg(long)]
    pub config: Option<PathBuf>,

    /// Only set kernel settings, which may need more privileges than running, and end.
    #[arg(long)]
    pub init_only: bool,

    /// Kubeconfig file; without it the pod's service account is used.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,

    /// Name of this node's Node object; default: the host name in lower case.
    #[arg(
        long = "hostname-override",
        visible_alias = "node-name",
        env = "NODE_NAME"
    )]
    pub node_name: Option<String>,

    /// Beside kube-proxy (Services that carry our proxy name), or instead of it.
    #[arg(long, value_enum, default_value = "beside", env = "ONEHOP_MODE")]
    pub mode: Mode,

    /// As the only proxy, program Services although a kube-proxy lives on this node and programs them too.
    #[arg(long)]
    pub override_kube_proxy: bool,

    /// Value of the label service.kubernetes.io/service-proxy-name that makes a Service ours.
    #[arg(long, default_value = "onehop")]
    pub service_proxy_name: String,

    /// Pod address ranges, separated by commas. Without any, no traffic to a ClusterIP is masqueraded.
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// How traffic of pods is told from outside traffic.
    #[arg(long, value_enum, default_value = "ClusterCIDR")]
    pub detect_local_mode: DetectLocalMode,

    /// Bridge to which the pods of this node are connected.
    #[arg(long)]
    pub pod_bridge_interface: Option<String>,

    /// How the names of interfaces to the pods of this node begin.
    #[arg(long)]
    pub pod_interface_name_prefix: Option<String>,

    /// Masquerade everything that goes to a ClusterIP.
    #[arg(long)]
    pub masquerade_all: bool,

    /// Bit of the packet mark that asks for masquerade.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    pub iptables_masquerade_bit: u8,

    /// Addresses on which NodePorts answer: `primary` (the Node object's), `all` (every local one but loopback) or ranges, by commas.
    #[arg(long, value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,

    /// The node's own address, where the one that its Node object names first is not it.
    #[arg(long)]
    pub bind_address: Option<IpAddr>,

    /// Connections to track for each core; 0 leaves the kernel's limit alone.
    #[arg(long, default_value_t = 32_768)]
    pub conntrack_max_per_core: u32,

    /// Connections to track at least.
    #[arg(long, default_value_t = 131_072)]
    pub conntrack_min: u32,

    /// How long an idle TCP connection is tracked; 0 leaves the kernel's setting alone. So for the next ones.
    #[arg(long, default_value = "24h", value_parser = duration::parse)]
    pub conntrack_tcp_timeout_established: Duration,

    /// How long a TCP connection is tracked that waits to be closed.
    #[arg(long, default_value = "1h", value_parser = duration::parse)]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// How long a UDP flow without answer is tracked.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub conntrack_udp_timeout: Duration,

    /// How long a UDP flow with answers is tracked.
    #[arg(long, default_value = "0", value_parser = duration::parse)]
    pub conntrack_udp_timeout_stream: Duration,

    /// Let packets pass that are outside of the TCP window; `auto`: on kernels that would reset the client.
    #[arg(
        long,
        value_parser = liberal,
        default_value = "auto",
        num_args = 0..=1,
        default_missing_value = "on"
    )]
    pub conntrack_tcp_be_liberal: Liberal,

    /// Ports that no outgoing connection of the node takes by chance; empty: none.
    #[arg(long, default_value = "30000-32767")]
    pub reserve_node_ports: String,

    /// Where /healthz and /livez answer, by commas. Default: 0.0.0.0:10356, in replace mode also 0.0.0.0:10256.
    #[arg(long, value_delimiter = ',')]
    pub healthz_bind_address: Vec<SocketAddr>,

    /// Where /metrics and /proxyMode answer. Default: 127.0.0.1:10349, in replace mode 127.0.0.1:10249.
    #[arg(long, value_delimiter = ',')]
    pub metrics_bind_address: Vec<SocketAddr>,

    /// End the process when an address cannot be bound, instead of trying again.
    #[arg(long)]
    pub bind_address_hard_fail: bool,

    /// Socket on which `ready` is answered: a path, or `@name` for an abstract one.
    #[arg(long, default_value = READY_SOCKET, env = "ONEHOP_READY_SOCKET", global = true)]
    pub ready_socket: String,

    /// Interfaces to the fabric, by commas. Default: every interface with a default route in some routing table.
    #[arg(long, value_delimiter = ',')]
    pub uplinks: Vec<String>,

    /// Leave the reverse-path filters of these interfaces as they are. Where one is strict, targets are not guarded.
    #[arg(long)]
    pub keep_rp_filter: bool,

    /// File in which the last health answers are kept over restarts, on a volume that outlives the pod.
    #[arg(long)]
    pub node_file: Option<PathBuf>,

    /// Delete everything that the agent ever wrote on this node, and end.
    #[arg(long)]
    pub cleanup: bool,

    /// Form of the log.
    #[arg(long, value_enum, default_value = "json")]
    pub log_format: LogFormat,

    /// What is logged, such as `info` or `info,onehop_node_agent=debug`.
    #[arg(long, default_value = "info", env = "ONEHOP_LOG")]
    pub log_filter: String,

    /// Settings of kube-proxy that mean nothing here.
    #[command(flatten)]
    pub unused: Unused,
}

/// Flags of kube-proxy that are accepted so that a DaemonSet can be taken over unchanged, and only warned about (S-303).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Unused {
    #[arg(long, hide = true)]
    proxy_mode: Option<String>,
    #[arg(long, hide = true)]
    iptables_sync_period: Option<String>,
    #[arg(long, hide = true)]
    iptables_min_sync_period: Option<String>,
    #[arg(long, hide = true)]
    config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    oom_score_adj: Option<String>,
    #[arg(long, hide = true)]
    profiling: Option<String>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true)]
    master: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    iptables_localhost_nodeports: Option<String>,
    #[arg(long, hide = true)]
    write_config_to: Option<String>,
    #[arg(long, hide = true)]
    show_hidden_metrics_for_version: Option<String>,
}

impl Unused {
    /// Names of those that were given.
    pub fn given(&self) -> Vec<&'static str> {
        [
            ("--proxy-mode", &self.proxy_mode),
            ("--iptables-sync-period", &self.iptables_sync_period),
            ("--iptables-min-sync-period", &self.iptables_min_sync_period),
            ("--config-sync-period", &self.config_sync_period),
            ("--oom-score-adj", &self.oom_score_adj),
            ("--profiling", &self.profiling),
            ("--feature-gates", &self.feature_gates),
            ("--master", &self.master),
            ("--kube-api-qps", &self.kube_api_qps),
            ("--kube-api-burst", &self.kube_api_burst),
            ("--kube-api-content-type", &self.kube_api_content_type),
            (
                "--iptables-localhost-nodeports",
                &self.iptables_localhost_nodeports,
            ),
            ("--write-config-to", &self.write_config_to),
            (
                "--show-hidden-metrics-for-version",
                &self.show_hidden_metrics_for_version,
            ),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.as_ref().map(|_| name))
        .collect()
    }
}

/// On which addresses NodePorts answer (S-27).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The Node object's first address of each family.
    Primary,
    /// Every local address but loopback.
    All,
    /// Every local address inside one of these.
    Ranges(Vec<IpNet>),
}

/// What the agent runs with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Kubeconfig file, if one was named.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the own Node object.
    pub node: NodeName,
    /// Way to run.
    pub mode: Mode,
    /// Program although a kube-proxy lives.
    pub override_kube_proxy: bool,
    /// Proxy name that makes a Service ours.
    pub proxy_name: String,
    /// How pods are told from others (S-61).
    pub detector: Detector,
    /// Masquerade all ClusterIP traffic.
    pub masquerade_all: bool,
    /// The packet mark that asks for masquerade (one bit set).
    pub masquerade_mark: u32,
    /// Where NodePorts answer.
    pub nodeport_addresses: NodePortAddresses,
    /// The node's own address, if it is not the one that the Node object names first.
    pub node_address: Option<IpAddr>,
    /// Where the last health answers are kept.
    pub node_file: Option<PathBuf>,
    /// Kernel settings.
    pub settings: Settings,
    /// Where `/healthz` and `/livez` answer.
    pub health_binds: Vec<SocketAddr>,
    /// Where `/metrics` and `/proxyMode` answer.
    pub metrics_binds: Vec<SocketAddr>,
    /// A failed bind ends the process.
    pub bind_hard_fail: bool,
    /// Socket of `ready`.
    pub ready_socket: String,
    /// Interfaces to the fabric.
    pub uplinks: uplinks::Wishes,
}

impl Config {
    /// Pod ranges given by hand.
    pub fn pod_ranges(&self) -> Vec<IpNet> {
        match &self.detector {
            Detector::Ranges(ranges) => ranges.clone(),
            _ => Vec::new(),
        }
    }

    /// What the static part of the tables is made from, as far as flags say it.
    pub fn options(&self) -> Options {
        Options {
            before_iptables: false,
            masquerade_mark: self.masquerade_mark,
            masquerade_all: self.masquerade_all,
            detector: self.detector.clone(),
            beside_kube_proxy: self.mode == Mode::Beside,
            service_cidrs: Vec::new(),
        }
    }
}

/// A flag that cannot be used as it was given.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgsError {
    /// `--nodeport-addresses` holds something that is no range.
    #[error(
        "--nodeport-addresses: {0:?} is neither a range such as 10.0.0.0/8 nor the only word `primary` or `all`"
    )]
    NodePortAddresses(String),
    /// `--reserve-node-ports` is no range of ports.
    #[error("--reserve-node-ports: {0:?} is no range of ports such as 30000-32767, and not empty")]
    ReservedPorts(String),
    /// A detector by interface without a usable name.
    #[error(
        "{flag}: {value:?} is no name of an interface (1 to 15 bytes); the detector that was chosen needs one"
    )]
    Interface {
        /// The flag.
        flag: &'static str,
        /// What was given.
        value: String,
    },
    /// No name for the Node object.
    #[error(
        "the host name cannot be read; give the name of this node's Node object by --node-name or NODE_NAME"
    )]
    NoNodeName,
}

impl Args {
    /// Fills in what depends on the way to run.
    pub fn resolve(&self) -> Result<Config, ArgsError> {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (health, metrics) = match self.mode {
            Mode::Beside => (vec![HEALTH_PORT], METRICS_PORT),
            Mode::Replace => (
                vec![HEALTH_PORT, KUBE_PROXY_HEALTH_PORT],
                KUBE_PROXY_METRICS_PORT,
            ),
        };
        let health = health
            .into_iter()
            .map(|port| SocketAddr::new(any, port))
            .collect();
        Ok(Config {
            kubeconfig: self.kubeconfig.clone(),
            node: NodeName::from(self.resolved_node_name()?),
            mode: self.mode,
            override_kube_proxy: self.override_kube_proxy,
            proxy_name: self.service_proxy_name.clone(),
            detector: self.detector()?,
            masquerade_all: self.masquerade_all,
            masquerade_mark: 1 << self.iptables_masquerade_bit,
            nodeport_addresses: nodeport_addresses(&self.nodeport_addresses)?,
            node_address: self
                .bind_address
                .filter(|address| !address.is_unspecified()),
            node_file: self.node_file.clone(),
            settings: self.settings()?,
            health_binds: or_default(&self.healthz_bind_address, health),
            metrics_binds: or_default(
                &self.metrics_bind_address,
                vec![SocketAddr::new(loopback, metrics)],
            ),
            bind_hard_fail: self.bind_address_hard_fail,
            ready_socket: self.ready_socket.clone(),
            uplinks: uplinks::Wishes {
                names: self.uplinks.clone(),
                keep_rp_filter: self.keep_rp_filter,
            },
        })
    }

    fn settings(&self) -> Result<Settings, ArgsError> {
        Ok(Settings {
            max_per_core: self.conntrack_max_per_core,
            max_least: self.conntrack_min,
            tcp_established: self.conntrack_tcp_timeout_established,
            tcp_close_wait: self.conntrack_tcp_timeout_close_wait,
            udp: self.conntrack_udp_timeout,
            udp_stream: self.conntrack_udp_timeout_stream,
            liberal: self.conntrack_tcp_be_liberal,
            reserved_ports: reserved_ports(&self.reserve_node_ports)?,
        })
    }

    fn detector(&self) -> Result<Detector, ArgsError> {
        let named = |name: &Option<String>, flag, room: usize| match name {
            Some(name) if !name.is_empty() && name.len() <= room => Ok(name.clone()),
            name => Err(ArgsError::Interface {
                flag,
                value: name.clone().unwrap_or_default(),
            }),
        };
        Ok(match self.detect_local_mode {
            DetectLocalMode::ClusterCidr => {
                Detector::Ranges(self.cluster_cidr.iter().map(IpNet::trunc).collect())
            }
            DetectLocalMode::NodeCidr => Detector::NodeRanges(Vec::new()),
            DetectLocalMode::BridgeInterface => Detector::Bridge(named(
                &self.pod_bridge_interface,
                "--pod-bridge-interface",
                IFNAME_MAX,
            )?),
            DetectLocalMode::InterfaceNamePrefix => Detector::Prefix(named(
                &self.pod_interface_name_prefix,
                "--pod-interface-name-prefix",
                IFNAME_MAX,
            )?),
        })
    }

    fn resolved_node_name(&self) -> Result<String, ArgsError> {
        let name = match &self.node_name {
            Some(name) => name.clone(),
            None => nix::unistd::gethostname()
                .ok()
                .and_then(|name| name.into_string().ok())
                .ok_or(ArgsError::NoNodeName)?,
        };
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            Err(ArgsError::NoNodeName)
        } else {
            Ok(name)
        }
    }
}

/// kube-proxy's flag is true or false; ours has a third value (S-97).
fn liberal(text: &str) -> Result<Liberal, String> {
    match text {
        "auto" => Ok(Liberal::Auto),
        "on" | "true" => Ok(Liberal::On),
        "off" | "false" => Ok(Liberal::Off),
        other => Err(format!("{other:?} is none of auto, on and off")),
    }
}

fn reserved_ports(text: &str) -> Result<Option<(u16, u16)>, ArgsError> {
    if text.is_empty() {
        return Ok(None);
    }
    let range = text.split_once('-');
    let range = range.and_then(|(first, last)| first.parse().ok().zip(last.parse().ok()));
    let range = range.filter(|(first, last)| first <= last);
    range
        .map(Some)
        .ok_or_else(|| ArgsError::ReservedPorts(text.to_owned()))
}

fn or_default(given: &[SocketAddr], default: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if given.is_empty() {
        default
    } else {
        given.to_vec()
    }
}

fn nodeport_addresses(given: &[String]) -> Result<NodePortAddresses, ArgsError> {
    match given {
        [] => Ok(NodePortAddresses::Primary),
        [word] if word == "primary" => Ok(NodePortAddresses::Primary),
        [word] if word == "all" => Ok(NodePortAddresses::All),
        ranges => ranges
            .iter()
            .map(|range| {
                range
                    .trim()
                    .parse::<IpNet>()
                    .map_err(|_| ArgsError::NodePortAddresses(range.clone()))
            })
            .collect::<Result<_, _>>()
            .map(NodePortAddresses::Ranges),
    }
}

#[cfg(test)]
mod tests;
