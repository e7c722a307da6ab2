//! Typed view of a Service with every default of the API resolved.
//!
//! Built once where the watch delivers the object. A field that cannot be read is left out and
//! reported, so that one bad value never hides the rest (S-33); only an object without a name or a
//! UID is refused. Annotations are kept as they are: each has one parser, in its provider.

mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;

use self::read::{Reader, affinity};
use crate::id::{Cidr, IpFamily, PortKey, Protocol, ServiceKey, ServiceUid};
use crate::time::Time;

/// Label that says which service proxy is meant (S-02).
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Its value for the node agent.
pub const AGENT_PROXY_NAME: &str = "onehop";
/// Label of headless Services and of their slices (S-03).
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// What `sessionAffinity: ClientIP` lasts when it says nothing (S-80).
pub const DEFAULT_AFFINITY: Duration = Duration::from_hours(3);

/// A Service as the rules see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Namespace and name.
    pub key: ServiceKey,
    /// UID.
    pub uid: ServiceUid,
    /// When it was made.
    pub created: Time,
    /// When its deletion was asked for.
    pub deleted: Option<Time>,
    /// Generation of the spec.
    pub generation: i64,
    /// Finalizers, in their order.
    pub finalizers: Vec<String>,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
    /// Type.
    pub kind: ServiceKind,
    /// Virtual addresses of the cluster, primary first; empty when headless or not yet allocated.
    pub cluster_ips: Vec<IpAddr>,
    /// Whether `clusterIP` is `None`.
    pub headless: bool,
    /// Families, primary first.
    pub families: Vec<IpFamily>,
    /// Ports, in their order.
    pub ports: Vec<ServicePort>,
    /// Selector of its pods; empty for a Service whose slices are made by hand (S-04).
    pub selector: BTreeMap<String, String>,
    /// Policy for traffic to ClusterIPs (iTP).
    pub internal_policy: TrafficPolicy,
    /// Policy for traffic to `NodePorts`, LB addresses and external IPs (eTP).
    pub external_policy: TrafficPolicy,
    /// Port on which each node tells a load balancer whether it has local endpoints.
    pub health_check_node_port: Option<u16>,
    /// Whether the API server allocates `NodePorts` for a `LoadBalancer`.
    pub allocates_node_ports: bool,
    /// `spec.loadBalancerClass`.
    pub class: Option<String>,
    /// `spec.loadBalancerIP`: the address asked for, as it was written.
    pub requested_address: Option<String>,
    /// Who may connect through the load balancer.
    pub source_ranges: SourceRanges,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// Session affinity by client address and how long it lasts; `None` for none.
    pub affinity: Option<Duration>,
}

/// Type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceKind {
    /// Reached from inside only.
    #[default]
    ClusterIp,
    /// Also on a port of every node.
    NodePort,
    /// Also by a load balancer.
    LoadBalancer,
    /// A DNS alias; nothing to proxy.
    ExternalName,
}

/// Which endpoints a kind of traffic may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Any.
    #[default]
    Cluster,
    /// Those on the node that the traffic reached.
    Local,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name and protocol.
    pub key: PortKey,
    /// Port on the virtual addresses.
    pub port: u16,
    /// Port on the pods as the Service states it. The proxy takes the slice's port instead (S-32).
    pub target: TargetPort,
    /// Port on the nodes.
    pub node_port: Option<u16>,
    /// `appProtocol`.
    pub app_protocol: Option<String>,
}

/// `targetPort` of a Service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// The same number on every pod.
    Number(u16),
    /// A port's name, which may stand for different numbers on different pods.
    Name(String),
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// The address, if it is one.
    pub address: Option<IpAddr>,
    /// The host name, if it is one.
    pub hostname: Option<String>,
    /// How traffic to the address arrives.
    pub mode: IpMode,
    /// The ports that it says it serves.
    pub ports: BTreeSet<(u16, Protocol)>,
}

/// `ipMode` of an ingress address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpMode {
    /// The destination is still the load balancer's address: nodes capture it (S-22).
    #[default]
    Vip,
    /// The load balancer sends to nodes or pods: nodes leave the address alone (S-23).
    Proxy,
}

/// `spec.loadBalancerSourceRanges`, blanks trimmed (S-73).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRanges {
    /// The ranges that could be read.
    pub allowed: Vec<Cidr>,
    /// Whether some entry could not. A list with only bad entries closes the address, it does not
    /// open it (S-74, I10).
    pub has_bad: bool,
}

impl SourceRanges {
    /// Whether the list says nothing: everybody may connect.
    pub fn is_open(&self) -> bool {
        self.allowed.is_empty() && !self.has_bad
    }
}

/// What is wrong with a Service or one of its fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceProblem {
    /// The object has no name, namespace or UID, or no spec: it cannot be worked with.
    #[error("Service {0} has no {1}")]
    Incomplete(ServiceKey, &'static str),
    /// A field has a value that cannot be read; it was left out.
    #[error("Service {service}: {field}: {value:?} was ignored: it is not {wanted}")]
    Unreadable {
        /// The Service.
        service: ServiceKey,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        wanted: &'static str,
    },
}

impl ServiceSpec {
    /// The view of a Service, with the problems of fields that were left out.
    pub fn read(service: &Service) -> Result<(Self, Vec<ServiceProblem>), ServiceProblem> {
        let meta = &service.metadata;
        let key = ServiceKey::new(
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        );
        let missing = |what| ServiceProblem::Incomplete(key.clone(), what);
        let spec = service.spec.as_ref().ok_or_else(|| missing("spec"))?;
        if key.namespace.is_empty() || key.name.is_empty() {
            return Err(missing("name or namespace"));
        }
        let uid = meta.uid.as_deref().ok_or_else(|| missing("uid"))?;
        let mut reader = Reader {
            service: &key,
            problems: Vec::new(),
        };
        let kind = reader.kind(spec);
        let view = Self {
            uid: uid.into(),
            created: meta
                .creation_timestamp
                .as_ref()
                .map(Time::from)
                .unwrap_or_default(),
            deleted: meta.deletion_timestamp.as_ref().map(Time::from),
            generation: meta.generation.unwrap_or_default(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            kind,
            cluster_ips: reader.cluster_ips(spec),
            headless: spec.cluster_ip.as_deref() == Some("None"),
            families: reader.families(spec),
            ports: reader.ports(spec),
            selector: spec.selector.clone().unwrap_or_default(),
            internal_policy: reader.policy(
                "internalTrafficPolicy",
                spec.internal_traffic_policy.as_deref(),
            ),
            external_policy: reader.policy(
                "externalTrafficPolicy",
                spec.external_traffic_policy.as_deref(),
            ),
            health_check_node_port: spec
                .health_check_node_port
                .and_then(|p| reader.port_number("healthCheckNodePort", p)),
            allocates_node_ports: spec.allocate_load_balancer_node_ports.unwrap_or(true),
            class: spec.load_balancer_class.clone().filter(|c| !c.is_empty()),
            requested_address: spec.load_balancer_ip.clone().filter(|a| !a.is_empty()),
            source_ranges: reader.source_ranges(spec),
            external_ips: reader.each("externalIPs", "an address", spec.external_ips.as_deref()),
            ingress: reader.ingress(service),
            affinity: affinity(spec),
            key: key.clone(),
        };
        let problems = reader.problems;
        Ok((view, problems))
    }

    /// The service proxy that the user names (S-02); `None` when the label is absent.
    pub fn proxy_name(&self) -> Option<&str> {
        self.labels.get(PROXY_NAME_LABEL).map(String::as_str)
    }

    /// The service proxy that the user names where it is not the node agent; `None` without the label, too.
    pub fn other_proxy(&self) -> Option<&str> {
        self.proxy_name().filter(|name| *name != AGENT_PROXY_NAME)
    }

    /// Whether a finalizer is on it.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|f| f == finalizer)
    }

    /// Whether the user hands it to the node agent, as the proxy of nodes that have another one for the rest (S-02).
    pub fn names_the_agent(&self) -> bool {
        self.proxy_name() == Some(AGENT_PROXY_NAME)
    }

    /// Whether it was given this port of every node, for clients or for health checks.
    pub fn has_node_port(&self, port: u16, protocol: Protocol) -> bool {
        let of_clients = |p: &ServicePort| p.node_port == Some(port) && p.key.protocol == protocol;
        let of_health = self.health_check_node_port == Some(port) && protocol == Protocol::Tcp;
        of_health || self.ports.iter().any(of_clients)
    }

    /// Whether any service proxy has something to do for it (S-01).
    pub fn is_proxied(&self) -> bool {
        self.kind != ServiceKind::ExternalName && !self.headless && !self.cluster_ips.is_empty()
    }

    /// The port with this name and protocol.
    pub fn port(&self, key: &PortKey) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.key == *key)
    }

    /// The virtual address of one family.
    pub fn cluster_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.cluster_ips
            .iter()
            .copied()
            .find(|a| IpFamily::of(*a) == family)
    }

    /// Load balancer addresses that a node captures (S-22); `Proxy` ones are not among them (S-23).
    pub fn vips(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let live = self.kind == ServiceKind::LoadBalancer;
        self.ingress
            .iter()
            .filter(move |i| live && i.mode == IpMode::Vip)
            .filter_map(|i| i.address)
    }

    /// Whether the port can be reached from outside: it has a `NodePort`, or the Service has a
    /// captured LB address or an external IP (section 3 of the specification).
    pub fn is_externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port.is_some() || !self.external_ips.is_empty() || self.vips().next().is_some()
    }
}
