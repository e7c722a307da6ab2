//! The address plan's IPv6 side: everything that has an IPv4 address has a twin that reads like it, digit by digit
//! (`10.0.1.11` and `fd00:10:0:1::11`). Pure; whoever knows one address of the plan knows the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

use crate::Fabric;

/// The router's address on every link, everybody's IPv6 gateway.
pub(crate) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

impl Fabric {
    /// IPv6 addresses of all pods of the cluster.
    pub const CLUSTER_CIDR6: Ipv6Net =
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0), 48);
    /// IPv6 addresses for Services.
    pub const SERVICE_CIDR6: Ipv6Net =
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0), 112);
    /// IPv6 addresses that load balancers may have.
    pub const LB_CIDR6: Ipv6Net =
        Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, 0x198, 0x100, 0, 0, 0, 0), 64);
}

/// The IPv6 address of whoever has `address`: inside the VPC (10.0.0.0/8) `fd00:10:<b>:<c>::<d>`, else
/// `2001:db8:<a>:<c>::<d>`, the decimal digits read as hexadecimal ones.
pub fn twin(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets().map(digits);
    if a == digits(10) {
        Ipv6Addr::new(0xfd00, a, b, c, 0, 0, 0, d)
    } else {
        Ipv6Addr::new(0x2001, 0xdb8, a, c, 0, 0, 0, d)
    }
}

/// Both addresses of whoever has `address`, IPv4 first.
pub fn both(address: Ipv4Addr) -> [IpAddr; 2] {
    [address.into(), twin(address).into()]
}

fn digits(number: u8) -> u16 {
    let number = u16::from(number);
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_reads_like_its_ipv4_address() {
        let cases = [
            ("10.0.1.11", "fd00:10:0:1::11"),
            ("10.244.2.254", "fd00:10:244:2::254"),
            ("203.0.113.11", "2001:db8:203:113::11"),
            ("198.51.100.10", "2001:db8:198:100::10"),
        ];
        for (v4, v6) in cases {
            assert_eq!(twin(v4.parse().unwrap()), v6.parse::<Ipv6Addr>().unwrap());
        }
        assert!(Fabric::CLUSTER_CIDR6.contains(&twin(Ipv4Addr::new(10, 244, 1, 2))));
        assert!(Fabric::LB_CIDR6.contains(&twin(Ipv4Addr::new(198, 51, 100, 10))));
    }
}
