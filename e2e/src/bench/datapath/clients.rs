//! Who connects to the asked Service and asks the proxy's health while something happens to it.

use onehop_runtime::clock::Clock;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use super::lab::HEALTH;
use crate::traffic::{SocketSource, ask_tcp};

/// Connections on one machine take a twentieth of a millisecond; one that nobody answers is asked for again after a second.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// A connection that is reset at once, so that none stays behind.
pub(super) fn connect(to: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect(&to.into())
}

/// The same, given up after a while.
pub(super) fn connect_within(to: SocketAddr, within: Duration) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&to.into(), within)
}

/// 100 new connections a second until it is told to stop: how many there were, and how many failed.
pub(super) async fn steady(
    sockets: SocketSource,
    to: SocketAddr,
    clock: Clock,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> [u32; 2] {
    let (mut all, mut failed) = (0, 0);
    while !*stopped.borrow() {
        all += 1;
        failed += u32::from(ask_tcp(&sockets, to).await.is_err());
        clock.sleep(Duration::from_millis(10)).await;
    }
    [all, failed]
}

/// /healthz in the network namespace of the caller, 100 times a second until the other end is dropped: how often it was
/// asked, and how often it was not answered with 200.
pub(super) fn healths(end: &Receiver<()>) -> [u32; 2] {
    let (mut all, mut missed) = (0, 0);
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(Duration::from_millis(10)) {
        all += 1;
        missed += u32::from(!healthy().unwrap_or(false));
    }
    [all, missed]
}

fn healthy() -> std::io::Result<bool> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH));
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
