//! What this install says to the agent of each node (K-20 to K-27): one register of every Service's targets, and the
//! entry of each node made from it. Pure; filled by passes, written by `reconcile::nodes`.
//!
//! A Service that has not been looked at since the start has said nothing: what a node's object says of it stays (I1).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{
    ClientIp, ClusterFacts, HealthBy, LateFlows, LocalPort, NodeInstall, NodeTarget, ServiceRef,
    TargetHealth, TargetMode, TargetState, Vip, VipPort,
};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Cidr, NodeName, PortKey, ServiceKey};
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;

use crate::index::Index;
use crate::plan::membership::TargetKey;
use crate::plan::{Intent, Listed};

/// How long a released target is still listed (K-21).
const RELEASED_FOR: Duration = Duration::from_mins(1);

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
    /// A target is held now, which the agent's answers depend on: at once (K-22).
    pub at_once: bool,
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
            news.at_once = new.held().any(|entry| !old.held().any(|was| was == entry));
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

    /// The nodes to which load balancers will deliver an address of the Service.
    pub fn vip_nodes(&self, service: &ServiceKey) -> impl Iterator<Item = &NodeName> {
        self.services
            .get(service)
            .into_iter()
            .flat_map(|of| of.vips.keys())
    }
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

    fn held(&self) -> impl Iterator<Item = &TargetKey> {
        let held = |entry: &Entry| entry.state().0 == TargetState::Held;
        let entries = self.entries.iter();
        entries
            .filter(move |(.., entry)| held(entry))
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
        let sources = self.sources.get(&one.port);
        let health = port.and_then(|port| port.health.as_ref()).map(|h| h.by);
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
mod tests {
    use onehop_core::id::{PortName, Protocol};

    use super::*;

    const NOW: Time = Time::from_millis(1_800_000_000_000);

    fn local(service: &str, state: TargetState) -> LocalPort {
        LocalPort {
            service: ServiceRef {
                namespace: "default".to_owned(),
                name: service.to_owned(),
                uid: "u".into(),
            },
            port_name: PortName::from("http"),
            protocol: Protocol::Tcp,
            node_port: None,
            health_check_node_port: Some(31000),
            state,
            since: NOW,
            late_flows: LateFlows::Forward,
        }
    }

    fn of_service(service: &str) -> OfService {
        let key = TargetKey {
            address: [10, 0, 1, 1].into(),
            port: 80,
        };
        let entry = Entry::Local(local(service, TargetState::Active));
        OfService {
            entries: vec![("a".into(), key, entry)],
            vips: BTreeMap::new(),
        }
    }

    #[test]
    fn i1_what_was_said_of_a_service_that_was_not_looked_at_yet_stays() {
        let there = NodeInstall {
            local: vec![local("web", TargetState::Active)],
            ..NodeInstall::default()
        };
        let mut register = Register::default();
        let node = NodeName::from("a");
        assert_eq!(
            register.entry(&node, &Ranges::default(), Some(&there)),
            there,
            "I1"
        );
        register.remove(&ServiceKey::new("default", "web"), NOW);
        assert_eq!(
            register.entry(&node, &Ranges::default(), Some(&there)),
            NodeInstall::default()
        );
    }

    #[test]
    fn k21_a_target_that_is_gone_is_released_for_a_minute() {
        let mut register = Register::default();
        let (node, key) = (NodeName::from("a"), ServiceKey::new("default", "web"));
        register.services.insert(key.clone(), of_service("web"));
        let touched = register.remove(&key, NOW);
        assert_eq!(touched, BTreeSet::from([node.clone()]));
        let released = register.entry(&node, &Ranges::default(), None).local;
        assert_eq!(released[0].state, TargetState::Released, "K-21");
        let end = NOW + RELEASED_FOR;
        assert_eq!(register.next_change(), Some(end), "K-21: at least 60 s");
        assert!(register.purge(NOW + Duration::from_secs(59)).is_empty());
        assert_eq!(register.purge(end).len(), 1);
        assert_eq!(
            register.entry(&node, &Ranges::default(), None),
            NodeInstall::default()
        );
    }

    #[test]
    fn i8_a_service_with_too_many_targets_leaves_the_others_their_place_in_the_object() {
        let mut register = Register::default();
        let node = NodeName::from("a");
        let mut huge = of_service("huge");
        huge.entries = huge
            .entries
            .iter()
            .cycle()
            .take(ENTRIES_MAX)
            .cloned()
            .collect();
        for (name, of) in [("huge", huge), ("web", of_service("web"))] {
            register
                .services
                .insert(ServiceKey::new("default", name), of);
        }
        let entry = register.entry(&node, &Ranges::default(), None);
        let told: Vec<_> = entry
            .local
            .iter()
            .map(|l| l.service.name.as_str())
            .collect();
        assert_eq!(told, ["web"], "I8");
        assert_eq!(
            register.too_large(&node),
            [ServiceKey::new("default", "huge")].into()
        );
        register.services.remove(&ServiceKey::new("default", "web"));
        assert_eq!(
            register.entry(&node, &Ranges::default(), None).local.len(),
            ENTRIES_MAX
        );
    }

    #[test]
    fn k20_since_is_when_the_state_began() {
        let old = of_service("web");
        let mut new = of_service("web");
        new.entries[0]
            .2
            .set_state(TargetState::Active, NOW + RELEASED_FOR);
        let kept = new.after(&old, NOW);
        assert_eq!(
            kept.entries[0].2.state(),
            (TargetState::Active, NOW),
            "K-20"
        );
    }
}
