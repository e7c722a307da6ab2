//! What a small reference model says a node does with a new flow (sections 2 to 6), written from the specification
//! and not from the code under test. Compared with a real kernel in `agreement`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use onehop_core::id::Protocol;
use onehop_node_agent::table::element::Family;

use crate::common::{NODE, Stands};
use crate::lab::{PODS, Plan};

#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one field of the API"
)]
/// A Service of the model. Its ClusterIPs follow from its number.
#[derive(Debug, Clone)]
pub(crate) struct Svc {
    pub(crate) number: u8,
    pub(crate) created: i64,
    pub(crate) ours: bool,
    pub(crate) protocol: Protocol,
    /// Load balancer addresses, by number.
    pub(crate) vip: Option<u8>,
    /// External addresses: one of the VIPs, by number, or the node's second address.
    pub(crate) external: Option<External>,
    pub(crate) node_port: Option<u16>,
    pub(crate) internal_local: bool,
    pub(crate) external_local: bool,
    pub(crate) sources: Sources,
    pub(crate) affinity: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum External {
    Vip(u8),
    SecondNodeAddress,
}

impl External {
    pub(crate) fn address(self, plan: Plan) -> IpAddr {
        match self {
            Self::Vip(number) => plan.vip(number),
            Self::SecondNodeAddress => plan.second_node_address(),
        }
    }
}

/// Source ranges of both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sources {
    Any,
    /// Only the first client.
    FirstClient,
    /// Only pods, of this and other nodes.
    Pods,
}

/// An endpoint of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ep {
    pub(crate) address: IpAddr,
    pub(crate) stands: Stands,
    pub(crate) zones: Vec<&'static str>,
    pub(crate) nodes: Vec<&'static str>,
}

impl Ep {
    pub(crate) fn is_local(&self) -> bool {
        Plan::BOTH
            .iter()
            .any(|plan| (1..=PODS).any(|n| plan.pod(n) == self.address))
    }
}

/// Where a flow comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// A pod of this node.
    Pod(u8),
    /// A process of this node.
    Node,
    /// Outside.
    Client(u8),
    /// A pod of another node, by the uplink.
    RemotePod(u8),
}

impl From {
    pub(crate) fn address(self, plan: Plan) -> IpAddr {
        match self {
            Self::Pod(n) => plan.pod(n),
            Self::Node => plan.node(),
            Self::Client(n) => plan.client(n),
            Self::RemotePod(n) => plan.remote_pod(n),
        }
    }

    fn is_pod_address(self) -> bool {
        matches!(self, Self::Pod(_) | Self::RemotePod(_))
    }
}

/// What becomes of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is nobody's frontend.
    Untouched,
    Drop,
    Reject,
    /// One of these serves it; those in the second set see an address of the node.
    Serve(BTreeSet<IpAddr>, BTreeSet<IpAddr>),
}

/// The cluster as the node sees it.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) services: BTreeMap<u8, Svc>,
    pub(crate) endpoints: BTreeMap<(u8, Family), Vec<Ep>>,
    pub(crate) zone: Option<&'static str>,
    /// Whether node ports answer on the second address too.
    pub(crate) second_address: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ClusterIp,
    LoadBalancer,
    Other,
}

impl Model {
    /// What the node does with a new flow.
    pub(crate) fn answer(
        &self,
        plan: Plan,
        from: From,
        to: SocketAddr,
        protocol: Protocol,
    ) -> Answer {
        let at_address = self.oldest(|svc| {
            let alike = svc.protocol == protocol && to.port() == 80;
            alike.then(|| kind_at(svc, plan, to.ip())).flatten()
        });
        let at_node_port = || {
            let port = |svc: &Svc| svc.protocol == protocol && svc.node_port == Some(to.port());
            let found = self.oldest(|svc| port(svc).then_some(Kind::Other));
            found.filter(|_| self.node_port_addresses(plan).contains(&to.ip()))
        };
        match at_address.or_else(at_node_port) {
            Some((svc, kind)) => self.served(plan, from, svc, &kind),
            None if self.is_cluster_ip(plan, to.ip()) => Answer::Reject,
            None => Answer::Untouched,
        }
    }

    fn oldest(&self, claims: impl Fn(&Svc) -> Option<Kind>) -> Option<(&Svc, Kind)> {
        let ours = self.services.values().filter(|svc| svc.ours);
        let mut claimants: Vec<_> = ours
            .filter_map(|svc| claims(svc).map(|kind| (svc, kind)))
            .collect();
        claimants.sort_by_key(|(svc, _)| (svc.created, svc.number));
        claimants.into_iter().next()
    }

    fn node_port_addresses(&self, plan: Plan) -> BTreeSet<IpAddr> {
        let second = plan.second_node_address();
        let claimed = self
            .services
            .values()
            .any(|svc| svc.ours && svc.external == Some(External::SecondNodeAddress));
        let mut addresses = BTreeSet::from([plan.node()]);
        addresses.extend((self.second_address && !claimed).then_some(second));
        addresses
    }

    fn is_cluster_ip(&self, plan: Plan, address: IpAddr) -> bool {
        let mut ours = self.services.values().filter(|svc| svc.ours);
        ours.any(|svc| plan.cluster_ip(svc.number) == address)
    }

    fn served(&self, plan: Plan, from: From, svc: &Svc, kind: &Kind) -> Answer {
        let allowed = match svc.sources {
            Sources::Any => true,
            Sources::FirstClient => from == From::Client(1),
            Sources::Pods => from.is_pod_address(),
        };
        if *kind == Kind::LoadBalancer && !allowed {
            return Answer::Drop;
        }
        let none = Vec::new();
        let all = self.endpoints.get(&(svc.number, plan.0)).unwrap_or(&none);
        let usable = |ep: &&Ep| ep.stands != Stands::NotReady;
        let (list, masquerade) = if *kind == Kind::ClusterIp {
            let list = if svc.internal_local {
                local(all)
            } else {
                self.cluster(all)
            };
            (list, !from.is_pod_address())
        } else if !svc.external_local {
            (self.cluster(all), true)
        } else {
            match from {
                From::Pod(_) => (self.cluster(all), false),
                From::Node => (self.cluster(all), true),
                From::Client(_) | From::RemotePod(_) => (local(all), false),
            }
        };
        if list.is_empty() {
            let any = all.iter().any(|ep| usable(&ep));
            return if any { Answer::Drop } else { Answer::Reject };
        }
        // Whoever reaches itself would answer itself directly.
        let hairpin = |address: &&IpAddr| masquerade || **address == from.address(plan);
        let seen = list.iter().filter(hairpin).copied().collect();
        Answer::Serve(list, seen)
    }

    fn cluster(&self, all: &[Ep]) -> BTreeSet<IpAddr> {
        let ready: Vec<&Ep> = all.iter().filter(|ep| ep.stands == Stands::Ready).collect();
        if ready.is_empty() {
            let last = all
                .iter()
                .filter(|ep| ep.stands == Stands::ServingTerminating);
            return last.map(|ep| ep.address).collect();
        }
        let chosen = |hinted: &dyn Fn(&Ep) -> bool, here: &dyn Fn(&Ep) -> bool| {
            let of_level = ready.iter().filter(|ep| here(ep)).map(|ep| ep.address);
            let of_level: BTreeSet<IpAddr> = of_level.collect();
            let on = ready.iter().all(|ep| hinted(ep)) && !of_level.is_empty();
            on.then_some(of_level)
        };
        let here_zone = |ep: &Ep| self.zone.is_some_and(|zone| ep.zones.contains(&zone));
        chosen(&|ep| !ep.nodes.is_empty(), &|ep| ep.nodes.contains(&NODE))
            .or_else(|| chosen(&|ep| !ep.zones.is_empty(), &here_zone))
            .unwrap_or_else(|| ready.iter().map(|ep| ep.address).collect())
    }
}

fn local(all: &[Ep]) -> BTreeSet<IpAddr> {
    let here = |stands| {
        let here = all
            .iter()
            .filter(move |ep| ep.is_local() && ep.stands == stands);
        here.map(|ep| ep.address).collect::<BTreeSet<_>>()
    };
    let ready = here(Stands::Ready);
    if ready.is_empty() {
        here(Stands::ServingTerminating)
    } else {
        ready
    }
}

/// As what a Service has an address, if it has it; the first counts.
fn kind_at(svc: &Svc, plan: Plan, address: IpAddr) -> Option<Kind> {
    if plan.cluster_ip(svc.number) == address {
        return Some(Kind::ClusterIp);
    }
    if svc.vip.is_some_and(|vip| plan.vip(vip) == address) {
        return Some(Kind::LoadBalancer);
    }
    let external = svc
        .external
        .is_some_and(|external| external.address(plan) == address);
    external.then_some(Kind::Other)
}
