//! Telling nodes what concerns them: writes `NodeTargets` objects from the register, merged per node (K-22), deletes
//! those of nodes that are gone, and says when an address may be published (K-27).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::{Feature, TargetMode};
use onehop_core::id::{Cidr, NodeName, ServiceKey};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;
use tokio_util::sync::CancellationToken;

use super::memory::OfService;
use super::{Reconciler, lock};
use crate::index::Index;
use crate::node_targets::{Ranges, Told};
use crate::plan::{Intent, Provider};
use crate::writes::WriteError;

/// Changes of one node within this time are one write (K-22).
const MERGE: Duration = Duration::from_millis(100);
/// How long a published address waits at most for agents that do not say that they have it: an agent that is away
/// must not keep a Service from its address, and its node fails the health check anyway.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at whether it is acknowledged; news of the objects come by their watch.
const LOOK: Duration = Duration::from_millis(500);

/// Nodes to be written to.
#[derive(Debug, Default)]
pub(super) struct Due {
    nodes: BTreeSet<NodeName>,
    at: Option<Time>,
}

impl<P: Provider> Reconciler<P> {
    /// Notes what a pass found of a Service's targets.
    pub(super) fn list_targets(&self, service: &ServiceSpec, intent: &Intent, seen: &P::Observed) {
        let now = self.clock.now();
        let told = Told {
            targets: self.provider.listed(intent, seen, now),
            sources: self.provider.sources(intent, seen),
        };
        let news = {
            let index = lock(&self.index);
            lock(&self.register).set(&index, service, intent, &told, now)
        };
        self.nodes_due(
            news.nodes,
            if news.at_once { Duration::ZERO } else { MERGE },
        );
    }

    /// Nothing of a Service is left in the cloud.
    pub(super) fn unlist_targets(&self, service: &ServiceKey) {
        let touched = lock(&self.register).remove(service, self.clock.now());
        // After a restart it is not known which nodes have something of it.
        let all = lock(&self.index).nodes_that_name(service);
        self.nodes_due(touched.union(&all).cloned().collect(), MERGE);
    }

    /// Which of the addresses may be published now, and when to look again for the others (K-27): those that are
    /// published already, and those that the agents of all nodes which they will be delivered to have programmed.
    pub(super) fn publishable(
        &self,
        service: &ServiceSpec,
        intent: Option<&Intent>,
        ingress: Vec<IpAddr>,
        of: &mut OfService,
    ) -> (Vec<IpAddr>, Option<Time>) {
        let published =
            |address: &IpAddr| service.ingress.iter().any(|i| i.address == Some(*address));
        let floats = intent.is_some_and(|i| i.spec.ports.iter().any(|p| p.mode == TargetMode::Vip));
        if !floats || ingress.iter().all(published) {
            of.withheld_since = None;
            return (ingress, None);
        }
        let now = self.clock.now();
        let since = *of.withheld_since.get_or_insert(now);
        let waits: Vec<IpAddr> = {
            let index = lock(&self.index);
            let register = lock(&self.register);
            let install = &self.settings.claim.install;
            let ready = |address: &IpAddr| {
                register.vip_nodes(&service.key).all(|node| {
                    // Nobody waits for an agent that is absent (K-24).
                    lock(&self.presence).is_absent(node, now)
                        || index.vip_is_programmed(node, install, &service.uid, *address)
                })
            };
            ingress
                .iter()
                .filter(|a| !published(a) && !ready(a))
                .copied()
                .collect()
        };
        if waits.is_empty() {
            of.withheld_since = None;
            return (ingress, None);
        }
        if now.since(since) >= ACKNOWLEDGED_WITHIN {
            tracing::warn!(service = %service.key, ?waits, "published although not every agent has programmed it");
            of.withheld_since = None;
            return (ingress, None);
        }
        let open = ingress.into_iter().filter(|a| !waits.contains(a)).collect();
        (open, Some(now + LOOK))
    }

    fn nodes_due(&self, nodes: BTreeSet<NodeName>, within: Duration) {
        if nodes.is_empty() {
            return;
        }
        let mut due = lock(&self.due_nodes);
        due.nodes.extend(nodes);
        let at = self.clock.now() + within;
        due.at = Some(due.at.map_or(at, |before| before.min(at)));
        drop(due);
        self.nodes_wake.notify_one();
    }

    /// Nodes came or went.
    pub(super) fn gone_nodes_due(&self) {
        let concerned = {
            let index = lock(&self.index);
            let mut nodes = index.gone_nodes();
            let ranges = self.ranges(&index);
            let mut said = lock(&self.ranges_said);
            if *said != ranges {
                *said = ranges;
                nodes.extend(index.told_nodes(&self.settings.claim.install));
            }
            nodes
        };
        self.nodes_due(concerned, MERGE);
    }

    /// Ranges of pods and nodes: those given by hand, else what the Nodes tell.
    fn ranges(&self, index: &Index) -> Ranges {
        let (pods, nodes) = index.ranges();
        let given = &self.settings.ranges;
        let or = |given: &Vec<Cidr>, found| {
            if given.is_empty() {
                found
            } else {
                given.clone()
            }
        };
        Ranges {
            pods: or(&given.pods, pods),
            nodes: or(&given.nodes, nodes),
        }
    }

    /// Pods of agents, or nodes, came, changed or went.
    pub(super) fn note_agents(&self, index: &Index) {
        let nodes = index.nodes().map(|node| node.name.clone()).collect();
        let now = self.clock.now();
        let agents = index.ready_agents();
        lock(&self.presence).update(&nodes, &agents, now);
        let untold = agents
            .into_iter()
            .filter(|node| index.node_targets(node).is_none());
        self.nodes_due(untold.collect(), MERGE);
        self.nodes_wake.notify_one();
    }

    /// Counts nodes that have targets, and an agent that is absent though it had said what it can do (C-111).
    fn measure_agents(&self) {
        let now = self.clock.now();
        let index = lock(&self.index);
        let register = lock(&self.register);
        let presence = lock(&self.presence);
        let told = register.nodes();
        let absent = told.into_iter().filter(|node| {
            index.agent_offers(node, Feature::ServiceProxy) && presence.is_absent(node, now)
        });
        let absent = i64::try_from(absent.count()).unwrap_or(i64::MAX);
        self.measures.agents_absent.set(absent);
    }

    /// Writes to nodes until `stop`.
    pub(super) async fn tell_nodes(self: Arc<Self>, stop: CancellationToken) {
        let mut backoff = Policy::RETRY.start(&mut self.fork_rng());
        self.gone_nodes_due();
        let mut compare_at = self.next_sweep(self.clock.now());
        loop {
            let purge = lock(&self.register).next_change();
            self.measure_agents();
            if self.clock.now() >= compare_at {
                // Somebody may have changed or deleted an object: written only where it differs (C-14).
                let mut all = lock(&self.index).ready_agents();
                all.extend(lock(&self.register).nodes());
                self.nodes_due(all, MERGE);
                compare_at = self
                    .next_sweep(self.clock.now())
                    .max(self.clock.now() + LOOK);
            }
            let absent = lock(&self.presence).next_change(self.clock.now());
            let next = [lock(&self.due_nodes).at, purge, absent, Some(compare_at)]
                .into_iter()
                .flatten()
                .min();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.nodes_wake.notified() => continue,
                () = self.until(next) => {}
            }
            let now = self.clock.now();
            if purge.is_some_and(|at| at <= now) {
                let touched = lock(&self.register).purge(now);
                self.nodes_due(touched, MERGE);
            }
            if !lock(&self.index).node_targets_synced() {
                // Nothing from a half-synced cache (I1).
                lock(&self.due_nodes).at = Some(now + LOOK);
                continue;
            }
            let due = std::mem::take(&mut *lock(&self.due_nodes));
            let mut failed = BTreeSet::new();
            for node in due.nodes {
                if let Err(error) = self.tell_node(&node).await {
                    self.measures.write_failures.inc();
                    tracing::warn!(%node, %error, "cannot tell a node of its targets, trying again");
                    failed.insert(node);
                }
            }
            if failed.is_empty() {
                backoff.reset();
            } else {
                let mut due = lock(&self.due_nodes);
                due.nodes.extend(failed);
                due.at = Some(self.clock.now() + backoff.next_delay());
            }
        }
    }

    async fn tell_node(&self, node: &NodeName) -> Result<(), WriteError> {
        let install = &self.settings.claim.install;
        let agent;
        let (object, exists, ranges) = {
            let index = lock(&self.index);
            let object = index.node_targets(node).cloned();
            agent = index.ready_agents().contains(node);
            (object, index.has_node(node), self.ranges(&index))
        };
        let there = object.as_ref().and_then(|o| o.spec.installs.get(install));
        if !exists {
            // Providers' tails are over: nothing of the node is registered once the node has been gone for a pass.
            let last = object
                .as_ref()
                .filter(|o| o.spec.installs.keys().all(|id| id == install));
            if let Some(object) = last {
                self.writer.delete_node_targets(object).await?;
            }
            return Ok(());
        }
        let wanted = {
            let register = lock(&self.register);
            for service in register.too_large(node) {
                tracing::warn!(%node, %service, "too many targets on the node to tell its agent of them");
            }
            register.entry(node, &ranges, there)
        };
        let nothing =
            wanted.targets.is_empty() && wanted.local.is_empty() && wanted.vips.is_empty();
        // An agent says in its object what it can do, which has to be known before anything of it is asked (K-24).
        if there == Some(&wanted) || (there.is_none() && nothing && !agent) {
            return Ok(());
        }
        let entries = BTreeMap::from([(install.clone(), wanted)]);
        let written = self.writer.node_targets(node, &entries).await?;
        self.take_in(|index| index.wrote_node_targets(&written));
        Ok(())
    }
}
