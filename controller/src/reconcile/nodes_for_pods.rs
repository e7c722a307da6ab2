//! Nodes that are targets because they host pods of the Service (AZ-254): of the others none is a candidate, and which of
//! them leave, and when, is the membership policy's.

use std::collections::BTreeMap;

use onehop_core::id::{NodeName, PortKey};

use crate::index::Index;
use crate::plan::Intent;
use crate::plan::membership::{Owner, State};

/// What is known of the Service's pods on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hosts {
    /// None of them is ready: like a node that is not, it stays where its health is asked for.
    Unready,
    /// One is.
    Ready,
}

/// Withdraws the nodes without a ready pod at the ports for which nodes stand in.
pub(super) fn nodes_for_pods(
    index: &Index,
    intent: &mut Intent,
    stands_in: impl Fn(&PortKey) -> bool,
) {
    let ports = intent.members.keys().filter(|port| stands_in(port));
    let ports: Vec<PortKey> = ports.cloned().collect();
    if ports.is_empty() {
        return;
    }
    let mut hosts: BTreeMap<NodeName, Hosts> = BTreeMap::new();
    let endpoints = index.endpoints(&intent.service);
    for (_, endpoint) in endpoints.iter() {
        let Some(node) = endpoint.node() else {
            continue;
        };
        let one = if endpoint.conditions.ready {
            Hosts::Ready
        } else {
            Hosts::Unready
        };
        let known = hosts.entry(node.clone()).or_insert(one);
        *known = one.max(*known);
    }
    for port in ports {
        let members = intent.members.get_mut(&port).into_iter();
        for member in members.flat_map(|it| &mut it.vips.list) {
            let Owner::Node(node) = &member.owner else {
                continue;
            };
            match (member.state, hosts.get(node)) {
                (State::Ready, None) => member.state = State::Withdrawn,
                (State::Ready, Some(Hosts::Unready)) => member.state = State::NotReady,
                // Whatever else is said of the node says more.
                _ => {}
            }
        }
    }
}
