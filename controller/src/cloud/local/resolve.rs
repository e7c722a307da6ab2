//! From a Service to the resolved spec of its load balancer. Pure.
//!
//! Everything wrong is collected; while anything is, the last good spec is carried out (I10). A new
//! Service with something wrong gets nothing until it is put right.

use onehop_core::crd::{
    ClientIp, HealthBy, HealthCheck, HealthProtocol, LoadBalancerPort, LoadBalancerSpec,
    MembershipPolicy, ProviderKind, ProviderOption, Scheme, TargetMode,
};
use onehop_core::id::Protocol;
use onehop_core::service::{ServicePort, ServiceSpec, TargetPort, TrafficPolicy};
use onehop_core::target::{self, Choice, NodePorts, Obstacle, Obstacles, Wish};

use super::annotations::{self, Hint, Wishes};
use crate::plan::{Bounds, Notice, Refusal, Resolution};

/// Option name of fixed addresses in the resolved spec.
pub const OPTION_ADDRESSES: &str = "addresses";
/// Option name of a named pool in the resolved spec.
pub const OPTION_POOL: &str = "addressPool";
/// Option name of the sharing key in the resolved spec.
pub const OPTION_SHARING: &str = "sharingKey";
/// Option name of the namespaces that the address may be shared with.
pub const OPTION_SHARING_NAMESPACES: &str = "sharingNamespaces";
/// Whether a client stays with the target that it chose first: there for `ClientIP`.
pub const OPTION_AFFINITY: &str = "sessionAffinity";

/// Seconds for which the local cloud still sends new flows to a target that was taken out (C-52): none.
pub const TAIL_SECONDS: u32 = 0;

/// Who forwards on the nodes, and so which port tells their health (crd.md section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProxy {
    /// The agent beside kube-proxy: it proxies only Services that carry its label.
    Beside,
    /// The agent alone.
    Replace,
}

impl NodeProxy {
    /// Whether the agent is the proxy of a Service.
    pub fn is_agent_of(self, service: &ServiceSpec) -> bool {
        self == Self::Replace || service.names_the_agent()
    }
}

/// What the install decides for Services that do not say it themselves.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// Who forwards on the nodes.
    pub proxy: NodeProxy,
    /// How members come and go (K-32).
    pub membership: MembershipPolicy,
    /// How many stay, and for how long (C-52).
    pub bounds: Bounds,
}

impl From<NodeProxy> for Defaults {
    fn from(proxy: NodeProxy) -> Self {
        Self {
            proxy,
            membership: MembershipPolicy::ZeroDrop,
            bounds: Bounds::with_tail(TAIL_SECONDS),
        }
    }
}

/// Ports that a message names.
const PORTS_NAMED: usize = 5;
/// Node health of kube-proxy.
const KUBE_PROXY_HEALTH: u16 = 10256;
/// Node health of the agent.
const AGENT_HEALTH: u16 = 10356;
const NODE_HEALTH_PATH: &str = "/healthz";

/// Reads one Service.
pub fn resolve(
    defaults: impl Into<Defaults>,
    service: &ServiceSpec,
    last_good: Option<&LoadBalancerSpec>,
) -> Resolution {
    let Defaults {
        proxy,
        membership,
        bounds,
    } = defaults.into();
    let last_good = last_good.filter(|spec| spec.service_uid == service.uid);
    let (mut wishes, problems) = annotations::parse(service);
    let mut refusals: Vec<Refusal> = problems
        .iter()
        .map(|problem| refusal("AnnotationInvalid", problem.to_string()))
        .collect();
    let mut ports = Vec::new();
    let mut refused: Vec<(Refusal, Vec<String>)> = Vec::new();
    for port in &service.ports {
        match resolve_port(proxy, service, port, wishes.mode, last_good) {
            Ok(port) => ports.push(port),
            // A Service may have a thousand ports: what is wrong with all of them is said once.
            Err(why) => match refused.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) => names.push(port.key.to_string()),
                None => refused.push((why, vec![port.key.to_string()])),
            },
        }
    }
    refusals.extend(
        refused
            .into_iter()
            .map(|(why, names)| of_ports(&why, &names)),
    );
    let mut notices: Vec<Notice> = wishes.hints.iter().map(notice).collect();
    notices.extend(unenforced(service, &ports));
    if !refusals.is_empty() {
        let kept = last_good
            .filter(|spec| spec.service_uid == service.uid)
            .cloned();
        return Resolution {
            spec: kept,
            refusals,
            notices,
        };
    }
    wishes.membership = wishes.membership.or(Some(membership));
    Resolution {
        spec: Some(spec(bounds, service, wishes, ports)),
        refusals,
        notices,
    }
}

fn spec(
    bounds: Bounds,
    service: &ServiceSpec,
    wishes: Wishes,
    ports: Vec<LoadBalancerPort>,
) -> LoadBalancerSpec {
    let option = |(name, value, from): (&str, String, String)| ProviderOption {
        name: name.to_owned(),
        value,
        from,
    };
    LoadBalancerSpec {
        provider: ProviderKind::Local,
        class: service.class.clone(),
        service_uid: service.uid.clone(),
        scheme: Scheme::InternetFacing,
        families: service.families.clone(),
        ports,
        sources: Vec::new(),
        membership: bounds.membership(wishes.membership.unwrap_or_default()),
        options: wishes.origins.into_iter().map(option).collect(),
    }
}

fn notice(hint: &Hint) -> Notice {
    Notice {
        reason: match hint {
            Hint::Peer { .. } => "AnnotationDeprecated",
            Hint::PeerIgnored { .. } | Hint::SharingLabel(_) => "AnnotationIgnored",
        },
        message: hint.to_string(),
        degrades: false,
    }
}

/// Says that nobody holds clients to the allowed sources: somebody who chose the mode should know.
fn unenforced(service: &ServiceSpec, ports: &[LoadBalancerPort]) -> Option<Notice> {
    let open = ports.iter().find(|p| p.mode != TargetMode::Vip)?;
    (!service.source_ranges.is_open()).then(|| Notice {
        reason: "SourceRangesUnenforced",
        message: format!(
            "loadBalancerSourceRanges keeps nobody out of port {}: its target is {}, this cloud has no filter, and nodes \
             check sources at the load balancer's address only; annotate {}: vip",
            open.port, open.mode, annotations::TARGET
        ),
        degrades: true,
    })
}

/// The refusal with the ports that it is about, the first few by name.
fn of_ports(why: &Refusal, names: &[String]) -> Refusal {
    let (first, rest) = names.split_at(names.len().min(PORTS_NAMED));
    let word = if names.len() == 1 { "port" } else { "ports" };
    let more = match rest.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("{word} {}{more}: {}", first.join(", "), why.message);
    refusal(why.reason, message)
}

fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal { reason, message }
}

fn resolve_port(
    proxy: NodeProxy,
    service: &ServiceSpec,
    port: &ServicePort,
    explicit: Option<TargetMode>,
    last_good: Option<&LoadBalancerSpec>,
) -> Result<LoadBalancerPort, Refusal> {
    if port.key.protocol == Protocol::Sctp {
        let message = "this cloud has no SCTP listeners".to_owned();
        return Err(refusal("ProtocolUnsupported", message));
    }
    let mode = choose_mode(service, port, explicit, last_good)?;
    Ok(LoadBalancerPort {
        name: port.key.name.clone(),
        protocol: port.key.protocol,
        port: port.port,
        mode,
        target_port: match (mode, &port.target) {
            (TargetMode::Pod, TargetPort::Number(number)) => Some(*number),
            _ => None,
        },
        node_port: port.node_port.filter(|_| mode == TargetMode::Node),
        client_ip: ClientIp::Preserve,
        health: health(proxy, service, port, mode),
    })
}

/// K-50 and K-51. Pods can always be reached here; a Service with node ports and without a wish gets
/// node mode (harness.md section 6); with allowed sources vip mode, if anybody on the nodes forwards it: the cloud has no
/// filter, and nodes check sources at the load balancer's address only (S-70), neither at node ports nor at pods.
fn choose_mode(
    service: &ServiceSpec,
    port: &ServicePort,
    explicit: Option<TargetMode>,
    last_good: Option<&LoadBalancerSpec>,
) -> Result<TargetMode, Refusal> {
    let vip = nobody_forwards(service);
    let held = !service.source_ranges.is_open() && vip.is_none();
    let wish = Wish {
        explicit: explicit.or(held.then_some(TargetMode::Vip)),
        node_ports: if service.allocates_node_ports {
            NodePorts::Allocated
        } else {
            NodePorts::Refused
        },
        default: TargetMode::Node,
    };
    let obstacles = Obstacles {
        node: port.node_port.is_none().then_some(Obstacle::NoNodePort),
        vip,
        pod: None,
    };
    let live = last_good.and_then(|spec| spec.ports.iter().find(|p| p.key() == port.key));
    match target::choose(wish, &obstacles, live.map(|port| port.mode)) {
        Choice::Use { mode, .. } | Choice::Keep { mode, .. } => Ok(mode),
        Choice::Refused(denied) => {
            let reasons: Vec<_> = denied.iter().map(ToString::to_string).collect();
            let message = format!(
                "{} (allocateLoadBalancerNodePorts is {}): set {} to pod",
                reasons.join("; "),
                service.allocates_node_ports,
                annotations::TARGET,
            );
            Err(refusal("TargetModeImpossible", message))
        }
    }
}

/// K-52: a Service that is handed to a proxy which is neither the agent nor kube-proxy has nobody who knows the load
/// balancer's address on the nodes.
fn nobody_forwards(service: &ServiceSpec) -> Option<Obstacle> {
    let other = service.other_proxy()?;
    let message = format!("the label names the proxy {other:?}");
    Some(Obstacle::NobodyForwards(message))
}

fn check(
    by: HealthBy,
    protocol: HealthProtocol,
    port: Option<u16>,
    path: Option<&str>,
) -> HealthCheck {
    HealthCheck {
        by,
        protocol,
        port,
        path: path.map(str::to_owned),
        interval_seconds: 2,
        timeout_seconds: 2,
        healthy: 1,
        unhealthy: 2,
    }
}

/// The check of a pod port by agents, which say where and what is asked.
pub(super) fn agent_check() -> HealthCheck {
    check(HealthBy::Agent, HealthProtocol::Http, None, None)
}

/// crd.md section 6, the row of our own classes where agents do not answer for pods.
fn health(
    proxy: NodeProxy,
    service: &ServiceSpec,
    port: &ServicePort,
    mode: TargetMode,
) -> Option<HealthCheck> {
    let http = |by, port| check(by, HealthProtocol::Http, Some(port), Some(NODE_HEALTH_PATH));
    match (
        mode,
        service.external_policy,
        service.health_check_node_port,
    ) {
        (TargetMode::Pod, _, _) if port.key.protocol == Protocol::Udp => None,
        (TargetMode::Pod, _, _) => Some(check(HealthBy::Traffic, HealthProtocol::Tcp, None, None)),
        (_, TrafficPolicy::Local, Some(port)) => Some(http(HealthBy::Local, port)),
        _ => Some(http(HealthBy::Node, node_health_port(proxy, service))),
    }
}

/// The port that tells the health of a node, by who is its proxy (crd.md section 8).
pub(crate) fn node_health_port(proxy: NodeProxy, service: &ServiceSpec) -> u16 {
    if proxy.is_agent_of(service) {
        AGENT_HEALTH
    } else {
        KUBE_PROXY_HEALTH
    }
}

#[cfg(test)]
mod tests {
    use onehop_core::id::PortKey;

    use super::*;

    fn service() -> ServiceSpec {
        ServiceSpec {
            uid: "u1".into(),
            allocates_node_ports: true,
            ports: vec![ServicePort {
                key: PortKey::new("http", Protocol::Tcp),
                port: 80,
                target: TargetPort::Number(8080),
                node_port: Some(30080),
                app_protocol: None,
            }],
            ..ServiceSpec::default()
        }
    }

    fn annotated(key: &str, value: &str) -> ServiceSpec {
        let mut service = service();
        service.annotations.insert(key.to_owned(), value.to_owned());
        service
    }

    fn only_port(service: &ServiceSpec) -> LoadBalancerPort {
        let resolved = resolve(NodeProxy::Beside, service, None);
        resolved.spec.unwrap().ports.remove(0)
    }

    #[test]
    fn k51_without_node_ports_and_without_a_wish_it_is_pod_mode() {
        assert_eq!(only_port(&service()).mode, TargetMode::Node);
        let mut without = service();
        without.allocates_node_ports = false;
        without.ports[0].node_port = None;
        let port = only_port(&without);
        assert_eq!(port.mode, TargetMode::Pod, "K-51");
        assert_eq!((port.target_port, port.node_port), (Some(8080), None));
        without.ports[0].node_port = Some(30080);
        assert_eq!(
            only_port(&without).mode,
            TargetMode::Pod,
            "C-02: the flag decides"
        );
    }

    #[test]
    fn s70_with_allowed_sources_the_address_stays_the_destination_also_when_they_come_later() {
        let mut limited = service();
        limited.source_ranges.allowed = vec!["192.0.2.0/24".parse().unwrap()];
        assert_eq!(only_port(&limited).mode, TargetMode::Vip);
        let live = resolve(NodeProxy::Beside, &service(), None).spec.unwrap();
        let resolved = resolve(NodeProxy::Beside, &limited, Some(&live));
        assert_eq!(resolved.spec.unwrap().ports[0].mode, TargetMode::Vip);
        // A list of which nothing can be read closes the address (S-74).
        let mut unread = service();
        unread.source_ranges.has_bad = true;
        assert_eq!(only_port(&unread).mode, TargetMode::Vip);
        // Who says a mode gets it.
        let mut explicit = annotated(annotations::TARGET, "node");
        explicit.source_ranges = limited.source_ranges;
        assert_eq!(only_port(&explicit).mode, TargetMode::Node);
    }

    #[test]
    fn s70_allowed_sources_that_nobody_enforces_are_told() {
        let mut limited = service();
        limited.source_ranges.allowed = vec!["192.0.2.0/24".parse().unwrap()];
        limited.allocates_node_ports = false;
        limited.ports[0].node_port = None;
        let reasons = |service: &ServiceSpec| -> Vec<_> {
            let resolved = resolve(NodeProxy::Beside, service, None);
            resolved.notices.iter().map(|n| n.reason).collect()
        };
        assert_eq!(only_port(&limited).mode, TargetMode::Vip);
        assert!(reasons(&limited).is_empty(), "{:?}", reasons(&limited));
        let mut explicit = annotated(annotations::TARGET, "pod");
        assert!(reasons(&explicit).is_empty(), "{:?}", reasons(&explicit));
        explicit.source_ranges = limited.source_ranges.clone();
        assert_eq!(reasons(&explicit), ["SourceRangesUnenforced"]);
        // Nobody on the nodes forwards for another proxy's Service, so there is no vip mode to choose.
        let label = onehop_core::service::PROXY_NAME_LABEL.to_owned();
        limited.labels.insert(label, "other".to_owned());
        assert_eq!(reasons(&limited), ["SourceRangesUnenforced"]);
    }

    #[test]
    fn k50_an_impossible_explicit_mode_is_refused_and_the_last_good_kept() {
        let good = resolve(NodeProxy::Beside, &service(), None).spec.unwrap();
        let mut bad = annotated(annotations::TARGET, "node");
        bad.allocates_node_ports = false;
        bad.ports[0].node_port = None;
        let resolved = resolve(NodeProxy::Beside, &bad, Some(&good));
        assert_eq!(resolved.spec.as_ref(), Some(&good), "K-50");
        assert_eq!(resolved.refusals[0].reason, "TargetModeImpossible");
        assert_eq!(resolve(NodeProxy::Beside, &bad, None).spec, None);
    }

    #[test]
    fn k50_what_is_wrong_with_a_thousand_ports_is_said_once() {
        let mut bad = annotated(annotations::TARGET, "node");
        bad.allocates_node_ports = false;
        let one = ServicePort {
            node_port: None,
            ..bad.ports[0].clone()
        };
        let port = |n: u16| ServicePort {
            key: PortKey::new(format!("p{n}").as_str(), Protocol::Tcp),
            port: n,
            ..one.clone()
        };
        bad.ports = (1..=1000).map(port).collect();
        let resolved = resolve(NodeProxy::Beside, &bad, None);
        let [refused] = &resolved.refusals[..] else {
            panic!("{:?}", resolved.refusals);
        };
        assert_eq!(
            refused.message,
            "ports p1/TCP, p2/TCP, p3/TCP, p4/TCP, p5/TCP and 995 more: target mode node is not possible: the port has no \
             nodePort (allocateLoadBalancerNodePorts is false): set onehop.dev/target to pod",
            "K-50"
        );
    }

    #[test]
    fn k50_k52_vip_mode_is_explicit_and_needs_somebody_who_forwards() {
        let mut vip = annotated(annotations::TARGET, "vip");
        vip.allocates_node_ports = false;
        vip.ports[0].node_port = None;
        let port = only_port(&vip);
        assert_eq!((port.mode, port.node_port), (TargetMode::Vip, None), "K-50");
        assert_eq!(port.health.and_then(|h| h.port), Some(10256));
        let label = onehop_core::service::PROXY_NAME_LABEL.to_owned();
        vip.labels.insert(label, "somebody-else".to_owned());
        let resolved = resolve(NodeProxy::Beside, &vip, None);
        assert_eq!(resolved.spec, None, "K-52");
        assert_eq!(resolved.refusals[0].reason, "TargetModeImpossible");
    }

    #[test]
    fn c52_bounds_are_the_installs() {
        let bounds = Bounds {
            floor_percent: 50,
            hold_max_seconds: 60,
            tail_max_seconds: 7,
            late_flows: onehop_core::crd::LateFlows::Drop,
        };
        let defaults = Defaults {
            bounds,
            ..Defaults::from(NodeProxy::Beside)
        };
        let spec = resolve(defaults, &service(), None).spec.unwrap();
        assert_eq!(
            spec.membership,
            bounds.membership(MembershipPolicy::ZeroDrop),
            "C-52"
        );
    }

    #[test]
    fn k32_the_membership_policy_is_the_installs_unless_the_service_says_its_own() {
        let policy = |service: &ServiceSpec, membership| {
            let defaults = Defaults {
                membership,
                ..Defaults::from(NodeProxy::Beside)
            };
            let spec = resolve(defaults, service, None).spec.unwrap();
            spec.membership.policy
        };
        let (zero_drop, compat) = (MembershipPolicy::ZeroDrop, MembershipPolicy::Compat);
        assert_eq!(policy(&service(), zero_drop), zero_drop, "K-30");
        assert_eq!(policy(&service(), compat), compat, "K-32");
        let own = annotated(annotations::MEMBERSHIP, "compat");
        assert_eq!(policy(&own, zero_drop), compat, "K-32");
        let own = annotated(annotations::MEMBERSHIP, "zero-drop");
        assert_eq!(policy(&own, compat), zero_drop, "K-32");
    }

    #[test]
    fn i10_a_typo_keeps_the_last_good_spec_of_the_same_service_only() {
        let good = resolve(NodeProxy::Beside, &service(), None).spec.unwrap();
        let typo = annotated(annotations::TARGET, "pods");
        let resolved = resolve(NodeProxy::Beside, &typo, Some(&good));
        assert_eq!(resolved.spec.as_ref(), Some(&good), "I10");
        let other = LoadBalancerSpec {
            service_uid: "u0".into(),
            ..good
        };
        assert_eq!(resolve(NodeProxy::Beside, &typo, Some(&other)).spec, None);
    }

    #[test]
    fn default_health_checks_are_those_of_crd_section_6() {
        let at = |service: &ServiceSpec, proxy| {
            let port = resolve(proxy, service, None).spec.unwrap().ports.remove(0);
            port.health.map(|h| (h.by, h.protocol, h.port, h.path))
        };
        let node = |port| {
            Some((
                HealthBy::Node,
                HealthProtocol::Http,
                Some(port),
                Some("/healthz".to_owned()),
            ))
        };
        // ZD-67: the node health of whoever is its proxy, never the node port.
        assert_eq!(at(&service(), NodeProxy::Beside), node(10256), "ZD-67");
        assert_eq!(at(&service(), NodeProxy::Replace), node(10356), "ZD-67");
        let mut labelled = service();
        let label = onehop_core::service::PROXY_NAME_LABEL.to_owned();
        labelled.labels.insert(label, "onehop".to_owned());
        assert_eq!(at(&labelled, NodeProxy::Beside), node(10356), "ZD-67");
        let mut local = service();
        local.external_policy = TrafficPolicy::Local;
        local.health_check_node_port = Some(31000);
        let by = at(&local, NodeProxy::Beside).unwrap();
        assert_eq!((by.0, by.2), (HealthBy::Local, Some(31000)));
        let mut pod = annotated(annotations::TARGET, "pod");
        let traffic = at(&pod, NodeProxy::Beside).unwrap();
        assert_eq!(
            (traffic.0, traffic.1, traffic.2),
            (HealthBy::Traffic, HealthProtocol::Tcp, None)
        );
        pod.ports[0].key.protocol = Protocol::Udp;
        assert_eq!(at(&pod, NodeProxy::Beside), None);
    }
}
