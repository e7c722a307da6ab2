//! Nodes on which no agent can ever run, and what that means for a Service (C-131, C-132).

use std::fmt::Write as _;

use onehop_core::id::NodeName;
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
