//! From one Service to what the kernel shall hold for it (sections 2 to 5 and 12.3).
//!
//! Pure: typed views in, elements out. Called by the planner for each Service that changed; knows
//! neither other Services (the planner says which frontends are this Service's) nor the past (but
//! for the slots that the kernel holds, which new lists are laid into).

mod filler;
pub mod fronts;
mod ranges;
pub mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::endpoint::{Endpoint, Endpoints};
use onehop_core::select::{Here, Policies, select};
use onehop_core::service::{ServicePort, ServiceSpec, TrafficPolicy};

pub use self::filler::slot_key;
use self::filler::{Filler, Plain};
use self::fronts::Reach;
use crate::claims::Front;
use crate::table::element::{Elements, Family, Key, Protocol, SetId, Verdict};

/// What compile needs to know besides the Service and its endpoints.
pub struct Surroundings<'a> {
    /// The own node.
    pub here: &'a Here,
    /// Addresses of the own node (S-72).
    pub node_addresses: &'a [IpAddr],
    /// Load balancer addresses of the Service (S-22).
    pub vips: &'a BTreeSet<IpAddr>,
    /// Whether a frontend is this Service's (S-33).
    pub owns: &'a dyn Fn(&Front) -> bool,
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
    /// Frontends that are another Service's (S-33).
    pub lost: Vec<Front>,
    /// Endpoints over the limit of one list (S-208), by frontend.
    pub cut: BTreeMap<Front, usize>,
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
        let fronts = fronts::of_port(service, port, around.vips);
        for family in fronts::families(service) {
            let of_family = fronts.iter().filter(|(front, _)| front.family() == family);
            let port = Port::new(service, port, endpoints, family, around.here);
            port.count_missing(&mut compiled);
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

/// One port of a Service in one family, with its endpoints chosen.
struct Port {
    policies: Policies,
    cluster: Vec<SocketAddr>,
    local: Vec<SocketAddr>,
    any: bool,
    serving: BTreeSet<SocketAddr>,
}

impl Port {
    fn new(
        service: &ServiceSpec,
        port: &ServicePort,
        endpoints: &Endpoints,
        family: Family,
        here: &Here,
    ) -> Self {
        let policies = Policies::of(service, port, false);
        let all = endpoints.of(service, port, family);
        let selection = select(policies, all, here);
        let serving = all
            .iter()
            .filter(|endpoint| endpoint.conditions.serving)
            .collect();
        Self {
            policies,
            cluster: targets(selection.cluster),
            local: targets(selection.local),
            any: selection.any,
            serving: targets(Some(serving)).into_iter().collect(),
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
        let no_endpoint = match (reach, service.internal_policy, service.external_policy) {
            (Reach::Internal, TrafficPolicy::Cluster, _) => filler.default_list(&self.cluster),
            (Reach::Internal, TrafficPolicy::Local, _) => filler.default_list(&self.local),
            (_, _, TrafficPolicy::Cluster) => {
                filler.plain(Plain::Masquerade);
                filler.default_list(&self.cluster)
            }
            (_, _, TrafficPolicy::Local) => {
                filler.plain(Plain::EtpLocal);
                filler.default_list(&self.cluster);
                filler.local_list(&self.local)
            }
        };
        if no_endpoint {
            // Endpoints elsewhere: the load balancer is expected to notice by its health check, or
            // the local pod restarts, so the client shall try again (S-51). None at all: refused.
            filler.no_endpoint(if self.any {
                Verdict::Drop
            } else {
                Verdict::Reject
            });
        }
        compiled.programmed += 1;
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
