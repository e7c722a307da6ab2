//! What each LB node should do with packets: the engine's whole output towards the data plane.
//!
//! A state, not a list of changes, so that a data path can be programmed from any past.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::Serialize;

use super::model::{Choice, GroupId, LbState, ListenerKey, Mode, NodeId, Protocol, TargetState};
use super::profile::{AllDown, Hairpin, LostFlow};
use super::target::Life;
use super::{Balancer, Engine, Listener};
use crate::certificate::Certificate;

/// Where clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Frontend {
    /// Address of the load balancer.
    pub address: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
}

/// What happens to packets of one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPath {
    /// Targets among which a new flow chooses, sorted; one that stands here twice is chosen twice as often. With none,
    /// the flow is dropped without a word.
    pub targets: Vec<SocketAddr>,
    /// By what a new flow chooses among them.
    pub choice: Choice,
    /// What the targets are. The group that a listener uses decides for its new flows, so that a change of mode takes
    /// nothing from those that another group began.
    pub mode: Mode,
    /// Targets whose established flows with a translated destination go on. Flows to any other target end.
    pub established: BTreeSet<SocketAddr>,
    /// The same of flows whose destination stayed the frontend address.
    pub established_floating: BTreeSet<SocketAddr>,
    /// Whether the source stays the client's; otherwise it becomes the LB node's.
    pub preserve_client_ip: bool,
    /// Whether each new flow begins with a header of the PROXY protocol (FC-66).
    pub proxy_protocol: bool,
    /// What a client hears on a TCP flow that is no longer known.
    pub lost_flow: LostFlow,
    /// With what TLS ends here, where it does (FC-65).
    pub tls: Option<Arc<Certificate>>,
}

impl FrontendPath {
    /// Whether the destination of new flows stays the frontend address all the way (FC-29b).
    pub fn floats(&self) -> bool {
        self.mode.floats()
    }

    /// Whether new flows pass through a program of the LB node: the kernel neither ends TLS nor writes into a flow.
    pub fn relayed(&self) -> bool {
        !self.floats() && (self.proxy_protocol || self.tls.is_some())
    }
}

/// Everything that one LB node forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPathState {
    /// Engine revision that this comes from.
    pub revision: u64,
    /// Load balancer addresses that this node serves; their other ports drop without a word.
    pub addresses: BTreeSet<IpAddr>,
    /// Frontends on those addresses.
    pub frontends: BTreeMap<Frontend, FrontendPath>,
    /// What a client hears on a TCP flow that has ended.
    pub lost_flow: LostFlow,
    /// What a target that is its own client sees.
    pub hairpin: Hairpin,
}

impl DataPathState {
    /// Whether the other state forwards in the same way, whatever its revision.
    pub fn forwards_as(&self, other: &Self) -> bool {
        let Self {
            revision: _,
            addresses,
            frontends,
            lost_flow,
            hairpin,
        } = self;
        (addresses, frontends, *lost_flow, *hairpin)
            == (
                &other.addresses,
                &other.frontends,
                other.lost_flow,
                other.hairpin,
            )
    }
}

impl Engine {
    /// What the LB node should do now. Call `advance` first.
    pub fn data_path(&self, node: NodeId) -> DataPathState {
        let mut state = DataPathState {
            revision: self.revision,
            addresses: BTreeSet::new(),
            frontends: BTreeMap::new(),
            lost_flow: self.profile.lost_flow,
            hairpin: self.profile.hairpin,
        };
        for balancer in self.balancers.values() {
            let nodes = self.nodes_of(&balancer.spec);
            let serving = nodes.iter().cycle().zip(&balancer.spec.addresses);
            for (_, address) in serving.filter(|(by, _)| **by == node) {
                state.addresses.insert(*address);
                if balancer.state == LbState::Active {
                    self.add_frontends(&mut state.frontends, balancer, *address, node);
                }
            }
        }
        state
    }

    fn add_frontends(
        &self,
        frontends: &mut BTreeMap<Frontend, FrontendPath>,
        balancer: &Balancer,
        address: IpAddr,
        node: NodeId,
    ) {
        for (ListenerKey { port, protocol }, listener) in &balancer.listeners {
            let chosen_from = listener
                .behind
                .get(&node)
                .map_or(&listener.group, |(old, _)| old);
            let Some(group) = self.groups.get(chosen_from) else {
                continue;
            };
            let path = FrontendPath {
                targets: self.choice(chosen_from, balancer, node),
                choice: group.spec.choice,
                mode: group.spec.mode,
                established: self.established(listener, node, |mode| !mode.floats()),
                established_floating: self.established(listener, node, Mode::floats),
                preserve_client_ip: group
                    .spec
                    .preserve_client_ip
                    .unwrap_or(balancer.spec.preserve_client_ip),
                proxy_protocol: group.spec.proxy_protocol && *protocol == Protocol::Tcp,
                lost_flow: group.spec.lost_flow.unwrap_or(self.profile.lost_flow),
                tls: listener.tls.clone(),
            };
            frontends.insert(
                Frontend {
                    address,
                    protocol: *protocol,
                    port: *port,
                },
                path,
            );
        }
    }

    /// Targets that a new flow may choose at this LB node (FC-20, FC-21, FC-31).
    fn choice(&self, id: &GroupId, balancer: &Balancer, node: NodeId) -> Vec<SocketAddr> {
        let Some(group) = self.groups.get(id) else {
            return Vec::new();
        };
        let zone = self.nodes.get(&node).map(|node| node.zone.as_str());
        let near = |of: Option<&str>| balancer.spec.cross_zone || of.is_none() || of == zone;
        let around = self.surroundings(id);
        let seen: Vec<_> = group
            .targets
            .iter()
            .filter(|(_, target)| near(self.zone_here(target.zone.as_ref()).as_deref()))
            .collect();
        let usable: Vec<SocketAddr> = seen
            .iter()
            .filter(|(_, target)| target.takes_new_flows(node, around))
            .map(|(at, _)| **at)
            .collect();
        let trickle = self.profile_of(id).trickle_per_mille.min(1000);
        if trickle > 0 {
            let initial = seen.iter().filter(|(_, target)| {
                target.life == Life::Registered && target.state == TargetState::Initial
            });
            let initial = initial.map(|(at, _)| **at);
            let initial: Vec<SocketAddr> = initial.filter(|at| !usable.contains(at)).collect();
            if !initial.is_empty() && (trickle == 1000 || !usable.is_empty()) {
                return with_trickle(&usable, initial, trickle);
            }
        }
        // FC-31a: a zone without a healthy target does not fail open while another zone has one.
        let healthy = |target: &super::Target| target.state == TargetState::Healthy;
        let fails_open = self.profile_of(id).all_down == AllDown::FailOpen
            && !group.targets.values().any(healthy);
        if !usable.is_empty() || !fails_open {
            return usable;
        }
        let registered = seen
            .iter()
            .filter(|(_, target)| target.life == Life::Registered);
        registered.map(|(at, _)| **at).collect()
    }

    /// Targets that keep their flows, of the listener's present and former groups of such modes.
    fn established(
        &self,
        listener: &Listener,
        node: NodeId,
        of: impl Fn(Mode) -> bool,
    ) -> BTreeSet<SocketAddr> {
        let ids = std::iter::once(&listener.group).chain(&listener.former);
        let groups = ids.filter_map(|id| Some((id, self.groups.get(id)?)));
        let groups = groups.filter(|(_, group)| of(group.spec.mode));
        let kept = |(id, group): (&GroupId, &'_ super::Group)| {
            let (profile, protocol) = (self.profile_of(id), group.spec.protocol);
            let targets = group.targets.iter();
            let kept = targets.filter(|(_, target)| target.keeps_flows(node, protocol, profile));
            kept.map(|(at, _)| *at).collect::<Vec<_>>()
        };
        groups.flat_map(kept).collect()
    }
}

/// Usable targets as often as makes one in `initial` the rarer by the probability. Where nothing is usable, only
/// certainty brings flows to one: the other ones would have to be dropped by chance.
fn with_trickle(
    usable: &[SocketAddr],
    initial: Vec<SocketAddr>,
    per_mille: u16,
) -> Vec<SocketAddr> {
    let times = usize::from((1000 / per_mille).max(1));
    let often = usable.iter().flat_map(|at| std::iter::repeat_n(*at, times));
    let mut all: Vec<_> = often.chain(initial).collect();
    all.sort_unstable();
    all
}
