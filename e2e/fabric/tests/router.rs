//! The router's manners: source check, destination check, the way back through the LB node; the CNI stand-in's mark.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{TCP, UDP, at, call_tcp, call_udp, dnat, eventually, serve_once, udp_to, world};
use e2e_fabric::{
    AfterCooldown, DropReason, Fabric, FabricConfig, Hook, HopCounters, HopMatch, Netns, NodeNet,
    WorldTag,
};

const LB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

/// Routes the pods of `node` out by the interface that does not own them.
fn break_pod_routes(node: &NodeNet, broken: bool) {
    let verb = if broken { "add" } else { "del" };
    let (from, verb) = (node.pod_cidr().to_string(), verb.to_owned());
    let done = node.netns().run(move || {
        let rule = [
            "rule", &verb, "pref", "100", "from", &from, "lookup", "main",
        ];
        std::process::Command::new("ip").args(rule).status()
    });
    assert!(done.is_ok_and(|status| status.success()));
}

#[tokio::test]
async fn fc_t10_a_pod_source_by_the_wrong_interface_is_dropped_once_and_by_the_right_one_never() {
    let fabric = world();
    let (a, b) = (fabric.add_node("a").unwrap(), fabric.add_node("b").unwrap());
    let (pod_a, pod_b) = (
        a.add_pod("web-1", None).unwrap(),
        b.add_pod("web-2", None).unwrap(),
    );
    let dropped = || {
        fabric
            .router()
            .drop_count(DropReason::SrcCheckDrop)
            .unwrap()
    };
    break_pod_routes(&a, true);
    let socket = udp_to(pod_a.netns(), at(pod_b.address(), 7000));
    eventually("one src_check_drop in the log", || {
        fabric.router().drops().len() == 1
    });
    let drops = fabric.router().drops();
    assert_eq!(dropped(), 1, "FC-T10");
    assert_eq!(drops[0].reason, DropReason::SrcCheckDrop);
    assert_eq!(drops[0].port, a.primary_port());
    assert_eq!(
        (drops[0].source, drops[0].destination),
        (pod_a.address().into(), pod_b.address().into()),
        "FC-72"
    );
    assert_eq!(
        (drops[0].protocol, drops[0].ports),
        (UDP, Some((socket.local_addr().unwrap().port(), 7000)))
    );
    break_pod_routes(&a, false);
    let _servers = serve_once(pod_b.netns(), at(pod_b.address(), 7000));
    assert_eq!(
        call_udp(pod_a.netns(), at(pod_b.address(), 7000)).ip(),
        pod_a.address()
    );
    assert_eq!(dropped(), 1, "FC-T10: none by the owner's port");
    // FC-72: the check can be switched per interface.
    fabric
        .router()
        .set_source_check(&a.primary_port(), false)
        .unwrap();
    break_pod_routes(&a, true);
    let _servers = serve_once(pod_b.netns(), at(pod_b.address(), 7001));
    udp_to(pod_a.netns(), at(pod_b.address(), 7001));
    assert_eq!(dropped(), 1, "FC-72: switched off");
}

#[tokio::test]
async fn fc73_an_address_without_owner_is_silent() {
    let fabric = world();
    let client = fabric.add_client("outside", true).unwrap();
    let node = fabric.add_node("a").unwrap();
    let nobody = node.pod_cidr().addr();
    let nobody = Ipv4Addr::from(u32::from(nobody) + 77);
    let socket = udp_to(client.netns(), at(nobody, 7000));
    eventually("no_owner is logged", || fabric.router().drops().len() == 1);
    assert_eq!(
        fabric.router().drops()[0].reason,
        DropReason::NoOwner,
        "FC-73"
    );
    assert_eq!(
        fabric.router().drop_count(DropReason::NoOwner).unwrap(),
        1,
        "FC-73"
    );
    // An ICMP error would be the socket's error; silence is a time-out.
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let error = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::WouldBlock,
        "FC-73: no ICMP"
    );
    // A pod that ended: its address stays owned by the node, and the node is silent too (FC-75).
    let pod = node.add_pod("web", None).unwrap();
    let gone = pod.address();
    node.remove_pod(pod).unwrap();
    assert_eq!(
        fabric.router().owner(gone),
        Some(node.secondary_port()),
        "FC-75, FC-76 idle, ZD-116: what comes for it is still delivered to its node"
    );
    let socket = udp_to(client.netns(), at(gone, 7000));
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    assert_eq!(
        socket.recv(&mut [0; 8]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    assert_eq!(
        fabric.router().drops().len(),
        1,
        "FC-75: delivered to the node"
    );
}

#[tokio::test]
async fn fc63_replies_go_back_through_the_lb_node_with_the_clients_source_preserved() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let pod = node.add_pod("web", None).unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    let lb = fabric.add_lb_node("zone-a").unwrap();
    fabric.router().route_lb_address(LB, &lb).unwrap();
    let target = at(pod.address(), 8080);
    dnat(lb.netns(), TCP, at(LB, 80), target);
    dnat(lb.netns(), UDP, at(LB, 80), target);
    let replies = HopMatch {
        source: Some(pod.address().into()),
        ..HopMatch::default()
    };
    let returned =
        HopCounters::start(lb.netns(), &[("reply", Hook::In("eth0".into()), replies)]).unwrap();
    let _servers = serve_once(pod.netns(), target);
    assert_eq!(
        call_tcp(client.netns(), at(LB, 80)).ip(),
        client.address(),
        "FC-63 tcp"
    );
    assert_eq!(
        call_udp(client.netns(), at(LB, 80)).ip(),
        client.address(),
        "FC-63 udp"
    );
    assert!(
        returned.read().unwrap()[0].packets >= 4,
        "FC-63: by the LB node: {:?}",
        returned.read()
    );
    assert_eq!(fabric.router().drops(), []);
    // The same client straight to the pod: not through the LB node.
    let before = returned.read().unwrap()[0].packets;
    let direct = at(pod.address(), 8081);
    let _servers = serve_once(pod.netns(), direct);
    assert_eq!(call_tcp(client.netns(), direct).ip(), client.address());
    assert_eq!(returned.read().unwrap()[0].packets, before);
    fabric.router().unroute_lb_address(LB).unwrap();
    udp_to(client.netns(), at(LB, 80));
    eventually("no owner any more", || {
        fabric.router().drop_count(DropReason::NoOwner).unwrap() == 1
    });
}

#[tokio::test]
async fn a_pod_and_a_node_reach_a_pod_through_the_lb_node_too() {
    let fabric = world();
    let (a, b) = (fabric.add_node("a").unwrap(), fabric.add_node("b").unwrap());
    let (caller, target) = (
        a.add_pod("caller", None).unwrap(),
        b.add_pod("web", None).unwrap(),
    );
    let lb = fabric.add_lb_node("zone-a").unwrap();
    fabric.router().route_lb_address(LB, &lb).unwrap();
    let from: [(&Netns, Ipv4Addr); 2] =
        [(caller.netns(), caller.address()), (a.netns(), a.address())];
    for (port, (ns, source)) in (80..).zip(from) {
        let server = at(target.address(), 8000 + port);
        dnat(lb.netns(), TCP, at(LB, port), server);
        dnat(lb.netns(), UDP, at(LB, port), server);
        let _servers = serve_once(target.netns(), server);
        assert_eq!(call_tcp(ns, at(LB, port)).ip(), source);
        assert_eq!(call_udp(ns, at(LB, port)).ip(), source);
    }
    assert_eq!(fabric.router().drops(), []);
}

#[tokio::test]
async fn fc74_a_node_port_flow_to_a_local_pod_returns_by_the_primary_interface() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let pod = node.add_pod("web", None).unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    let (node_port, target): (SocketAddr, SocketAddr) =
        (at(node.address(), 30080), at(pod.address(), 8080));
    dnat(node.netns(), TCP, node_port, target);
    dnat(node.netns(), UDP, node_port, target);
    let _servers = serve_once(pod.netns(), target);
    assert_eq!(
        call_tcp(client.netns(), node_port).ip(),
        client.address(),
        "FC-74 tcp"
    );
    assert_eq!(
        call_udp(client.netns(), node_port).ip(),
        client.address(),
        "FC-74 udp"
    );
    assert_eq!(fabric.router().drops(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn fc_t11_packets_reach_the_node_for_the_cooldown_and_then_find_no_owner() {
    let cooldown = Duration::from_millis(600);
    let config = FabricConfig {
        cooldown,
        after_cooldown: AfterCooldown::Release,
        ..FabricConfig::default()
    };
    let fabric = Fabric::new(WorldTag::new().unwrap(), config).unwrap();
    let node = fabric.add_node("a").unwrap();
    let pod = node.add_pod("web", None).unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    let address = pod.address();
    let to_pod = HopMatch {
        destination: Some(address.into()),
        ..HopMatch::default()
    };
    let arrived =
        HopCounters::start(node.netns(), &[("in", Hook::In("eth1".into()), to_pod)]).unwrap();
    node.remove_pod(pod).unwrap();
    udp_to(client.netns(), at(address, 7000));
    eventually("the packet reaches the node", || {
        arrived.read().unwrap()[0].packets == 1
    });
    assert_eq!(
        fabric.router().owner(address),
        Some(node.secondary_port()),
        "FC-T11: owned while it cools down"
    );
    eventually("released", || fabric.router().owner(address).is_none());
    udp_to(client.netns(), at(address, 7000));
    eventually("no_owner", || {
        fabric.router().drop_count(DropReason::NoOwner).unwrap() == 1
    });
    assert_eq!(
        arrived.read().unwrap()[0].packets,
        1,
        "FC-T11: no more at the node"
    );
    assert_ne!(
        node.add_pod("next", None).unwrap().address(),
        address,
        "FC-76: released for good"
    );
}
