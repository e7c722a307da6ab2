//! Sockets of a client's namespace for the traffic module, and what its kernel counted.

use crate::traffic::{SocketSource, Transport};
use anyhow::{Context, Result};
use e2e_fabric::{Netns, twin};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

/// First port of clients, below the kernel's own choice.
const FIRST_PORT: u16 = 10_000;

/// Makes sockets in `netns`, each bound to `local` (for IPv6 to its twin) and to the next port. Bound, so that a flow is known by its client
/// address even when it never came to be. The next one, since a port that the kernel chose again would be an old flow
/// to every connection table on the way: no fresh request at all.
pub fn sockets_of(netns: &Netns, local: Ipv4Addr) -> SocketSource {
    let netns = netns.clone();
    let next = Arc::new(AtomicU16::new(FIRST_PORT));
    Arc::new(move |transport, to| {
        let next = Arc::clone(&next);
        let local: IpAddr = match (to, local.is_unspecified()) {
            (SocketAddr::V4(_), _) => local.into(),
            (SocketAddr::V6(_), true) => Ipv6Addr::UNSPECIFIED.into(),
            (SocketAddr::V6(_), false) => twin(local).into(),
        };
        netns.run(move || open(transport, local, &next))
    })
}

fn open(transport: Transport, local: IpAddr, next: &AtomicU16) -> io::Result<Socket> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let domain = Domain::for_address((local, 0).into());
    let socket = Socket::new(domain, kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    for _ in FIRST_PORT..u16::MAX {
        let port = next.fetch_add(1, Ordering::Relaxed).max(FIRST_PORT);
        match socket.bind(&SockAddr::from(SocketAddr::from((local, port)))) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound.map(|()| socket),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// SYN segments that this namespace had to send again since it was made.
pub fn syn_retransmissions(netns: &Netns) -> Result<u64> {
    // The thread's own view: /proc/self is the main thread's, which lives elsewhere.
    let text = netns
        .run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))
        .context("read netstat")?;
    let mut lines = text.lines().filter(|l| l.starts_with("TcpExt:"));
    let (names, values) = lines
        .next()
        .zip(lines.next())
        .context("netstat has no TcpExt lines")?;
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == "TCPSynRetrans")
        .and_then(|(_, value)| value.parse().ok())
        .context("netstat has no TCPSynRetrans")
}
