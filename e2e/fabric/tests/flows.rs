//! What a namespace chose for whom is known after the kernel forgot it, and the record ends with its world.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod common;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use common::{TCP, TIMEOUT, UDP, at, call_tcp, call_udp, dnat, eventually, serve_once, world};
use e2e_fabric::{ClientNet, FlowEvent, FlowLog, NodeNet};
use onehop_core::time::Time;
use onehop_nft::{Conntrack, Filter};
use onehop_runtime::clock::Clock;

/// A refused connection; the client's own socket address.
fn refused(client: &ClientNet, to: SocketAddr) -> SocketAddr {
    let local = at(client.address(), 0);
    let socket = client.netns().tcp_socket(Some(local), to.ip()).unwrap();
    let local = socket.local_addr().unwrap().as_socket();
    let error = socket.connect_timeout(&to.into(), TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    local.unwrap()
}

fn flows_of_protocol(node: &NodeNet, protocol: u8, to: Ipv4Addr) -> usize {
    let filter = Filter {
        protocol: Some(protocol),
        original_dst: Some(to.into()),
        ..Filter::default()
    };
    let list = move || Conntrack::open().unwrap().list(&filter).unwrap().len();
    node.netns().run(list)
}

#[tokio::test]
async fn fc67_the_endpoint_of_a_refused_connection_is_known_when_its_entry_is_gone() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let pod = node.add_pod("web", None).unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    let (front, endpoint) = (at(node.address(), 30080), at(pod.address(), 8080));
    dnat(node.netns(), TCP, front, endpoint);
    dnat(node.netns(), UDP, front, endpoint);

    let from = refused(&client, front);
    let record = node.flows().last_of(TCP, from).expect("FC-67: recorded");
    assert_eq!((record.destination, record.endpoint), (front, endpoint));
    assert_eq!((record.client, record.source), (from, from));
    assert_eq!(flows_of_protocol(&node, TCP, node.address()), 0);
    assert_eq!(
        node.flows().endpoint_of(TCP, from),
        Some((endpoint, record.at))
    );

    // Protocols have ports of their own.
    assert_eq!(node.flows().endpoint_of(UDP, from), None);
    let _servers = serve_once(pod.netns(), endpoint);
    let seen = call_udp(client.netns(), front);
    assert_eq!(node.flows().last_of(UDP, seen).unwrap().endpoint, endpoint);
    // What goes where it was sent is nobody's choice.
    let direct = call_tcp(client.netns(), endpoint);
    assert_eq!(node.flows().all_of(direct), []);
    assert_eq!(node.flows().lost(), 0);
}

#[tokio::test]
async fn the_newest_flow_of_a_client_is_the_one_told() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let (one, two) = (
        node.add_pod("one", None).unwrap(),
        node.add_pod("two", None).unwrap(),
    );
    let client = fabric.add_client("outside", true).unwrap();
    let (front, other) = (at(node.address(), 30080), at(node.address(), 30081));
    dnat(node.netns(), UDP, front, at(one.address(), 8080));
    dnat(node.netns(), UDP, other, at(two.address(), 8080));
    let socket = client.netns().udp_socket(at(client.address(), 0)).unwrap();
    let from = socket.local_addr().unwrap();
    let chosen = |to: SocketAddr, pod: Ipv4Addr| -> Time {
        socket.send_to(b"x", to).unwrap();
        // Nobody answers, so nothing tells that the packet has arrived.
        let expected = at(pod, 8080);
        let mut found = None;
        eventually("the flow is recorded", || {
            found = node.flows().endpoint_of(UDP, from);
            found.is_some_and(|(endpoint, _)| endpoint == expected)
        });
        found.unwrap().1
    };
    let first = chosen(front, one.address());
    let second = chosen(other, two.address());
    assert!(first <= second);
    let all = node.flows().all_of(from);
    let order: Vec<_> = all.iter().map(|record| record.at).collect();
    assert_eq!(order, [second, first]);
}

#[tokio::test]
async fn fc102_starts_and_ends_are_told_to_a_hook_even_if_a_look_up_read_them() {
    let fabric = world();
    let node = fabric.add_node("a").unwrap();
    let client = fabric.add_client("outside", true).unwrap();
    let front = at(node.address(), 30080);
    // Nobody has this address's port: refused by the node's own stack.
    let endpoint = at(node.address(), 8080);
    dnat(node.netns(), TCP, front, endpoint);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    let hook = Arc::new(move |event| to.lock().unwrap().push(event));
    let log = FlowLog::start_with(node.netns(), Clock::fixed(Time::EPOCH), hook).unwrap();
    for _ in 0..100 {
        let from = refused(&client, front);
        assert_eq!(log.last_of(TCP, from).unwrap().endpoint, endpoint);
    }
    eventually("FC-102: all is told", || told.lock().unwrap().len() == 200);
    let told = told.lock().unwrap();
    for pair in told.chunks(2) {
        let [FlowEvent::Started(start), FlowEvent::Ended(end)] = pair else {
            panic!("a start and its end, not {pair:?}");
        };
        assert_eq!((start.client, start.endpoint), (end.client, endpoint));
    }
}

#[tokio::test]
async fn no_thread_outlives_its_log() {
    let fabric = world();
    let client = fabric.add_client("outside", true).unwrap();
    let held = Arc::new(());
    let in_hook = Arc::clone(&held);
    let hook = Arc::new(move |_| drop(Arc::clone(&in_hook)));
    let log = FlowLog::start_with(client.netns(), Clock::fixed(Time::EPOCH), hook).unwrap();
    assert_eq!(Arc::strong_count(&held), 2);
    drop(log);
    assert_eq!(
        Arc::strong_count(&held),
        1,
        "the thread has let go of its hook"
    );
}
