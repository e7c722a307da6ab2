//! A client's namespace: one interface, one address, the router as its gateway (FC-85).

use std::net::{IpAddr, Ipv4Addr};

use crate::Result;
use crate::ip::Batch;
use crate::netns::Netns;
use crate::settle::settle;
use crate::twin::{ROUTER, both, twin};

/// Somebody who calls: outside the VPC, or inside it without being a node.
#[derive(Clone, Debug)]
pub struct ClientNet {
    pub(crate) ns: Netns,
    pub(crate) address: Ipv4Addr,
}

impl ClientNet {
    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.ns
    }

    /// Its only IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        both(self.address)
    }
}

/// Sets up `interface`, already cabled: everything but its own address lies behind `gateway`.
pub(crate) fn single_homed(
    ns: &Netns,
    interface: &str,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
) -> Result<()> {
    let mut batch = Batch::default();
    batch
        .line(format!("link set {interface} up"))
        .line(format!(
            "addr add {address}/24 dev {interface} noprefixroute"
        ))
        .line(format!(
            "route add {gateway} dev {interface} scope link src {address}"
        ))
        .line(format!(
            "route add default via {gateway} dev {interface} src {address}"
        ));
    batch.run(ns)?;
    let address = twin(address);
    let mut batch = Batch::v6();
    batch
        .line(format!(
            "addr add {address}/64 dev {interface} nodad noprefixroute"
        ))
        .line(format!(
            "route add default via {ROUTER} dev {interface} src {address}"
        ));
    batch.run(ns)?;
    settle(ns, &[(address, interface)])
}
