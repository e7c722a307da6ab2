//! Who may use a load balancer address (section 6).

use ipnet::IpNet;
use onehop_core::service::ServiceSpec;

use super::choices::UnlistedFamily;
use super::{Compiled, Surroundings};
use crate::claims::Front;
use crate::table::element::{Family, Key, SetId};

/// Restricts a frontend to the Service's source ranges of its family, if it has any.
///
/// A family without a range is open if another family has one, as upstream, unless the administrator closes it (S-73);
/// a list in which nothing could be read closes every family, for a typo must not open an address (S-74).
pub(super) fn guard(
    service: &ServiceSpec,
    front: &Front,
    around: &Surroundings<'_>,
    compiled: &mut Compiled,
) {
    let Front::Vip(frontend) = *front else {
        return;
    };
    let ranges = &service.source_ranges;
    let family = front.family();
    let of_family = |net: &IpNet| Family::of(net.addr()) == family;
    let mut allowed: Vec<IpNet> = ranges
        .allowed
        .iter()
        .map(|range| range.net())
        .filter(of_family)
        .collect();
    if allowed.is_empty() {
        if ranges.is_open() {
            return;
        }
        let unreadable = ranges.allowed.is_empty();
        if !unreadable && around.choices.unlisted_family == UnlistedFamily::Open {
            compiled.unrestricted.insert(family);
            return;
        }
    }
    let node_is_allowed = around
        .node_addresses
        .iter()
        .any(|addr| allowed.iter().any(|net| net.contains(addr)));
    if node_is_allowed {
        // A node that talks to an address bound on itself may do so from that address (S-72).
        allowed.extend(
            around
                .beyond
                .vips
                .iter()
                .copied()
                .map(IpNet::from)
                .filter(of_family),
        );
    }
    let guarded = (family, SetId::SourceGuarded, Key::Frontend(frontend));
    compiled.elements.insert(guarded, None);
    // Overlapping ranges would be refused by the interval set.
    for net in IpNet::aggregate(&allowed) {
        let key = (family, SetId::SourceAllow, Key::Range(frontend, net));
        compiled.elements.insert(key, None);
    }
}
