//! Sockets of a client's namespace for the traffic module, and what its kernel counted.

use crate::traffic::{SocketSource, Transport};
use anyhow::{Context, Result};
use e2e_fabric::Netns;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

/// Makes sockets in `netns`, bound to a free port of `local`, so that a flow is known by its client address even when
/// it never came to be.
pub fn sockets_of(netns: &Netns, local: Ipv4Addr) -> SocketSource {
    let netns = netns.clone();
    Arc::new(move |transport, _to| netns.run(move || open(transport, local)))
}

fn open(transport: Transport, local: Ipv4Addr) -> io::Result<Socket> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(SocketAddr::from((local, 0))))?;
    Ok(socket)
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
