//! Delivery with the LB address kept: which member gets the packet, and which replies pass.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::net::Ipv4Addr;
use std::process::Command;

use common::{TCP, UDP, at, call_tcp, call_udp, dnat, eventually, serve_once, udp_to, world};
use e2e_fabric::{DropReason, Fabric, Hook, HopCounters, HopMatch, LbNet, Netns};
use onehop_nft::{Batch, Chain, ChainType, Rule, Socket, Table};

const LB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);

fn ip(ns: &Netns, line: &str) {
    let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let done = ns.run(move || Command::new("ip").args(line).status());
    assert!(done.is_ok_and(|status| status.success()));
}

/// What an LB node would load: every packet for the LB address goes to one member.
fn choose(lb: &LbNet, mark: u32) {
    let table = Table::ip("hand-made");
    let mut batch = Batch::new();
    batch.add_table(&table, 0, None);
    batch.add_chain(
        &table,
        &Chain::base(
            "prerouting",
            ChainType::Filter,
            onehop_nft::Hook::Prerouting,
            -150,
        ),
    );
    batch.flush_chain(&table, "prerouting");
    let rule = Rule::ip().daddr(LB.into(), 32).set_mark(0, mark);
    batch.add_rule(&table, "prerouting", &rule);
    lb.netns()
        .run(move || Socket::open().unwrap().commit(&batch).unwrap());
}

fn source_drops(fabric: &Fabric) -> u64 {
    fabric
        .router()
        .drop_count(DropReason::SrcCheckDrop)
        .unwrap()
}

#[tokio::test]
async fn fc_t29_a_floating_packet_reaches_the_chosen_member_and_only_its_flows_replies_pass() {
    let fabric = world();
    let client = fabric.add_client("outside", true).unwrap();
    let (a, b) = (fabric.add_node("a").unwrap(), fabric.add_node("b").unwrap());
    let pod = b.add_pod("web", None).unwrap();
    let lb = fabric.add_lb_node("zone-a").unwrap();
    fabric.router().route_lb_address(LB, &lb).unwrap();
    let (to_a, to_b) = (
        fabric.router().deliver(&lb, a.address()).unwrap(),
        fabric.router().deliver(&lb, b.address()).unwrap(),
    );
    assert_ne!(to_a, to_b);
    assert_eq!(fabric.router().deliver(&lb, b.address()).unwrap(), to_b);
    choose(&lb, to_b);
    // The member forwards the LB address to a pod, as a service proxy does.
    let target = at(pod.address(), 8080);
    dnat(b.netns(), TCP, at(LB, 80), target);
    dnat(b.netns(), UDP, at(LB, 80), target);
    let arrived = HopMatch {
        destination: Some(LB.into()),
        ..HopMatch::default()
    };
    let count = |ns: &Netns| {
        HopCounters::start(ns, &[("in", Hook::In("eth0".into()), arrived.clone())]).unwrap()
    };
    let (at_a, at_b) = (count(a.netns()), count(b.netns()));
    let replies = HopMatch {
        source: Some(LB.into()),
        ..HopMatch::default()
    };
    let back =
        HopCounters::start(lb.netns(), &[("back", Hook::In("eth0".into()), replies)]).unwrap();
    let _servers = serve_once(pod.netns(), target);
    assert_eq!(call_tcp(client.netns(), at(LB, 80)).ip(), client.address());
    assert_eq!(call_udp(client.netns(), at(LB, 80)).ip(), client.address());
    // FC-73: to the port of the chosen member, although nobody owns the address there.
    assert_eq!(at_a.read().unwrap()[0].packets, 0, "FC-73");
    assert!(at_b.read().unwrap()[0].packets >= 4, "FC-T29, FC-29b");
    assert_eq!(
        back.read().unwrap()[0].packets,
        0,
        "replies go straight back"
    );
    assert_eq!(
        source_drops(&fabric),
        0,
        "FC-T29: replies pass the source check"
    );
    // FC-29c: a member on which nobody forwards the address does not send the packet back.
    choose(&lb, to_a);
    let _asked = udp_to(client.netns(), at(LB, 80));
    eventually("the node says so", || a.drops().len() == 1);
    let nobody = &a.drops()[0];
    assert_eq!(nobody.reason, DropReason::VipNoProxy, "FC-29c");
    assert_eq!(
        (nobody.source, nobody.destination, nobody.port.as_str()),
        (client.address().into(), LB.into(), "eth0"),
        "FC-29c"
    );
    assert_eq!((b.drops(), source_drops(&fabric)), (vec![], 0), "FC-29c");
    choose(&lb, to_b);
    // The reply of a flow by another port of the same node is dropped.
    ip(b.netns(), "rule add pref 100 fwmark 0x80/0x80 lookup 102");
    let _servers = serve_once(pod.netns(), target);
    let _asked = udp_to(client.netns(), at(LB, 80));
    eventually("a reply by the wrong port is dropped", || {
        source_drops(&fabric) == 1
    });
    ip(b.netns(), "rule del pref 100");
    // FC-T29: the same source outside a flow.
    ip(a.netns(), &format!("addr add {LB}/32 dev lo"));
    let forged = a.netns().udp_socket(at(LB, 80)).unwrap();
    forged
        .send_to(b"hello", at(client.address(), 7000))
        .unwrap();
    eventually("a packet outside a flow is dropped", || {
        source_drops(&fabric) == 2
    });
    eventually("both are in the log", || fabric.router().drops().len() == 2);
}
