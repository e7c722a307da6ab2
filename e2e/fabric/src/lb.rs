//! The namespace of one LB node; what it does with packets is the fake cloud's (FC-61).

use std::net::{IpAddr, Ipv4Addr};

use crate::netns::Netns;
use crate::twin::both;

/// An LB node: single-homed, forwarding, its router port free of the source check.
#[derive(Clone, Debug)]
pub struct LbNet {
    pub(crate) ns: Netns,
    pub(crate) zone: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) port: String,
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

    /// Its interface to the router.
    pub fn interface(&self) -> &'static str {
        "eth0"
    }

    /// Its port on the router.
    pub fn port(&self) -> &str {
        &self.port
    }
}
