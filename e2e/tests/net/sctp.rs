//! SCTP by raw packets: the kernel here has no sockets for it, and a node must not need them (S-31).
//!
//! The client sends an INIT chunk to a frontend; whoever has the endpoint's address sees it come with the endpoint's
//! port and answers with INIT ACK; the client sees the answer come from the frontend.

use crate::{
    lab::{WITHIN, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use e2e_fabric::Netns;
use onehop_e2e::world::{Cluster, Family, eventually};
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

const SCTP: i32 = 132;
const CLIENT_PORT: u16 = 20_001;
const ENDPOINT_PORT: u16 = 7_000;
/// What the client's INIT asks its peer to begin with.
const TAG: u32 = 0x0102_0304;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// A raw socket in a namespace: it sees every SCTP packet that comes to an address of it. std knows no raw sockets, and
/// does not mind.
fn raw(netns: &Netns, family: Family) -> Result<UdpSocket> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let open = move || Socket::new(domain, Type::RAW, Some(Protocol::from(SCTP)));
    let socket = netns.run(open).context("open a raw SCTP socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    Ok(socket.into())
}

/// A packet with one chunk of `kind`: ports, verification tag, checksum, chunk with the fields of INIT.
fn packet(source: u16, destination: u16, tag: u32, kind: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([kind, 0, 0, 20]);
    // Initiate tag, receiver window, streams out and in, first sequence number.
    bytes.extend(TAG.to_be_bytes());
    bytes.extend(65_536_u32.to_be_bytes());
    bytes.extend([0, 1, 0, 1]);
    bytes.extend(1_u32.to_be_bytes());
    let sum = crc32c(&bytes);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// CRC-32C (RFC 4960, appendix B), which connection tracking checks.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// A packet that a raw socket received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    from: IpAddr,
    source: u16,
    destination: u16,
    kind: u8,
}

/// The next packet with this chunk, if one comes soon.
fn receive(socket: &UdpSocket, kind: u8) -> Option<Seen> {
    let mut buffer = [0; 2048];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).ok()?;
        let bytes = &buffer[..length];
        // A raw IPv4 socket hands over the header, an IPv6 one does not.
        let header = if from.is_ipv4() {
            usize::from(bytes.first()? & 0x0f) * 4
        } else {
            0
        };
        let sctp = bytes.get(header..)?;
        let port = |at: usize| Some(u16::from_be_bytes(sctp.get(at..at + 2)?.try_into().ok()?));
        let seen = Seen {
            from: from.ip(),
            source: port(0)?,
            destination: port(2)?,
            kind: *sctp.get(12)?,
        };
        if seen.kind == kind {
            return Some(seen);
        }
    }
}

/// A handshake's first half from a place through a frontend: what the endpoint saw, and what came back.
async fn handshake(world: &PodOnA, place: Place, to: SocketAddr) -> Result<(Seen, Seen)> {
    let family = world.cluster.family;
    let client = raw(&world.place(place).0, family)?;
    let server = raw(&world.pod_place("web").await?.0, family)?;
    let what = format!("S-31: {to} over SCTP from {place:?}");
    eventually(&world.clock, &what, WITHIN, async || {
        let init = packet(CLIENT_PORT, to.port(), 0, INIT);
        let bare = SocketAddr::new(to.ip(), 0);
        client.send_to(&init, bare).map_err(|e| e.to_string())?;
        let asked = receive(&server, INIT).ok_or("the endpoint saw nothing")?;
        let answer = packet(ENDPOINT_PORT, asked.source, TAG, INIT_ACK);
        let back = SocketAddr::new(asked.from, 0);
        server.send_to(&answer, back).map_err(|e| e.to_string())?;
        let answered = receive(&client, INIT_ACK).ok_or("the client saw nothing")?;
        Ok((asked, answered))
    })
    .await
}

fn sctp_loaded() -> bool {
    let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    modules.lines().any(|line| line.starts_with("sctp "))
}

pub(crate) async fn s31_sctp_reaches_endpoints_and_answers_come_from_the_frontend(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let loaded = sctp_loaded();
    let ports = json!([{"name": "assoc", "port": 80, "protocol": "SCTP"}]);
    let manifest = selectorless("assoc")
        .with("type", json!("NodePort"))
        .with("ports", ports);
    let exposed = world.expose(manifest).await?;
    let endpoints = vec![world.endpoint("web").await?];
    let ports = json!([{"name": "assoc", "protocol": "SCTP", "port": ENDPOINT_PORT}]);
    world.slice("assoc", "assoc", endpoints, ports).await?;
    let node = SocketAddr::new(world.place(Place::NodeA).1, exposed.node_port("assoc")?);
    for (place, to) in [
        (Place::PodOnB, exposed.cluster(80)),
        (Place::NodeB, exposed.cluster(80)),
        (Place::Outside, node),
    ] {
        let (asked, answered) = handshake(&world, place, to).await?;
        assert_eq!(
            asked.destination, ENDPOINT_PORT,
            "S-31, S-32 from {place:?}"
        );
        // DI-64: not from the endpoint.
        assert_eq!(
            (answered.from, answered.source, answered.destination),
            (to.ip(), to.port(), CLIENT_PORT),
            "S-31, DI-64 from {place:?}"
        );
        if place == Place::PodOnB {
            assert_eq!(asked.from, world.place(place).1, "S-60");
        }
    }
    assert_eq!(sctp_loaded(), loaded, "S-31: nothing loads the module");
    world.end().await
}
