//! From one Service to what the kernel shall hold for it (sections 2 to 5 and 12.3).
//!
//! Pure: typed views in, elements out. Called by the planner for each Service that changed; knows
//! neither other Services (the planner says which frontends are this Service's) nor the past (but
//! for the slots that the kernel holds, which new lists are laid into).

pub mod choices;
mod filler;
pub mod fronts;
mod ranges;
pub mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::endpoint::{Endpoint, Endpoints};
use onehop_core::id::PortKey;
use onehop_core::select::{Here, Policies, select};
use onehop_core::service::{ServicePort, ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;

use self::choices::{Choices, LocalEmpty};
pub use self::filler::slot_key;
use self::filler::{Filler, Plain};
use self::fronts::{Beyond, Reach};
use crate::claims::Front;
use crate::table::affinity::{List, Sticky, StickyPort};
use crate::table::element::{Elements, Family, Key, Protocol, SetId, Verdict};

/// What compile needs to know besides the Service and its endpoints.
pub struct Surroundings<'a> {
    /// The own node.
    pub here: &'a Here,
    /// Addresses of the own node (S-72).
    pub node_addresses: &'a [IpAddr],
    /// Addresses on which node ports answer.
    pub nodeport_addresses: &'a [IpAddr],
    /// What leads to the Service although its spec does not say so.
    pub beyond: &'a Beyond,
    /// What is left to the administrator.
    pub choices: Choices,
    /// Whether a frontend is this Service's (S-33).
    pub owns: &'a dyn Fn(&Front) -> bool,
    /// Until when the Local window of a frontend of a port is open, if it is (ZD-60).
    pub window: &'a dyn Fn(&PortKey, &Front, Reach) -> Option<Time>,
    /// The list that the kernel holds for a frontend, by first slot of its scope.
    pub held: &'a dyn Fn(&Front, u32) -> Vec<SocketAddr>,
}

/// What a Service comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// Its elements in both tables.
    pub elements: Elements,
    /// UDP frontends with the endpoints that serve them, whatever policy and topology say (S-91).
    pub udp: BTreeMap<Front, BTreeSet<SocketAddr>>,
    /// Affinity maps of its ports with the endpoints that may be stuck to (S-82, S-84).
    pub sticky: BTreeMap<(Family, Sticky), BTreeSet<SocketAddr>>,
    /// Whether it depends on the addresses on which node ports answer.
    pub uses_nodeport_addresses: bool,
    /// Frontends that are another Service's (S-33).
    pub lost: Vec<Front>,
    /// Endpoints over the limit of one list (S-208), by frontend.
    pub cut: BTreeMap<Front, usize>,
    /// Families whose load balancer addresses anybody may use although the Service has source ranges (S-73).
    pub unrestricted: BTreeSet<Family>,
    /// Frontends that are programmed.
    pub programmed: usize,
    /// Ports whose internal policy is Local and that have endpoints, but none here (S-52).
    pub no_local_internal: usize,
    /// The same for the external policy.
    pub no_local_external: usize,
}

/// Compiles one Service.
pub fn compile(
    service: &ServiceSpec,
    endpoints: &Endpoints,
    around: &Surroundings<'_>,
) -> Compiled {
    let mut compiled = Compiled::default();
    for addr in &service.cluster_ips {
        let key = (Family::of(*addr), SetId::ClusterIps, Key::Addr(*addr));
        compiled.elements.insert(key, None);
    }
    for port in &service.ports {
        let fronts = fronts::of_port(service, port, around.beyond);
        for family in fronts::families(service) {
            let of_family = fronts.iter().filter(|(front, _)| front.family() == family);
            let port = Port::new(service, port, endpoints, family, around);
            port.count_missing(&mut compiled);
            port.stick(family, &mut compiled);
            for (front, reach) in of_family {
                if (around.owns)(front) {
                    port.front(service, front, *reach, around, &mut compiled);
                } else {
                    compiled.lost.push(*front);
                }
            }
        }
    }
    compiled
}

/// Session affinity of a service port (S-80).
pub(crate) struct Affinity {
    /// Whose clients they are.
    pub(crate) port: StickyPort,
    /// How long a client is known after its last new connection.
    pub(crate) seconds: u32,
}

/// One port of a Service in one family, with its endpoints chosen.
struct Port {
    affinity: Option<Affinity>,
    policies: Policies,
    cluster: Vec<SocketAddr>,
    local: Vec<SocketAddr>,
    any: bool,
    serving: BTreeSet<SocketAddr>,
    key: PortKey,
}

impl Port {
    fn new(
        service: &ServiceSpec,
        port: &ServicePort,
        endpoints: &Endpoints,
        family: Family,
        around: &Surroundings<'_>,
    ) -> Self {
        let policies = Policies::of(service, port, around.beyond.leads_to(&port.key));
        let here = around.here;
        let affinity = service.affinity.map(|time| Affinity {
            port: StickyPort::of(&service.key, &port.key),
            seconds: u32::try_from(time.as_secs()).unwrap_or(u32::MAX),
        });
        let all = endpoints.of(service, port, family);
        let selection = select(policies, all, here);
        let serving = all
            .iter()
            .filter(|endpoint| endpoint.conditions.serving)
            .collect();
        Self {
            affinity,
            policies,
            cluster: targets(selection.cluster),
            local: targets(selection.local),
            any: selection.any,
            serving: targets(Some(serving)).into_iter().collect(),
            key: port.key.clone(),
        }
    }

    fn count_missing(&self, compiled: &mut Compiled) {
        if !self.any || !self.local.is_empty() {
            return;
        }
        if self.policies.internal == TrafficPolicy::Local {
            compiled.no_local_internal += 1;
        }
        if self.policies.external == Some(TrafficPolicy::Local) {
            compiled.no_local_external += 1;
        }
    }

    /// Whom known clients may be sent to.
    fn stick(&self, family: Family, compiled: &mut Compiled) {
        let Some(Affinity { port, .. }) = self.affinity else {
            return;
        };
        for (list, targets) in [(List::Cluster, &self.cluster), (List::Local, &self.local)] {
            let targets = targets.iter().copied().collect();
            compiled
                .sticky
                .insert((family, Sticky { list, port }), targets);
        }
    }

    /// Fills the maps for one frontend (S-226, S-231).
    fn front(
        &self,
        service: &ServiceSpec,
        front: &Front,
        reach: Reach,
        around: &Surroundings<'_>,
        compiled: &mut Compiled,
    ) {
        if reach == Reach::LoadBalancer {
            ranges::guard(service, front, around, compiled);
        }
        let mut filler = Filler {
            front,
            around,
            compiled,
        };
        let (mut default, mut local) = (List::Cluster, None);
        match (reach, service.internal_policy, service.external_policy) {
            (Reach::Internal, TrafficPolicy::Cluster, _) => {}
            (Reach::Internal, TrafficPolicy::Local, _) => default = List::Local,
            (_, _, TrafficPolicy::Cluster) => filler.plain(Plain::Masquerade),
            (_, _, TrafficPolicy::Local) => {
                filler.plain(Plain::EtpLocal);
                local = Some(&self.local);
            }
        }
        let list = match default {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        };
        let default_empty = filler.default_list(list);
        let local_empty = local.is_none_or(|list| filler.local_list(list));
        let no_endpoint = local.map_or(default_empty, |_| local_empty);
        let late = local.is_some() && local_empty && !default_empty;
        let window = late.then(|| (around.window)(&self.key, front, reach));
        let window = window.flatten();
        if let Some(until) = window {
            filler.window(self.cluster.len(), until);
        }
        if let Some(affinity) = &self.affinity {
            let default = (!default_empty).then_some(default);
            filler.affinity(affinity, default, (!local_empty, window.is_some()));
        }
        if no_endpoint {
            // Endpoints elsewhere: the load balancer is expected to notice by its health check, or
            // the local pod restarts, so the client shall try again (S-51). None at all: refused.
            let elsewhere = match around.choices.local_empty {
                LocalEmpty::Drop => Verdict::Drop,
                LocalEmpty::Reject => Verdict::Reject,
            };
            filler.no_endpoint(if self.any { elsewhere } else { Verdict::Reject });
        }
        compiled.programmed += 1;
        let by_address = matches!(front, Front::NodePort(..));
        compiled.uses_nodeport_addresses |= by_address && self.affinity.is_some();
        if front.protocol() == Protocol::Udp {
            compiled.udp.insert(*front, self.serving.clone());
        }
    }
}

fn targets(list: Option<Vec<&Endpoint>>) -> Vec<SocketAddr> {
    let list = list.unwrap_or_default();
    list.into_iter()
        .map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port))
        .collect()
}
