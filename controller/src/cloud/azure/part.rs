//! One Service's part of a load balancer: frontends, pools, probes and rules as they should be (AZ-080 to AZ-099,
//! AZ-130 to AZ-150). Pure.
//!
//! Parts are told apart by the names of their children, so that any number of them fits into one document and goes out
//! in one PUT (AZ-101).

use std::collections::BTreeSet;
use std::net::IpAddr;

use onehop_core::crd::{HealthBy, HealthProtocol, LoadBalancerPort, LoadBalancerSpec, TargetMode};
use onehop_core::id::{IpFamily, Protocol};
use serde_json::{Value, json};

use super::annotations::Wishes;
use super::document::{FRONTENDS, POOLS, PROBES, lay_over};
use super::names::{self, Half};
use super::resolve::Flavour;
use super::settings::{Kind, Settings};

/// Minutes after which Azure forgets an idle flow, where nothing says.
const IDLE_MINUTES: u32 = 4;

/// Protocol of a rule for every port (AZ-134).
const ALL: &str = "All";

/// A Service's part of a load balancer.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Base name: what begins with it is the Service's.
    pub base: String,
    /// The load balancer.
    pub kind: Kind,
    /// Frontends, one a family.
    pub frontends: Vec<Child>,
    /// Pools that its rules use.
    pub pools: Vec<Pool>,
    /// Probes.
    pub probes: Vec<Child>,
    /// Rules, those of former frontends among them.
    pub rules: Vec<Child>,
    /// Names of frontends with former addresses, which serve on (AZ-113).
    pub former: Vec<String>,
    /// Pools that only their rules use.
    pub former_pools: Vec<Pool>,
}

/// A frontend with a former address of a Service, and what the Service has on it (AZ-113).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerFrontend {
    /// Its name.
    pub name: String,
    /// Its family.
    pub family: IpFamily,
    /// Protocols, in lower case, and frontend ports of the Service's rules on it.
    pub ports: BTreeSet<(String, u64)>,
}

impl FormerFrontend {
    fn serves(&self, port: &LoadBalancerPort) -> bool {
        let protocol = wire_protocol(port.protocol).to_ascii_lowercase();
        let all = (ALL.to_ascii_lowercase(), 0);
        self.ports.contains(&(protocol, port.port.into())) || self.ports.contains(&all)
    }
}

/// A child of a load balancer as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// What is asked of it: compared, and laid over what is there.
    pub wish: Value,
    /// What is said beside that when it is made, and left alone afterwards (AZ-155).
    pub at_birth: Value,
}

/// A pool that rules use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// What its members are.
    pub mode: TargetMode,
    /// Their family.
    pub family: IpFamily,
    /// The port that its members are for.
    pub port: onehop_core::id::PortKey,
}

impl Pool {
    /// Whether an address is of its family: a port has targets of every family, a pool of one (AZ-310).
    pub fn takes(&self, address: IpAddr) -> bool {
        IpFamily::of(address) == self.family
    }
}

/// A frontend that is given: of a Service that shares its address, or of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A public IP, by its id.
    Public {
        /// Id of the public IP.
        id: String,
    },
    /// An address of a subnet.
    Private {
        /// Name of the subnet, if an annotation says which.
        subnet: Option<String>,
        /// The very address, if one is asked for.
        pinned: Option<IpAddr>,
    },
}

/// What a part is made of, beside settings.
#[derive(Clone, Copy, Debug)]
pub struct Makings<'a> {
    /// The resolved wishes.
    pub spec: &'a LoadBalancerSpec,
    /// Annotations, read again.
    pub wishes: &'a Wishes,
    /// Frontends of its name that others use, or that serve on with former addresses.
    pub left_to_others: &'a [String],
    /// Zones of a private frontend that is new (AZ-175).
    pub zones: &'a [String],
    /// Frontends with former addresses.
    pub former: &'a [FormerFrontend],
}

impl Part {
    /// The part of a Service. `frontend` says what a family's frontend holds and, where one with that address is there
    /// already, its name.
    pub fn new(
        settings: &Settings,
        makings: Makings<'_>,
        frontend: impl Fn(IpFamily) -> (Address, Option<String>),
    ) -> Self {
        let spec = makings.spec;
        let kind = kind(makings.wishes);
        let mut part = Self {
            base: names::base(&spec.service_uid),
            kind,
            frontends: Vec::new(),
            pools: Vec::new(),
            probes: Vec::new(),
            rules: Vec::new(),
            former: Vec::new(),
            former_pools: Vec::new(),
        };
        let frontends: Vec<_> = spec.families.iter().map(|it| frontend(*it)).collect();
        // By the frontend of the family that the Service had before (AZ-315), or by one that it leaves to others (AZ-173).
        let taken = |name: &String| {
            let there = frontends.iter().filter_map(|(_, there)| there.as_ref());
            let mut all = there.chain(makings.left_to_others);
            all.any(|it| it.eq_ignore_ascii_case(name))
        };
        for (family, (address, there)) in spec.families.iter().zip(&frontends) {
            let half = Half::of(*family, &spec.families);
            let name = there.clone().unwrap_or_else(|| {
                let own = names::frontend(&part.base, makings.wishes.subnet.as_deref(), half);
                let more = (2..).map(|n| format!("{own}-{n}"));
                let mut free = std::iter::once(own.clone()).chain(more);
                free.find(|name| !taken(name)).unwrap_or(own)
            });
            part.frontends.push(frontend_child(
                settings,
                &name,
                (address, makings.zones),
                *family,
            ));
            let side = Side {
                settings,
                makings,
                family: *family,
                half,
                frontend: name,
            };
            // One rule stands for all of them (AZ-134).
            let ruled = if makings.wishes.all_ports {
                spec.ports.get(..1).unwrap_or_default()
            } else {
                &spec.ports
            };
            for port in ruled {
                side.port(&mut part, port);
            }
            for former in makings.former.iter().filter(|it| it.family == *family) {
                let frontend = former.name.clone();
                Side {
                    frontend,
                    ..side.clone()
                }
                .former(&mut part, former);
            }
        }
        part
    }

    /// What is left of it once no former address serves any more.
    #[must_use]
    pub fn without_former(&self) -> Self {
        let mut part = self.clone();
        part.former.clear();
        part.former_pools.clear();
        part.rules
            .retain(|rule| !names::is_former_rule(&rule.name, &part.base));
        part
    }

    /// All pools that its rules use.
    pub fn all_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().chain(&self.former_pools)
    }
}

/// Which load balancer a Service is on.
pub fn kind(wishes: &Wishes) -> Kind {
    if wishes.internal {
        Kind::Internal
    } else {
        Kind::External
    }
}

/// The zones of one that is there are kept, whatever becomes of its address (AZ-175).
fn frontend_child(
    settings: &Settings,
    name: &str,
    (address, zones): (&Address, &[String]),
    family: IpFamily,
) -> Child {
    let (wish, at_birth) = match address {
        Address::Public { id } => (json!({"publicIPAddress": {"id": id}}), json!({})),
        Address::Private { subnet, pinned } => {
            let subnet = json!({"id": settings.place.subnet_id(subnet.as_deref())});
            match pinned {
                Some(address) => (
                    json!({"subnet": subnet, "privateIPAddress": address.to_string(), "privateIPAllocationMethod": "Static"}),
                    json!({"privateIPAddressVersion": family.as_str()}),
                ),
                // An allocation method that nobody asked for is compared with nothing (ZI-48).
                None => (
                    json!({"subnet": subnet}),
                    json!({"privateIPAllocationMethod": "Dynamic", "privateIPAddressVersion": family.as_str()}),
                ),
            }
        }
    };
    let mut child = child(name, wish, at_birth);
    // A public one is where its public IP is.
    if matches!(address, Address::Private { .. }) && !zones.is_empty() {
        child.at_birth["zones"] = json!(zones);
    }
    child
}

fn child(name: &str, wish: Value, at_birth: Value) -> Child {
    Child {
        name: name.to_owned(),
        wish: json!({"properties": wish}),
        at_birth: json!({"name": name, "properties": at_birth}),
    }
}

const fn wire_protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Udp => "Udp",
        Protocol::Tcp | Protocol::Sctp => "Tcp",
    }
}

/// Never port 0 (AZ-140): what has none is refused before.
fn backend_port(port: &LoadBalancerPort) -> Option<u16> {
    match port.mode {
        TargetMode::Vip => Some(port.port),
        TargetMode::Node => port.node_port,
        TargetMode::Pod => port.target_port,
        TargetMode::Unknown => None,
    }
}

/// Whether the nodes with ready pods of its Service are a pool of their own for a port (AZ-132).
pub fn has_own_pool(wishes: &Wishes, port: &LoadBalancerPort) -> bool {
    let word = names::port_word(port.protocol, port.port);
    port.mode == TargetMode::Vip && wishes.own_pools.contains(&word)
}

/// One family of a part.
#[derive(Clone)]
struct Side<'a> {
    settings: &'a Settings,
    makings: Makings<'a>,
    family: IpFamily,
    half: Half,
    frontend: String,
}

impl Side<'_> {
    fn port(&self, part: &mut Part, port: &LoadBalancerPort) {
        let Some(backend_port) = backend_port(port) else {
            return;
        };
        let pool = self.pool(&part.base, port, self.shares_target(port));
        let probe = self.probe(&part.base, port);
        let name = self.rule_name(&part.base, port.protocol, port.port);
        let rule = self.rule(
            part.kind,
            &name,
            port,
            (backend_port, &pool.name, probe.as_ref()),
        );
        part.rules.push(rule);
        if !part.pools.iter().any(|known| known.name == pool.name) {
            part.pools.push(pool);
        }
        part.probes.extend(
            probe.filter(|probe| !part.probes.iter().any(|known| known.name == probe.name)),
        );
    }

    /// The rules of a frontend with a former address. With floating IP off they cannot be on the pool of the others (AZ-262).
    fn former(&self, part: &mut Part, former: &FormerFrontend) {
        let mut served: Vec<_> = self.makings.spec.ports.iter().collect();
        served.retain(|port| former.serves(port));
        if self.makings.wishes.all_ports {
            served.truncate(1);
        }
        for port in served {
            let Some(backend_port) = backend_port(port) else {
                continue;
            };
            let mut pool = self.pool(&part.base, port, self.shares_target(port));
            let apart = port.mode != TargetMode::Vip;
            if apart {
                pool.name = names::former_pool(&part.base, &pool.name, &former.name, self.family);
            }
            let probe = self.probe(&part.base, port);
            let (protocol, number) = (port.protocol, port.port);
            let name = names::former_rule(&part.base, &former.name, protocol, number, self.half);
            let to = (backend_port, pool.name.as_str(), probe.as_ref());
            part.rules.push(self.rule(part.kind, &name, port, to));
            if apart
                && !part
                    .former_pools
                    .iter()
                    .any(|known| known.name == pool.name)
            {
                part.former_pools.push(pool);
            }
            if !part.former.contains(&former.name) {
                part.former.push(former.name.clone());
            }
        }
    }

    fn rule_name(&self, base: &str, protocol: Protocol, port: u16) -> String {
        let subnet = self.makings.wishes.subnet.as_deref();
        names::rule(base, subnet, protocol, port, self.half)
    }

    /// AZ-262: an earlier port of the Service has this one's target port and protocol, so it needs a pool of its own.
    fn shares_target(&self, port: &LoadBalancerPort) -> bool {
        let ports = self
            .makings
            .spec
            .ports
            .iter()
            .take_while(|other| other.key() != port.key());
        let same = |other: &LoadBalancerPort| {
            (other.mode, other.protocol, other.target_port)
                == (TargetMode::Pod, port.protocol, port.target_port)
        };
        port.mode == TargetMode::Pod && ports.into_iter().any(same)
    }

    fn pool(&self, base: &str, port: &LoadBalancerPort, apart: bool) -> Pool {
        let owner = match Flavour::of(self.makings.spec.class.as_deref()) {
            Flavour::Own => self.settings.install.as_str(),
            Flavour::Peer => &self.settings.cluster,
        };
        let name = match port.mode {
            TargetMode::Pod => {
                let port = apart.then_some((port.protocol, port.port));
                names::pod_pool(base, port, self.family)
            }
            _ if has_own_pool(self.makings.wishes, port) => names::own_node_pool(base, self.family),
            _ => names::node_pool(owner, self.family),
        };
        Pool {
            name,
            mode: port.mode,
            family: self.family,
            port: port.key(),
        }
    }

    /// AZ-142 by name: one for the healthCheckNodePort of a Service, one for the nodes' health of all, else one a port.
    fn probe(&self, base: &str, port: &LoadBalancerPort) -> Option<Child> {
        let health = port.health.as_ref()?;
        let number = health.port?;
        let name = match health.by {
            HealthBy::Local => self.rule_name(base, Protocol::Tcp, number),
            HealthBy::Node => match Flavour::of(self.makings.spec.class.as_deref()) {
                Flavour::Own => names::node_probe(&self.settings.install, number),
                Flavour::Peer => names::PEER_SHARED_PROBE.to_owned(),
            },
            _ => self.rule_name(base, port.protocol, port.port),
        };
        let protocol = match health.protocol {
            HealthProtocol::Http => "Http",
            HealthProtocol::Https => "Https",
            HealthProtocol::Tcp | HealthProtocol::Unknown => "Tcp",
        };
        // `numberOfProbes` has no effect (AZ-062).
        let wish = json!({
            "protocol": protocol,
            "port": number,
            "requestPath": health.path,
            "intervalInSeconds": health.interval_seconds,
            "probeThreshold": health.unhealthy,
        });
        Some(child(&name, wish, json!({})))
    }

    /// AZ-130, AZ-131.
    fn rule(
        &self,
        kind: Kind,
        name: &str,
        port: &LoadBalancerPort,
        (backend_port, pool, probe): (u16, &str, Option<&Child>),
    ) -> Child {
        let (place, wishes) = (&self.settings.place, self.makings.wishes);
        let id = |list, name: &str| json!({"id": place.child_id(kind, list, name)});
        let mut wish = json!({
            "frontendIPConfiguration": id(FRONTENDS, &self.frontend),
            "backendAddressPool": id(POOLS, pool),
            "probe": probe.map(|probe| id(PROBES, &probe.name)),
            "protocol": wire_protocol(port.protocol),
            "frontendPort": port.port,
            "backendPort": backend_port,
            "enableFloatingIP": port.mode == TargetMode::Vip,
            "loadDistribution": if wishes.affinity { "SourceIP" } else { "Default" },
            "disableOutboundSnat": port.mode == TargetMode::Pod || self.settings.disable_outbound_snat,
        });
        if port.protocol == Protocol::Tcp {
            wish["enableTcpReset"] = json!(!wishes.no_reset);
        }
        let at_birth = match wishes.idle_minutes {
            Some(minutes) => {
                wish["idleTimeoutInMinutes"] = json!(minutes);
                json!({})
            }
            None => json!({"idleTimeoutInMinutes": IDLE_MINUTES}),
        };
        if wishes.all_ports {
            let all = json!({
                "protocol": ALL, "frontendPort": 0, "backendPort": 0, "enableTcpReset": !wishes.no_reset,
            });
            lay_over(&mut wish, &all);
        }
        child(name, wish, at_birth)
    }
}

#[cfg(test)]
mod tests;
