//! The namespace of one LB node; what it does with packets is the fake cloud's (FC-61).

use std::net::{IpAddr, Ipv4Addr};

use crate::netns::Netns;
use crate::twin::both;

/// Up to 200 LB nodes with so many ports each.
const FIRST_OWN_PORT: u16 = 10_000;
const OWN_PORTS: u16 = 256;

/// An LB node: single-homed, forwarding, its router port free of the source check.
#[derive(Clone, Debug)]
pub struct LbNet {
    pub(crate) ns: Netns,
    pub(crate) zone: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) port: String,
    pub(crate) number: u8,
}

impl LbNet {
    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.ns
    }

    /// The zone it stands in.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Its own address: the source of probes and of flows without client-IP preservation.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its own addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        both(self.address)
    }

    /// Ports of flows that it begins itself as somebody whom other LB nodes are, too: answers are told apart by them.
    pub(crate) fn own_ports(&self) -> (u16, u16) {
        let first = FIRST_OWN_PORT + u16::from(self.number) * OWN_PORTS;
        (first, first + OWN_PORTS - 1)
    }

    /// Its interface to the router.
    pub fn interface(&self) -> &'static str {
        "eth0"
    }

    /// Its port on the router.
    pub fn port(&self) -> &str {
        &self.port
    }
}
