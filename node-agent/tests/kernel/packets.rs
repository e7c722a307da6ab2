//! Bytes that really cross: who answers, which source it saw, what happens when nobody is there.
//! Two nodes of the fabric, one pod each, an outside client; elements as compile would make them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use e2e_fabric::{ClientNet, Fabric, FabricConfig, Netns, NodeNet, PodNet, WorldTag};
use onehop_core::time::Time;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::table::element::{
    Data, Dataplane, ElementChange, Elements, Family, Frontend, Key, Protocol, SetId, Verdict,
};

use crate::place::own_descriptors;
use crate::world::{addr, in_namespace, list, node_port_list, options, service};
use crate::{load, open};

const TIMEOUT: Duration = Duration::from_secs(2);
/// For calls that must not be answered.
const SILENCE: Duration = Duration::from_millis(300);
const VIP: &str = "10.96.0.1";
const LB: &str = "198.51.100.1";
const NODE_PORT: u16 = 30_080;

struct Host {
    net: NodeNet,
    pod: PodNet,
    kernel: Kernel,
    held: Elements,
}

struct World {
    a: Host,
    b: Host,
    client: ClientNet,
    fabric: Fabric,
}

impl World {
    fn new() -> Self {
        own_descriptors();
        let fabric = Fabric::new(WorldTag::new().unwrap(), FabricConfig::default()).unwrap();
        let host = |name: &str| {
            let net = fabric.add_node(name).unwrap();
            let pod = net.add_pod("web", None).unwrap();
            serve(pod.netns(), SocketAddr::new(pod.address().into(), 8080));
            let kernel = kernel(&net);
            Host {
                net,
                pod,
                kernel,
                held: Elements::new(),
            }
        };
        let (a, b) = (host("a"), host("b"));
        let client = fabric.add_client("client", true).unwrap();
        Self {
            a,
            b,
            client,
            fabric,
        }
    }
}

impl Host {
    fn hold(&mut self, wanted: Elements) {
        if self.held.is_empty() {
            load(&mut self.kernel, &wanted);
        } else {
            self.kernel
                .commit(&ElementChange::between(&self.held, &wanted))
                .unwrap();
        }
        self.held = wanted;
    }

    fn pod_address(&self) -> String {
        self.pod.address().to_string()
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.net.address().into(), port)
    }
}

fn kernel(net: &NodeNet) -> Kernel {
    net.netns().run(|| {
        let now = Box::new(|| Time::EPOCH);
        Kernel::open(&options(), Features::detect(), now).unwrap()
    })
}

/// Answers every TCP connection and every datagram with the peer it saw; ends with the process.
fn serve(ns: &Netns, at: SocketAddr) {
    let listener = ns.tcp_listener(at).unwrap();
    let socket = ns.udp_socket(at).unwrap();
    std::thread::spawn(move || answer(&listener, at));
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(format!("{} {}", at.ip(), peer.ip()).as_bytes(), peer);
        }
    });
}

fn answer(listener: &TcpListener, at: SocketAddr) {
    while let Ok((mut stream, peer)) = listener.accept() {
        let _ = stream.write_all(format!("{} {}", at.ip(), peer.ip()).as_bytes());
    }
}

/// Who answered, and which source it saw.
fn call(from: &Netns, protocol: Protocol, to: SocketAddr) -> (IpAddr, IpAddr) {
    let text = match protocol {
        Protocol::Tcp => {
            let mut stream = from.tcp_connect(to, TIMEOUT).unwrap();
            read(&mut stream)
        }
        _ => call_udp(from, to).unwrap(),
    };
    let (server, source) = text.split_once(' ').unwrap();
    (addr(server), addr(source))
}

fn call_udp(from: &Netns, to: SocketAddr) -> std::io::Result<String> {
    let socket = from
        .udp_socket(SocketAddr::from(([0, 0, 0, 0], 0)))
        .unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket.connect(to)?;
    socket.send(b"?")?;
    let mut buffer = [0; 64];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn read(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn frontend(ip: &str, protocol: Protocol, port: u16) -> Frontend {
    Frontend {
        address: addr(ip),
        protocol,
        port,
    }
}

fn both() -> [Protocol; 2] {
    [Protocol::Tcp, Protocol::Udp]
}

/// One Service as ClusterIP, LB address and NodePort, for TCP and UDP; on a node with this address and local pod.
fn everywhere(node: &Host, pods: &[&str], etp_local: bool) -> Elements {
    let mut all = Elements::new();
    let local = node.pod_address();
    let local: Vec<&str> = pods.iter().copied().filter(|pod| *pod == local).collect();
    for protocol in both() {
        let (vip, lb) = (frontend(VIP, protocol, 80), frontend(LB, protocol, 80));
        all.extend(list(vip, false, pods));
        all.extend(list(lb, false, pods));
        all.extend(node_port_list(protocol, NODE_PORT, false, pods));
        let port = Key::NodePort {
            protocol,
            port: NODE_PORT,
        };
        let mut put = |set, key, data| all.insert((Family::V4, set, key), data);
        put(SetId::ClusterIps, Key::Addr(vip.address), None);
        put(
            SetId::NodePortIps,
            Key::Addr(node.net.address().into()),
            None,
        );
        if etp_local {
            put(SetId::EtpLocal, Key::Frontend(lb), None);
            put(SetId::EtpLocalNodePorts, port, None);
        } else {
            put(SetId::MasqFrontends, Key::Frontend(lb), None);
            put(SetId::MasqNodePorts, port, None);
        }
        if etp_local && local.is_empty() {
            put(
                SetId::NoEndpointServices,
                Key::Frontend(lb),
                Some(Data::Verdict(Verdict::Drop)),
            );
            put(
                SetId::NoEndpointNodePorts,
                port,
                Some(Data::Verdict(Verdict::Drop)),
            );
        } else if etp_local {
            all.extend(list(lb, true, &local));
            all.extend(node_port_list(protocol, NODE_PORT, true, &local));
        }
    }
    all
}

#[test]
fn s62_s60_etp_cluster_masquerades_and_pods_keep_their_source_at_a_cluster_ip() {
    let mut world = World::new();
    let (pod_a, pod_b) = (world.a.pod_address(), world.b.pod_address());
    let wanted = everywhere(&world.a, &[&pod_b], false);
    world.a.hold(wanted);
    let (vip, lb) = (
        SocketAddr::new(addr(VIP), 80),
        SocketAddr::new(addr(LB), 80),
    );
    for protocol in both() {
        // S-62: always translated, whoever comes; the address is one of node a's.
        let (server, source) = call(world.client.netns(), protocol, world.a.at(NODE_PORT));
        assert_eq!(server, addr(&pod_b), "S-62 {protocol:?}");
        assert!(is_node(&world.a, source), "S-62 {protocol:?}: {source}");
        let (_, source) = call(world.a.pod.netns(), protocol, lb);
        assert!(
            is_node(&world.a, source),
            "S-62 {protocol:?}: pod to LB address: {source}"
        );
        // S-60: by the detector.
        let seen = call(world.a.pod.netns(), protocol, vip);
        assert_eq!(seen, (addr(&pod_b), addr(&pod_a)), "S-60 {protocol:?}");
        let (_, source) = call(world.a.net.netns(), protocol, vip);
        assert!(
            is_node(&world.a, source),
            "S-60 {protocol:?}: node process: {source}"
        );
    }
    assert_eq!(
        world.fabric.router().drops().len(),
        0,
        "nothing left by a wrong interface"
    );
}

fn is_node(host: &Host, source: IpAddr) -> bool {
    [host.net.address(), host.net.secondary_address()].contains(&match source {
        IpAddr::V4(v4) => v4,
        IpAddr::V6(_) => return false,
    })
}

#[test]
fn s63_s64_etp_local_keeps_the_client_and_serves_pods_and_the_node_from_everywhere() {
    let mut world = World::new();
    let (pod_a, pod_b) = (world.a.pod_address(), world.b.pod_address());
    let wanted = everywhere(&world.a, &[&pod_a], true);
    world.a.hold(wanted);
    let wanted = everywhere(&world.b, &[&pod_a], true);
    world.b.hold(wanted);
    let lb = SocketAddr::new(addr(LB), 80);
    for protocol in both() {
        // S-63 (c): the client's own address, by the pod of this node.
        let seen = call(world.client.netns(), protocol, world.a.at(NODE_PORT));
        assert_eq!(
            seen,
            (addr(&pod_a), world.client.address().into()),
            "S-63 {protocol:?}"
        );
        // S-64: a pod of a node without endpoints is served, and seen.
        let seen = call(world.b.pod.netns(), protocol, lb);
        assert_eq!(seen, (addr(&pod_a), addr(&pod_b)), "S-64 {protocol:?}");
        // S-63 (b): processes of that node too.
        let (server, source) = call(world.b.net.netns(), protocol, lb);
        assert_eq!(server, addr(&pod_a), "S-63 {protocol:?}");
        assert!(is_node(&world.b, source), "S-63 {protocol:?}: {source}");
    }
}

#[test]
fn s48_s55_nobody_anywhere_is_refused_and_nobody_here_is_silent() {
    let mut world = World::new();
    let pod_a = world.a.pod_address();
    let mut wanted = everywhere(&world.b, &[&pod_a], true);
    for protocol in both() {
        let dead = frontend(VIP, protocol, 81);
        wanted.insert(
            (Family::V4, SetId::NoEndpointServices, Key::Frontend(dead)),
            Some(Data::Verdict(Verdict::Reject)),
        );
        let port = Key::NodePort {
            protocol,
            port: NODE_PORT + 1,
        };
        wanted.insert(
            (Family::V4, SetId::NoEndpointNodePorts, port),
            Some(Data::Verdict(Verdict::Reject)),
        );
    }
    world.b.hold(wanted);
    let tcp = |from: &Netns, to: SocketAddr| {
        let socket = from.tcp_socket(None, to.ip()).unwrap();
        socket
            .connect_timeout(&to.into(), SILENCE)
            .unwrap_err()
            .kind()
    };
    let udp = |from: &Netns, to| match call_udp(from, to).unwrap_err().kind() {
        // What the sender itself may not send is told by `send` at once.
        ErrorKind::PermissionDenied => ErrorKind::ConnectionRefused,
        kind => kind,
    };
    let vip = |port| SocketAddr::new(addr(VIP), port);
    for (from, name) in [
        (world.b.pod.netns(), "pod"),
        (world.b.net.netns(), "node process"),
    ] {
        assert_eq!(
            tcp(from, vip(81)),
            ErrorKind::ConnectionRefused,
            "S-48 {name}"
        );
        assert_eq!(
            udp(from, vip(81)),
            ErrorKind::ConnectionRefused,
            "S-48 {name}"
        );
        // S-25, DI-58: a port that the Service does not have.
        assert_eq!(
            tcp(from, vip(82)),
            ErrorKind::ConnectionRefused,
            "S-25 {name}"
        );
    }
    let client = world.client.netns();
    assert_eq!(
        tcp(client, world.b.at(NODE_PORT + 1)),
        ErrorKind::ConnectionRefused,
        "S-48 node port"
    );
    assert_eq!(
        udp(client, world.b.at(NODE_PORT + 1)),
        ErrorKind::ConnectionRefused,
        "S-48 node port"
    );
    assert_eq!(
        tcp(client, world.b.at(NODE_PORT)),
        ErrorKind::TimedOut,
        "S-55"
    );
    assert_eq!(
        udp(client, world.b.at(NODE_PORT)),
        ErrorKind::WouldBlock,
        "S-55"
    );
}

#[test]
fn s66_a_pod_reaches_itself_through_its_service() {
    let mut world = World::new();
    let pod_a = world.a.pod_address();
    let wanted = everywhere(&world.a, &[&pod_a], false);
    world.a.hold(wanted);
    for protocol in both() {
        let (server, source) = call(
            world.a.pod.netns(),
            protocol,
            SocketAddr::new(addr(VIP), 80),
        );
        assert_eq!(server, addr(&pod_a), "S-66 {protocol:?}");
        assert!(is_node(&world.a, source), "S-66 {protocol:?}: {source}");
    }
}

#[test]
fn s43_connections_spread_evenly_and_s244_follow_a_swap() {
    let mut world = World::new();
    let (pod_a, pod_b) = (world.a.pod_address(), world.b.pod_address());
    let wanted = everywhere(&world.a, &[&pod_a, &pod_b], false);
    world.a.hold(wanted);
    let vip = SocketAddr::new(addr(VIP), 80);
    let mut by_a = 0;
    for _ in 0..100 {
        by_a += usize::from(call(world.a.net.netns(), Protocol::Tcp, vip).0 == addr(&pod_a));
    }
    // Six standard deviations: one failure in half a milliard runs.
    assert!((20..=80).contains(&by_a), "S-43: {by_a} of 100");
    let wanted = everywhere(&world.a, &[&pod_b], false);
    world.a.hold(wanted);
    for _ in 0..20 {
        assert_eq!(
            call(world.a.net.netns(), Protocol::Tcp, vip).0,
            addr(&pod_b),
            "S-244"
        );
    }
}

#[test]
fn s121_s122_connections_succeed_while_no_agent_runs_and_the_next_one_goes_on() {
    let mut world = World::new();
    let (pod_a, pod_b) = (world.a.pod_address(), world.b.pod_address());
    let wanted = everywhere(&world.a, &[&pod_b], false);
    world.a.hold(wanted);
    let vip = SocketAddr::new(addr(VIP), 80);
    let reach = |world: &World, pod: &str, id: &str| {
        for protocol in both() {
            let (server, _) = call(world.a.pod.netns(), protocol, vip);
            assert_eq!(server, addr(pod), "{id} {protocol:?}");
        }
    };
    let next = kernel(&world.a.net);
    drop(std::mem::replace(&mut world.a.kernel, next));
    reach(&world, &pod_b, "S-122");
    let held = world.a.kernel.read_back().unwrap();
    assert_eq!(held.as_ref(), Some(&world.a.held), "S-121");
    reach(&world, &pod_b, "S-121");
    let wanted = everywhere(&world.a, &[&pod_a], false);
    world.a.hold(wanted);
    reach(&world, &pod_a, "S-121: changed meanwhile");
}

#[test]
fn s70_a_source_outside_the_ranges_is_dropped() {
    let mut world = World::new();
    let (pod_a, pod_b) = (world.a.pod_address(), world.b.pod_address());
    let mut wanted = everywhere(&world.a, &[&pod_b], false);
    let lb = frontend(LB, Protocol::Tcp, 80);
    wanted.insert((Family::V4, SetId::SourceGuarded, Key::Frontend(lb)), None);
    let allowed = |cidr: &str| {
        (
            (
                Family::V4,
                SetId::SourceAllow,
                Key::Range(lb, cidr.parse().unwrap()),
            ),
            None,
        )
    };
    let outside = wanted
        .clone()
        .into_iter()
        .chain([allowed("203.0.113.0/24")])
        .collect();
    let pod = wanted
        .into_iter()
        .chain([allowed(&format!("{pod_a}/32"))])
        .collect();
    let to = SocketAddr::new(addr(LB), 80);
    world.a.hold(outside);
    let socket = world
        .a
        .pod
        .netns()
        .tcp_socket(None, addr("0.0.0.0"))
        .unwrap();
    assert_eq!(
        socket
            .connect_timeout(&to.into(), SILENCE)
            .unwrap_err()
            .kind(),
        ErrorKind::TimedOut,
        // DI-34, DI-35: before translation, and at once.
        "S-71"
    );
    world.a.hold(pod);
    assert_eq!(
        call(world.a.pod.netns(), Protocol::Tcp, to).0,
        addr(&pod_b),
        "S-70"
    );
}

#[test]
fn s201_ipv6_is_translated_alike() {
    in_namespace(|| {
        let ip = |arguments: &str| {
            let arguments = arguments.split(' ');
            assert!(
                std::process::Command::new("ip")
                    .args(arguments)
                    .status()
                    .unwrap()
                    .success()
            );
        };
        ip("link set lo up");
        ip("-6 addr add fd00:1::1/128 dev lo nodad");
        ip("-6 route add fd00:96::/64 dev lo");
        let mut kernel = open();
        load(&mut kernel, &service("fd00:96::1", &["fd00:1::1"]));
        let listener = TcpListener::bind("[fd00:1::1]:8080").unwrap();
        let server = std::thread::spawn(move || listener.accept().unwrap());
        TcpStream::connect_timeout(&"[fd00:96::1]:80".parse().unwrap(), TIMEOUT).unwrap();
        server.join().unwrap();
    });
}
