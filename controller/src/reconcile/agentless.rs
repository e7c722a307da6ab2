//! Nodes on which no agent can ever run, and what that means for a Service (C-131, C-132).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use onehop_core::crd::{LoadBalancerSpec, TargetMode};
use onehop_core::id::{NodeName, ServiceKey};
use onehop_core::node::Agentless;
use onehop_core::service::ServiceSpec;

use crate::index::Index;
use crate::plan::Notice;

/// Nodes that a message names.
const NODES_NAMED: usize = 5;

/// Why no agent can ever run on a node; `None` where one can, and for a node that nobody knows.
pub(super) fn agentless(index: &Index, node: &NodeName) -> Option<Agentless> {
    index.node(node)?.agentless()
}

/// Says on which nodes a Service that is handed to the agent has no proxy at all: there its addresses and NodePorts
/// answer nobody.
pub(super) fn unserved(index: &Index, service: &ServiceSpec) -> Option<Notice> {
    if !service.names_the_agent() {
        return None;
    }
    // A machine of one pod has no proxy for anybody, whatever the label says.
    let windows = |node: &NodeName| agentless(index, node) == Some(Agentless::Windows);
    let nodes: Vec<&NodeName> = index
        .nodes()
        .map(|n| &n.name)
        .filter(|n| windows(n))
        .collect();
    (!nodes.is_empty()).then(|| Notice {
        reason: "ProxyAbsent",
        message: format!(
            "the label hands this Service to the node agent, which cannot run on {}: pods and clients there do not \
             reach it; take the label off, or keep them on other nodes",
            listed(index, nodes)
        ),
        degrades: false,
    })
}

/// Says on which nodes with pods of a Service, whose targets pods are, the agent cannot guard them (ZD-58, ZD-107, AZ-256):
/// new flows that come in a pod's tail are lost there, as without an agent.
pub(super) fn unguarded(
    index: &Index,
    service: &ServiceKey,
    spec: &LoadBalancerSpec,
) -> Option<Notice> {
    if spec.ports.iter().all(|port| port.mode != TargetMode::Pod) {
        return None;
    }
    let endpoints = index.endpoints(service);
    let nodes: BTreeSet<&NodeName> = endpoints.iter().filter_map(|(_, e)| e.node()).collect();
    let mut nodes = nodes
        .into_iter()
        .filter(|n| index.agent_cannot_guard(n).is_some())
        .peekable();
    let why = index.agent_cannot_guard(nodes.peek()?)?.to_owned();
    Some(Notice {
        reason: "TargetsUnguarded",
        message: format!(
            "pods that end on {} are not guarded: {why}; give them a preStop sleep that is longer than the load balancer's tail",
            listed(index, nodes)
        ),
        degrades: true,
    })
}

/// The first few nodes by name, each with the reason why it has no agent, and how many there are more.
pub(super) fn listed<'a>(index: &Index, nodes: impl IntoIterator<Item = &'a NodeName>) -> String {
    let mut nodes = nodes.into_iter();
    let named = nodes.by_ref().take(NODES_NAMED);
    let named: Vec<String> = named
        .map(|node| match agentless(index, node) {
            Some(why) => format!("{node} ({why})"),
            None => node.to_string(),
        })
        .collect();
    let mut text = named.join(", ");
    let more = nodes.count();
    if more > 0 {
        // Writing into a String cannot fail.
        let _ = write!(text, " and {more} more");
    }
    text
}
