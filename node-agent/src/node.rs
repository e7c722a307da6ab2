//! What the own node means for the proxy: where NodePorts and health ports answer (S-27, S-29) and
//! whether the node may take new load balancer traffic (S-111). Pure.

use std::net::{IpAddr, Ipv4Addr};

use onehop_core::id::IpFamily;
use onehop_core::node::{GOING_TAINTS, NodeView, OUT_OF_SERVICE_TAINT, PodNetwork};

use crate::args::NodePortAddresses;

/// Taints that say that the node is about to go (S-111); kube-proxy heeds the first one only.
pub const LEAVING: [&str; 7] = {
    let [autoscaler, karpenter, spot, group, maintenance, rebalance] = GOING_TAINTS;
    [
        autoscaler,
        karpenter,
        OUT_OF_SERVICE_TAINT,
        spot,
        group,
        maintenance,
        rebalance,
    ]
};

/// Addresses on which NodePorts answer, Service addresses not yet taken out. `own` stands for the Node object's primary
/// address of its family.
pub fn nodeport_addresses(
    wanted: &NodePortAddresses,
    (node, own): (Option<&NodeView>, Option<IpAddr>),
    interfaces: &[IpAddr],
) -> Vec<IpAddr> {
    let inside = |addr: &IpAddr| match wanted {
        NodePortAddresses::Primary => false,
        NodePortAddresses::All => !is_link_local(addr),
        NodePortAddresses::Ranges(ranges) => ranges.iter().any(|range| range.contains(addr)),
    };
    let primary = [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .filter(|_| *wanted == NodePortAddresses::Primary)
        .filter_map(|family| {
            let own = own.filter(|address| IpFamily::of(*address) == family);
            own.or_else(|| node?.primary_address(family))
        });
    let mut addresses: Vec<IpAddr> = interfaces.iter().copied().filter(inside).collect();
    addresses.extend(primary);
    // Loopback would need route_localnet, which is never set (S-27).
    addresses.retain(|addr| !addr.is_loopback());
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Addresses on which health check node ports listen: the wildcard if NodePorts answer everywhere
/// (S-100).
pub fn health_addresses(wanted: &NodePortAddresses, eligible: &[IpAddr]) -> Vec<IpAddr> {
    match wanted {
        NodePortAddresses::All => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
        NodePortAddresses::Primary | NodePortAddresses::Ranges(_) => eligible.to_vec(),
    }
}

/// What keeps a node that exists from new load balancer traffic, besides its deletion. NotReady, unschedulable and the
/// exclude label change nothing (S-111).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eligibility {
    /// Taints of a node that is about to go.
    pub taints: Vec<String>,
    /// Whether the node must have a pod network (S-114).
    pub needs_network: bool,
}

impl Default for Eligibility {
    fn default() -> Self {
        Self {
            taints: LEAVING.map(str::to_owned).to_vec(),
            needs_network: false,
        }
    }
}

impl Eligibility {
    /// Whether a node that exists may take new load balancer traffic.
    pub fn of(&self, node: &NodeView) -> bool {
        node.deleted.is_none()
            && !self.taints.iter().any(|taint| node.has_taint(taint))
            && (node.pod_network == PodNetwork::Present || !self.needs_network)
    }
}

fn is_link_local(addr: &IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use onehop_core::node::{NodeReady, Taint};

    use super::*;

    fn node() -> NodeView {
        NodeView {
            addresses: ["10.0.1.1", "10.0.1.2", "fd00::1"]
                .iter()
                .map(|addr| addr.parse().expect("address"))
                .collect(),
            ..NodeView::default()
        }
    }

    fn texts(addresses: &[IpAddr]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn s27_primary_ranges_and_all() {
        let interfaces: Vec<IpAddr> = ["10.0.1.1", "10.0.2.1", "127.0.0.1", "fe80::1", "fd00::1"]
            .iter()
            .map(|addr| addr.parse().expect("address"))
            .collect();
        let of = |wanted| {
            texts(&nodeport_addresses(
                &wanted,
                (Some(&node()), None),
                &interfaces,
            ))
        };
        assert_eq!(of(NodePortAddresses::Primary), ["10.0.1.1", "fd00::1"]);
        let range = "10.0.2.0/24".parse().expect("range");
        assert_eq!(of(NodePortAddresses::Ranges(vec![range])), ["10.0.2.1"]);
        assert_eq!(
            of(NodePortAddresses::All),
            ["10.0.1.1", "10.0.2.1", "fd00::1"]
        );
        // S-303: `--bind-address` overrides the node's address of its family, and nothing else.
        let own = "10.0.1.2".parse().ok();
        let primary = NodePortAddresses::Primary;
        let addresses = nodeport_addresses(&primary, (Some(&node()), own), &interfaces);
        assert_eq!(texts(&addresses), ["10.0.1.2", "fd00::1"]);
    }

    #[test]
    fn s111_only_a_leaving_node_is_not_eligible() {
        let mut node = node();
        node.unschedulable = true;
        node.excluded = true;
        node.ready = NodeReady::No;
        let eligible = |node: &NodeView| Eligibility::default().of(node);
        assert!(eligible(&node));
        node.taints.push(Taint {
            key: "ToBeDeletedByClusterAutoscaler".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        });
        // DI-21: a node that is scaled down tells so first.
        assert!(!eligible(&node));
        node.taints[0].key = "karpenter.sh/disrupted".to_owned();
        assert!(!eligible(&node));
        // By the list of kube-proxy, exactly.
        let upstream = Eligibility {
            taints: vec![LEAVING[0].to_owned()],
            ..Eligibility::default()
        };
        assert!(upstream.of(&node));
        node.taints.clear();
        assert!(eligible(&node));
    }

    #[test]
    fn s114_a_node_without_a_pod_network_counts_only_where_that_is_asked_for() {
        // DI-22
        let mut node = node();
        let strict = Eligibility {
            needs_network: true,
            ..Eligibility::default()
        };
        for (network, strictly) in [(PodNetwork::Present, true), (PodNetwork::Missing, false)] {
            node.pod_network = network;
            assert!(Eligibility::default().of(&node));
            assert_eq!(strict.of(&node), strictly, "S-114");
        }
    }
}
