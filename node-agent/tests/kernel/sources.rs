//! Who counts as a pod, what the server sees, and what our rules leave alone (sections 2 and 5).

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use onehop_core::id::Protocol;
use onehop_core::service::{ServiceSpec, TrafficPolicy};
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::table::element::Dataplane;
use onehop_node_agent::table::layout::{Detector, Options, Ranges};

use crate::common::{port, put, service};
use crate::lab::{Lab, Plan, Proxy, both, everywhere, ready};
use crate::world::options;

const NODE_PORT: u16 = 30_080;

fn with(detector: Detector) -> Options {
    Options {
        detector,
        ..options()
    }
}

fn local_lb() -> ServiceSpec {
    ServiceSpec {
        external_policy: TrafficPolicy::Local,
        ..everywhere("web", 1, Protocol::Tcp, NODE_PORT)
    }
}

fn serve(proxy: &mut Proxy, service: ServiceSpec, of: fn(Plan) -> IpAddr) {
    let slices = both("web", Protocol::Tcp, |plan| vec![ready(of(plan))]);
    proxy.apply([put(service)].into_iter().chain(slices));
}

fn cluster_ip(plan: Plan) -> SocketAddr {
    SocketAddr::new(plan.cluster_ip(1), 80)
}

fn vip(plan: Plan) -> SocketAddr {
    SocketAddr::new(plan.vip(1), 80)
}

fn node_port(plan: Plan) -> SocketAddr {
    SocketAddr::new(plan.node(), NODE_PORT)
}

fn pod_ranges() -> Ranges {
    Ranges {
        node_pod_cidrs: ["10.244.1.0/24", "fd00:244:1::/64"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        ..Ranges::default()
    }
}

#[test]
fn s61_every_detector_tells_pods_from_others() {
    let detectors = [
        Detector::Ranges(vec![
            "10.244.0.0/16".parse().unwrap(),
            "fd00:244::/32".parse().unwrap(),
        ]),
        Detector::NodeRanges(Vec::new()),
        Detector::Bridge("pod1".to_owned()),
        Detector::Prefix("pod".to_owned()),
    ];
    for detector in detectors {
        let lab = Lab::new();
        let mut proxy = lab.proxy(&with(detector.clone()));
        // What only objects say, such as the Node's ranges, comes live.
        proxy.kernel.configure(&pod_ranges()).unwrap();
        serve(
            &mut proxy,
            everywhere("web", 1, Protocol::Tcp, NODE_PORT),
            |plan| plan.remote_pod(1),
        );
        for plan in Plan::BOTH {
            let (server, seen) = lab.pod(1).call(plan.pod(1), cluster_ip(plan)).unwrap();
            // DI-48: the prefix goes by name.
            assert_eq!(
                (server, seen),
                (plan.remote_pod(1), plan.pod(1)),
                "S-61: {detector:?}"
            );
            let (_, seen) = lab.world.call(plan.client(1), cluster_ip(plan)).unwrap();
            assert_ne!(seen, plan.client(1), "S-60: masqueraded: {detector:?}");
            let (_, seen) = lab
                .node
                .call(plan.second_node_address(), cluster_ip(plan))
                .unwrap();
            assert_ne!(
                seen,
                plan.second_node_address(),
                "S-60: a process of the node: {detector:?}"
            );
        }
        proxy.assert_in_step();
    }
}

#[test]
fn s60_without_a_detector_nothing_to_a_cluster_ip_is_masqueraded_and_masquerade_all_wins() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&with(Detector::Ranges(Vec::new())));
    serve(
        &mut proxy,
        everywhere("web", 1, Protocol::Tcp, NODE_PORT),
        |plan| plan.pod(1),
    );
    for plan in Plan::BOTH {
        let (_, seen) = lab.world.call(plan.client(1), cluster_ip(plan)).unwrap();
        assert_eq!(seen, plan.client(1), "S-60: {plan:?}");
    }
    drop(proxy);
    // S-12: another configuration at the next start is what counts, whatever the last one wrote.
    let all = Options {
        masquerade_all: true,
        ..options()
    };
    let mut proxy = lab.proxy(&all);
    serve(
        &mut proxy,
        everywhere("web", 1, Protocol::Tcp, NODE_PORT),
        |plan| plan.pod(1),
    );
    for plan in Plan::BOTH {
        let (_, seen) = lab.pod(2).call(plan.pod(2), cluster_ip(plan)).unwrap();
        assert_ne!(seen, plan.pod(2), "S-60, S-12: {plan:?}");
    }
}

#[test]
fn s64_pods_of_a_local_service_are_served_from_everywhere_also_without_a_detector() {
    for detector in [options().detector, Detector::Ranges(Vec::new())] {
        let lab = Lab::new();
        let mut proxy = lab.proxy(&with(detector.clone()));
        serve(&mut proxy, local_lb(), |plan| plan.remote_pod(1));
        for plan in Plan::BOTH {
            for to in [vip(plan), node_port(plan)] {
                let seen = lab.pod(1).call(plan.pod(1), to);
                // DI-23
                assert_eq!(
                    seen,
                    Ok((plan.remote_pod(1), plan.pod(1))),
                    "S-64: {detector:?} {to}"
                );
                let (server, seen) = lab.node.call(plan.node(), to).unwrap();
                assert_eq!(server, plan.remote_pod(1), "S-63 (b): {to}");
                assert_ne!(seen, plan.client(1));
                let silent = lab.world.silence(plan.client(1), to);
                assert_eq!(silent, Err(ErrorKind::TimedOut), "S-55, S-51: {to}");
            }
        }
    }
}

#[test]
fn s65_a_pod_of_another_node_is_an_outside_client() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    serve(&mut proxy, local_lb(), |plan| plan.remote_pod(1));
    for plan in Plan::BOTH {
        // Sent on to the other node with its own address, it would be dropped by the fabric on the way.
        let silent = lab.world.silence(plan.remote_pod(2), node_port(plan));
        assert_eq!(silent, Err(ErrorKind::TimedOut), "S-65: {plan:?}");
    }
    serve(&mut proxy, local_lb(), |plan| plan.pod(1));
    for plan in Plan::BOTH {
        let seen = lab.world.call(plan.remote_pod(2), node_port(plan));
        assert_eq!(
            seen,
            Ok((plan.pod(1), plan.remote_pod(2))),
            "S-65: {plan:?}"
        );
        let seen = lab.pod(2).call(plan.pod(2), node_port(plan));
        assert_eq!(
            seen,
            Ok((plan.pod(1), plan.pod(2))),
            "S-65: a pod at its own node: {plan:?}"
        );
    }
}

#[test]
fn s66_a_pod_reaches_itself_and_others_keep_their_address() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    serve(&mut proxy, local_lb(), |plan| plan.pod(1));
    for plan in Plan::BOTH {
        for to in [cluster_ip(plan), vip(plan), node_port(plan)] {
            // DI-52
            let (server, seen) = lab.pod(1).call(plan.pod(1), to).unwrap();
            assert_eq!(server, plan.pod(1), "S-66: {to}");
            assert_ne!(seen, plan.pod(1), "S-66: {to}");
            assert_eq!(
                lab.pod(2).call(plan.pod(2), to),
                Ok((plan.pod(1), plan.pod(2))),
                "{to}"
            );
        }
    }
}

#[test]
fn s232_a_translated_packet_does_not_meet_the_verdict_of_an_empty_node_port() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    // An endpoint on the node's own network, on a port that is also the number of an empty node port.
    for plan in Plan::BOTH {
        lab.node.serve(SocketAddr::new(plan.node(), 8080));
    }
    serve(
        &mut proxy,
        everywhere("web", 1, Protocol::Tcp, NODE_PORT),
        Plan::node,
    );
    let empty = ServiceSpec {
        ports: vec![port(Protocol::Tcp, 81, Some(8080))],
        ..service("empty", 2)
    };
    proxy.apply([put(empty)]);
    for plan in Plan::BOTH {
        let (server, _) = lab.world.call(plan.client(1), cluster_ip(plan)).unwrap();
        assert_eq!(server, plan.node(), "S-232: {plan:?}");
    }
    let plan = Plan::BOTH[0];
    let refused = lab
        .world
        .call(plan.client(1), SocketAddr::new(plan.node(), 8080));
    assert_eq!(
        refused,
        Err(ErrorKind::ConnectionRefused),
        "S-48: the node port itself"
    );
}

#[test]
fn s30_s108_nothing_listens_for_node_ports_and_our_own_listeners_are_reached() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    for plan in Plan::BOTH {
        lab.node.serve(SocketAddr::new(plan.node(), 10_356));
    }
    serve(&mut proxy, local_lb(), |plan| plan.pod(1));
    let listening = lab.node.run(|| {
        let of = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        ["tcp", "tcp6", "udp", "udp6"].map(of).concat()
    });
    let node_port = format!(":{NODE_PORT:04X} ");
    assert!(!listening.contains(&node_port), "S-30: {listening}");
    for plan in Plan::BOTH {
        let seen = lab
            .world
            .call(plan.client(1), SocketAddr::new(plan.node(), 10_356));
        assert_eq!(seen, Ok((plan.node(), plan.client(1))), "S-108: {plan:?}");
    }
}

#[test]
fn s344_what_a_local_dns_cache_takes_out_of_tracking_is_left_alone() {
    let lab = Lab::new();
    let mut proxy = lab.proxy(&options());
    serve(
        &mut proxy,
        everywhere("web", 1, Protocol::Tcp, NODE_PORT),
        |plan| plan.remote_pod(1),
    );
    let plan = Plan::BOTH[0];
    // The cache holds the ClusterIP on the node, and takes queries to it out of tracking.
    lab.node
        .ip(&format!("address add {}/32 dev lo", plan.cluster_ip(1)));
    lab.node.serve(cluster_ip(plan));
    let address = plan.cluster_ip(1);
    for (hook, of) in [
        ("prerouting", "daddr"),
        ("output", "saddr"),
        ("output", "daddr"),
    ] {
        let chain = format!("{hook}-{of}");
        lab.node.nft(&["add", "table", "ip", "cache"]);
        let kind = format!("{{ type filter hook {hook} priority -300; }}");
        lab.node
            .nft(&["add", "chain", "ip", "cache", &chain, &kind]);
        let rule = format!("ip {of} {address} notrack");
        lab.node.nft(&["add", "rule", "ip", "cache", &chain, &rule]);
    }
    for (place, from) in [(lab.pod(1), plan.pod(1)), (&lab.node, plan.node())] {
        let (server, _) = place.call(from, cluster_ip(plan)).unwrap();
        assert_eq!(server, address, "S-344: the cache answers");
    }
    // S-29: no node port answers on that address.
    let at_cache = SocketAddr::new(address, NODE_PORT);
    assert_eq!(
        lab.pod(1).call(plan.pod(1), at_cache),
        Err(ErrorKind::ConnectionRefused)
    );
}

#[test]
fn s12_a_restart_with_other_flags_writes_the_rules_that_follow_from_them() {
    let lab = Lab::new();
    let marked = |bit: u32| {
        let text = lab.node.nft(&["list", "ruleset"]);
        text.contains(&format!("meta mark set meta mark | 0x{bit:08x}"))
    };
    drop(lab.proxy(&options()));
    assert!(marked(0x4000));
    let other = Options {
        masquerade_mark: 0x100,
        ..options()
    };
    let mut held = lab.proxy(&other);
    assert!(marked(0x100) && !marked(0x4000), "S-12");
    held.apply([]);
    held.assert_in_step();
    drop(held);
    // Where objects have yet to say their part, rules that differ stay until they have (S-121).
    let options = options();
    let mut kernel = lab.node.run(move || {
        let now = Box::new(|| onehop_core::time::Time::EPOCH);
        let kernel = Kernel::open(&options, Features::detect(), now).unwrap();
        let mut kernel = kernel.awaiting_ranges();
        kernel.read_back().unwrap();
        kernel
    });
    assert!(marked(0x100), "S-121");
    kernel.configure(&Ranges::default()).unwrap();
    assert!(marked(0x4000) && !marked(0x100), "S-12");
}
