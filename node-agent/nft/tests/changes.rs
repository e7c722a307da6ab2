//! Against a real kernel: connections that begin and end are told, however short they live.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod common;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use common::{in_namespace, run};
use onehop_nft::conntrack::STATUS_DNAT;
use onehop_nft::{
    Batch, Chain, ChainType, Conntrack, Filter, Flow, FlowChange, FlowChanges, Hook, Rule, Socket,
    Table, Told,
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const PATIENCE: Duration = Duration::from_secs(2);

fn front() -> SocketAddr {
    "10.9.9.9:80".parse().unwrap()
}

/// Where the translation leads: nobody listens there.
fn endpoint() -> SocketAddr {
    "10.1.1.1:8001".parse().unwrap()
}

fn translate() {
    run("ip", &["addr", "add", "10.1.1.1/32", "dev", "lo"]);
    run("ip", &["route", "add", "10.9.9.9/32", "dev", "lo"]);
    std::fs::write("/proc/sys/net/netfilter/nf_conntrack_events", "1").unwrap();
    let table = Table::ip("nat");
    let mut batch = Batch::new();
    batch.add_table(&table, 0, None);
    let chain = Chain::base("output", ChainType::Nat, Hook::Output, -100);
    batch.add_chain(&table, &chain);
    let rule = Rule::ip().daddr(front().ip(), 32);
    let rule = rule.dnat(endpoint().ip(), Some(endpoint().port()));
    batch.add_rule(&table, "output", &rule);
    Socket::open().unwrap().commit(&batch).unwrap();
}

fn began(changes: &mut FlowChanges) -> Flow {
    match changes.wait(PATIENCE).unwrap() {
        Some(FlowChange::Began(flow)) => flow,
        other => panic!("a beginning, not {other:?}"),
    }
}

fn ended(changes: &mut FlowChanges) -> Flow {
    match changes.wait(PATIENCE).unwrap() {
        Some(FlowChange::Ended(flow)) => flow,
        other => panic!("an end, not {other:?}"),
    }
}

#[test]
fn a_connection_that_a_reset_ends_at_once_is_told_with_its_endpoint() {
    in_namespace(|| {
        translate();
        let mut changes = FlowChanges::open(Told::All).unwrap();
        let refused = TcpStream::connect(front()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let left = Conntrack::open().unwrap().list(&Filter::default()).unwrap();
        assert_eq!(left, [], "no dump finds it any more");

        let flow = began(&mut changes);
        assert_eq!(flow.original.protocol, TCP);
        assert_eq!(flow.original.src, endpoint().ip(), "its own local address");
        assert_ne!(flow.original.src_port, 0);
        assert_eq!(
            SocketAddr::new(flow.original.dst, flow.original.dst_port),
            front()
        );
        assert_eq!(
            SocketAddr::new(flow.reply.src, flow.reply.src_port),
            endpoint()
        );
        assert_eq!(
            (flow.reply.dst, flow.reply.dst_port),
            (flow.original.src, flow.original.src_port)
        );
        assert_ne!(flow.status & STATUS_DNAT, 0);
        let end = ended(&mut changes);
        assert_eq!((end.original, end.reply), (flow.original, flow.reply));
        assert_eq!(changes.poll().unwrap(), None);
    });
}

#[test]
fn beginnings_alone_are_told_where_ends_were_not_asked_for() {
    in_namespace(|| {
        translate();
        let mut changes = FlowChanges::open(Told::Beginnings).unwrap();
        let sockets: Vec<_> = (0..50)
            .map(|_| {
                let any: (IpAddr, u16) = (endpoint().ip(), 0);
                let socket = UdpSocket::bind(any).unwrap();
                socket.connect(front()).unwrap();
                socket.send(b"x").unwrap();
                socket
            })
            .collect();
        let mut table = Conntrack::open().unwrap();
        assert_eq!(
            table.delete_where(&Filter::default(), |_| true).unwrap(),
            50
        );
        for socket in &sockets {
            let flow = began(&mut changes);
            assert_eq!(flow.original.protocol, UDP);
            let port = socket.local_addr().unwrap().port();
            assert_eq!(flow.original.src_port, port, "in their order");
        }
        assert_eq!(changes.poll().unwrap(), None);
    });
}
