//! The node's place in the fabric, as elements: uplinks (S-400 to S-405) and what is inside the cluster (ZD-43). Pure.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::table::element::{
    Data, Elements, Family, InterfaceName, Key, SetId, Side, UplinkNumber, Verdict,
};

/// An interface to the fabric.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Uplink {
    /// Its number, by which marks and routing tables name it (S-401).
    pub number: UplinkNumber,
    /// Its name.
    pub name: InterfaceName,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
}

/// All of them, and what keeps the guard from working here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// The uplinks.
    pub uplinks: Vec<Uplink>,
    /// Why the guard cannot be offered, in words for `status.problems` (ZD-47).
    pub problems: Vec<String>,
}

impl Network {
    /// Whether steered packets would be delivered.
    pub fn offers_guard(&self) -> bool {
        !self.uplinks.is_empty() && self.problems.is_empty()
    }

    /// What the kernel shall hold. With one uplink there is no choice to remember (S-402).
    pub fn elements(&self) -> Elements {
        let mut elements = Elements::new();
        let several = self.uplinks.len() > 1;
        for uplink in &self.uplinks {
            for family in Family::ALL {
                let name = Key::Interface(uplink.name);
                elements.insert((family, SetId::Uplinks, name), None);
                if several {
                    let mark = Data::Verdict(Verdict::MarkUplink(uplink.number));
                    elements.insert((family, SetId::UplinkMarks, name), Some(mark));
                }
            }
            for address in uplink.addresses.iter().filter(|_| several) {
                let out = Data::Verdict(Verdict::ToUplink(uplink.number));
                let key = (
                    Family::of(*address),
                    SetId::UplinkAddresses,
                    Key::Addr(*address),
                );
                elements.insert(key, Some(out));
            }
        }
        elements
    }
}

/// Ranges as the edges of an interval set; they may overlap.
pub fn edges(ranges: &[IpNet]) -> Elements {
    let mut elements = Elements::new();
    for family in Family::ALL {
        let of_family = ranges.iter().filter(|net| Family::of(net.addr()) == family);
        let mut spans: Vec<(IpAddr, IpAddr)> = of_family
            .map(|net| (net.network(), net.broadcast()))
            .collect();
        spans.sort_unstable();
        let mut joined: Vec<(IpAddr, IpAddr)> = Vec::new();
        for (first, last) in spans {
            match joined.last_mut() {
                // Neighbours become one: two edges at one address would be one element.
                Some((_, end)) if next(*end).is_none_or(|after| first <= after) => {
                    *end = last.max(*end);
                }
                _ => joined.push((first, last)),
            }
        }
        for (first, last) in joined {
            let mut edge = |addr, side| {
                elements.insert((family, SetId::Inside, Key::Edge(addr, side)), None);
            };
            edge(first, Side::Begin);
            // A range up to the highest address has no end.
            if let Some(after) = next(last) {
                edge(after, Side::End);
            }
        }
    }
    elements
}

fn next(addr: IpAddr) -> Option<IpAddr> {
    match addr {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|b| IpAddr::V4(b.into())),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|b| IpAddr::V6(b.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(elements: &Elements) -> Vec<String> {
        let text = |key: &Key| match key {
            Key::Edge(addr, side) => format!("{addr} {side:?}"),
            other => format!("{other:?}"),
        };
        elements.keys().map(|(_, _, key)| text(key)).collect()
    }

    #[test]
    fn zd43_ranges_that_touch_or_overlap_are_one() {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let of = |list: &[&str]| texts(&edges(&nets(list)));
        assert_eq!(
            of(&[
                "10.244.1.0/24",
                "10.244.0.0/16",
                "10.245.0.0/16",
                "10.0.1.11/32"
            ]),
            [
                "10.0.1.11 Begin",
                "10.0.1.12 End",
                "10.244.0.0 Begin",
                "10.246.0.0 End"
            ]
        );
        assert_eq!(of(&["255.0.0.0/8"]), ["255.0.0.0 Begin"]);
        assert_eq!(of(&["fd00::/64"]), ["fd00:: Begin", "fd00:0:0:1:: End"]);
    }

    #[test]
    fn s402_one_uplink_needs_no_marks() {
        let uplink = |number, name: &str| Uplink {
            number,
            name: InterfaceName::new(name).unwrap(),
            addresses: vec!["10.0.1.11".parse().unwrap()],
        };
        let mut network = Network {
            uplinks: vec![uplink(1, "eth0")],
            problems: Vec::new(),
        };
        assert_eq!(
            network.elements().len(),
            2,
            "the interface, in both families"
        );
        network.uplinks.push(uplink(2, "eth1"));
        let marks = network.elements();
        let marks = marks
            .keys()
            .filter(|(_, set, _)| *set == SetId::UplinkMarks);
        assert_eq!(marks.count(), 4, "S-402");
    }
}
