//! What a Service should have in the cloud: the resolved spec, addresses, and members.
//!
//! Built by `snapshot` from the stores, read by every planner; provider-independent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::{NodeName, PortKey, ServiceKey, ServiceUid, Zone};
use onehop_core::time::Time;

use super::membership::{Guard, Member, Owner, State, TargetKey, View};

/// One live Service, ready to be planned for.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The Service.
    pub service: ServiceKey,
    /// Its UID.
    pub uid: ServiceUid,
    /// The resolved wishes: the `LoadBalancer` object's spec.
    pub spec: LoadBalancerSpec,
    /// Addresses chosen for it, where choosing is ours.
    pub addresses: Vec<IpAddr>,
    /// Targets of each port, in both kinds: a group that is being retired is of the other kind.
    pub members: BTreeMap<PortKey, PortMembers>,
    /// What became of target addresses that the cloud still has and no endpoint list names.
    pub departed: BTreeMap<IpAddr, Departed>,
    /// The machine behind each node address, for clouds that register machines.
    pub machines: Arc<BTreeMap<IpAddr, Machine>>,
    /// How far the endpoint list can be trusted.
    pub view: View,
}

/// A node as its cloud knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Name of the node.
    pub node: NodeName,
    /// `spec.providerID`, empty if not set.
    pub provider_id: String,
    /// Its zone, if it says so.
    pub zone: Option<Zone>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// What became of a target that no endpoint list names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// Whose address it was.
    pub owner: Owner,
    /// How that stands.
    pub state: State,
    /// Whether the agent of its node stands in for it.
    pub guard: Guard,
    /// Since when it is held.
    pub held_since: Option<Time>,
    /// The zone of the node that was told of it.
    pub zone: Option<Zone>,
}

impl Departed {
    const fn of(owner: Owner, state: State) -> Self {
        Self {
            owner,
            state,
            guard: Guard::Absent,
            held_since: None,
            zone: None,
        }
    }
}

/// The targets of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMembers {
    /// Pod addresses.
    pub pods: Members,
    /// Node addresses with node ports.
    pub nodes: Members,
    /// Node addresses with the load balancer's own ports: the destination is kept on the way there.
    pub vips: Members,
}

/// A list of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The targets.
    pub list: Vec<Member>,
    /// How many can be healthy at once, where that is fewer than are registered: with
    /// `externalTrafficPolicy: Local`, the nodes that have a ready endpoint.
    pub at_most_healthy: Option<usize>,
    /// The zone of each target's node, where the node says it.
    pub zones: BTreeMap<IpAddr, Zone>,
}

impl Members {
    /// Adds targets of another family.
    pub fn extend(&mut self, other: Self) {
        self.list.extend(other.list);
        self.zones.extend(other.zones);
        self.at_most_healthy = match (self.at_most_healthy, other.at_most_healthy) {
            (Some(one), Some(more)) => Some(one + more),
            (one, more) => one.or(more),
        };
    }
}

impl Intent {
    /// The members of a port for a group of this mode.
    pub fn members(&self, port: &PortKey, mode: TargetMode) -> Option<&Members> {
        let members = self.members.get(port)?;
        Some(match mode {
            TargetMode::Pod => &members.pods,
            TargetMode::Vip => &members.vips,
            TargetMode::Node | TargetMode::Unknown => &members.nodes,
        })
    }

    /// The members for a group that has these targets: the port's, and for each other target what
    /// became of it.
    pub fn explained<'a>(
        &self,
        port: &PortKey,
        mode: TargetMode,
        targets: impl IntoIterator<Item = &'a TargetKey>,
    ) -> Vec<Member> {
        let known = self.members(port, mode).map_or(&[][..], |m| &m.list);
        let others = targets
            .into_iter()
            .filter(|key| known.iter().all(|m| m.key != **key))
            .map(|key| self.departed(*key, mode, known));
        known.iter().cloned().chain(others).collect()
    }

    /// The zone of each target of a port, where it is known.
    pub fn zones(&self, port: &PortKey, mode: TargetMode) -> BTreeMap<IpAddr, Zone> {
        let departed = self.departed.iter();
        let departed = departed.filter_map(|(at, of)| Some((*at, of.zone.clone()?)));
        let mut zones: BTreeMap<_, _> = match mode {
            TargetMode::Pod => departed.collect(),
            _ => BTreeMap::new(),
        };
        let known = self.members(port, mode).map(|members| &members.zones);
        zones.extend(
            known
                .into_iter()
                .flatten()
                .map(|(at, zone)| (*at, zone.clone())),
        );
        zones
    }

    fn departed(&self, key: TargetKey, mode: TargetMode, known: &[Member]) -> Member {
        // The same pod or node under another port: superseded, no sign of a bad view.
        let moved = known.iter().find(|m| m.key.address == key.address);
        let Departed {
            owner,
            state,
            guard,
            held_since,
            ..
        } = match (moved, mode) {
            (Some(m), _) if m.state == State::Ready => {
                Departed::of(m.owner.clone(), State::Withdrawn)
            }
            (Some(m), _) => Departed {
                guard: m.guard,
                held_since: m.held_since,
                ..Departed::of(m.owner.clone(), m.state)
            },
            (None, TargetMode::Pod) => self
                .departed
                .get(&key.address)
                .cloned()
                .unwrap_or(Departed::of(Owner::Unknown, State::Unexplained)),
            // Every node that exists is a member; one that is not is gone.
            (None, TargetMode::Node | TargetMode::Vip | TargetMode::Unknown) => {
                Departed::of(Owner::Unknown, State::Gone)
            }
        };
        Member {
            key,
            owner,
            state,
            guard,
            held_since,
        }
    }
}
