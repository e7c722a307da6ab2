//! What nodes were told, and what their agents say: the part of the index about `NodeTargets` objects.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{Feature, Membership, NodeInstall, NodeTarget, NodeTargets, TargetState};
use onehop_core::id::{Cidr, InstallId, NodeName, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_runtime::watch::{Change, ObjectKey, Seen};

use super::views::{KnownService, KnownTargets};
use super::{Index, Touched};
use crate::plan::Tails;

/// Tails of Services that are gone which may be remembered beside as many as there are Services.
const TAILS_SPARE: usize = 64;

impl Index {
    /// A `NodeTargets` object came, changed or went: concerns the Services that wait for their addresses to be
    /// programmed. Nothing else is decided by it.
    pub fn on_node_targets(&mut self, event: Seen<NodeTargets>) -> Touched {
        let old = match &event {
            Seen::Listed(object) | Seen::Applied(object) => {
                self.node_targets.get(&ObjectKey::of(object)).cloned()
            }
            _ => None,
        };
        let changes = self.node_targets.apply(event, |object| {
            Some(KnownTargets::after(old.as_ref(), object.clone()))
        });
        self.waiting(changes)
    }

    /// What the server answered to our write of a `NodeTargets` object.
    pub fn wrote_node_targets(&mut self, object: &NodeTargets) -> Touched {
        let old = self.node_targets.get(&ObjectKey::of(object)).cloned();
        let changes = self.node_targets.written(object, |object| {
            Some(KnownTargets::after(old.as_ref(), object.clone()))
        });
        self.waiting(changes)
    }

    fn waiting(&mut self, changes: Vec<Change<KnownTargets>>) -> Touched {
        let mut waiting = BTreeSet::new();
        for change in changes {
            waiting.extend(self.longer_tails(&change.key));
            let targets = self.node_targets.get(&change.key);
            if targets.and_then(KnownTargets::offers)
                != change.old.as_ref().and_then(KnownTargets::offers)
            {
                self.offers_version += 1;
            }
            let installs = targets
                .into_iter()
                .flat_map(|t| t.object.spec.installs.values());
            for vip in installs.flat_map(|install| &install.vips) {
                let key = vip.service.key();
                let published = |service: &KnownService| {
                    service
                        .spec
                        .ingress
                        .iter()
                        .any(|i| i.address == Some(vip.address))
                };
                if self
                    .service(&key)
                    .is_some_and(|service| !published(service))
                {
                    waiting.insert(key);
                }
            }
        }
        Touched::Services(waiting.into_iter().collect())
    }

    /// Notes the tails that a node's agent has seen; the Services that had none as long yet.
    fn longer_tails(&mut self, object: &ObjectKey) -> Vec<ServiceKey> {
        if self.tails.len() > 2 * self.services.all().len() + TAILS_SPARE {
            let there: BTreeSet<ServiceUid> = self.services().map(|s| s.spec.uid.clone()).collect();
            self.tails.retain(|uid, _| there.contains(uid));
        }
        let known = self.node_targets.get(object);
        let status = known.and_then(|known| known.object.status.as_ref());
        let mut longer = Vec::new();
        for tail in status.into_iter().flat_map(|status| &status.tails) {
            let seen = self.tails.get(&tail.service.uid);
            if seen.is_none_or(|seen| *seen < tail.seconds) {
                self.tails.insert(tail.service.uid.clone(), tail.seconds);
                longer.push(tail.service.key());
            }
        }
        longer
    }

    /// The longest time in seconds for which new flows came to a target of a Service after its deregistration, as far as
    /// agents have seen any, since ever (ZD-83).
    pub fn longest_tail(&self, service: &ServiceKey, uid: &ServiceUid) -> Option<u32> {
        let object = self
            .balancer(service)
            .filter(|o| o.spec.service_uid == *uid);
        let written = object.and_then(|o| o.status.as_ref()?.tail_seconds);
        self.tails.get(uid).copied().max(written)
    }

    /// How long a target of a Service is said to drain, by what agents have seen (ZD-51, ZD-83).
    pub fn tail(&self, tails: Tails, service: &ServiceSpec, membership: &Membership) -> Duration {
        tails.of(membership, self.longest_tail(&service.key, &service.uid))
    }

    /// What was said to a node.
    pub fn node_targets(&self, node: &NodeName) -> Option<&NodeTargets> {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        self.node_targets.get(&key).map(|known| &known.object)
    }

    /// What the agent of a node says that it can do (K-24).
    pub fn agent_offers(&self, node: &NodeName, feature: Feature) -> bool {
        let status = self.node_targets(node).and_then(|o| o.status.as_ref());
        status.is_some_and(|s| s.features.contains(&feature)) && self.has_node(node)
    }

    /// What keeps the agent of a node from guarding targets, as it says itself.
    pub fn agent_cannot_guard(&self, node: &NodeName) -> Option<&str> {
        let status = self.node_targets(node).and_then(|o| o.status.as_ref())?;
        let guards = status.features.contains(&Feature::Guard);
        let why = status
            .problems
            .first()
            .filter(|_| status.synced && !guards)?;
        Some(why)
    }

    /// Whether the agent of a node says that the kernel has what the API says of Services (ZD-75).
    pub fn agent_proxies(&self, node: &NodeName) -> bool {
        let status = self.node_targets(node).and_then(|o| o.status.as_ref());
        status.is_some_and(|s| s.synced && s.features.contains(&Feature::ServiceProxy))
    }

    /// Whether the agent of a node says that something keeps it from its work.
    pub fn agent_has_problems(&self, node: &NodeName) -> bool {
        let status = self.node_targets(node).and_then(|o| o.status.as_ref());
        status.is_some_and(|s| s.synced && !s.problems.is_empty())
    }

    /// What was last said to its node of a Service's target at this address.
    pub fn told_of(
        &self,
        service: &ServiceUid,
        address: IpAddr,
    ) -> Option<(&NodeName, &NodeTarget)> {
        self.node_targets.all().values().find_map(|known| {
            let mut targets = known.object.spec.installs.values().flat_map(|i| &i.targets);
            let target = targets.find(|t| t.service.uid == *service && t.address == address)?;
            Some((&known.node, target))
        })
    }

    /// The targets that a node was told of and that are not released.
    pub fn told_targets(
        &self,
        node: &NodeName,
        install: &InstallId,
    ) -> impl Iterator<Item = &NodeTarget> {
        let object = self.node_targets(node);
        let entry = object.and_then(|object| object.spec.installs.get(install));
        let targets = entry.into_iter().flat_map(|entry| &entry.targets);
        targets.filter(|target| target.state != TargetState::Released)
    }

    /// Everything that this install has said, by node.
    pub fn told_by(&self, install: &InstallId) -> impl Iterator<Item = (&NodeName, &NodeInstall)> {
        let all = self.node_targets.all().values();
        all.filter_map(|known| Some((&known.node, known.object.spec.installs.get(install)?)))
    }

    /// Ranges of pod addresses, and of node addresses, as the Nodes tell them.
    pub fn ranges(&self) -> (Vec<Cidr>, Vec<Cidr>) {
        let pods = self.nodes().flat_map(|node| node.pod_cidrs.iter().copied());
        let addresses = self.nodes().flat_map(|node| node.addresses.iter().copied());
        (
            Cidr::aggregate(pods),
            Cidr::aggregate(addresses.map(Cidr::host)),
        )
    }

    /// Nodes to which this install has said something.
    pub fn told_nodes(&self, install: &InstallId) -> BTreeSet<NodeName> {
        let all = self.node_targets.all().values();
        all.filter(|known| known.object.spec.installs.contains_key(install))
            .map(|known| known.node.clone())
            .collect()
    }

    /// Whether it is known what was said to nodes.
    pub const fn node_targets_synced(&self) -> bool {
        self.node_targets.is_synced()
    }

    /// Nodes to which something was said, and which are gone.
    pub fn gone_nodes(&self) -> BTreeSet<NodeName> {
        let told = self.node_targets.all().keys();
        let gone = told.filter(|key| self.nodes.get(key).is_none());
        gone.map(|key| NodeName::from(key.name.clone())).collect()
    }

    /// The nodes whose objects name a Service.
    pub fn nodes_that_name(&self, service: &ServiceKey) -> BTreeSet<NodeName> {
        let names = |known: &KnownTargets| {
            known.object.spec.installs.values().any(|install| {
                let targets = install.targets.iter().map(|t| &t.service);
                let local = install.local.iter().map(|l| &l.service);
                let vips = install.vips.iter().map(|v| &v.service);
                targets
                    .chain(local)
                    .chain(vips)
                    .any(|s| s.key() == *service)
            })
        };
        let all = self.node_targets.all().iter();
        all.filter(|(_, known)| names(known))
            .map(|(key, _)| NodeName::from(key.name.clone()))
            .collect()
    }

    /// Whether the node was told of an address and its agent has programmed it. A node without an agent that proxies
    /// Services programs it by the Service's status, if at all.
    pub fn vip_is_programmed(
        &self,
        node: &NodeName,
        install: &InstallId,
        service: &ServiceUid,
        address: IpAddr,
    ) -> bool {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        let Some(known) = self.node_targets.get(&key) else {
            return false;
        };
        let Some(since) = known
            .since
            .get(&(install.clone(), service.clone(), address))
        else {
            return false;
        };
        let status = known.object.status.as_ref();
        let Some(status) = status.filter(|s| s.features.contains(&Feature::ServiceProxy)) else {
            return true;
        };
        status.observed_generation.unwrap_or(0) >= *since
    }
}
