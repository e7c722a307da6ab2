//! From the stores to intents: one Service at a time, pure.
//!
//! Reads the [`Index`] and nothing else. What a Service wants (mode, health, options) is the
//! provider's to resolve; who its targets are and how they stand is decided here, once for all clouds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{
    Feature, INSTALL_LABEL, LoadBalancer, LoadBalancerSpec, NodeTarget, SERVICE_FINALIZER,
    TargetState,
};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{InstallId, IpFamily, NodeName, PodUid, PortKey, ServiceKey, Zone};
use onehop_core::node::{GOING_TAINTS, NodeView, OUT_OF_SERVICE_TAINT};
use onehop_core::service::{ServiceKind, ServicePort, ServiceSpec, TargetPort, TrafficPolicy};
use onehop_core::time::Time;

use crate::cloud::aws::annotations;
use crate::index::{Index, PodLife};
use crate::plan::membership::{Guard, Member, Owner, Serving, State, TargetKey};
use crate::plan::{Departed, Members, Numbers, PortMembers};

/// Which Services are ours (K-01).
#[derive(Clone, Debug)]
pub struct Claim {
    /// Classes.
    pub classes: BTreeSet<String>,
    /// Services without a class.
    pub classless: Classless,
    /// This install.
    pub install: InstallId,
}

/// What to do with Services without a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classless {
    /// Leave them alone.
    Ignore,
    /// They are ours.
    Claim,
    /// Those whose annotations ask aws-load-balancer-controller for a load balancer are (AWS-002).
    ByAwsAnnotations,
}

/// How a Service stands to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing to do with us, now or before (K-04, K-05).
    Foreign,
    /// Ours.
    Ours,
    /// Was ours and no longer is: deleted, another type, another class. Clean up.
    Leaving,
}

impl Claim {
    /// How a Service stands to us, by the `LoadBalancer` object of its name, whichever install made that. A claim is lost
    /// only where something of ours is there (K-04). An object says whose the Service is; our finalizer alone does not,
    /// since every install sets the same (C-120): it counts only where no other install can have set it. What another
    /// program's finalizer says that it has is never torn down, whatever tags of ours it carries (`Provider::is_theirs`).
    pub fn standing(&self, service: &ServiceSpec, object: Option<&LoadBalancer>) -> Standing {
        let balancer = service.kind == ServiceKind::LoadBalancer;
        let claimed = balancer
            && match &service.class {
                Some(class) => self.classes.contains(class),
                None => match self.classless {
                    Classless::Ignore => false,
                    Classless::Claim => true,
                    Classless::ByAwsAnnotations => annotations::ask_the_peer(service),
                },
            };
        let object = object.filter(|o| o.spec.service_uid == service.uid);
        let was_ours = match object {
            Some(object) => self.made(object),
            // One that we do not claim may be another install's, which makes its object after it has set the finalizer.
            None => service.has_finalizer(SERVICE_FINALIZER) && (claimed || !balancer),
        };
        match (claimed && service.deleted.is_none(), was_ours) {
            (true, _) => Standing::Ours,
            (false, true) => Standing::Leaving,
            (false, false) => Standing::Foreign,
        }
    }

    /// Whether this install made the object.
    pub fn made(&self, object: &LoadBalancer) -> bool {
        let labels = object.metadata.labels.as_ref();
        labels
            .and_then(|l| l.get(INSTALL_LABEL))
            .is_some_and(|id| id == self.install.as_str())
    }
}

/// UIDs of the pods that had an address when they were endpoints of the Service.
pub type Remembered = BTreeMap<IpAddr, PodUid>;

/// Targets of every port, in both kinds, of these families. The agents of the nodes in `absent` are absent (K-24).
pub fn members(
    index: &Index,
    service: &ServiceSpec,
    families: &[IpFamily],
    absent: &BTreeSet<NodeName>,
) -> BTreeMap<PortKey, PortMembers> {
    let endpoints = index.endpoints(&service.key);
    let nodes_now = Nodes::of(index, absent);
    let zone = |node: &NodeView| Some((node.name.clone(), node.zone.clone()?));
    let zones: BTreeMap<NodeName, Zone> = index.nodes().filter_map(zone).collect();
    let ports = service.ports.iter().map(|port| {
        let mut members = PortMembers::default();
        for family in families {
            let endpoints = endpoints.of(service, port, *family);
            let nodes = |at_port| nodes(index, service, (endpoints, *family), at_port);
            members.pods.extend(Members {
                zones: zones_of(endpoints, &zones),
                ..pods(index, service, endpoints, &nodes_now)
            });
            if let Some(node_port) = port.node_port {
                members.nodes.extend(nodes(node_port));
            }
            members.vips.extend(nodes(port.port));
        }
        (port.key.clone(), members)
    });
    ports.collect()
}

/// What numbers the pods of a Service have for its named target ports.
pub fn numbers(index: &Index, service: &ServiceSpec) -> Numbers {
    let endpoints = index.endpoints(&service.key);
    let named = service.ports.iter();
    let named = named.filter(|port| matches!(port.target, TargetPort::Name(_)));
    let of = |port: &ServicePort| {
        let mut counts = BTreeMap::new();
        for family in IpFamily::ALL {
            for endpoint in endpoints.of(service, port, family) {
                *counts.entry(endpoint.port).or_default() += 1;
            }
        }
        (port.key.clone(), counts)
    };
    named.map(of).collect()
}

/// The pod of each endpoint address, to tell later whether an address was given to another pod.
pub fn remember(index: &Index, service: &ServiceKey, remembered: &mut Remembered) {
    for (_, endpoint) in index.endpoints(service).iter() {
        if let Some(pod) = &endpoint.pod {
            remembered.insert(endpoint.address, pod.uid.clone());
        }
    }
}

/// What became of target addresses that no endpoint has.
pub fn departed(
    index: &Index,
    service: &ServiceSpec,
    (remembered, addresses): (&Remembered, &BTreeSet<IpAddr>),
    absent: &BTreeSet<NodeName>,
) -> BTreeMap<IpAddr, Departed> {
    let nodes = Nodes::of(index, absent);
    let one = |address: &IpAddr| {
        let told = index.told_of(&service.uid, *address);
        let known = remembered.get(address).cloned();
        let known = known.or_else(|| told.map(|(_, target)| target.pod_uid.clone()));
        let (owner, state) = fate(index, service, known.as_ref(), *address);
        let departed = Departed {
            owner,
            state,
            guard: nodes.guard(index, told.map(|(node, _)| node), state),
            held_since: told.and_then(|(_, target)| held_since(target)),
            zone: told.and_then(|(node, _)| index.node(node)?.zone.clone()),
        };
        (*address, departed)
    };
    addresses.iter().map(one).collect()
}

/// How nodes stand, for their pods.
struct Nodes<'a> {
    /// Those that are about to go.
    going: BTreeMap<NodeName, Going>,
    /// Those whose agent is absent.
    absent: &'a BTreeSet<NodeName>,
}

impl<'a> Nodes<'a> {
    fn of(index: &Index, absent: &'a BTreeSet<NodeName>) -> Self {
        let going = index
            .nodes()
            .filter_map(|node| Some((node.name.clone(), going(node)?)));
        Self {
            going: going.collect(),
            absent,
        }
    }

    /// Whether the agent of a node takes new flows of a pod: not if it is absent, nor, on a node that goes, of one that is
    /// gone, since the guard ends with the node (ZD-24, ZD-78).
    fn guard(&self, index: &Index, node: Option<&NodeName>, state: State) -> Guard {
        let guards = |node: &NodeName| {
            index.agent_offers(node, Feature::Guard)
                && !self.absent.contains(node)
                && (state != State::Gone || !self.going.contains_key(node))
        };
        if node.is_some_and(guards) {
            Guard::Present
        } else {
            Guard::Absent
        }
    }
}

/// Since when a target is held, by what was last told to its node.
fn held_since(target: &NodeTarget) -> Option<Time> {
    (target.state == TargetState::Held).then_some(target.since)
}

fn fate(
    index: &Index,
    service: &ServiceSpec,
    known: Option<&PodUid>,
    address: IpAddr,
) -> (Owner, State) {
    let owner = known.map_or(Owner::Unknown, |uid| Owner::Pod(uid.clone()));
    let now_there: Vec<_> = index
        .pods_at(address)
        .filter(|pod| pod.life != PodLife::Ended)
        .collect();
    let state = match known {
        Some(uid) => match index.pod(uid).map(|pod| pod.life) {
            Some(PodLife::Running) => State::Unexplained,
            Some(PodLife::Terminating(since)) => State::Terminating {
                serving: Serving::No,
                since: Some(since),
            },
            Some(PodLife::Ended) | None if now_there.is_empty() => State::Gone,
            Some(PodLife::Ended) | None => State::Reused,
        },
        // After a restart: whose target it was is not known.
        None => match now_there.first().map(|pod| pod.life) {
            Some(PodLife::Terminating(since)) => State::Terminating {
                serving: Serving::No,
                since: Some(since),
            },
            // With a selector targets are pods, and none has the address.
            None if !service.selector.is_empty() => State::Gone,
            _ => State::Unexplained,
        },
    };
    (owner, state)
}

/// Pod targets of one port in one family.
fn pods(
    index: &Index,
    service: &ServiceSpec,
    endpoints: &[Endpoint],
    nodes: &Nodes<'_>,
) -> Members {
    let held = |endpoint: &Endpoint| {
        // Only what is on its way out can be held.
        let leaves = endpoint.conditions.terminating || !endpoint.conditions.ready;
        let told = index.told_of(&service.uid, endpoint.address);
        told.filter(|_| leaves)
            .and_then(|(_, target)| held_since(target))
    };
    let list = endpoints.iter().map(|endpoint| {
        let state = endpoint_state(index, endpoint, &nodes.going);
        Member {
            key: TargetKey {
                address: endpoint.address,
                port: endpoint.port,
            },
            owner: endpoint
                .pod
                .as_ref()
                .map_or(Owner::Unknown, |pod| Owner::Pod(pod.uid.clone())),
            state,
            guard: nodes.guard(index, endpoint.node(), state),
            held_since: held(endpoint),
        }
    });
    Members {
        list: list.collect(),
        ..Members::default()
    }
}

/// The zone of each endpoint's node.
fn zones_of(endpoints: &[Endpoint], zones: &BTreeMap<NodeName, Zone>) -> BTreeMap<IpAddr, Zone> {
    let zone = |endpoint: &Endpoint| Some((endpoint.address, zones.get(endpoint.node()?)?.clone()));
    endpoints.iter().filter_map(zone).collect()
}

fn endpoint_state(index: &Index, endpoint: &Endpoint, going: &BTreeMap<NodeName, Going>) -> State {
    let life = endpoint
        .pod
        .as_ref()
        .and_then(|pod| index.pod(&pod.uid))
        .map(|pod| pod.life);
    let conditions = endpoint.conditions;
    let serving = if conditions.serving {
        Serving::Yes
    } else {
        Serving::No
    };
    match life {
        // The pod's own word is older news only when it says less (AWS-414, ZD-77).
        Some(PodLife::Ended) => return State::Gone,
        Some(PodLife::Terminating(since)) => {
            return State::Terminating {
                serving,
                since: Some(since),
            };
        }
        _ => {}
    }
    if conditions.terminating {
        // A pod that we have never seen may be newer than our view; one that is terminating cannot.
        return match (&endpoint.pod, life) {
            (Some(_), None) => State::Gone,
            _ => State::Terminating {
                serving,
                since: None,
            },
        };
    }
    if !conditions.ready && !waits_for_gate(index, endpoint) {
        return State::NotReady;
    }
    match endpoint.node().and_then(|node| going.get(node)) {
        Some(Going::Out) => State::Gone,
        Some(Going::Soon) => State::Displaced,
        None => State::Ready,
    }
}

/// Whether nothing but a gate of ours keeps an endpoint from being ready: it has to be a target first (AWS-412).
fn waits_for_gate(index: &Index, endpoint: &Endpoint) -> bool {
    let pod = endpoint.pod.as_ref().and_then(|pod| index.pod(&pod.uid));
    let node = endpoint.node().and_then(|node| index.node(node));
    pod.is_some_and(|pod| pod.waits) && node.is_some_and(|node| node.ready)
}

/// Node targets of one port in one family, at `at_port`: every node, whoever has endpoints; with policy Local the
/// health check on healthCheckNodePort tells which of them get traffic.
fn nodes(
    index: &Index,
    service: &ServiceSpec,
    (endpoints, family): (&[Endpoint], IpFamily),
    at_port: u16,
) -> Members {
    let list = index.nodes().filter_map(|node| {
        Some(Member {
            key: TargetKey {
                address: node.primary_address(family)?,
                port: at_port,
            },
            owner: Owner::Node(node.name.clone()),
            state: node_state(node),
            guard: Guard::Absent,
            held_since: None,
        })
    });
    let at_most_healthy = (service.external_policy == TrafficPolicy::Local).then(|| {
        let ready = endpoints.iter().filter(|e| e.conditions.ready);
        ready
            .filter_map(Endpoint::node)
            .collect::<BTreeSet<_>>()
            .len()
    });
    let zone = |node: &NodeView| Some((node.primary_address(family)?, node.zone.clone()?));
    Members {
        list: list.collect(),
        at_most_healthy,
        zones: index.nodes().filter_map(zone).collect(),
    }
}

/// A signal that a node is going (ZD-70, ZD-78).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    /// It will go and forwards until then.
    Soon,
    /// It has been declared dead.
    Out,
}

fn going(node: &NodeView) -> Option<Going> {
    if node.has_taint(OUT_OF_SERVICE_TAINT) {
        return Some(Going::Out);
    }
    let tainted = GOING_TAINTS.iter().any(|taint| node.has_taint(taint));
    (tainted || node.deleted.is_some()).then_some(Going::Soon)
}

/// Cordon and NotReady are no reasons to deregister (ZD-71, ZD-78).
fn node_state(node: &NodeView) -> State {
    match going(node) {
        Some(Going::Out) => State::Gone,
        Some(Going::Soon) => State::Withdrawn,
        None if node.excluded => State::Withdrawn,
        None if node.ready => State::Ready,
        None => State::NotReady,
    }
}

/// The spec to fall back to: of the same Service, made by this install (I10).
pub fn last_good<'a>(
    claim: &Claim,
    service: &ServiceSpec,
    object: Option<&'a LoadBalancer>,
) -> Option<&'a LoadBalancerSpec> {
    let object = object.filter(|o| claim.made(o) && o.spec.service_uid == service.uid)?;
    Some(&object.spec)
}

#[cfg(test)]
mod tests;
