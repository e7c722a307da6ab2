//! What this install says to the agent of each node (K-20 to K-27): one register of every Service's targets, and the
//! entry of each node made from it. Pure; filled by passes, written by `reconcile::nodes`.
//!
//! A Service that has not been looked at since the start has said nothing: what a node's object says of it stays (I1).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{
    ClientIp, ClusterFacts, HealthBy, LateFlows, LocalPort, NodeInstall, NodeTarget, ServiceRef,
    TargetHealth, TargetMode, TargetState, Vip, VipPort,
};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{
    Cidr, InstallId, NodeName, PodUid, PortKey, PortName, Protocol, ServiceKey, ServiceUid,
};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;

use crate::index::Index;
use crate::plan::membership::TargetKey;
use crate::plan::{Intent, Listed};

/// How long a released target is still listed (K-21).
pub const RELEASED_FOR: Duration = Duration::from_mins(1);

/// Most targets of one node's object: about 1 MB, where the API's store takes 1.5 MB.
const ENTRIES_MAX: usize = 2_000;

/// One thing that a node is told of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Pod(NodeTarget),
    Local(LocalPort),
}

/// What a Service means for its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfService {
    entries: Vec<(NodeName, TargetKey, Entry)>,
    vips: BTreeMap<NodeName, Vec<Vip>>,
}

/// What a provider says of a Service's targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The targets.
    pub targets: Vec<Listed>,
    /// Ports whose flows come from the load balancer's own addresses, with those; flows of the others come from anywhere
    /// outside the cluster.
    pub sources: BTreeMap<PortKey, Vec<Cidr>>,
}

/// What has to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// To these nodes.
    pub nodes: BTreeSet<NodeName>,
    /// How soon.
    pub urgency: Urgency,
}

/// How soon something is written to a node (K-22).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// With what else changes meanwhile.
    #[default]
    Merged,
    /// A target is new, and its registration waits until its node is told (ZD-12).
    Awaited,
    /// A target is held now, which its agent's answers depend on.
    AtOnce,
}

/// What agents must know to tell inside from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Ranges of pods.
    pub pods: Vec<Cidr>,
    /// Ranges of nodes.
    pub nodes: Vec<Cidr>,
}

/// The register.
#[derive(Debug, Default)]
pub struct Register {
    services: BTreeMap<ServiceKey, OfService>,
    /// Longest hold and tail that each Service asks for, in seconds.
    bounds: BTreeMap<ServiceKey, (u32, u32)>,
    /// Services that have said something since the start, also that they are gone.
    known: BTreeSet<ServiceKey>,
}

impl Register {
    /// Takes what a pass found of a Service. Returns the nodes whose entry may have changed.
    pub fn set(
        &mut self,
        index: &Index,
        service: &ServiceSpec,
        intent: &Intent,
        told: &Told,
        now: Time,
    ) -> News {
        let membership = &intent.spec.membership;
        let bounds = (membership.hold_max_seconds, membership.tail_max_seconds);
        self.bounds.insert(service.key.clone(), bounds);
        let old = self.services.remove(&service.key).unwrap_or_default();
        let new = OfService::new(index, service, intent, told, &old, now);
        let new = new.after(&old, now);
        let first = self.known.insert(service.key.clone());
        let mut news = News::default();
        if first || new != old {
            news.nodes = old.nodes().chain(new.nodes()).cloned().collect();
            news.urgency = new.urgency_after(&old);
        }
        self.services.insert(service.key.clone(), new);
        news
    }

    /// A Service is no longer ours, and nothing of it is left in the cloud.
    /// Its addresses go at once, its targets are released (K-20, K-21).
    pub fn remove(&mut self, service: &ServiceKey, now: Time) -> BTreeSet<NodeName> {
        let first = self.known.insert(service.clone());
        let old = self.services.remove(service).unwrap_or_default();
        let new = OfService::default().after(&old, now);
        let touched = old.nodes().cloned().collect();
        self.bounds.remove(service);
        let changed = first || new != old;
        if !new.entries.is_empty() {
            self.services.insert(service.clone(), new);
        }
        if changed { touched } else { BTreeSet::new() }
    }

    /// When an entry made now would be different though nothing happened: released targets go.
    pub fn next_change(&self) -> Option<Time> {
        let entries = self.services.values().flat_map(|of| &of.entries);
        let released = entries.filter_map(|(_, _, entry)| match entry.state() {
            (TargetState::Released, since) => Some(since + RELEASED_FOR),
            _ => None,
        });
        released.min()
    }

    /// Drops what has been released for long enough; the nodes where something was.
    pub fn purge(&mut self, now: Time) -> BTreeSet<NodeName> {
        let mut touched = BTreeSet::new();
        for of in self.services.values_mut() {
            of.entries.retain(|(node, _, entry)| {
                let (state, since) = entry.state();
                let over = state == TargetState::Released && now.since(since) >= RELEASED_FOR;
                if over {
                    touched.insert(node.clone());
                }
                !over
            });
        }
        self.services
            .retain(|_, of| !of.entries.is_empty() || !of.vips.is_empty());
        touched
    }

    /// The entry of a node. `there` is what its object has of this install.
    pub fn entry(
        &self,
        node: &NodeName,
        ranges: &Ranges,
        there: Option<&NodeInstall>,
    ) -> NodeInstall {
        let said = there.map(|t| t.cluster.clone()).unwrap_or_default();
        let asked = |of: fn(&(u32, u32)) -> u32| self.bounds.values().map(of).max();
        let mut entry = NodeInstall {
            cluster: ClusterFacts {
                pod_cidrs: ranges.pods.clone(),
                node_cidrs: ranges.nodes.clone(),
                // A guard outlasts the longest of all holds.
                hold_max_seconds: asked(|b| b.0).unwrap_or(said.hold_max_seconds),
                tail_max_seconds: asked(|b| b.1).unwrap_or(said.tail_max_seconds),
            },
            ..NodeInstall::default()
        };
        // Not looked at yet: stays as it is.
        let unknown = |service: &ServiceRef| !self.known.contains(&service.key());
        if let Some(there) = there {
            let targets = there.targets.iter().filter(|t| unknown(&t.service));
            entry.targets.extend(targets.cloned());
            let local = there.local.iter().filter(|l| unknown(&l.service));
            entry.local.extend(local.cloned());
            let vips = there.vips.iter().filter(|v| unknown(&v.service));
            entry.vips.extend(vips.cloned());
        }
        let large = self.too_large(node);
        for (service, of) in &self.services {
            if large.contains(service) {
                entry
                    .vips
                    .extend(of.vips.get(node).into_iter().flatten().cloned());
                continue;
            }
            for (_, _, one) in of.entries.iter().filter(|(at, ..)| at == node) {
                match one {
                    Entry::Pod(target) => entry.targets.push(target.clone()),
                    Entry::Local(port) => entry.local.push(port.clone()),
                }
            }
            entry
                .vips
                .extend(of.vips.get(node).into_iter().flatten().cloned());
        }
        entry
    }

    /// Services whose targets are left out of a node's entry, the largest first, so that the object stays one that the
    /// API server takes: else no Service of that node would be told of at all (I8).
    pub fn too_large(&self, node: &NodeName) -> BTreeSet<ServiceKey> {
        let at_node = |of: &OfService| of.entries.iter().filter(|(at, ..)| at == node).count();
        let counts = self.services.iter().map(|(key, of)| (at_node(of), key));
        let mut counts: Vec<_> = counts.collect();
        let mut all: usize = counts.iter().map(|(count, _)| count).sum();
        counts.sort();
        let mut out = BTreeSet::new();
        while all > ENTRIES_MAX
            && let Some((count, largest)) = counts.pop()
        {
            all -= count;
            out.insert(largest.clone());
        }
        out
    }

    /// The nodes that something is said to.
    pub fn nodes(&self) -> BTreeSet<NodeName> {
        let services = self.services.values();
        services.flat_map(OfService::nodes).cloned().collect()
    }

    /// The nodes that have yet to be told of pods of a Service which are, or are about to be, registered (ZD-12). A node
    /// that is gone, or that has too much to be told, is not waited for.
    pub fn untold(
        &self,
        service: &ServiceKey,
        index: &Index,
        install: &InstallId,
    ) -> BTreeSet<NodeName> {
        let mut listed: BTreeMap<&NodeName, Vec<&NodeTarget>> = BTreeMap::new();
        let of = self.services.get(service);
        for (node, _, entry) in of.into_iter().flat_map(|of| &of.entries) {
            if let Entry::Pod(pod) = entry
                && pod.state == TargetState::Active
            {
                listed.entry(node).or_default().push(pod);
            }
        }
        let waited_for = |(node, pods): (&NodeName, Vec<&NodeTarget>)| {
            let told = index.told_targets(node, install).map(identity);
            let told: HashSet<_> = told.collect();
            let all = pods.into_iter().all(|pod| told.contains(&identity(pod)));
            let can_be = || index.has_node(node) && !self.too_large(node).contains(service);
            (!all && can_be()).then(|| node.clone())
        };
        listed.into_iter().filter_map(waited_for).collect()
    }

    /// Whether flows to a pod of another Service may still come to an address, which is another pod's by now (ZD-86).
    pub fn leaves_another(&self, address: IpAddr, service: &ServiceKey) -> bool {
        let others = self.services.iter().filter(|(key, _)| *key != service);
        others
            .flat_map(|(_, of)| &of.entries)
            .any(|(_, key, entry)| {
                let leaves = matches!(entry, Entry::Pod(pod) if pod.state == TargetState::Draining);
                key.address == address && leaves
            })
    }

    /// The nodes to which load balancers will deliver an address of the Service.
    pub fn vip_nodes(&self, service: &ServiceKey) -> impl Iterator<Item = &NodeName> {
        self.services
            .get(service)
            .into_iter()
            .flat_map(|of| of.vips.keys())
    }
}

/// What makes a target of a node the same one (K-21).
fn identity(target: &NodeTarget) -> (&ServiceUid, &PortName, Protocol, IpAddr, u16, &PodUid) {
    (
        &target.service.uid,
        &target.port_name,
        target.protocol,
        target.address,
        target.target_port,
        &target.pod_uid,
    )
}

impl Entry {
    const fn state(&self) -> (TargetState, Time) {
        match self {
            Self::Pod(target) => (target.state, target.since),
            Self::Local(port) => (port.state, port.since),
        }
    }

    const fn set_state(&mut self, state: TargetState, since: Time) {
        match self {
            Self::Pod(target) => (target.state, target.since) = (state, since),
            Self::Local(port) => (port.state, port.since) = (state, since),
        }
    }

    fn same_target(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(a), Self::Pod(b)) => {
                (&a.service, &a.port_name, a.protocol, &a.pod_uid)
                    == (&b.service, &b.port_name, b.protocol, &b.pod_uid)
            }
            (Self::Local(a), Self::Local(b)) => {
                (&a.service, &a.port_name, a.protocol) == (&b.service, &b.port_name, b.protocol)
            }
            _ => false,
        }
    }
}

impl OfService {
    fn new(
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
            if service.external_policy == TrafficPolicy::Local {
                let local = Entry::Local(maker.local(one));
                new.entries.push((node.clone(), one.key, local));
            }
            if one.mode == TargetMode::Vip {
                new.vips.entry(node).or_insert_with(|| maker.vips());
            }
        }
        new
    }

    /// Takes over from the last time how long each target has stood so, and what of it is released.
    fn after(mut self, old: &Self, now: Time) -> Self {
        for (node, key, entry) in &mut self.entries {
            let before = old
                .entries
                .iter()
                .find(|(at, was, one)| at == node && was == key && one.same_target(entry));
            if let Some((.., before)) = before
                && before.state().0 == entry.state().0
            {
                let (state, since) = before.state();
                entry.set_state(state, since);
            }
        }
        let gone = old.entries.iter().filter(|(node, key, entry)| {
            !self
                .entries
                .iter()
                .any(|(at, is, one)| at == node && is == key && one.same_target(entry))
        });
        let released: Vec<_> = gone
            .cloned()
            .filter_map(|(node, key, mut entry)| {
                match entry.state() {
                    (TargetState::Released, since) if now.since(since) >= RELEASED_FOR => {
                        return None;
                    }
                    (TargetState::Released, _) => {}
                    _ => entry.set_state(TargetState::Released, now),
                }
                Some((node, key, entry))
            })
            .collect();
        self.entries.extend(released);
        self
    }

    fn urgency_after(&self, old: &Self) -> Urgency {
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

    fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        let entries = self.entries.iter().map(|(node, ..)| node);
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
            allowed: None,
            state: one.state,
            since: self.now,
        };
        Some((node.clone(), one.key, Entry::Pod(target)))
    }

    /// One that was told before, by this process or by an earlier one (ZD-81).
    fn departed(&self, one: &Listed) -> Option<(NodeName, TargetKey, Entry)> {
        let mut old = self.old.entries.iter();
        let known = old.find_map(|(node, key, entry)| match entry {
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
            health_check_node_port: self.service.health_check_node_port,
            state: one.state,
            since: self.now,
            late_flows: LateFlows::Forward,
        }
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

#[cfg(test)]
mod tests;
