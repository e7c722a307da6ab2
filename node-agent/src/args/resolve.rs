//! What the flags mean: [`Config`], with the defaults of the way to run filled in, and what is wrong with them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use onehop_core::id::NodeName;

use super::{
    Args, DetectLocalMode, HEALTH_PORT, KUBE_PROXY_HEALTH_PORT, KUBE_PROXY_METRICS_PORT,
    METRICS_PORT, Mode, NEVER_PROBED, TableOwner,
};
use crate::compile::choices::Choices;
use crate::guard::uplinks;
use crate::node::Eligibility;
use crate::sys::sysctl::{Liberal, Settings};
use crate::table::layout::{Detector, Options};

/// Longest name of an interface.
const IFNAME_MAX: usize = 15;

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
    /// Source ports that masquerade chooses from (S-34).
    pub masquerade_ports: Vec<(u16, u16)>,
    /// The packet mark that asks for masquerade (one bit set).
    pub masquerade_mark: u32,
    /// What is left to the administrator (S-54, S-73).
    pub choices: Choices,
    /// What keeps the node from new load balancer traffic (S-111, S-114).
    pub eligibility: Eligibility,
    /// Where NodePorts answer.
    pub nodeport_addresses: NodePortAddresses,
    /// The node's own address, if it is not the one that the Node object names first.
    pub node_address: Option<IpAddr>,
    /// Where the last health answers are kept.
    pub node_file: Option<PathBuf>,
    /// Port of pod health, if the agent answers it.
    pub pod_health_port: Option<u16>,
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
    /// Who owns the tables.
    pub table_owner: TableOwner,
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
            masquerade_ports: self.masquerade_ports.clone(),
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
    /// `--pod-health-port` cannot be probed, or may be a node port.
    #[error(
        "--pod-health-port: {0} is a port that load balancers do not probe, or one of --reserve-node-ports; the default is \
         10290, and 0 turns pod health off"
    )]
    PodHealthPort(u16),
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
            masquerade_ports: reserved_ports(&self.reserve_node_ports)?
                .map_or_else(Vec::new, ports_beside),
            masquerade_mark: 1 << self.iptables_masquerade_bit,
            choices: Choices {
                local_empty: self.local_empty,
                unlisted_family: self.unlisted_family,
            },
            eligibility: Eligibility {
                taints: self.leaving_taints.clone(),
                needs_network: self.healthz_needs_network,
            },
            nodeport_addresses: nodeport_addresses(&self.nodeport_addresses)?,
            node_address: self
                .bind_address
                .filter(|address| !address.is_unspecified()),
            node_file: self.node_file.clone(),
            pod_health_port: self.pod_health_port()?,
            settings: self.settings()?,
            health_binds: or_default(&self.healthz_bind_address, health),
            metrics_binds: with_loopback(
                &self.metrics_bind_address,
                SocketAddr::new(loopback, metrics),
            ),
            bind_hard_fail: self.bind_address_hard_fail,
            ready_socket: self.ready_socket.clone(),
            uplinks: uplinks::Wishes {
                names: self.uplinks.clone(),
                keep_rp_filter: self.keep_rp_filter,
            },
            table_owner: self.table_owner,
        })
    }

    /// ZD-35: neither one that a cloud does not probe nor one that may be a node port.
    fn pod_health_port(&self) -> Result<Option<u16>, ArgsError> {
        let port = self.pod_health_port;
        let node_ports = reserved_ports(&self.reserve_node_ports)?;
        let taken = node_ports.is_some_and(|(first, last)| (first..=last).contains(&port));
        if NEVER_PROBED.contains(&port) || taken {
            return Err(ArgsError::PodHealthPort(port));
        }
        Ok((port != 0).then_some(port))
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
pub(super) fn liberal(text: &str) -> Result<Liberal, String> {
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

/// The first port that a user may have without privilege, and that masquerade gives by itself.
const FIRST_PORT: u16 = 1024;

/// The ports below and above a range, the more of them first; a side of hardly any is left out.
fn ports_beside((first, last): (u16, u16)) -> Vec<(u16, u16)> {
    const FEW: u16 = 4096;
    let below = (FIRST_PORT, first.saturating_sub(1));
    let above = (last.saturating_add(1).max(FIRST_PORT), u16::MAX);
    let count = |(first, last): &(u16, u16)| last.saturating_sub(*first);
    let mut sides = vec![above, below];
    sides.retain(|side| count(side) >= FEW);
    sides.sort_by_key(|side| std::cmp::Reverse(count(side)));
    sides
}

/// What is asked on the node itself is answered by loopback only, so there is always one (S-300, S-312).
fn with_loopback(given: &[SocketAddr], default: SocketAddr) -> Vec<SocketAddr> {
    let mut binds = given.to_vec();
    if !given.iter().any(|addr| addr.ip().is_loopback()) {
        binds.push(default);
    }
    binds
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
