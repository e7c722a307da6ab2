//! Where the node stands: its interfaces, its addresses, its Node object.

use std::net::IpAddr;

use super::App;
use crate::guard::network::Network;
use crate::node;
use crate::sys::links::Links;

impl App {
    /// The interfaces of the node have these addresses now (S-28), and lead to the fabric or to pods (S-64).
    pub fn interfaces(&mut self, addresses: Vec<IpAddr>, links: Links) {
        self.interfaces = addresses;
        self.resolve_addresses();
        if links != self.links {
            tracing::info!(?links, "interfaces to the fabric and to pods");
            self.planner.set_links(&links);
            self.links = links;
            self.must_plan = true;
        }
    }

    /// The node stands so in the fabric now (S-400).
    pub fn network(&mut self, network: Network) {
        for problem in &network.problems {
            tracing::warn!(problem, "targets on this node are not guarded");
        }
        if self.state.set_network(network) {
            self.state.guards().touch_all();
            self.must_plan = true;
            self.say_truth();
        }
    }

    pub(super) fn node_changed(&mut self) {
        let seen = self.state.node();
        let gone = seen.is_some() && !self.state.node_exists();
        // Before the first Node event: eligible (S-111).
        let eligible = !gone && seen.is_none_or(|node| self.eligibility.of(node));
        self.out.board.set_node_eligible(eligible);
        self.resolve_addresses();
    }

    fn resolve_addresses(&mut self) {
        let node = self.state.node();
        let wanted = &self.wanted_addresses;
        let node = (node, self.node_address);
        let addresses = node::nodeport_addresses(wanted, node, &self.interfaces);
        self.health_ports
            .set_addresses(node::health_addresses(wanted, &addresses));
        if addresses != self.addresses {
            tracing::info!(?addresses, "NodePorts answer on these addresses");
            self.addresses = addresses;
            self.must_plan = true;
        }
    }
}
