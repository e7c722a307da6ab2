//! One request over one fresh socket, and the class of its failure.

use super::{Answer, CLIENT_TIMEOUT, SocketSource, Transport};
use serde::Serialize;
use std::{io, net::SocketAddr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, UdpSocket},
    time::timeout,
};

/// Where a client sends to, and over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// TCP or UDP.
    pub transport: Transport,
    /// Address and port that the client connects to.
    pub address: SocketAddr,
}

/// Classes of FC-81.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A reset answered the SYN, or an ICMP refusal the datagram.
    Refused,
    /// An established connection was reset.
    Rst,
    /// Nothing answered the SYN in time.
    TimeoutConnect,
    /// Connected (or sent), but no answer in time.
    TimeoutResponse,
    /// Closed in the middle of an answer.
    Eof,
    /// Answered, but not by a pod of the Service.
    Misdelivered,
    /// The client itself could not send: a fault of the harness.
    Client,
}

/// A failed request.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its class.
    pub kind: FailureKind,
    /// The client's own address, if the socket had one; it finds the flow in the load balancer's tables.
    pub local: Option<SocketAddr>,
    /// What the system said.
    pub detail: String,
}

impl Failure {
    fn new(kind: FailureKind, local: Option<SocketAddr>, detail: impl ToString) -> Self {
        Self {
            kind,
            local,
            detail: detail.to_string(),
        }
    }

    fn timed_out(kind: FailureKind, local: Option<SocketAddr>) -> Self {
        Self::new(
            kind,
            local,
            format!("no answer within {} s", CLIENT_TIMEOUT.as_secs()),
        )
    }

    fn of(error: &io::Error, fallback: FailureKind, local: Option<SocketAddr>) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::ConnectionRefused => FailureKind::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => FailureKind::Rst,
            io::ErrorKind::UnexpectedEof => FailureKind::Eof,
            _ => fallback,
        };
        Self::new(kind, local, error)
    }
}

/// Opens a connection, reads the line by which the server says who it is, closes.
pub async fn ask_tcp(
    sockets: &SocketSource,
    to: SocketAddr,
) -> Result<(Answer, SocketAddr), Failure> {
    let (mut stream, local) = connect(sockets, to).await?;
    let answer = greeting(&mut stream, local).await?;
    Ok((answer, local))
}

/// Connects within the client's time-out.
pub(super) async fn connect(
    sockets: &SocketSource,
    to: SocketAddr,
) -> Result<(TcpStream, SocketAddr), Failure> {
    let socket =
        sockets(Transport::Tcp, to).map_err(|e| Failure::new(FailureKind::Client, None, e))?;
    // Bound before it connects, so that a failed attempt still knows which flow it was.
    let local = socket.local_addr().ok().and_then(|a| a.as_socket());
    let socket = TcpSocket::from_std_stream(socket.into());
    match timeout(CLIENT_TIMEOUT, socket.connect(to)).await {
        Ok(Ok(stream)) => {
            let local = stream
                .local_addr()
                .map_err(|e| Failure::of(&e, FailureKind::Client, local))?;
            Ok((stream, local))
        }
        Ok(Err(error)) => Err(Failure::of(&error, FailureKind::TimeoutConnect, local)),
        Err(_) => Err(Failure::timed_out(FailureKind::TimeoutConnect, local)),
    }
}

/// Reads the server's first line.
pub(super) async fn greeting(stream: &mut TcpStream, local: SocketAddr) -> Result<Answer, Failure> {
    let line = in_time(local, read_line(stream)).await?;
    Answer::parse(&line).ok_or_else(|| {
        Failure::new(
            FailureKind::Misdelivered,
            Some(local),
            String::from_utf8_lossy(&line),
        )
    })
}

/// Sends a line and awaits its echo.
pub(super) async fn echo(stream: &mut TcpStream, local: SocketAddr) -> Result<(), Failure> {
    const LINE: &[u8] = b"still there?\n";
    let talk = async {
        stream.write_all(LINE).await?;
        read_line(stream).await
    };
    let line = in_time(local, talk).await?;
    if line == LINE {
        Ok(())
    } else {
        Err(Failure::new(
            FailureKind::Misdelivered,
            Some(local),
            String::from_utf8_lossy(&line),
        ))
    }
}

async fn in_time<T>(
    local: SocketAddr,
    talk: impl Future<Output = io::Result<T>>,
) -> Result<T, Failure> {
    match timeout(CLIENT_TIMEOUT, talk).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failure::of(&error, FailureKind::Rst, Some(local))),
        Err(_) => Err(Failure::timed_out(
            FailureKind::TimeoutResponse,
            Some(local),
        )),
    }
}

async fn read_line(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::with_capacity(256);
    loop {
        if stream.read_buf(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.ends_with(b"\n") {
            return Ok(line);
        }
    }
}

/// Sends one datagram from a fresh socket and waits for its answer.
pub async fn ask_udp(
    sockets: &SocketSource,
    to: SocketAddr,
) -> Result<(Answer, SocketAddr), Failure> {
    let client = |e: io::Error| Failure::new(FailureKind::Client, None, e);
    let socket = sockets(Transport::Udp, to).map_err(client)?;
    let socket = UdpSocket::from_std(socket.into()).map_err(client)?;
    socket.connect(to).await.map_err(client)?;
    let local = socket.local_addr().map_err(client)?;
    let talk = async {
        socket.send(b"who\n").await?;
        let mut buffer = vec![0; 2048];
        let length = socket.recv(&mut buffer).await?;
        buffer.truncate(length);
        Ok::<_, io::Error>(buffer)
    };
    match timeout(CLIENT_TIMEOUT, talk).await {
        Ok(Ok(line)) => Answer::parse(&line)
            .map(|answer| (answer, local))
            .ok_or_else(|| {
                Failure::new(
                    FailureKind::Misdelivered,
                    Some(local),
                    String::from_utf8_lossy(&line),
                )
            }),
        Ok(Err(error)) => Err(Failure::of(
            &error,
            FailureKind::TimeoutResponse,
            Some(local),
        )),
        Err(_) => Err(Failure::timed_out(
            FailureKind::TimeoutResponse,
            Some(local),
        )),
    }
}

/// One request by the endpoint's transport.
pub(super) async fn ask(
    sockets: &SocketSource,
    to: Endpoint,
) -> Result<(Answer, SocketAddr), Failure> {
    match to.transport {
        Transport::Tcp => ask_tcp(sockets, to.address).await,
        Transport::Udp => ask_udp(sockets, to.address).await,
    }
}
