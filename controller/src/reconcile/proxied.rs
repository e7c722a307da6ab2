//! Nodes on which the agent has yet to program what it proxies: they are targets of its Services later (ZD-75).

use crate::index::Index;
use crate::plan::Intent;
use crate::plan::membership::{Owner, State};

/// Nodes that would be targets of a Service which the agent proxies wait until it says that it does; whether some do. A node
/// that is a target stays one: its health check tells of its proxy.
pub(super) fn wait_for_proxies(index: &Index, intent: &mut Intent) -> bool {
    // Without the kind nobody could say so (K-26).
    if !index.node_targets_synced() {
        return false;
    }
    let mut waits = false;
    for port in intent.members.values_mut() {
        for member in port.nodes.list.iter_mut().chain(&mut port.vips.list) {
            let Owner::Node(node) = &member.owner else {
                continue;
            };
            if member.state == State::Ready && !index.agent_proxies(node) {
                member.state = State::Waiting;
                waits = true;
            }
        }
    }
    waits
}
