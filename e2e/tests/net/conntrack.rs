//! Connection tracking of TCP through a Service: packets outside of the window, and how long half-closed connections are
//! remembered.

use crate::{
    lab::{WITHIN, Want, selectorless},
    support::{Place, PodOnA, world_with},
};
use anyhow::{Context, Result, ensure};
use e2e_fabric::Netns;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, Family, eventually},
};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

const TCP: i32 = 6;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const PATIENCE: Duration = Duration::from_secs(3);
/// Far outside of any window.
const FAR: u32 = 0x2000_0000;

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    source: u16,
    destination: u16,
    sequence: u32,
    acknowledged: u32,
}

impl Segment {
    fn read(bytes: &[u8], family: Family) -> Option<Self> {
        // A raw IPv4 socket hands over the header, an IPv6 one does not.
        let header = match family {
            Family::V4 => usize::from(bytes.first()? & 0x0f) * 4,
            Family::V6 => 0,
        };
        let tcp = bytes.get(header..)?;
        let half = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        Some(Self {
            source: half(0)?,
            destination: half(2)?,
            sequence: word(4)?,
            acknowledged: word(8)?,
        })
    }

    /// The segment with one byte of data.
    fn write(self, from: IpAddr, to: IpAddr) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.source.to_be_bytes());
        tcp.extend(self.destination.to_be_bytes());
        tcp.extend(self.sequence.to_be_bytes());
        tcp.extend(self.acknowledged.to_be_bytes());
        // Five words of header, window of 512, checksum to come, nothing urgent.
        tcp.extend([5 << 4, ACK | PSH, 2, 0, 0, 0, 0, 0, b'!']);
        let sum = checksum(from, to, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp
    }
}

/// The checksum of TCP over both addresses, protocol, length and segment (RFC 9293, 3.1).
fn checksum(from: IpAddr, to: IpAddr, tcp: &[u8]) -> u16 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = u16::try_from(tcp.len()).unwrap_or(u16::MAX).to_be_bytes();
    let all = [
        octets(from),
        octets(to),
        vec![0, 6],
        length.to_vec(),
        tcp.to_vec(),
    ]
    .concat();
    let pairs = all.chunks(2);
    let sum: u32 = pairs
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

/// A connection through a Service, and the server's end of it as a raw socket sees it.
struct Watched {
    stream: BufReader<TcpStream>,
    wire: UdpSocket,
    server: IpAddr,
    client: IpAddr,
    family: Family,
}

impl Watched {
    fn open(world: &PodOnA, place: Place, to: SocketAddr, server: (Netns, IpAddr)) -> Result<Self> {
        let family = world.cluster.family;
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        let (netns, server) = server;
        let wire = netns
            .run(move || Socket::new(domain, Type::RAW, Some(Protocol::from(TCP))))
            .context("open a raw TCP socket")?;
        wire.set_read_timeout(Some(PATIENCE))?;
        let (netns, client) = world.place(place);
        let stream = netns.tcp_connect(to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut watched = Self {
            stream: BufReader::new(stream),
            wire: wire.into(),
            server,
            client,
            family,
        };
        watched.stream.read_line(&mut String::new())?;
        Ok(watched)
    }

    /// Whether the server still answers.
    fn goes_on(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(b"still there?\n")?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == "still there?\n", "{line:?}");
        Ok(())
    }

    /// The newest segment of the client that the server's end got.
    fn last_of_client(&mut self) -> Result<Segment> {
        self.goes_on()?;
        let port = self.stream.get_ref().local_addr()?.port();
        let mut last = None;
        let mut buffer = [0; 2048];
        self.wire.set_nonblocking(true)?;
        while let Ok(length) = self.wire.recv(&mut buffer) {
            let segment = Segment::read(&buffer[..length], self.family);
            last = segment.filter(|s| s.source == port).or(last);
        }
        last.context("no segment of the client was seen")
    }

    /// Sends a segment as the server, this far ahead of what comes next.
    fn inject(&mut self, ahead: u32) -> Result<()> {
        let got = self.last_of_client()?;
        let segment = Segment {
            source: got.destination,
            destination: got.source,
            sequence: got.acknowledged.wrapping_add(ahead),
            acknowledged: got.sequence,
        };
        let bytes = segment.write(self.server, self.client);
        // The port of a raw socket's address means nothing.
        self.wire.send_to(&bytes, (self.client, 0))?;
        Ok(())
    }
}

/// A Service with one endpoint on the other node than its client: answers are translated on the client's node.
async fn across(world: &PodOnA) -> Result<(SocketAddr, (Netns, IpAddr))> {
    let to = world.expose(selectorless("far")).await?.cluster(80);
    world.serve_by("far", &["web"]).await?;
    world
        .becomes(Place::PodOnB, Transport::Tcp, to, Want::From(&["web"]))
        .await?;
    let (netns, address) = world.pod_place("web").await?;
    Ok((to, (netns, world.cluster.family.of(address))))
}

/// S-97: by default a packet that comes far too late does no harm; with the option nothing outside of the window does.
pub(crate) async fn s97_packets_outside_of_the_window_cut_no_connection(on: Cluster) -> Result<()> {
    let late = FAR.wrapping_neg();
    let cases: [(&'static str, &[u32]); 2] = [
        ("--conntrack-tcp-be-liberal=auto", &[late]),
        ("--conntrack-tcp-be-liberal=on", &[late, FAR]),
    ];
    for (flag, packets) in cases {
        let world = world_with(on, vec![flag]).await?;
        let (to, server) = across(&world).await?;
        for ahead in packets {
            let mut watched = Watched::open(&world, Place::PodOnB, to, server.clone())?;
            watched.inject(*ahead)?;
            for _ in 0..3 {
                let goes_on = watched.goes_on();
                goes_on.with_context(|| format!("S-97: {flag}, {ahead:#x} ahead"))?;
            }
        }
        world.end().await?;
    }
    Ok(())
}

/// S-98: how long a connection is remembered whose server has closed its half.
pub(crate) async fn s98_a_half_closed_connection_is_remembered_for_an_hour(
    on: Cluster,
) -> Result<()> {
    const CLOSING: u16 = 8_077;
    let world = world_with(on, Vec::new()).await?;
    let (to, (netns, server)) = across(&world).await?;
    let listener = netns.tcp_listener((server, CLOSING).into())?;
    let endpoint = world.endpoint("web").await?;
    let ports = serde_json::json!([{"name": "tcp", "protocol": "TCP", "port": CLOSING}]);
    world.slice("far", "far", vec![endpoint], ports).await?;
    // Whoever is led to the new port is told so, and then that there is no more.
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"bye\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // Until the client goes, too.
            let _ = stream.read(&mut [0]);
        }
    });
    let (client, _) = world.place(Place::PodOnB);
    let what = "the Service leads to the other port";
    let held = eventually(&world.clock, what, WITHIN, async || {
        let mut stream = client
            .tcp_connect(to, PATIENCE)
            .map_err(|e| e.to_string())?;
        let mut said = String::new();
        let wait = stream.set_read_timeout(Some(PATIENCE));
        let all = wait.and_then(|()| stream.read_to_string(&mut said));
        match (all, said.as_str()) {
            (Ok(_), "bye\n") => Ok(stream),
            (read, said) => Err(format!("{read:?} {said:?}")),
        }
    })
    .await?;
    let port = held.local_addr()?.port().to_string();
    let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
    let args = ["-L", "-f", family, "-p", "tcp", "--sport", &port];
    // The client's acknowledgement of the end may come a little later.
    let entry = eventually(&world.clock, "half-closed", WITHIN, async || {
        let table = world.on_node("b", "conntrack", &args);
        let table = table.map_err(|e| e.to_string())?;
        let entry = table.lines().find(|line| line.contains("CLOSE_WAIT"));
        entry.map(str::to_owned).ok_or(table.clone())
    })
    .await?;
    let left: u64 = entry.split_whitespace().nth(2).context("a time")?.parse()?;
    assert!((3_500..=3_600).contains(&left), "S-98: {entry}");
    world.end().await
}

/// S-34: a reply or an outgoing connection never has a node port's number by chance: the node's own connections take none
/// of them, and neither do those that it masquerades.
pub(crate) async fn s34_no_connection_of_the_node_or_through_it_has_a_node_ports_number(
    on: Cluster,
) -> Result<()> {
    // Chosen from all ports, all of them would miss the node ports once in 8,000 runs.
    const TIMES: usize = 200;
    const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
    let world = world_with(on, Vec::new()).await?;
    let manifest = selectorless("web").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("web", &["web"]).await?;
    let node = world.place(Place::NodeB).1;
    let to = SocketAddr::new(node, exposed.node_port("tcp")?);
    let web = Want::From(&["web"]);
    world
        .becomes(Place::Outside, Transport::Tcp, to, web)
        .await?;
    for transport in [Transport::Tcp, Transport::Udp] {
        let to = SocketAddr::new(node, exposed.node_port(transport_name(transport))?);
        world.becomes(Place::Outside, transport, to, web).await?;
        for _ in 0..TIMES {
            let got = world.ask_from(Place::Outside, transport, to).await;
            let (answer, own) = got.map_err(|f| anyhow::anyhow!("{f:?}"))?;
            assert_ne!(answer.peer.ip(), own.ip(), "S-62: masqueraded");
            assert!(
                !NODE_PORTS.contains(&answer.peer.port()),
                "S-34: {:?}",
                answer.peer
            );
        }
    }
    let reserved = "/proc/sys/net/ipv4/ip_local_reserved_ports";
    let reserved = world.on_node("b", "cat", &[reserved])?;
    assert!(reserved.contains("30000-32767"), "S-34: {reserved}");
    world.end().await
}

fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}
