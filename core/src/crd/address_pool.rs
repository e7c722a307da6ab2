//! `AddressPool`: addresses that the local provider may give to Services (C-20). Written by people;
//! a value that cannot be read is a problem of the pool, never of the watch.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use crate::id::{IpFamily, ParseError};

/// Addresses for Services of provider local.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "onehop.dev",
    version = "v1alpha1",
    kind = "AddressPool",
    plural = "addresspools",
    status = "AddressPoolStatus",
    derive = "PartialEq",
    doc = "Addresses that onehop's local provider may give to Services of type LoadBalancer.",
    printcolumn = r#"{"name": "ASSIGNED", "type": "integer", "jsonPath": ".status.assigned"}"#,
    printcolumn = r#"{"name": "AVAILABLE", "type": "integer", "jsonPath": ".status.available"}"#,
    printcolumn = r#"{"name": "CONFLICT", "type": "string", "jsonPath": ".status.conflict"}"#,
    printcolumn = r#"{"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AddressPoolSpec {
    /// CIDRs (198.51.100.0/24) or ranges (198.51.100.10-198.51.100.20).
    #[schemars(length(min = 1), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// Whether Services that name no pool may get an address from it.
    #[serde(default = "yes")]
    pub auto_assign: bool,
    /// Whether to skip addresses that end in .0 or .255.
    #[serde(rename = "avoidBuggyIPs", default)]
    pub avoid_buggy_ips: bool,
    /// Which Services may use it; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_allocation: Option<ServiceAllocation>,
}

const fn yes() -> bool {
    true
}

/// Which Services may use a pool, and how it ranks among those that they may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAllocation {
    /// Lower wins; 0 or absent comes last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Namespaces by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub namespaces: Vec<String>,
    /// Namespaces by label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub namespace_selectors: Vec<LabelSelector>,
    /// Services by label.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::label_selectors")]
    pub service_selectors: Vec<LabelSelector>,
}

/// How a pool stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressPoolStatus {
    /// Addresses given to Services.
    #[serde(default)]
    pub assigned: i64,
    /// Addresses that are free; the largest number where there are more.
    #[serde(default)]
    pub available: i64,
    /// The older pool that this one overlaps: it gives no new addresses then (C-28).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// Addresses that it gave to Services and has no more: they stay where they are and are given to
    /// nobody else (C-27).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub orphaned: Vec<String>,
    /// What of the pool cannot be read and is left out (C-17).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub problems: Vec<String>,
}

impl AddressPoolSpec {
    /// The ranges, and what could not be read.
    pub fn ranges(&self) -> (Vec<AddressRange>, Vec<ParseError>) {
        let mut ranges = Vec::new();
        let mut problems = Vec::new();
        for text in &self.addresses {
            match text.parse() {
                Ok(range) if !NOBODYS.iter().any(|(of, first, last)| {
                    AddressRange { family: *of, first: *first, last: *last }.overlaps(range)
                }) => ranges.push(range),
                Ok(_) => problems.push(ParseError {
                    text: text.clone(),
                    what: "a range that Services can have: it holds unspecified, loopback, multicast or broadcast addresses",
                }),
                Err(problem) => problems.push(problem),
            }
        }
        (ranges, problems)
    }

    /// Whether the pool may give out this address of its ranges.
    pub fn may_give(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => !self.avoid_buggy_ips || !matches!(v4.octets()[3], 0 | 255),
            IpAddr::V6(_) => true,
        }
    }
}

/// Addresses that no Service can have, first and last: 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4, 255.255.255.255, `::`, `::1`, `ff00::/8`.
const NOBODYS: [(IpFamily, u128, u128); 6] = [
    (IpFamily::V4, 0, 0x00ff_ffff),
    (IpFamily::V4, 0x7f00_0000, 0x7fff_ffff),
    (IpFamily::V4, 0xe000_0000, 0xefff_ffff),
    (IpFamily::V4, 0xffff_ffff, 0xffff_ffff),
    (IpFamily::V6, 0, 1),
    (IpFamily::V6, 0xff << 120, u128::MAX),
];

/// A range of addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    family: IpFamily,
    first: u128,
    last: u128,
}

impl AddressRange {
    /// The range's family.
    pub const fn family(self) -> IpFamily {
        self.family
    }

    /// Whether the address lies in the range.
    pub fn contains(self, address: IpAddr) -> bool {
        IpFamily::of(address) == self.family && (self.first..=self.last).contains(&bits(address))
    }

    /// Whether the ranges share an address.
    pub fn overlaps(self, other: Self) -> bool {
        self.family == other.family && self.first <= other.last && other.first <= self.last
    }

    /// The number of addresses; the largest number where there are more.
    pub const fn size(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// The number of IPv4 addresses that end in .0 or .255.
    pub const fn edges(self) -> u128 {
        // Addresses below a bound that end in 0, and in 255.
        const fn below(bound: u128) -> u128 {
            bound.div_ceil(256) + bound / 256
        }
        match self.family {
            IpFamily::V4 => below(self.last + 1) - below(self.first),
            IpFamily::V6 => 0,
        }
    }

    /// The same addresses without overlaps, lowest first.
    pub fn merge(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_unstable();
        let mut merged: Vec<Self> = Vec::new();
        for range in ranges {
            match merged.last_mut().filter(|last| last.overlaps(range)) {
                Some(last) => last.last = last.last.max(range.last),
                None => merged.push(range),
            }
        }
        merged
    }

    /// Its addresses, lowest first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        (self.first..=self.last).map(move |bits| address(self.family, bits))
    }
}

const fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits() as u128,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn address(family: IpFamily, bits: u128) -> IpAddr {
    match family {
        // Bounds of a v4 range come from v4 addresses, so the number always fits.
        IpFamily::V4 => Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into(),
        IpFamily::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

impl FromStr for AddressRange {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = || ParseError {
            text: text.to_owned(),
            what: "a CIDR or a range of two addresses of one family, the lower one first",
        };
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            let parse = |end: &str| end.trim().parse::<IpAddr>().map_err(|_| bad());
            (parse(first)?, parse(last)?)
        } else {
            let net = text.trim().parse::<IpNet>().map_err(|_| bad())?;
            // Not `broadcast` by meaning: the last address of the block, which may be given out.
            (net.network(), net.broadcast())
        };
        let family = IpFamily::of(first);
        if family != IpFamily::of(last) || bits(first) > bits(last) {
            return Err(bad());
        }
        Ok(Self {
            family,
            first: bits(first),
            last: bits(last),
        })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}-{}",
            address(self.family, self.first),
            address(self.family, self.last)
        )
    }
}
