//! Telling nodes what concerns them: writes `NodeTargets` objects from the register, merged per node (K-22), deletes
//! those of nodes that are gone, and says when an address may be published (K-27).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use onehop_core::crd::{Feature, NodeInstall, TargetMode};
use onehop_core::id::{Cidr, NodeName, ServiceKey};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;
use tokio_util::sync::CancellationToken;

use super::cases::Case;
use super::memory::{Memory, OfService};
use super::{Reconciler, lock};
use crate::index::Index;
use crate::node_targets::{Ranges, Told, Urgency};
use crate::plan::{Intent, Provider};
use crate::writes::WriteError;

/// How long a published address waits at most for agents that do not say that they have it: an agent that is away
/// must not keep a Service from its address, and its node fails the health check anyway.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// How long the registration of a target waits at most for its node to be told of it: a node that cannot be told must not
/// keep a Service from its targets (K-20).
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// Nodes that are written to side by side.
const AT_ONCE: usize = 8;
/// Between two looks at whether it is acknowledged; news of the objects come by their watch.
const LOOK: Duration = Duration::from_millis(500);

impl<P: Provider> Reconciler<P> {
    /// Notes what a pass found of its Services' targets, with those that are about to be registered.
    pub(super) fn list_targets(
        &self,
        cases: &[Case],
        intents: &[Intent],
        seen: &P::Observed,
        memory: &mut Memory<P>,
    ) {
        for case in cases {
            let Case::Ours(wanted) = case else { continue };
            let service = &wanted.service.spec;
            if let Some(intent) = intents.iter().find(|i| i.service == service.key) {
                let of = memory.services.entry(service.key.clone()).or_default();
                self.list_targets_of(service, intent, seen, of);
            }
        }
    }

    fn list_targets_of(
        &self,
        service: &ServiceSpec,
        intent: &Intent,
        seen: &P::Observed,
        of: &mut OfService,
    ) {
        let now = self.clock.now();
        let intent = &self.given(intent, seen, now);
        let told = Told {
            targets: self.provider.listed(intent, seen, now),
            sources: self.provider.sources(intent, seen),
        };
        let news = {
            let index = lock(&self.index);
            let from = (&*index, &self.settings.claim.install);
            lock(&self.register).set(from, service, intent, &told, now)
        };
        self.nodes_due(news.nodes, news.urgency);
        self.follow(service, intent, &told.targets, (of, now));
    }

    /// The intent with its addresses, where the cloud has given them: agents are told of them before anybody else (K-27).
    fn given<'a>(&self, intent: &'a Intent, seen: &P::Observed, now: Time) -> Cow<'a, Intent> {
        if !intent.addresses.is_empty() {
            return Cow::Borrowed(intent);
        }
        let addresses = self.provider.outcome(intent, seen, now).addresses;
        if addresses.is_empty() {
            return Cow::Borrowed(intent);
        }
        Cow::Owned(Intent {
            addresses,
            ..intent.clone()
        })
    }

    /// Nothing of a Service is left in the cloud.
    pub(super) fn unlist_targets(&self, service: &ServiceKey) {
        let now = self.clock.now();
        let touched = {
            let index = lock(&self.index);
            let from = (&*index, &self.settings.claim.install);
            let touched = lock(&self.register).remove(from, service, now);
            // After a restart it is not known which nodes have something of it.
            let all = index.nodes_that_name(service);
            touched.union(&all).cloned().collect()
        };
        self.nodes_due(touched, Urgency::Merged);
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

    /// Waits until the nodes of these Services' pods were told of them. A controller that died between the registration
    /// of a target and the word to its node would leave one that no agent answers for or guards (ZD-12); as the word
    /// takes milliseconds, and a load balancer seconds, the registration can wait for it.
    pub(super) async fn nodes_told(&self, services: &[ServiceKey], since: Time) {
        let until = since + TOLD_WITHIN;
        let mut told = self.told.subscribe();
        loop {
            let untold = self.untold(services);
            if untold.is_empty() {
                return;
            }
            tokio::select! {
                _ = told.changed() => {}
                () = self.clock.sleep_until(until) => {
                    self.measures.untold_nodes.inc_by(untold.len() as u64);
                    let nodes = untold.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ");
                    tracing::warn!(%nodes, "targets are registered of which their nodes could not be told");
                    return;
                }
            }
        }
    }

    fn untold(&self, services: &[ServiceKey]) -> BTreeSet<NodeName> {
        let index = lock(&self.index);
        if !index.node_targets_synced() {
            // Nothing is written to nodes, perhaps since there is no such kind (I1, K-26).
            return BTreeSet::new();
        }
        let register = lock(&self.register);
        let install = &self.settings.claim.install;
        let of = |service| register.untold(service, &index, install);
        services.iter().flat_map(of).collect()
    }

    fn nodes_due(&self, nodes: BTreeSet<NodeName>, urgency: Urgency) {
        if nodes.is_empty() {
            return;
        }
        lock(&self.due_nodes).enter(nodes, urgency, self.clock.now());
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
        self.nodes_due(concerned, Urgency::Merged);
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
        self.nodes_due(untold.collect(), Urgency::Merged);
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
                let all = {
                    let index = lock(&self.index);
                    let mut register = lock(&self.register);
                    register.take_over_gone(&index, &self.settings.claim.install);
                    let mut all = index.ready_agents();
                    all.extend(register.nodes());
                    all
                };
                self.nodes_due(all, Urgency::Merged);
                compare_at = self
                    .next_sweep(self.clock.now())
                    .max(self.clock.now() + LOOK);
            }
            let absent = lock(&self.presence).next_change(self.clock.now());
            let next = [
                lock(&self.due_nodes).next(),
                purge,
                absent,
                Some(compare_at),
            ]
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
                self.measure_tails();
                self.nodes_due(touched, Urgency::Merged);
            }
            if !lock(&self.index).node_targets_synced() {
                // Nothing from a half-synced cache (I1).
                lock(&self.due_nodes).postpone(now + LOOK);
                continue;
            }
            let due = lock(&self.due_nodes).take(now);
            let mut failed = BTreeSet::new();
            let this = &self;
            let told = stream::iter(due).map(|node| async move {
                let result = this.tell_node(&node).await;
                (node, result)
            });
            let mut told = pin!(told.buffer_unordered(AT_ONCE));
            while let Some((node, result)) = told.next().await {
                if let Err(error) = result {
                    self.measures.write_failures.inc();
                    tracing::warn!(%node, %error, "cannot tell a node of its targets, trying again");
                    failed.insert(node);
                }
                self.told.send_replace(());
            }
            if failed.is_empty() {
                backoff.reset();
            } else {
                let again = self.clock.now() + backoff.next_delay();
                let mut due = lock(&self.due_nodes);
                for node in failed {
                    due.enter_at(node, again);
                }
            }
        }
    }

    /// Whether something is said to a node, or was, of a Service that is there or leaves.
    fn concerns_any(&self, node: &NodeName, said: Option<&NodeInstall>) -> bool {
        let index = lock(&self.index);
        if lock(&self.register).nodes().contains(node) {
            return true;
        }
        let mut services = said.into_iter().flat_map(|said| {
            let targets = said.targets.iter().map(|t| &t.service);
            let local = said.local.iter().map(|l| &l.service);
            targets
                .chain(local)
                .chain(said.vips.iter().map(|v| &v.service))
        });
        services.any(|service| index.service(&service.key()).is_some())
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
        let wanted = {
            let register = lock(&self.register);
            for service in register.too_large(node) {
                tracing::warn!(%node, %service, "too many targets on the node to tell its agent of them");
            }
            register.entry(node, &ranges, there)
        };
        let nothing =
            wanted.targets.is_empty() && wanted.local.is_empty() && wanted.vips.is_empty();
        // Of a node that is gone nobody else would take away what was said of a Service that is gone, too.
        let nothing = nothing || (!exists && !self.concerns_any(node, there));
        if !exists && (nothing || object.is_none()) {
            // One tail after the node: until then a machine that runs on is told that its targets drain (ZD-78).
            let last = object
                .as_ref()
                .filter(|o| o.spec.installs.keys().all(|id| id == install));
            if let Some(object) = last {
                self.writer.delete_node_targets(object).await?;
            }
            return Ok(());
        }
        // An agent says in its object what it can do, which has to be known before anything of it is asked (K-24).
        if there == Some(&wanted) || (there.is_none() && nothing && !agent) {
            return Ok(());
        }
        let entries = BTreeMap::from([(install.clone(), wanted)]);
        let written = self.writer.node_targets(node, &entries).await?;
        lock(&self.due_nodes).written(node.clone(), self.clock.now());
        self.take_in(|index| index.wrote_node_targets(&written));
        Ok(())
    }
}
