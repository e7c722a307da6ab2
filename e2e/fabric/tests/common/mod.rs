//! Worlds and small servers for the fabric's tests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by test binaries, each of which uses its own part"
)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use e2e_fabric::{Fabric, FabricConfig, Netns, WorldTag};
use onehop_nft::{Batch, Chain, ChainType, Hook, Rule, Socket, Table};

pub const TIMEOUT: Duration = Duration::from_secs(2);
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

pub fn world() -> Fabric {
    Fabric::new(WorldTag::new().unwrap(), FabricConfig::default()).unwrap()
}

/// Serves one TCP connection and one datagram in `ns`; both answer with the peer they saw.
pub fn serve_once(ns: &Netns, at: SocketAddr) -> (JoinHandle<SocketAddr>, JoinHandle<SocketAddr>) {
    let listener = ns.tcp_listener(at).unwrap();
    let socket = ns.udp_socket(at).unwrap();
    let tcp = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.to_string().as_bytes()).unwrap();
        peer
    });
    let udp = std::thread::spawn(move || {
        let (_, peer) = socket.recv_from(&mut [0; 64]).unwrap();
        socket.send_to(peer.to_string().as_bytes(), peer).unwrap();
        peer
    });
    (tcp, udp)
}

/// Connects and reads to the end: the source that the server saw.
pub fn call_tcp(from: &Netns, to: SocketAddr) -> SocketAddr {
    let mut stream = from.tcp_connect(to, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.parse().unwrap()
}

/// Sends one datagram from a connected socket and reads the answer: the source that the server saw.
pub fn call_udp(from: &Netns, to: SocketAddr) -> SocketAddr {
    let socket = udp_to(from, to);
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer).unwrap();
    std::str::from_utf8(&answer[..length])
        .unwrap()
        .parse()
        .unwrap()
}

pub fn udp_to(from: &Netns, to: SocketAddr) -> UdpSocket {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = from.udp_socket(at(any, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"hello").unwrap();
    socket
}

/// What a load balancer or a proxy would load: packets for `from` go to `to`.
pub fn dnat(ns: &Netns, protocol: u8, from: SocketAddr, to: SocketAddr) {
    let table = Table::ip(&format!("hand-made-{protocol}-{}", from.port()));
    let mut batch = Batch::new();
    batch.add_table(&table, 0, None);
    batch.add_chain(
        &table,
        &Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, -100),
    );
    let rule = Rule::ip()
        .daddr(from.ip(), 32)
        .l4proto(protocol)
        .dport(from.port());
    batch.add_rule(&table, "prerouting", &rule.dnat(to.ip(), Some(to.port())));
    ns.run(move || Socket::open().unwrap().commit(&batch).unwrap());
}

pub fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// Waits until `probe` holds.
pub fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    while !probe() {
        assert!(
            std::time::Instant::now() < deadline,
            "not within 5 s: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn namespaces() -> String {
    let out = std::process::Command::new("ip")
        .args(["netns", "list"])
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap()
}
