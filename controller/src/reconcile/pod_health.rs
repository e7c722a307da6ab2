//! Who answers the health checks of pods: agents, where they are at work (K-24).

use std::collections::BTreeSet;
use std::time::Duration;

use onehop_core::crd::{Feature, HealthBy, LoadBalancerSpec};
use onehop_core::id::{NodeName, PortKey, ServiceKey};
use onehop_core::time::Time;

use super::agentless::{agentless, listed};
use super::cases::{Case, Wanted};
use super::{Reconciler, lock};
use crate::index::Index;
use crate::plan::membership::State;
use crate::plan::pod_health::{by_agent, may_be_agents};
use crate::plan::{Intent, Notice, Provider};

impl<P: Provider> Reconciler<P> {
    /// Gives the pod ports of a Service checks that agents answer, unless agents have been awaited for too long.
    pub(super) fn ask_agents(&self, wanted: &mut Wanted, last_good: Option<&LoadBalancerSpec>) {
        let (Some(of), Some(spec)) = (self.settings.pod_health, &mut wanted.spec) else {
            return;
        };
        let (service, install) = (&wanted.service.spec, &self.settings.claim.install);
        let mut asked = Vec::new();
        for port in &mut spec.ports {
            let key = port.key();
            let check = self.provider.agent_check(service, port);
            let check = check.filter(|_| may_be_agents(&key, last_good));
            let check = check.map(|check| by_agent(&check, install, &service.key, (&key, of.port)));
            asked.extend(check.map(|check| (port, check)));
        }
        // One lock after the other: who takes in news has that of the index first.
        let found = silent_nodes(&lock(&self.index), &service.key);
        let mut silent = lock(&self.silent);
        if asked.is_empty() || found.nodes.is_empty() {
            silent.remove(&service.key);
        } else {
            let now = self.clock.now();
            let since = *silent.entry(service.key.clone()).or_insert(now);
            let over = found.never || now.since(since) >= of.wait;
            wanted
                .notices
                .push(notice(&found, (!over).then_some(of.wait)));
            if over {
                // Another check is another group, made before this one goes (K-40).
                return;
            }
        }
        for (port, check) in asked {
            port.health = Some(check);
        }
    }

    /// When a Service will have waited for agents for too long.
    pub(super) fn agents_awaited(&self, cases: &[Case]) -> Option<Time> {
        let wait = self.settings.pod_health?.wait;
        let silent = lock(&self.silent);
        let ends = cases.iter().filter_map(|case| match case {
            Case::Ours(wanted) => Some(*silent.get(&wanted.service.spec.key)? + wait),
            _ => None,
        });
        ends.filter(|end| *end > self.clock.now()).min()
    }
}

/// Pods whose node has nobody who answers for them are registered later (K-24).
pub(super) fn wait_for_agents(index: &Index, intent: &mut Intent) {
    let by_agents = |port: &PortKey| {
        let mut ports = intent.spec.ports.iter();
        let health = ports
            .find(|p| p.key() == *port)
            .and_then(|p| p.health.as_ref());
        health.is_some_and(|h| h.by == HealthBy::Agent)
    };
    let ports: Vec<PortKey> = intent
        .members
        .keys()
        .filter(|p| by_agents(p))
        .cloned()
        .collect();
    if ports.is_empty() {
        return;
    }
    let endpoints = index.endpoints(&intent.service);
    let silent: BTreeSet<_> = endpoints
        .iter()
        .filter(|(_, e)| e.node().is_some_and(|node| !answers(index, node)))
        .map(|(_, e)| e.address)
        .collect();
    for port in ports {
        let members = intent.members.get_mut(&port).into_iter();
        for member in members.flat_map(|m| &mut m.pods.list) {
            if member.state == State::Ready && silent.contains(&member.key.address) {
                member.state = State::Waiting;
            }
        }
    }
}

/// Nodes with ready pods of a Service and nobody who answers for them.
struct Silent {
    nodes: BTreeSet<NodeName>,
    /// For people.
    listed: String,
    /// Whether one of them never will: there can be no agent on it (C-131, C-132), or its agent says that it cannot.
    never: bool,
    /// Whether one of them should.
    should: bool,
}

fn silent_nodes(index: &Index, service: &ServiceKey) -> Silent {
    let endpoints = index.endpoints(service);
    let ready = endpoints.iter().filter(|(_, e)| e.conditions.ready);
    let nodes: BTreeSet<NodeName> = ready
        .filter_map(|(_, e)| e.node())
        .filter(|node| !answers(index, node))
        .cloned()
        .collect();
    let barred = |node: &NodeName| agentless(index, node).is_some();
    Silent {
        listed: listed(index, &nodes),
        never: nodes
            .iter()
            .any(|node| barred(node) || index.agent_has_problems(node)),
        should: nodes.iter().any(|node| !barred(node)),
        nodes,
    }
}

fn answers(index: &Index, node: &NodeName) -> bool {
    index.agent_offers(node, Feature::PodHealth)
}

/// What is said of nodes without anybody who answers, and whether they are waited for. Where there can be no agent,
/// nothing is wrong.
fn notice(silent: &Silent, wait: Option<Duration>) -> Notice {
    let then = match wait {
        Some(wait) => format!("pods there wait for it, for {} s at most", wait.as_secs()),
        None => "the load balancer asks the pods themselves".to_owned(),
    };
    let nodes = &silent.listed;
    Notice {
        reason: "AgentAbsent",
        message: format!("no node agent answers for the health of pods on {nodes}: {then}"),
        degrades: silent.should,
    }
}
