//! What the agent's own ports have in common: handlers are plain functions that answer from
//! memory; nothing here waits for anything.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use onehop_runtime::http::{bind, serve};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How the agent's ports name themselves, by which an agent tells another one from a kube-proxy (S-125).
pub const SERVER: &str = "onehop-node-agent";

/// Whose the kernel tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Another agent's, or not looked at yet.
    NotOurs,
    /// This process's.
    Ours,
}

/// Answers one request.
pub type Handler = Arc<dyn Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync>;

/// A response of a content type.
pub fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let value = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

/// One port of the agent.
pub struct Port {
    /// Where it listens.
    pub addr: SocketAddr,
    /// What it answers.
    pub handler: Handler,
    /// Clock.
    pub clock: Clock,
    /// Pauses between tries to bind (S-105).
    pub backoff: Backoff,
    /// Nothing listens before the tables are this process's: in standby the ports are answered by
    /// the agent that still has them (K-55).
    pub tables: watch::Receiver<Tables>,
    /// Closes the port and its connections.
    pub stop: CancellationToken,
}

impl Port {
    /// Binds, trying again for as long as it takes, and serves until it is stopped. `failed` hears
    /// of each failure to bind.
    pub async fn run(self, failed: impl FnMut(&std::io::Error)) {
        let Self {
            addr,
            handler,
            clock,
            backoff,
            mut tables,
            stop,
        } = self;
        let answer = service_fn(move |request| {
            let mut response = handler(&request);
            let name = header::HeaderValue::from_static(SERVER);
            response.headers_mut().insert(header::SERVER, name);
            async move { Ok::<_, Infallible>(response) }
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = async {
                if tables.wait_for(|tables| *tables == Tables::Ours).await.is_err() {
                    return;
                }
                let listener = bind(everywhere(addr), &clock, backoff, failed).await;
                serve(listener, clock, answer).await;
            } => {}
        }
    }
}

/// "All addresses" means those of both families, as for kube-proxy: one listener, since two would collide (S-100).
pub fn everywhere(addr: SocketAddr) -> SocketAddr {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, addr.port()));
    let wanted = addr.ip() == IpAddr::from(Ipv4Addr::UNSPECIFIED);
    // Nodes may have no IPv6 at all.
    if wanted && std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        return any;
    }
    addr
}
