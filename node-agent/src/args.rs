//! Flags of the node agent (S-303, S-305) and what they resolve to.
//!
//! Two types: [`Args`] is what was typed, [`Config`] is what it means, with the defaults of the way to run filled in. Only `main` reads
//! [`Args`]; everything else takes [`Config`] or parts of it. Upstream's names and defaults are kept where they apply.

pub mod duration;
pub mod file;
mod resolve;
mod unused;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use ipnet::IpNet;

pub use self::resolve::{ArgsError, Config, NodePortAddresses};
pub use self::unused::Unused;
use crate::compile::choices::{LocalEmpty, UnlistedFamily};
use crate::node;
use crate::sys::sysctl::Liberal;

/// Port of `/healthz` and `/livez` in both ways to run (crd.md section 8).
pub const HEALTH_PORT: u16 = 10356;
/// Port of `/healthz` that cloud load balancers know from kube-proxy; ours only in replace mode.
pub const KUBE_PROXY_HEALTH_PORT: u16 = 10256;
/// Port of metrics and `/proxyMode` beside kube-proxy.
pub const METRICS_PORT: u16 = 10349;
/// Port of metrics and `/proxyMode` as the only proxy.
pub const KUBE_PROXY_METRICS_PORT: u16 = 10249;
/// Port of pod health (ZD-35).
pub const POD_HEALTH_PORT: u16 = 10290;
/// Ports that Azure's load balancers do not probe (ZD-35).
const NEVER_PROBED: [u16; 9] = [19, 21, 25, 70, 110, 119, 143, 220, 993];
/// Where `ready` asks when no other socket is named. Abstract names belong to the network namespace, so agents of other nodes never meet.
pub const READY_SOCKET: &str = "@onehop-node-agent";

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

/// Who owns the tables (S-267).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TableOwner {
    /// This process, and the next one when it has ended: nobody else can change or flush them.
    Agent,
    /// Nobody, as on older kernels: what others change is noticed and mended.
    Nobody,
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
    /// Prints what the agent of this network namespace has programmed, Service by Service: frontends and who gets their
    /// connections.
    Dump {
        /// This Service only.
        #[arg(value_name = "NAMESPACE/NAME")]
        service: Option<String>,
        /// Its metrics port; default: 127.0.0.1:10349, then 127.0.0.1:10249.
        #[arg(long)]
        from: Option<SocketAddr>,
    },
    /// Has the agent of this network namespace compare the kernel's tables with what they should hold, and mend them.
    Verify {
        /// Its metrics port; default: 127.0.0.1:10349, then 127.0.0.1:10249.
        #[arg(long)]
        from: Option<SocketAddr>,
    },
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

    /// What new connections meet where a Local policy finds no endpoint on this node, but there are some on others.
    #[arg(long, value_enum, default_value = "drop")]
    pub local_empty: LocalEmpty,

    /// Whom a load balancer address lets in whose family has no range in loadBalancerSourceRanges, while the other has.
    #[arg(long, value_enum, default_value = "open")]
    pub unlisted_family: UnlistedFamily,

    /// Taints, by commas, with which this node takes no new load balancer traffic (/healthz is 503).
    #[arg(long, value_delimiter = ',', default_values = node::LEAVING)]
    pub leaving_taints: Vec<String>,

    /// /healthz is 503 also while the Node object says that the node has no pod network.
    #[arg(long)]
    pub healthz_needs_network: bool,

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
        value_parser = resolve::liberal,
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

    /// Where /metrics and /proxyMode answer, by commas. Default: 127.0.0.1:10349, in replace mode 127.0.0.1:10249; where none
    /// of those given is loopback, that one answers as well. An address that is not loopback gives metrics only, over TLS,
    /// to whoever shows a token that may `get` the path /metrics.
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

    /// Port on which the agent answers for the health of pods that are targets, at their own addresses; 0: it does not.
    #[arg(long, default_value_t = POD_HEALTH_PORT)]
    pub pod_health_port: u16,

    /// File in which the last health answers are kept over restarts, on a volume that outlives the pod.
    #[arg(long)]
    pub node_file: Option<PathBuf>,

    /// Who owns the tables where the kernel (6.9 and later) knows owners.
    #[arg(long, value_enum, default_value = "agent")]
    pub table_owner: TableOwner,

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

#[cfg(test)]
mod tests;
