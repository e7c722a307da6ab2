//! Nodes that are targets because they host pods of the Service (AZ-254, AWS-404), and nodes that are none (AWS-400): of the
//! others none is a candidate, and which of them leave, and when, is the membership policy's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::id::{NodeName, PortKey};
use onehop_core::time::Time;

use crate::index::Index;
use crate::plan::membership::{Member, Owner, State};
use crate::plan::{Intent, Machine};

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

/// Withdraws the nodes that can be no targets.
pub(super) fn fit_nodes(intent: &mut Intent, is_unfit: impl Fn(&Machine) -> bool) {
    let unfit: BTreeSet<NodeName> = intent
        .machines
        .values()
        .filter(|machine| is_unfit(machine))
        .map(|machine| machine.node.clone())
        .collect();
    for (member, node) in node_members(intent) {
        if unfit.contains(&node) && matches!(member.state, State::Ready | State::NotReady) {
            member.state = State::Withdrawn;
        }
    }
}

/// Of a Service with policy Local, the nodes without a ready endpoint come in no more: until their first failed check they
/// would be sent flows that nobody takes. One that is in stays, since its health check takes it out, for as long as a target
/// is held at most: a pod that comes back to it costs no registration (AWS-404). `without` is since when nodes have none.
pub(super) fn local_nodes(
    index: &Index,
    intent: &mut Intent,
    without: &mut BTreeMap<NodeName, Time>,
    now: Time,
) {
    let endpoints = index.endpoints(&intent.service);
    let ready = endpoints.iter().filter(|(_, e)| e.conditions.ready);
    let hosts: BTreeSet<NodeName> = ready.filter_map(|(_, e)| e.node().cloned()).collect();
    let hold = Duration::from_secs(intent.spec.membership.hold_max_seconds.into());
    let mut seen = BTreeSet::new();
    for (member, node) in node_members(intent).filter(|(_, node)| !hosts.contains(node)) {
        let since = *without.entry(node.clone()).or_insert(now);
        seen.insert(node);
        if member.state == State::Ready {
            member.state = if since + hold <= now {
                State::Withdrawn
            } else {
                State::NotReady
            };
        }
    }
    without.retain(|node, _| seen.contains(node));
}

/// All members of an intent that are nodes.
fn node_members(intent: &mut Intent) -> impl Iterator<Item = (&mut Member, NodeName)> {
    let ports = intent.members.values_mut();
    let lists = ports.flat_map(|port| [&mut port.nodes.list, &mut port.vips.list]);
    lists.flatten().filter_map(|member| {
        let Owner::Node(node) = &member.owner else {
            return None;
        };
        let node = node.clone();
        Some((member, node))
    })
}
