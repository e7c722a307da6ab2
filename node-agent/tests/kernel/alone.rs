//! The agent as the node's only proxy: the service range (S-26), what a stopped kube-proxy left (S-127), and tables of
//! others that stay as they are.

use std::io::ErrorKind;
use std::net::SocketAddr;

use onehop_core::id::Protocol;
use onehop_core::service::PROXY_NAME_LABEL;
use onehop_node_agent::args::Mode;
use onehop_node_agent::commit::Features;
use onehop_node_agent::peer_watch::Watcher;
use onehop_node_agent::startup::forward_drops;
use onehop_node_agent::table::element::{Dataplane, Elements};
use onehop_node_agent::table::layout::{Options, Ranges};

use crate::common::{put, service};
use crate::lab::{Lab, Place, Plan, Proxy, both, everywhere, ready};
use crate::world::{in_namespace, nft, options};
use crate::{load, open};

fn alone(lab: &Lab) -> Proxy {
    let options = Options {
        beside_kube_proxy: false,
        ..options()
    };
    lab.proxy_in(Mode::Replace, &options, Features::detect())
}

fn ranges() -> Ranges {
    Ranges {
        service_cidrs: ["10.96.0.0/16", "fd00:96::/112"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        ..Ranges::default()
    }
}

#[test]
fn s26_s289_an_address_of_no_service_is_silent_and_that_of_another_proxy_is_left_alone() {
    let lab = Lab::new();
    // Whoever gets through is answered by the rest of the world.
    for plan in Plan::BOTH {
        for number in [8, 9] {
            let address = plan.cluster_ip(number);
            let bits = if address.is_ipv6() {
                "128 dev lo nodad"
            } else {
                "32 dev lo"
            };
            lab.world.ip(&format!("address add {address}/{bits}"));
            lab.world.serve(SocketAddr::new(address, 80));
        }
    }
    let mut proxy = alone(&lab);
    let mut foreign = service("foreign", 9);
    foreign.cluster_ips = Plan::BOTH.map(|plan| plan.cluster_ip(9)).to_vec();
    foreign.labels = [(PROXY_NAME_LABEL.to_owned(), "other".to_owned())].into();
    let mut plain = everywhere("web", 1, Protocol::Tcp, 30_080);
    plain.labels.clear();
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))]);
    proxy.apply([put(foreign), put(plain)].into_iter().chain(slices));
    let call = |plan: Plan, number| {
        let to = SocketAddr::new(plan.cluster_ip(number), 80);
        let from_pod = lab
            .pod(2)
            .silence(plan.pod(2), to)
            .map(|(server, _)| server);
        let from_node = lab.node.silence(plan.node(), to).map(|(server, _)| server);
        [from_pod, from_node]
    };
    for plan in Plan::BOTH {
        assert_eq!(
            call(plan, 8),
            [Ok(plan.cluster_ip(8)); 2],
            "S-26: left out where no range is known"
        );
    }
    proxy.kernel.configure(&ranges()).unwrap();
    for plan in Plan::BOTH {
        assert_eq!(
            call(plan, 1),
            [Ok(plan.pod(1)); 2],
            "S-02: an unlabelled Service is ours: {plan:?}"
        );
        assert_eq!(
            call(plan, 9),
            [Ok(plan.cluster_ip(9)); 2],
            "S-289: {plan:?}"
        );
        assert_eq!(
            call(plan, 8),
            [Err(ErrorKind::TimedOut); 2],
            "S-26: {plan:?}"
        );
    }
    proxy.assert_in_step();
}

/// What kube-proxy in nftables mode leaves, as far as it matters.
fn leave_tables(node: &Place) {
    for (family, address, kind) in [
        ("ip", "10.96.0.1", "ipv4_addr"),
        ("ip6", "fd00:96::1", "ipv6_addr"),
    ] {
        node.nft(&["add", "table", family, "kube-proxy"]);
        node.nft(&["add", "chain", family, "kube-proxy", "service"]);
        let map = format!("{{ type {kind} . inet_proto . inet_service : verdict; }}");
        node.nft(&["add", "map", family, "kube-proxy", "service-ips", &map]);
        let element = format!("{{ {address} . tcp . 80 : goto service }}");
        node.nft(&[
            "add",
            "element",
            family,
            "kube-proxy",
            "service-ips",
            &element,
        ]);
    }
}

#[test]
fn s127_the_tables_of_a_stopped_kube_proxy_go_with_the_first_complete_state() {
    let lab = Lab::new();
    lab.node.nft(&["add", "table", "ip", "foreign"]);
    leave_tables(&lab.node);
    let mut proxy = alone(&lab);
    let text = lab.node.nft(&["list", "ruleset"]);
    assert!(
        text.contains("table ip kube-proxy"),
        "nothing is taken before there is something for it"
    );
    proxy.kernel.retire_kube_proxy().unwrap();
    let mut web = everywhere("web", 1, Protocol::Tcp, 30_080);
    web.labels.clear();
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))]);
    proxy.apply([put(web)].into_iter().chain(slices));
    let tables = lab.node.nft(&["list", "tables"]);
    assert_eq!(
        tables, "table ip foreign\ntable ip onehop\ntable ip6 onehop\n",
        "S-127, I5"
    );
    proxy.assert_in_step();
}

#[test]
fn s126_the_frontends_of_kube_proxy_are_read_from_its_maps() {
    let lab = Lab::new();
    leave_tables(&lab.node);
    lab.node.nft(&["add", "table", "ip", "nat"]);
    lab.node
        .nft(&["add", "chain", "ip", "nat", "KUBE-SERVICES"]);
    let sighting = lab
        .node
        .run(|| Watcher::open(None).unwrap().look(false).unwrap());
    assert!(sighting.tables && !sighting.answers);
    assert!(sighting.iptables, "S-127: chains of an iptables mode");
    let fronts: Vec<String> = sighting.fronts.iter().map(ToString::to_string).collect();
    assert_eq!(fronts, ["10.96.0.1:80/Tcp", "fd00:96::1:80/Tcp"]);
}

#[test]
fn s127_before_chains_of_an_iptables_mode_ours_decide_first() {
    let lab = Lab::new();
    let options = Options {
        before_iptables: true,
        beside_kube_proxy: false,
        ..options()
    };
    let _proxy = lab.proxy_in(Mode::Replace, &options, Features::detect());
    let text = lab.node.nft(&["list", "ruleset"]);
    assert_eq!(
        text.matches("type nat hook prerouting priority dstnat - 1;")
            .count(),
        2,
        "{text}"
    );
    assert_eq!(
        text.matches("type nat hook output priority -101").count(),
        2,
        "{text}"
    );
}

#[test]
fn s206_i5_tables_of_others_neither_disturb_us_nor_change() {
    let lab = Lab::new();
    let foreign = "table inet foreign {\n\tset many {\n\t\ttype ipv4_addr . inet_service\n\t\tflags interval\n\t\telements = { 10.0.0.0/8 . 1-1024 }\n\t}\n\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t\tip saddr . tcp dport @many counter\n\t}\n}\n";
    lab.node.nft(&[foreign]);
    let before = lab.node.nft(&["list", "table", "inet", "foreign"]);
    let mut proxy = lab.proxy(&options());
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(plan.pod(1))]);
    proxy.apply(
        [put(everywhere("web", 1, Protocol::Tcp, 30_080))]
            .into_iter()
            .chain(slices),
    );
    proxy.assert_in_step();
    drop(proxy);
    let mut next = lab.proxy(&options());
    next.apply([]);
    next.assert_in_step();
    // S-206, DI-41
    assert_eq!(lab.node.nft(&["list", "table", "inet", "foreign"]), before);
}

/// The checks of kube-proxy for its own Services, at the priorities that it had before 1.36 and has since.
fn kube_proxy_checks(node: &Place, inward: i32, outward: i32) {
    node.nft(&["add", "table", "ip", "kube-proxy"]);
    for (hook, priority) in [("forward", inward), ("output", outward)] {
        let kind = format!("{{ type filter hook {hook} priority {priority}; }}");
        node.nft(&["add", "chain", "ip", "kube-proxy", hook, &kind]);
        for rule in [
            "ct state new ip daddr 10.96.0.50 tcp dport 80 reject",
            "ct state new ip daddr 10.96.0.0/16 drop",
        ] {
            node.nft(&["add", "rule", "ip", "kube-proxy", hook, rule]);
        }
    }
}

#[test]
fn s346_s128_beside_kube_proxy_both_refuse_at_once_in_either_order_of_start() {
    for (inward, outward) in [(-110, -90), (0, 0)] {
        for ours_first in [true, false] {
            let lab = Lab::new();
            let start = || {
                let mut proxy = lab.proxy(&options());
                proxy.apply([put(everywhere("empty", 1, Protocol::Tcp, 30_080))]);
                proxy
            };
            let held = ours_first.then(start);
            kube_proxy_checks(&lab.node, inward, outward);
            let _proxy = held.unwrap_or_else(start);
            let plan = Plan::BOTH[0];
            for (place, from) in [(lab.pod(1), plan.pod(1)), (&lab.node, plan.node())] {
                for (whose, number, port) in
                    [("ours", 1, 80), ("its own", 50, 80), ("undefined", 1, 81)]
                {
                    let to = SocketAddr::new(plan.cluster_ip(number), port);
                    let refused = place.call(from, to);
                    assert_eq!(
                        refused,
                        Err(ErrorKind::ConnectionRefused),
                        "S-346: {whose} {from} {inward} ours first: {ours_first}"
                    );
                }
            }
        }
    }
}

#[test]
fn s69_chains_of_others_that_drop_what_is_forwarded_are_found() {
    in_namespace(|| {
        let mut socket = onehop_nft::Socket::open().unwrap();
        // DI-53
        assert!(forward_drops(&mut socket).unwrap().is_empty());
        for command in [
            "add table ip filter",
            "add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }",
            "add chain ip filter INPUT { type filter hook input priority 0; policy drop; }",
            "add table inet firewall",
            "add chain inet firewall passes { type filter hook forward priority 10; policy drop; }",
            "add chain inet firewall open { type filter hook forward priority 0; policy accept; }",
        ] {
            nft(&[command]);
        }
        load(&mut open(), &Elements::new());
        let found = forward_drops(&mut socket).unwrap();
        assert_eq!(found, ["ip filter FORWARD", "inet firewall passes"], "S-69");
    });
}
