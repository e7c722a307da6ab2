//! From the stores to intents: one Service at a time, pure.
//!
//! Reads the [`Index`] and nothing else. What a Service wants (mode, health, options) is the
//! provider's to resolve; who its targets are and how they stand is decided here, once for all clouds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{
    Feature, INSTALL_LABEL, LoadBalancer, LoadBalancerSpec, MembershipPolicy, NodeTarget,
    SERVICE_FINALIZER, TargetState,
};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{InstallId, IpFamily, NodeName, PodUid, PortKey, ServiceKey, Zone};
use onehop_core::node::{GOING_TAINTS, NodeReady, NodeView, OUT_OF_SERVICE_TAINT};
use onehop_core::service::{ServiceKind, ServicePort, ServiceSpec, TargetPort, TrafficPolicy};
use onehop_core::time::Time;

use crate::cloud::aws::annotations;
use crate::index::{Index, KnownPod, PodLife};
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
    ByAwsAnnotations(Kinds),
}

/// Of which types of Services a load balancer may be asked for by annotations (AWS-006).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Of those with a cluster address too, as aws-load-balancer-controller does.
    Any,
    /// Of `LoadBalancer` only: its gate `ServiceTypeLoadBalancerOnly`.
    LoadBalancer,
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
        let reachable = balancer || !service.cluster_ips.is_empty();
        let claimed = match (&service.class, self.classless) {
            (Some(class), _) => balancer && self.classes.contains(class),
            (None, Classless::Ignore) => false,
            (None, Classless::Claim) => balancer,
            (None, Classless::ByAwsAnnotations(kinds)) => {
                let kind = balancer || (kinds == Kinds::Any && reachable);
                kind && annotations::ask_the_peer(service)
            }
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

/// Which targets are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Of these families.
    pub families: &'a [IpFamily],
    /// For this policy: what is half ready counts for one of them only (AWS-412).
    pub policy: MembershipPolicy,
    /// Nodes whose agents are absent (K-24).
    pub absent: &'a BTreeSet<NodeName>,
}

/// Targets of every port, in both kinds.
pub fn members(
    index: &Index,
    service: &ServiceSpec,
    scope: Scope<'_>,
) -> BTreeMap<PortKey, PortMembers> {
    let Scope {
        families,
        policy,
        absent,
    } = scope;
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
                ..pods(index, service, (endpoints, policy), &nodes_now)
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
    /// Those of which nothing is heard.
    silent: BTreeSet<NodeName>,
    /// Those whose agent is absent.
    absent: &'a BTreeSet<NodeName>,
}

impl<'a> Nodes<'a> {
    fn of(index: &Index, absent: &'a BTreeSet<NodeName>) -> Self {
        let going = index
            .nodes()
            .filter_map(|node| Some((node.name.clone(), going(node)?)));
        let silent = index.nodes().filter(|n| n.ready == NodeReady::Unknown);
        Self {
            going: going.collect(),
            silent: silent.map(|n| n.name.clone()).collect(),
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
    (endpoints, policy): (&[Endpoint], MembershipPolicy),
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
        let state = endpoint_state(index, (endpoint, policy), &nodes.going);
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
    let mut list: Vec<Member> = list.collect();
    let silent = |endpoint: &Endpoint| endpoint.node().is_some_and(|n| nodes.silent.contains(n));
    fail_open(&mut list, endpoints.iter().map(silent));
    Members {
        list,
        ..Members::default()
    }
}

/// What is ready on nodes of which nothing is heard is good for when there is nothing else (AWS-401, AWS-412).
fn fail_open(list: &mut [Member], silent: impl Iterator<Item = bool>) {
    let silent: Vec<bool> = silent.collect();
    let heard = list.iter().zip(&silent).filter(|(_, silent)| !**silent);
    if !heard.into_iter().any(|(m, _)| m.state == State::Ready) {
        return;
    }
    let doubtful = list.iter_mut().zip(silent).filter(|(_, silent)| *silent);
    for (member, _) in doubtful.filter(|(m, _)| m.state == State::Ready) {
        member.state = State::NotReady;
    }
}

/// The zone of each endpoint's node.
fn zones_of(endpoints: &[Endpoint], zones: &BTreeMap<NodeName, Zone>) -> BTreeMap<IpAddr, Zone> {
    let zone = |endpoint: &Endpoint| Some((endpoint.address, zones.get(endpoint.node()?)?.clone()));
    endpoints.iter().filter_map(zone).collect()
}

fn endpoint_state(
    index: &Index,
    (endpoint, policy): (&Endpoint, MembershipPolicy),
    going: &BTreeMap<NodeName, Going>,
) -> State {
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
    if !conditions.ready && !is_half_ready(index, endpoint, policy) {
        return State::NotReady;
    }
    match endpoint.node().and_then(|node| going.get(node)) {
        Some(Going::Out) => State::Gone,
        Some(Going::Soon) => State::Displaced,
        None => State::Ready,
    }
}

/// Whether an endpoint that is not ready counts as one: nothing but a gate of ours keeps it from being ready, and it has to
/// be a target first; or, for the peers' timing, its containers are ready (AWS-412).
fn is_half_ready(index: &Index, endpoint: &Endpoint, policy: MembershipPolicy) -> bool {
    let pod = endpoint.pod.as_ref().and_then(|pod| index.pod(&pod.uid));
    let node = endpoint.node().and_then(|node| index.node(node));
    let compat = policy == MembershipPolicy::Compat;
    let counts = |pod: &KnownPod| pod.waits || (compat && pod.containers_ready.is_some());
    pod.is_some_and(counts) && node.is_some_and(|node| node.ready == NodeReady::Yes)
}

/// Node targets of one port in one family, at `at_port`: every node, whoever has endpoints; with policy Local the
/// health check on healthCheckNodePort tells which of them get traffic.
fn nodes(
    index: &Index,
    service: &ServiceSpec,
    (endpoints, family): (&[Endpoint], IpFamily),
    at_port: u16,
) -> Members {
    let of_family = || {
        let nodes = index.nodes();
        nodes.filter_map(|node| Some((node, node.primary_address(family)?)))
    };
    let list = of_family().map(|(node, address)| Member {
        key: TargetKey {
            address,
            port: at_port,
        },
        owner: Owner::Node(node.name.clone()),
        state: node_state(node),
        guard: Guard::Absent,
        held_since: None,
    });
    let mut list: Vec<Member> = list.collect();
    let silent = of_family().map(|(node, _)| node.ready == NodeReady::Unknown);
    fail_open(&mut list, silent);
    let at_most_healthy = (service.external_policy == TrafficPolicy::Local).then(|| {
        let ready = endpoints.iter().filter(|e| e.conditions.ready);
        ready
            .filter_map(Endpoint::node)
            .collect::<BTreeSet<_>>()
            .len()
    });
    let zone = |node: &NodeView| Some((node.primary_address(family)?, node.zone.clone()?));
    Members {
        list,
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
        // One of which nothing is heard may be well (AWS-401).
        None if node.ready != NodeReady::No => State::Ready,
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
