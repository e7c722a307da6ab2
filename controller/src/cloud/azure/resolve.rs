//! From a Service to the resolved spec of its load balancer (section 6 of the specification). Pure.
//!
//! Everything wrong is collected; while anything is, the last good spec is carried out (I10), and not one call is made
//! for a Service that never had one (AZ-034).

use onehop_core::crd::{
    ClientIp, LoadBalancerPort, LoadBalancerSpec, MembershipPolicy, ProviderKind, ProviderOption,
    Scheme, TargetMode,
};
use onehop_core::id::{IpFamily, Protocol};
use onehop_core::service::{ServicePort, ServiceSpec, TargetPort};
use onehop_core::target::{self, Choice, Denied, NodePorts, Obstacle, Obstacles, Wish};

use super::annotations::{self, Wishes, keys};
use super::health;
use super::names;
use super::settings::Settings;
use crate::plan::{Notice, Refusal, Resolution};

/// Why other modes than vip have none.
const ALL_PORTS: &str = "a rule for all ports keeps the address and port that clients ask for";

/// Whose names, defaults and checks a Service gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flavour {
    /// Ours.
    #[default]
    Own,
    /// Those of cloud-provider-azure: every other class, and Services without one.
    Peer,
}

impl Flavour {
    /// Of a Service of this class.
    pub fn of(class: Option<&str>) -> Self {
        match class {
            Some(class) if class.starts_with("onehop.dev/") => Self::Own,
            _ => Self::Peer,
        }
    }

    /// The tag of a public IP for the Service that its DNS label is for.
    pub(super) const fn dns_tag(self) -> &'static str {
        match self {
            Self::Own => names::TAG_DNS,
            Self::Peer => names::PEER_DNS_TAG,
        }
    }
}

/// Reads one Service.
pub fn resolve(
    settings: &Settings,
    service: &ServiceSpec,
    last_good: Option<&LoadBalancerSpec>,
) -> Resolution {
    let last_good = last_good.filter(|spec| spec.service_uid == service.uid);
    let (mut wishes, problems) = annotations::parse(service);
    let mut refusals: Vec<Refusal> = problems
        .iter()
        .map(|problem| refusal(problem.reason, problem.to_string()))
        .collect();
    let mut notices: Vec<Notice> = wishes
        .hints
        .iter()
        .map(|hint| notice("AnnotationIgnored", hint.to_string()))
        .collect();
    for bad in &wishes.access.bad {
        let message = format!(
            "{}: {} are no ranges with all host bits zero: they are left out, and whoever is not in the rest is kept out",
            bad.key,
            bad.entries.join(", ")
        );
        notices.push(Notice {
            degrades: true,
            ..notice(bad.reason, message)
        });
    }
    refusals.extend(security_group(settings, &wishes));
    let families = families(service);
    let before = last_good.map(annotations::of_options);
    let (mut ports, mut own_pools) = (Vec::new(), Vec::new());
    for port in &service.ports {
        if wishes
            .ports
            .get(&port.port)
            .is_some_and(|wish| wish.no_rule)
        {
            continue;
        }
        let one = One {
            settings,
            service,
            wishes: &wishes,
            families: &families,
        };
        let live = last_good.and_then(|spec| spec.ports.iter().find(|p| p.key() == port.key));
        match one.port(port, live, &mut notices) {
            Ok((port, stand_in)) => {
                let word = |port: &LoadBalancerPort| names::port_word(port.protocol, port.port);
                let had = |live| {
                    before
                        .as_ref()
                        .is_some_and(|it| it.own_pools.contains(&word(live)))
                };
                // What a live one has it keeps (K-50).
                let vip = |port: &LoadBalancerPort| port.mode == TargetMode::Vip;
                if stand_in.unwrap_or_else(|| vip(&port) && live.is_some_and(had)) {
                    own_pools.push(word(&port));
                }
                ports.push(port);
            }
            Err(why) => refusals.push(refusal(
                why.reason,
                format!("port {}: {}", port.key, why.message),
            )),
        }
    }
    refusals.extend(all_ports(service, &wishes, &ports));
    if !refusals.is_empty() {
        return Resolution {
            spec: last_good.cloned(),
            refusals,
            notices,
        };
    }
    if !own_pools.is_empty() {
        let key = keys::SPEC_OWN_POOLS.to_owned();
        let list = own_pools.join(",");
        wishes.origins.push((key.clone(), list, key));
    }
    notices.sort_by(|a, b| (a.reason, &a.message).cmp(&(b.reason, &b.message)));
    notices.dedup();
    Resolution {
        spec: Some(spec(settings, service, wishes, (families, ports))),
        refusals,
        notices,
    }
}

fn spec(
    settings: &Settings,
    service: &ServiceSpec,
    wishes: Wishes,
    (families, ports): (Vec<IpFamily>, Vec<LoadBalancerPort>),
) -> LoadBalancerSpec {
    let option = |(name, value, from)| ProviderOption { name, value, from };
    let default = match Flavour::of(service.class.as_deref()) {
        Flavour::Own => MembershipPolicy::ZeroDrop,
        Flavour::Peer => MembershipPolicy::Compat,
    };
    LoadBalancerSpec {
        provider: ProviderKind::Azure,
        class: service.class.clone(),
        service_uid: service.uid.clone(),
        scheme: if wishes.internal {
            Scheme::Internal
        } else {
            Scheme::InternetFacing
        },
        families,
        ports,
        sources: Vec::new(),
        membership: settings
            .bounds
            .membership(wishes.membership.or(settings.membership).unwrap_or(default)),
        options: wishes.origins.into_iter().map(option).collect(),
    }
}

/// Every family of the Service gets a frontend and pools of its own (AZ-310).
fn families(service: &ServiceSpec) -> Vec<IpFamily> {
    if service.families.is_empty() {
        return vec![IpFamily::V4];
    }
    service.families.clone()
}

/// AZ-018: without a security group that we may write nobody from outside would be let in.
fn security_group(settings: &Settings, wishes: &Wishes) -> Option<Refusal> {
    let needs_rules = !wishes.internal || !wishes.access.is_open() || wishes.access.deny_all;
    if !needs_rules || settings.place.security_group.is_some() || wishes.access.unruled {
        return None;
    }
    let what = if wishes.internal {
        "source ranges need rules"
    } else {
        "a public load balancer needs rules"
    };
    let message = format!(
        "{what} in a network security group, and this install has none to write: name one by --azure-security-group, \
         or ask for an internal load balancer by {}{}: \"true\"",
        keys::PREFIX,
        keys::INTERNAL
    );
    Some(refusal("SecurityGroupLocked", message))
}

/// AZ-134: a rule for all ports leaves them as they are, which a live Service in another mode would not survive (K-50).
fn all_ports(
    service: &ServiceSpec,
    wishes: &Wishes,
    ports: &[LoadBalancerPort],
) -> Option<Refusal> {
    let peer = Flavour::of(service.class.as_deref()) == Flavour::Peer;
    let fits = |port: &&LoadBalancerPort| match port.mode {
        TargetMode::Vip => true,
        // As upstream does where there is no floating IP.
        TargetMode::Node => peer,
        TargetMode::Pod | TargetMode::Unknown => false,
    };
    let other = ports.iter().find(|port| wishes.all_ports && !fits(port))?;
    let message = format!(
        "{}{}: {ALL_PORTS}, and port {} is in mode {}: set {} to vip",
        keys::PREFIX,
        keys::HA_PORTS,
        other.key(),
        other.mode,
        keys::TARGET
    );
    Some(refusal("HighAvailabilityPortsUnsupported", message))
}

pub(super) fn notice(reason: &'static str, message: String) -> Notice {
    Notice {
        reason,
        message,
        degrades: false,
    }
}

pub(super) fn refusal(reason: &'static str, message: String) -> Refusal {
    Refusal { reason, message }
}

struct One<'a> {
    settings: &'a Settings,
    service: &'a ServiceSpec,
    wishes: &'a Wishes,
    /// A mode is of a port in all of them.
    families: &'a [IpFamily],
}

impl One<'_> {
    /// The port and, unless that is as it was, whether nodes stand in for pods there.
    fn port(
        &self,
        port: &ServicePort,
        live: Option<&LoadBalancerPort>,
        notices: &mut Vec<Notice>,
    ) -> Result<(LoadBalancerPort, Option<bool>), Refusal> {
        if port.key.protocol == Protocol::Sctp && !self.wishes.all_ports {
            // AZ-133: what a rule of one SCTP port carries is not known.
            let message = format!(
                "Azure's load balancer takes SCTP in a rule for all ports of a private frontend only: set {0}{1} and {0}{2} to \
                 \"true\"",
                keys::PREFIX,
                keys::INTERNAL,
                keys::HA_PORTS
            );
            return Err(refusal("ProtocolUnsupported", message));
        }
        let (mode, stand_in) = self.mode(port, live.map(|p| p.mode), notices)?;
        let health = health::check(
            self.settings,
            self.service,
            (port, mode),
            self.wishes,
            notices,
        )?;
        let port = LoadBalancerPort {
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
            health,
        };
        Ok((port, stand_in))
    }

    /// AZ-055, AZ-130 to AZ-140, AZ-252: explicit modes that are impossible are refused, default ones passed over with
    /// an event.
    fn mode(
        &self,
        port: &ServicePort,
        live: Option<TargetMode>,
        notices: &mut Vec<Notice>,
    ) -> Result<(TargetMode, Option<bool>), Refusal> {
        let explicit = if self.wishes.no_floating {
            Some(TargetMode::Node)
        } else {
            self.wishes.mode
        };
        let default = match Flavour::of(self.service.class.as_deref()) {
            Flavour::Own => self.settings.mode,
            Flavour::Peer => TargetMode::Vip,
        };
        let node_ports = if self.service.allocates_node_ports {
            NodePorts::Allocated
        } else {
            NodePorts::Refused
        };
        let wish = Wish {
            explicit,
            node_ports,
            default,
        };
        let obstacles = Obstacles {
            node: self.no_node(port),
            vip: self.no_vip(),
            pod: self.no_pod(port),
        };
        let (mode, denied, stand_in) = match target::choose(wish, &obstacles, live) {
            Choice::Use { mode, instead_of } => {
                let no_pod = instead_of.iter().any(|it| it.mode == TargetMode::Pod);
                (mode, instead_of, Some(no_pod && mode == TargetMode::Vip))
            }
            Choice::Keep { mode, instead_of } => (mode, vec![instead_of], None),
            Choice::Refused(denied) => {
                return Err(refusal("TargetModeImpossible", self.reasons(&denied)));
            }
        };
        if !denied.is_empty() {
            let message = format!("target mode {mode} is used: {}", self.reasons(&denied));
            notices.push(notice("TargetModeFallback", message));
        }
        Ok((mode, stand_in))
    }

    fn reasons(&self, denied: &[Denied]) -> String {
        let reasons: Vec<_> = denied.iter().map(ToString::to_string).collect();
        let allocates = self.service.allocates_node_ports;
        format!(
            "{} (allocateLoadBalancerNodePorts is {allocates})",
            reasons.join("; ")
        )
    }

    /// Whoever proxies the Service forwards node ports too (K-52).
    fn no_node(&self, port: &ServicePort) -> Option<Obstacle> {
        let own = Flavour::of(self.service.class.as_deref()) == Flavour::Own;
        if self.wishes.all_ports && own {
            return Some(Obstacle::Other(ALL_PORTS.to_owned()));
        }
        port.node_port
            .is_none()
            .then_some(Obstacle::NoNodePort)
            .or_else(|| self.nobody_forwards())
    }

    /// AZ-135: no floating IP on a private IPv6 frontend.
    fn no_vip(&self) -> Option<Obstacle> {
        let six = self.wishes.internal && self.families.contains(&IpFamily::V6);
        let why = "Azure has no floating IP on an internal IPv6 frontend".to_owned();
        six.then_some(Obstacle::Other(why))
            .or_else(|| self.nobody_forwards())
    }

    /// AZ-251, AZ-252, AZ-263.
    fn no_pod(&self, port: &ServicePort) -> Option<Obstacle> {
        let prefixes = &self.settings.pod_prefixes;
        let unreachable = |family: &&IpFamily| prefixes.iter().all(|it| it.family() != **family);
        if let Some(family) = self.families.iter().find(unreachable) {
            let why = format!(
                "no {family} range of --azure-pod-prefixes says that pods have addresses of the virtual network"
            );
            return Some(Obstacle::PodsUnreachable(why));
        }
        if self.wishes.all_ports {
            return Some(Obstacle::Other(ALL_PORTS.to_owned()));
        }
        match &port.target {
            TargetPort::Number(_) => None,
            TargetPort::Name(name) => {
                let why = format!(
                    "targetPort {name:?} is not the same number on every pod, or none has said it yet, and a rule has one"
                );
                Some(Obstacle::Other(why))
            }
        }
    }

    /// AZ-257: a Service that is handed to a proxy which is neither the agent nor kube-proxy.
    fn nobody_forwards(&self) -> Option<Obstacle> {
        let other = self.service.other_proxy()?;
        Some(Obstacle::NobodyForwards(format!(
            "the label names the proxy {other:?}"
        )))
    }
}

#[cfg(test)]
mod tests;
