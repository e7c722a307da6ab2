//! The program in test pods: says who it is and whom it sees, over TCP, HTTP and UDP (FC-79c).
//!
//! One thread, tokio. How it takes SIGTERM is an argument: that decides what a rollout can lose. Started by the
//! kubelet stand-in, which sets `POD_NAME`, `POD_UID` and `NODE_NAME`.

use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};

/// Answers on each port with the pod's name and UID, its node, and both addresses of the connection, as JSON.
#[derive(Parser)]
struct Args {
    /// TCP port: a line of JSON on connect, then every line comes back. Repeatable.
    #[arg(long)]
    tcp: Vec<u16>,
    /// HTTP/1.1 port: the JSON for any path; /ready is 503 before the start delay and after SIGTERM. Repeatable.
    #[arg(long)]
    http: Vec<u16>,
    /// UDP port: every datagram is answered by the JSON with the datagram in it. Repeatable.
    #[arg(long)]
    udp: Vec<u16>,
    /// What SIGTERM does: "exit" at once, "serve:5s" (accept so long, then finish what is open), "ignore".
    #[arg(long, default_value = "exit")]
    on_term: OnTerm,
    /// Time before /ready answers 200, in seconds ("2", "0.5s").
    #[arg(long, default_value = "0", value_parser = seconds)]
    start_delay: Duration,
    /// How many times shorter than said the time to serve after SIGTERM is.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    speed: u32,
    /// TCP and HTTP connections may begin with a header of the PROXY protocol, version 2: the answer has it as `proxy`. It
    /// is awaited for half a second.
    #[arg(long)]
    proxy_protocol: bool,
    /// Own name.
    #[arg(long, env = "POD_NAME", default_value = "")]
    pod_name: String,
    /// Own UID.
    #[arg(long, env = "POD_UID", default_value = "")]
    pod_uid: String,
    /// Node it runs on.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    node_name: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OnTerm {
    Exit,
    Serve(Duration),
    Ignore,
}

impl FromStr for OnTerm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "exit" => Ok(Self::Exit),
            None if text == "ignore" => Ok(Self::Ignore),
            Some(("serve", time)) => seconds(time).map(Self::Serve),
            _ => Err(format!(
                "{text:?}: allowed are exit, serve:<seconds>, ignore"
            )),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .trim_end_matches('s')
        .parse()
        .map_err(|e| format!("{text:?}: {e}"))?;
    Duration::try_from_secs_f64(number).map_err(|e| format!("{text:?}: {e}"))
}

/// Where the program is in its life; handlers watch it.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Starting,
    Ready,
    /// SIGTERM came; still accepting.
    Terminating,
    /// No new connections; the open ones may finish.
    Closing,
}

struct Identity {
    pod: String,
    uid: String,
    node: String,
    proxy_protocol: bool,
}

impl Identity {
    fn answer(&self, peer: SocketAddr, local: SocketAddr) -> serde_json::Value {
        // One socket serves both families; IPv4 is told as such.
        let [peer, local] = [peer, local].map(|a| SocketAddr::new(a.ip().to_canonical(), a.port()));
        json!({"pod": self.pod, "uid": self.uid, "node": self.node, "peer": peer, "local": local})
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let term = signal(SignalKind::terminate())?;
    let identity = Rc::new(Identity {
        pod: args.pod_name,
        uid: args.pod_uid,
        node: args.node_name,
        proxy_protocol: args.proxy_protocol,
    });
    let (set_stage, stage) = watch::channel(Stage::Starting);
    let mut ports = JoinSet::new();
    for port in args.tcp {
        let listener = listen(port)?;
        ports.spawn_local(accept(
            listener,
            Rc::clone(&identity),
            stage.clone(),
            echo_lines,
        ));
    }
    for port in args.http {
        let listener = listen(port)?;
        ports.spawn_local(accept(listener, Rc::clone(&identity), stage.clone(), http));
    }
    for port in args.udp {
        let socket = bind(Type::DGRAM, Protocol::UDP, port)?;
        let socket = UdpSocket::from_std(socket.into())?;
        ports.spawn_local(datagrams(socket, Rc::clone(&identity), stage.clone()));
    }
    drop(stage);
    let on_term = match args.on_term {
        OnTerm::Serve(time) => OnTerm::Serve(time / args.speed),
        other => other,
    };
    tokio::task::spawn_local(life(term, on_term, args.start_delay, set_stage));
    while ports.join_next().await.is_some() {}
    Ok(())
}

/// Moves the stage along: start delay, SIGTERM, end of the time to serve.
async fn life(mut term: Signal, on_term: OnTerm, delay: Duration, stage: watch::Sender<Stage>) {
    tokio::select! {
        () = tokio::time::sleep(delay) => {
            let _ = stage.send(Stage::Ready);
            term.recv().await;
        }
        _ = term.recv() => {}
    }
    match on_term {
        OnTerm::Exit => std::process::exit(0),
        OnTerm::Ignore => std::future::pending().await,
        OnTerm::Serve(time) => {
            let _ = stage.send(Stage::Terminating);
            tokio::time::sleep(time).await;
            let _ = stage.send(Stage::Closing);
            // Kept, so that handlers see the last stage and no closed channel.
            stage.closed().await;
        }
    }
}

fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let what = || format!("listen on tcp port {port}");
    let socket = bind(Type::STREAM, Protocol::TCP, port)?;
    socket.listen(1024).with_context(what)?;
    TcpListener::from_std(socket.into()).with_context(what)
}

/// A socket on all addresses of both families.
fn bind(kind: Type, protocol: Protocol, port: u16) -> anyhow::Result<Socket> {
    let what = || format!("bind {protocol:?} port {port}");
    let socket = Socket::new(Domain::IPV6, kind, Some(protocol)).with_context(what)?;
    socket.set_only_v6(false)?;
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket
        .bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())
        .with_context(what)?;
    Ok(socket)
}

/// Accepts until the closing stage, with whatever lies in the backlog then, and returns when every connection is
/// done.
async fn accept<F, H>(
    listener: TcpListener,
    identity: Rc<Identity>,
    stage: watch::Receiver<Stage>,
    handle: H,
) where
    H: Fn(TcpStream, SocketAddr, Rc<Identity>, watch::Receiver<Stage>) -> F,
    F: Future<Output = std::io::Result<()>> + 'static,
{
    let mut connections = JoinSet::new();
    let mut closing = stage.clone();
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => if let Ok((stream, peer)) = accepted {
                let _ = stream.set_nodelay(true);
                connections.spawn_local(handle(stream, peer, Rc::clone(&identity), stage.clone()));
            },
            Some(_) = connections.join_next() => {}
            _ = closing.wait_for(|s| *s == Stage::Closing) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// A line of JSON, then an echo of each line until the client is done.
async fn echo_lines(
    stream: TcpStream,
    peer: SocketAddr,
    identity: Rc<Identity>,
    _stage: watch::Receiver<Stage>,
) -> std::io::Result<()> {
    let mut answer = identity.answer(peer, stream.local_addr()?);
    let mut stream = BufReader::new(stream);
    if identity.proxy_protocol {
        answer["proxy"] = preface(&mut stream).await?;
    }
    let greeting = format!("{answer}\n");
    stream.write_all(greeting.as_bytes()).await?;
    let mut line = Vec::new();
    while stream.read_until(b'\n', &mut line).await? > 0 {
        stream.write_all(&line).await?;
        line.clear();
    }
    Ok(())
}

/// The header of the PROXY protocol that the connection begins with: who asked, and where; nothing in it for a connection
/// of the proxy's own, null where there is none.
async fn preface(stream: &mut BufReader<TcpStream>) -> std::io::Result<serde_json::Value> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let begins = tokio::time::timeout(Duration::from_millis(500), stream.fill_buf()).await;
    let Ok(bytes) = begins else {
        return Ok(serde_json::Value::Null);
    };
    if bytes?.first() != SIGNATURE.first() {
        return Ok(serde_json::Value::Null);
    }
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    if !head.starts_with(SIGNATURE) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    stream.read_exact(&mut rest).await?;
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let address = |at: usize, length: usize| {
        let bytes = &rest[at..at + length];
        let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
    };
    let length = match (head[12], head[13]) {
        (0x20, _) => return Ok(json!({})),
        (0x21, 0x11) if rest.len() >= 12 => 4,
        (0x21, 0x21) if rest.len() >= 36 => 16,
        _ => return Err(std::io::ErrorKind::InvalidData.into()),
    };
    let end = |at: usize, port: u16| {
        let address = address(at, length).map_err(|_| std::io::ErrorKind::InvalidData)?;
        std::io::Result::Ok(SocketAddr::new(address, port))
    };
    let (source, destination) = (
        end(0, port(2 * length))?,
        end(length, port(2 * length + 2))?,
    );
    Ok(json!({"source": source, "destination": destination}))
}

/// HTTP/1.1 without bodies in requests. From SIGTERM on each answer is the connection's last, and an idle
/// connection is closed when the listener is.
async fn http(
    stream: TcpStream,
    peer: SocketAddr,
    identity: Rc<Identity>,
    stage: watch::Receiver<Stage>,
) -> std::io::Result<()> {
    let local = stream.local_addr()?;
    let mut stream = BufReader::new(stream);
    let mut answer = identity.answer(peer, local);
    if identity.proxy_protocol {
        answer["proxy"] = preface(&mut stream).await?;
    }
    let mut closing = stage.clone();
    let mut served = false;
    loop {
        // A connection that was accepted gets its first answer, however late its request comes.
        let request = tokio::select! {
            biased;
            head = request_head(&mut stream) => head?,
            _ = closing.wait_for(|s| *s == Stage::Closing), if served => return Ok(()),
        };
        served = true;
        let Some(request) = request else {
            return Ok(());
        };
        let now = *stage.borrow();
        let refused = request.path == "/ready" && now != Stage::Ready;
        let status = if refused {
            "503 Service Unavailable"
        } else {
            "200 OK"
        };
        let close = request.close || matches!(now, Stage::Terminating | Stage::Closing);
        let body = format!("{answer}\n");
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: {}\r\n\r\n{}",
            body.len(),
            if close { "close" } else { "keep-alive" },
            if request.head_only { "" } else { &body },
        );
        stream.write_all(answer.as_bytes()).await?;
        if close {
            return stream.shutdown().await;
        }
    }
}

struct Request {
    path: String,
    head_only: bool,
    close: bool,
}

async fn request_head(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let mut close = words.next().as_deref() == Some("HTTP/1.0");
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            return Ok(Some(Request {
                path,
                head_only: method == "HEAD",
                close,
            }));
        }
        close |= header == "connection: close";
    }
}

async fn datagrams(socket: UdpSocket, identity: Rc<Identity>, mut stage: watch::Receiver<Stage>) {
    let mut buffer = vec![0; 65536];
    let Ok(local) = socket.local_addr() else {
        return;
    };
    loop {
        tokio::select! {
            biased;
            received = socket.recv_from(&mut buffer) => if let Ok((length, peer)) = received {
                let mut answer = identity.answer(peer, local);
                answer["data"] = String::from_utf8_lossy(&buffer[..length]).into();
                let _ = socket.send_to(answer.to_string().as_bytes(), peer).await;
            },
            _ = stage.wait_for(|s| *s == Stage::Closing) => return,
        }
    }
}
