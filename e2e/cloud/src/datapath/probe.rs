//! One probe, as real packets from the LB node's namespace (FC-39c).

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use e2e_fabric::Netns;
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::preface;
use crate::engine::{Outcome, ProbeOrder, ProbeProtocol};

/// Longest status line that is read.
const LIMIT: usize = 1024;

/// Carries out `order` within `timeout` of the wall. `own` goes into the Host header (FC-35); it comes from `source`, if
/// that is another address.
pub(super) async fn run(
    clock: Clock,
    ns: Netns,
    (own, source): (IpAddr, Option<IpAddr>),
    order: ProbeOrder,
    timeout: Duration,
) -> Outcome {
    match clock
        .within(timeout, attempt(&ns, (own, source), &order))
        .await
    {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => failed(&error),
        Err(_) => Outcome::Timeout,
    }
}

async fn attempt(
    ns: &Netns,
    (own, source): (IpAddr, Option<IpAddr>),
    order: &ProbeOrder,
) -> std::io::Result<Outcome> {
    let mut stream = connect(ns, source, order).await?;
    if order.proxy_protocol {
        stream.write_all(&preface::LOCAL).await?;
    }
    match order.protocol {
        ProbeProtocol::Tcp => Ok(Outcome::Ok),
        ProbeProtocol::Http => {
            let status = get(&mut stream, own, &order.path).await?;
            let good = order.http_up.contains(&status);
            Ok(if good {
                Outcome::Ok
            } else {
                Outcome::Status(status)
            })
        }
    }
}

async fn connect(
    ns: &Netns,
    source: Option<IpAddr>,
    order: &ProbeOrder,
) -> std::io::Result<TcpStream> {
    let stream = match source {
        Some(source) => ns.tcp_stream_from(source, order.to).await,
        None => ns.tcp_stream(order.to).await,
    };
    stream.map_err(|error| match error {
        e2e_fabric::Error::Io { source, .. } => source,
        other => std::io::Error::other(other),
    })
}

/// A GET; the status code of the answer. The body is left unread.
async fn get(stream: &mut TcpStream, own: IpAddr, path: &str) -> std::io::Result<u16> {
    // As a URL names it: an IPv6 address in brackets.
    let host = match own {
        IpAddr::V4(own) => own.to_string(),
        IpAddr::V6(own) => format!("[{own}]"),
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: onehop-cloud-probe\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < LIMIT {
        if stream.read_buf(&mut answer).await? == 0 {
            break;
        }
    }
    status(&answer).ok_or_else(|| {
        std::io::Error::new(ErrorKind::InvalidData, "the answer has no HTTP status line")
    })
}

/// The code in `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    words
        .next()
        .filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

fn failed(error: &std::io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Outcome::Refused,
        ErrorKind::TimedOut => Outcome::Timeout,
        _ => Outcome::Error(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_is_read_as_it_is_and_nothing_else_passes() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nDate: now\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503\r\n"), Some(503));
        for bad in [
            &b""[..],
            b"SSH-2.0-x\r\n",
            b"HTTP/1.1 soon\r\n",
            b"\xff\xfe\n",
        ] {
            assert_eq!(status(bad), None);
        }
    }
}
