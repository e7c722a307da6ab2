//! What a Service means for its nodes, target by target, and the clock by which a target that leaves is said to be
//! released (K-20, K-21). Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use onehop_core::crd::{
    ClientIp, HealthBy, LocalPort, NodeTarget, ServiceRef, TargetHealth, TargetMode, TargetState,
    Vip, VipPort,
};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Cidr, InstallId, NodeName, PortKey, ServiceKey};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;

use super::{RELEASED_FOR, Told, Urgency};
use crate::index::Index;
use crate::plan::membership::TargetKey;
use crate::plan::{Intent, Listed};

/// One thing that a node is told of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Pod(NodeTarget),
    Local(LocalPort),
}

/// An entry, where it is said, and the target that it is about.
pub(super) type Said = (NodeName, TargetKey, Entry);

/// What a Service means for its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfService {
    pub(super) entries: Vec<Said>,
    /// Of targets that the cloud has no more: said until their tail is over, and for a while that it is (K-20, K-21).
    pub(super) left: Vec<Said>,
    /// How long new flows may come to a target after its deregistration was accepted.
    pub(super) tail: Duration,
    pub(super) vips: BTreeMap<NodeName, Vec<Vip>>,
}

impl Entry {
    pub(super) const fn state(&self) -> (TargetState, Time) {
        match self {
            Self::Pod(target) => (target.state, target.since),
            Self::Local(port) => (port.state, port.since),
        }
    }

    pub(super) fn port(&self) -> PortKey {
        let (name, protocol) = match self {
            Self::Pod(target) => (&target.port_name, target.protocol),
            Self::Local(port) => (&port.port_name, port.protocol),
        };
        PortKey {
            name: name.clone(),
            protocol,
        }
    }

    pub(super) const fn set_state(&mut self, state: TargetState, since: Time) {
        match self {
            Self::Pod(target) => (target.state, target.since) = (state, since),
            Self::Local(port) => (port.state, port.since) = (state, since),
        }
    }

    /// When the next step of [`Entry::leave`] is due.
    pub(super) fn end(&self, tail: Duration) -> Time {
        match self.state() {
            (TargetState::Released, since) => since + RELEASED_FOR,
            (_, since) => since + tail,
        }
    }

    /// One step of the clock of a target that the cloud has no more; false: nothing is said of it any longer. New flows
    /// come until its tail is over, whatever the cloud says, and the cloud may have forgotten it before we saw it drain.
    pub(super) fn leave(&mut self, tail: Duration, now: Time) -> bool {
        let (mut state, since) = self.state();
        if matches!(state, TargetState::Released) {
            return now.since(since) < RELEASED_FOR;
        }
        if !matches!(state, TargetState::Draining) {
            state = TargetState::Draining;
            self.set_state(state, now);
        }
        if self.end(tail) <= now {
            self.set_state(TargetState::Released, now);
        }
        true
    }
}

/// Whether two entries are about the same target of the same node (K-21).
fn same((at, key, one): &Said, (other_at, other_key, other): &Said) -> bool {
    at == other_at
        && match (one, other) {
            (Entry::Pod(a), Entry::Pod(b)) => {
                (key, &a.service, &a.port_name, a.protocol, &a.pod_uid)
                    == (other_key, &b.service, &b.port_name, b.protocol, &b.pod_uid)
            }
            (Entry::Local(a), Entry::Local(b)) => {
                (
                    &a.service,
                    &a.port_name,
                    a.protocol,
                    a.node_port,
                    a.health_check_node_port,
                ) == (
                    &b.service,
                    &b.port_name,
                    b.protocol,
                    b.node_port,
                    b.health_check_node_port,
                )
            }
            _ => false,
        }
}

impl OfService {
    pub(super) fn new(
        index: &Index,
        service: &ServiceSpec,
        intent: &Intent,
        told: &Told,
        old: &Self,
        now: Time,
    ) -> Self {
        let endpoints = index.endpoints(&service.key);
        let maker = Maker {
            index,
            pods: endpoints.iter().map(|(_, e)| (e.address, e)).collect(),
            service,
            intent,
            sources: &told.sources,
            old,
            now,
        };
        let mut new = Self::default();
        for one in &told.targets {
            if one.mode == TargetMode::Pod {
                new.entries.extend(maker.pod(one));
                continue;
            }
            let Some(node) = maker.node_at(one.key.address) else {
                continue;
            };
            let local = Entry::Local(maker.local(one));
            if service.external_policy == TrafficPolicy::Local || maker.is_retired(&node, one) {
                new.entries.push((node.clone(), one.key, local));
            }
            if one.mode == TargetMode::Vip {
                new.vips.entry(node).or_insert_with(|| maker.vips());
            }
        }
        new
    }

    /// What nodes were told, sorted by Service.
    pub(super) fn told(index: &Index, install: &InstallId) -> BTreeMap<ServiceKey, Self> {
        let mut told: BTreeMap<ServiceKey, Self> = BTreeMap::new();
        let mut tail = Duration::ZERO;
        for (node, said) in index.told_by(install) {
            tail = tail.max(Duration::from_secs(said.cluster.tail_max_seconds.into()));
            for target in &said.targets {
                let key = TargetKey {
                    address: target.address,
                    port: target.target_port,
                };
                let entry = (node.clone(), key, Entry::Pod(target.clone()));
                let of = told.entry(target.service.key()).or_default();
                of.entries.push(entry);
            }
            for port in &said.local {
                // Which address it was does not matter: a node has one such entry.
                let key = TargetKey {
                    address: Ipv4Addr::UNSPECIFIED.into(),
                    port: port.node_port.unwrap_or_default(),
                };
                let entry = (node.clone(), key, Entry::Local(port.clone()));
                let of = told.entry(port.service.key()).or_default();
                of.entries.push(entry);
            }
            for vip in &said.vips {
                let of = told.entry(vip.service.key()).or_default();
                of.vips.entry(node.clone()).or_default().push(vip.clone());
            }
        }
        for of in told.values_mut() {
            of.tail = tail;
        }
        told
    }

    /// Whether nothing but ends was said of it.
    pub(super) fn has_ended(&self) -> bool {
        let ended = |state| matches!(state, TargetState::Draining | TargetState::Released);
        self.vips.is_empty() && self.all().all(|(.., entry)| ended(entry.state().0))
    }

    /// Adds what is not known yet.
    pub(super) fn join(&mut self, other: Self) {
        let new = other.entries.into_iter();
        let new: Vec<Said> = new
            .filter(|said| !self.all().any(|known| same(known, said)))
            .collect();
        self.entries.extend(new);
        self.tail = self.tail.max(other.tail);
        for (node, vips) in other.vips {
            self.vips.entry(node).or_insert(vips);
        }
    }

    /// Takes over from the last time how long each target has stood so, and what has left.
    pub(super) fn after(mut self, old: &Self, now: Time) -> Self {
        for said in &mut self.entries {
            let before = old.all().find(|before| same(before, said));
            if let Some((.., before)) = before
                && before.state().0 == said.2.state().0
            {
                let (state, since) = before.state();
                said.2.set_state(state, since);
            }
        }
        let gone = old
            .all()
            .filter(|old| !self.entries.iter().any(|said| same(old, said)));
        let left = gone.cloned().filter_map(|mut said| {
            let stays = said.2.leave(self.tail, now);
            stays.then_some(said)
        });
        self.left = left.collect();
        self
    }

    /// How many targets were released at this moment.
    pub(super) fn released_at(&self, now: Time) -> usize {
        let left = self.left.iter().map(|(.., entry)| entry.state());
        left.filter(|state| *state == (TargetState::Released, now))
            .count()
    }

    /// Everything that is said of targets.
    pub(super) fn all(&self) -> impl Iterator<Item = &Said> {
        self.entries.iter().chain(&self.left)
    }

    pub(super) fn urgency_after(&self, old: &Self) -> Urgency {
        let since = |state| {
            let mut now = self.in_state(state);
            now.any(|key| !old.in_state(state).any(|was| was == key))
        };
        if since(TargetState::Held) {
            Urgency::AtOnce
        } else if since(TargetState::Active) {
            Urgency::Awaited
        } else {
            Urgency::Merged
        }
    }

    fn in_state(&self, state: TargetState) -> impl Iterator<Item = &TargetKey> {
        let entries = self.entries.iter();
        entries
            .filter(move |(.., entry)| entry.state().0 == state)
            .map(|(_, key, _)| key)
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        let entries = self.all().map(|(node, ..)| node);
        entries.chain(self.vips.keys())
    }
}

/// Makes entries of one Service.
struct Maker<'a> {
    index: &'a Index,
    /// Endpoints by address, merged once: a Service may have a thousand ports.
    pods: HashMap<IpAddr, &'a Endpoint>,
    service: &'a ServiceSpec,
    intent: &'a Intent,
    sources: &'a BTreeMap<PortKey, Vec<Cidr>>,
    old: &'a OfService,
    now: Time,
}

impl Maker<'_> {
    fn reference(&self) -> ServiceRef {
        ServiceRef::new(&self.service.key, &self.service.uid)
    }

    /// A pod that is an endpoint. One that no list names any more stays as it was listed, until it is released.
    fn pod(&self, one: &Listed) -> Option<(NodeName, TargetKey, Entry)> {
        let Some(endpoint) = self.pods.get(&one.key.address) else {
            return self.departed(one);
        };
        let (pod, node) = (endpoint.pod.as_ref()?, endpoint.node()?);
        let spec = &self.intent.spec;
        let port = spec.ports.iter().find(|port| port.key() == one.port);
        let client_ip = port.map_or(ClientIp::Preserve, |port| port.client_ip);
        let health = port.and_then(|port| port.health.as_ref()).map(|h| h.by);
        let sources = self.sources.get(&one.port);
        let target = NodeTarget {
            service: self.reference(),
            port_name: one.port.name.clone(),
            protocol: one.port.protocol,
            address: one.key.address,
            target_port: one.key.port,
            pod_uid: pod.uid.clone(),
            pod_name: pod.name.clone(),
            health: if health == Some(HealthBy::Agent) {
                TargetHealth::Agent
            } else {
                TargetHealth::None
            },
            sources: sources.cloned().unwrap_or_default(),
            any_outside: sources.is_none(),
            client_ip,
            allowed: self.allowed(sources.is_none()),
            state: one.state,
            since: self.now,
        };
        Some((node.clone(), one.key, Entry::Pod(target)))
    }

    /// The clients that are let in, where packets show who they are; else the load balancer has looked (ZD-49).
    fn allowed(&self, any_outside: bool) -> Option<Vec<Cidr>> {
        let ranges = &self.service.source_ranges;
        (any_outside && !ranges.is_open()).then(|| ranges.allowed.clone())
    }

    /// One that was told before, by this process or by an earlier one (ZD-81).
    fn departed(&self, one: &Listed) -> Option<(NodeName, TargetKey, Entry)> {
        let known = self.old.all().find_map(|(node, key, entry)| match entry {
            Entry::Pod(target)
                if *key == one.key
                    && (&target.port_name, target.protocol)
                        == (&one.port.name, one.port.protocol) =>
            {
                Some((node, target))
            }
            _ => None,
        });
        let uid = &self.service.uid;
        let (node, target) = known.or_else(|| self.index.told_of(uid, one.key.address))?;
        let (state, since) = if target.state == one.state {
            (target.state, target.since)
        } else {
            (one.state, self.now)
        };
        let target = NodeTarget {
            port_name: one.port.name.clone(),
            protocol: one.port.protocol,
            target_port: one.key.port,
            state,
            since,
            ..target.clone()
        };
        Some((node.clone(), one.key, Entry::Pod(target)))
    }

    fn node_at(&self, address: IpAddr) -> Option<NodeName> {
        let node = self
            .index
            .nodes()
            .find(|n| n.addresses.contains(&address))?;
        Some(node.name.clone())
    }

    fn local(&self, one: &Listed) -> LocalPort {
        LocalPort {
            service: self.reference(),
            port_name: one.port.name.clone(),
            protocol: one.port.protocol,
            node_port: (one.mode == TargetMode::Node).then_some(one.key.port),
            health_check_node_port: self.health_port(one),
            state: one.state,
            since: self.now,
            late_flows: self.intent.spec.membership.late_flows,
        }
    }

    /// Whether the node served something for this target which the Service has no more: a node port, or the port of its
    /// local endpoints' health (ZD-68). It does so until the target is released.
    fn is_retired(&self, node: &NodeName, one: &Listed) -> bool {
        let now = self.service.ports.iter().find(|port| port.key == one.port);
        let other_port = one.mode == TargetMode::Node
            && now.and_then(|port| port.node_port) != Some(one.key.port);
        let asked = one.health_port.filter(|port| {
            Some(*port) != self.service.health_check_node_port && self.was_told(node, *port)
        });
        other_port || asked.is_some()
    }

    /// Whether a node was told that this is its port for the health of the Service's local endpoints.
    fn was_told(&self, node: &NodeName, port: u16) -> bool {
        self.old.all().any(|(at, _, entry)| match entry {
            Entry::Local(local) => at == node && local.health_check_node_port == Some(port),
            Entry::Pod(_) => false,
        })
    }

    /// The port for the health of local endpoints that a target's group asks: not always the one that the Service has now.
    fn health_port(&self, one: &Listed) -> Option<u16> {
        let node = self.node_at(one.key.address);
        let told = |port: &u16| node.as_ref().is_some_and(|node| self.was_told(node, *port));
        one.health_port
            .filter(told)
            .or(self.service.health_check_node_port)
    }

    fn vips(&self) -> Vec<Vip> {
        let ports = self.intent.spec.ports.iter();
        let ports: Vec<VipPort> = ports
            .map(|port| VipPort {
                protocol: port.protocol,
                port: port.port,
            })
            .collect();
        let vip = |address: &IpAddr| Vip {
            service: self.reference(),
            address: *address,
            ports: ports.clone(),
        };
        self.intent.addresses.iter().map(vip).collect()
    }
}
