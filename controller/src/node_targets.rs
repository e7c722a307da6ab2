//! What this install says to the agent of each node (K-20 to K-27): one register of every Service's targets, and the
//! entry of each node made from it. Pure; filled by passes, written by `reconcile::nodes`.
//!
//! A Service that has not been looked at since the start has said nothing: what a node's object says of it stays (I1).

mod said;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{ClusterFacts, NodeInstall, NodeTarget, ServiceRef, TargetState};
use onehop_core::id::{
    Cidr, InstallId, NodeName, PodUid, PortKey, PortName, Protocol, ServiceKey, ServiceUid,
};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use crate::index::Index;
use crate::plan::{Intent, Listed, Tails};
use said::{Entry, OfService};

/// How long a released target is still listed (K-21).
pub const RELEASED_FOR: Duration = Duration::from_mins(1);

/// Most targets of one node's object: about 1 MB, where the API's store takes 1.5 MB.
const ENTRIES_MAX: usize = 2_000;

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
    /// What an earlier process had said, sorted once: of each Service until it is taken over.
    before: Option<BTreeMap<ServiceKey, OfService>>,
    /// How long targets drain.
    tails: Tails,
    /// How long those that were released since this was asked for had drained at least.
    released_after: Vec<Duration>,
}

impl Register {
    /// One that has said nothing.
    pub fn new(tails: Tails) -> Self {
        Self {
            tails,
            ..Self::default()
        }
    }

    /// Takes what a pass found of a Service. Returns the nodes whose entry may have changed.
    pub fn set(
        &mut self,
        (index, install): (&Index, &InstallId),
        service: &ServiceSpec,
        intent: &Intent,
        told: &Told,
        now: Time,
    ) -> News {
        let membership = &intent.spec.membership;
        let bounds = (membership.hold_max_seconds, membership.tail_max_seconds);
        self.bounds.insert(service.key.clone(), bounds);
        let old = self.known_of(index, install, &service.key);
        let mut new = OfService::new(index, service, intent, told, &old, now);
        new.tail = index.tail(self.tails, service, membership);
        let new = new.after(&old, now);
        let over = new.released_at(now).saturating_sub(old.released_at(now));
        self.released_after
            .extend(std::iter::repeat_n(new.tail, over));
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
    /// Its addresses go at once, its targets are released once their tail is over (K-20, K-21).
    pub fn remove(
        &mut self,
        (index, install): (&Index, &InstallId),
        service: &ServiceKey,
        now: Time,
    ) -> BTreeSet<NodeName> {
        let first = self.known.insert(service.clone());
        let old = self.known_of(index, install, service);
        let gone = OfService {
            tail: old.tail,
            ..OfService::default()
        };
        let new = gone.after(&old, now);
        let touched = old.nodes().cloned().collect();
        self.bounds.remove(service);
        let changed = first || new != old;
        if !new.left.is_empty() {
            self.services.insert(service.clone(), new);
        }
        if changed { touched } else { BTreeSet::new() }
    }

    /// Takes over Services of which nodes were told nothing but the end of their targets, and which are gone: nobody else
    /// will say that these are over (K-21).
    pub fn take_over_gone(&mut self, index: &Index, install: &InstallId) {
        for (service, mut of) in OfService::told(index, install) {
            let gone = index.service(&service).is_none() && index.balancer(&service).is_none();
            if !of.has_ended() || !gone || !self.known.insert(service.clone()) {
                continue;
            }
            if let Some(before) = self.before(index, install) {
                before.remove(&service);
            }
            of.left.append(&mut of.entries);
            self.services.insert(service, of);
        }
    }

    /// What is known of a Service: what was said since the start and, if nothing was, what an earlier process said.
    fn known_of(&mut self, index: &Index, install: &InstallId, service: &ServiceKey) -> OfService {
        let mut of = self.services.remove(service).unwrap_or_default();
        let before = self.before(index, install);
        if let Some(before) = before.and_then(|all| all.remove(service)) {
            of.join(before);
        }
        of
    }

    fn before(
        &mut self,
        index: &Index,
        install: &InstallId,
    ) -> Option<&mut BTreeMap<ServiceKey, OfService>> {
        if self.before.is_none() && index.node_targets_synced() {
            self.before = Some(OfService::told(index, install));
        }
        self.before.as_mut()
    }

    /// When an entry made now would be different though nothing happened: tails end, and released targets go.
    pub fn next_change(&self) -> Option<Time> {
        let services = self.services.values();
        let ends = services.flat_map(|of| of.left.iter().map(|(.., entry)| entry.end(of.tail)));
        ends.min()
    }

    /// Releases what has left for long enough, and drops what has been released for long enough; the nodes where something
    /// was.
    pub fn purge(&mut self, now: Time) -> BTreeSet<NodeName> {
        let mut touched = BTreeSet::new();
        for of in self.services.values_mut() {
            let tail = of.tail;
            of.left.retain_mut(|(node, _, entry)| {
                let before = entry.state();
                let stays = entry.leave(tail, now);
                if !stays || entry.state() != before {
                    touched.insert(node.clone());
                    if stays {
                        self.released_after.push(tail);
                    }
                }
                stays
            });
        }
        self.services
            .retain(|_, of| of.all().next().is_some() || !of.vips.is_empty());
        touched
    }

    /// For each target that was released since the last call: how long it was said to drain (ZD-83).
    pub fn released_after(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.released_after)
    }

    /// Since when a node has been told that a target is held (ZD-81).
    pub fn held_since(&self, service: &ServiceKey, target: &Listed) -> Option<Time> {
        let entries = &self.services.get(service)?.entries;
        entries.iter().find_map(|(_, key, entry)| {
            let (state, since) = entry.state();
            let same = *key == target.key && entry.port() == target.port;
            (same && state == TargetState::Held).then_some(since)
        })
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
            for (_, _, one) in of.all().filter(|(at, ..)| at == node) {
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
        let at_node = |of: &OfService| of.all().filter(|(at, ..)| at == node).count();
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
        others.flat_map(|(_, of)| of.all()).any(|(_, key, entry)| {
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

#[cfg(test)]
mod tests;
