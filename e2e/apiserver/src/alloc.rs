//! Addresses and ports that the server gives to Services.
//!
//! The sets follow the stored Services: a number is taken when its Service is written and free when it is gone.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::Value;

use crate::object::{int_at, list_at};

/// Address family of a Service (`spec.ipFamilies[]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::V4, Self::V6]
            .into_iter()
            .find(|family| family.name() == name)
    }

    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// First and last node port.
pub(crate) const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// Numbers in use, and the randomness that names and UIDs come from.
pub(crate) struct Allocations {
    /// Service ranges; the first is the default family.
    pub(crate) cidrs: Vec<IpNet>,
    addresses: BTreeSet<IpAddr>,
    ports: BTreeSet<u16>,
    rng: SmallRng,
}

impl Allocations {
    pub(crate) fn new(cidrs: Vec<IpNet>, rng: SmallRng) -> Self {
        Self {
            cidrs,
            addresses: BTreeSet::new(),
            ports: BTreeSet::new(),
            rng,
        }
    }

    /// The family of Services that ask for none.
    pub(crate) fn default_family(&self) -> Family {
        self.cidrs
            .first()
            .map_or(Family::V4, |cidr| Family::of(cidr.addr()))
    }

    pub(crate) fn has_family(&self, family: Family) -> bool {
        self.cidr(family).is_some()
    }

    fn cidr(&self, family: Family) -> Option<IpNet> {
        self.cidrs
            .iter()
            .copied()
            .find(|cidr| Family::of(cidr.addr()) == family)
    }

    /// A free address of a family, in the upper part of the range as the real allocator prefers.
    pub(crate) fn any_address(&mut self, family: Family) -> Option<IpAddr> {
        let cidr = self.cidr(family)?;
        let size = host_count(cidr);
        let low = lower_band(size);
        for _ in 0..4096 {
            let offset = self.rng.random_range(low..size);
            let address = nth(cidr, offset);
            if !self.addresses.contains(&address) {
                return Some(address);
            }
        }
        (1..size)
            .map(|offset| nth(cidr, offset))
            .find(|address| !self.addresses.contains(address))
    }

    /// Checks that an address may be taken.
    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), String> {
        let Some(cidr) = self
            .cidr(Family::of(address))
            .filter(|cidr| cidr.contains(&address))
        else {
            return Err("the provided network does not match the current range".into());
        };
        if address == cidr.network() || (cidr.addr().is_ipv4() && address == cidr.broadcast()) {
            return Err(format!(
                "the provided IP is not in the valid range. The range of valid IPs is {cidr}"
            ));
        }
        if self.addresses.contains(&address) {
            Err("provided IP is already allocated".into())
        } else {
            Ok(())
        }
    }

    /// A free node port that is not in `also`, outside the band for requested ones.
    pub(crate) fn any_port(&mut self, also: &BTreeSet<u16>) -> Option<u16> {
        let free =
            |ports: &BTreeSet<u16>, port: &u16| !ports.contains(port) && !also.contains(port);
        for _ in 0..4096 {
            // The first 86 ports are kept for people who ask for a number (KEP-3668).
            let port = self
                .rng
                .random_range(NODE_PORTS.start() + 86..=*NODE_PORTS.end());
            if free(&self.ports, &port) {
                return Some(port);
            }
        }
        NODE_PORTS.rev().find(|port| free(&self.ports, port))
    }

    /// Checks that a node port may be taken.
    pub(crate) fn check_port(&self, port: u16, also: &BTreeSet<u16>) -> Result<(), String> {
        if !NODE_PORTS.contains(&port) {
            let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            ));
        }
        if self.ports.contains(&port) || also.contains(&port) {
            return Err("provided port is already allocated".into());
        }
        Ok(())
    }

    /// Follows a write of a Service.
    pub(crate) fn follow(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if let Some(old) = old {
            addresses(old).for_each(|address| {
                self.addresses.remove(&address);
            });
            ports(old).for_each(|port| {
                self.ports.remove(&port);
            });
        }
        if let Some(new) = new {
            self.addresses.extend(addresses(new));
            self.ports.extend(ports(new));
        }
    }

    /// Random letters for generated names, from the alphabet of the real server.
    pub(crate) fn suffix(&mut self, length: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..length)
            .map(|_| char::from(ALPHABET[self.rng.random_range(0..ALPHABET.len())]))
            .collect()
    }

    /// A version 4 UUID.
    pub(crate) fn uid(&mut self) -> String {
        let bits =
            (self.rng.random::<u128>() & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
        let hex = format!("{bits:032x}");
        [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ]
        .join("-")
    }
}

fn addresses(service: &Value) -> impl Iterator<Item = IpAddr> {
    list_at(service, &["spec", "clusterIPs"])
        .iter()
        .filter_map(|address| address.as_str()?.parse().ok())
}

/// Node ports and health check port of a Service.
pub(crate) fn ports(service: &Value) -> impl Iterator<Item = u16> {
    let ports = list_at(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| int_at(port, &["nodePort"]));
    let health = int_at(service, &["spec", "healthCheckNodePort"]);
    ports
        .chain(health)
        .filter_map(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

/// Usable addresses of a range, the network's own counted, the broadcast not.
fn host_count(cidr: IpNet) -> u64 {
    let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len());
    let all = if bits >= 20 { 1 << 20 } else { 1_u64 << bits };
    if cidr.addr().is_ipv4() {
        all.saturating_sub(1).max(2)
    } else {
        all.max(2)
    }
}

/// Part at the start that is kept for requested addresses (KEP-3070).
fn lower_band(size: u64) -> u64 {
    (size / 16).clamp(16, 256).min(size / 2).max(1)
}

fn nth(cidr: IpNet, offset: u64) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(
            base.to_bits()
                .wrapping_add(u32::try_from(offset).unwrap_or_default()),
        )
        .into(),
        IpAddr::V6(base) => {
            Ipv6Addr::from_bits(base.to_bits().wrapping_add(u128::from(offset))).into()
        }
    }
}
