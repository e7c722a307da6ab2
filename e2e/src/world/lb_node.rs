//! The load balancer nodes of a world, one in each zone: where they stand, and what they chose for whom.

use super::World;
use e2e_cloud::{NetNode, datapath::Chosen, engine::Protocol};
use e2e_fabric::{LbNet, Netns};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A load balancer node.
#[derive(Clone)]
pub struct LbNode {
    pub(super) net: LbNet,
    pub(super) packets: NetNode,
}

impl LbNode {
    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        self.net.netns()
    }

    /// The zone it stands in.
    pub fn zone(&self) -> &str {
        self.net.zone()
    }

    /// Its own address: the source of probes, and of flows without client-IP preservation.
    pub fn address(&self) -> Ipv4Addr {
        self.net.address()
    }
}

impl World {
    /// The load balancer nodes in the order of the zones.
    pub fn lb_nodes(&self) -> &[LbNode] {
        &self.local.lbs
    }

    /// The load balancer node of the first zone.
    pub fn lb_node(&self) -> &LbNode {
        // A world does not start without a zone.
        &self.local.lbs[0]
    }

    /// The zone whose load balancer node serves this address now.
    pub fn zone_of(&self, address: IpAddr) -> Option<String> {
        let port = self.fabric.router().owner(address)?;
        let serving = self.local.lbs.iter().find(|lb| lb.net.port() == port)?;
        Some(serving.zone().to_owned())
    }

    /// Waits until every load balancer node forwards as the cloud says now.
    pub async fn cloud_settled(&self) {
        self.local.driver.settled().await;
    }

    /// What a load balancer node chose for the flow that this client socket began last, of all nodes the newest.
    pub fn chosen(&self, protocol: Protocol, client: SocketAddr) -> Option<Chosen> {
        let nodes = self.local.lbs.iter();
        let chosen = nodes.filter_map(|node| node.packets.chosen(protocol, client));
        chosen.max_by_key(|chosen| chosen.at)
    }
}
