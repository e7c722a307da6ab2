//! Which interfaces are uplinks (S-400). Pure.

use std::collections::BTreeSet;

use super::messages::Seen;
use super::plan::{Numbers, is_ours};
use crate::guard::network::Uplink;
use crate::table::element::InterfaceName;

/// Kinds of interfaces that lead to pods or through tunnels, never to the fabric itself.
const NOT_UPLINKS: [&str; 16] = [
    "bridge",
    "vxlan",
    "geneve",
    "ipip",
    "ip6tnl",
    "sit",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "erspan",
    "wireguard",
    "tun",
    "dummy",
    "ifb",
    "nlmon",
];

/// Interfaces of network plugins whose programs may carry packets between uplink and pod without netfilter seeing them.
const PAST_NETFILTER: [(&str, &str); 2] = [
    ("cilium_host", "Cilium"),
    ("bpfin.cali", "Calico's eBPF dataplane"),
];

/// Why nothing could be steered here, where that is so: whoever carries pods' packets past netfilter carries them past the
/// guard, too (ZD-58, AZ-256). It is said, rather than promised what then does not hold.
pub(super) fn past_netfilter(seen: &Seen) -> Option<String> {
    let known = |(interface, _): &&(&str, &str)| seen.links.iter().any(|l| l.name == *interface);
    let (interface, who) = PAST_NETFILTER.iter().find(known)?;
    Some(format!(
        "interface {interface} is there: {who} may carry packets of pods past netfilter, so targets are not guarded"
    ))
}

/// Names of the uplinks: those given by hand, else every interface with a default route in some table.
pub(super) fn uplinks(seen: &Seen, given: &[String]) -> BTreeSet<String> {
    let has_default = |index: u32| {
        let mut routes = seen.routes.iter();
        routes.any(|r| r.out == index && r.to.is_none() && !is_ours(r.table))
    };
    let fits = |kind: &Option<String>| {
        kind.as_deref()
            .is_none_or(|kind| !NOT_UPLINKS.contains(&kind))
    };
    let links = seen.links.iter().filter(|link| {
        if given.is_empty() {
            !link.loopback && fits(&link.kind) && has_default(link.index)
        } else {
            given.contains(&link.name)
        }
    });
    links.map(|link| link.name.clone()).collect()
}

/// The uplinks with their numbers and addresses.
pub(super) fn numbered(seen: &Seen, names: &BTreeSet<String>, numbers: &Numbers) -> Vec<Uplink> {
    let links = seen.links.iter().filter(|link| names.contains(&link.name));
    let uplink = |link: &super::messages::Link| {
        Some(Uplink {
            number: numbers.of(&link.name)?,
            name: InterfaceName::new(&link.name)?,
            addresses: link.addresses.clone(),
        })
    };
    let mut uplinks: Vec<Uplink> = links.filter_map(uplink).collect();
    uplinks.sort();
    uplinks
}
