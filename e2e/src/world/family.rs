//! The IP family that a scenario's Services have: each scenario is written once and runs in both.

use e2e_fabric::{Fabric, twin};
use std::net::{IpAddr, Ipv4Addr};

/// An IP family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// As `spec.ipFamilies` and EndpointSlices name it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The address in this family of whoever has `address`.
    pub fn of(self, address: Ipv4Addr) -> IpAddr {
        match self {
            Self::V4 => address.into(),
            Self::V6 => twin(address).into(),
        }
    }

    /// The loopback address.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// The pool of load balancer addresses that a world has unless it says otherwise.
    pub fn pool(self) -> String {
        let [_, _, c, _] = Fabric::LB_CIDR.addr().octets();
        let end = |host| self.of(Ipv4Addr::new(198, 51, c, host));
        format!("{}-{}", end(10), end(99))
    }

    /// How long an address of one host is written.
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}
