//! What the agent's own ports have in common: handlers are plain functions that answer from
//! memory; only what an administrator asks on the node itself waits for an answer of the app.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use onehop_runtime::http::{bind, converse, serve_until};
use onehop_runtime::scrape::Scrapes;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::health::doors::Doors;
use crate::preface::without_preface;

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

/// What a handler gives.
pub enum Answer {
    /// From memory.
    Now(Response<Full<Bytes>>),
    /// Once somebody else was asked.
    Later(BoxFuture<'static, Response<Full<Bytes>>>),
}

impl From<Response<Full<Bytes>>> for Answer {
    fn from(response: Response<Full<Bytes>>) -> Self {
        Self::Now(response)
    }
}

/// Answers one request. Who asks is among its extensions, as [`Caller`].
pub type Handler = Arc<dyn Fn(&Request<Incoming>) -> Answer + Send + Sync>;

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Caller(IpAddr);

impl Caller {
    /// Whether a request comes from this node itself, by loopback.
    pub fn is_this_node<B>(request: &Request<B>) -> bool {
        let caller = request.extensions().get::<Self>();
        caller.is_some_and(|Self(ip)| ip.to_canonical().is_loopback())
    }
}

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
    /// Closes the port and its connections at once.
    pub stop: CancellationToken,
    /// Closes the port once what was accepted is answered.
    pub closing: CancellationToken,
    /// Where it is counted while it is open, if probes of load balancers come to it.
    pub doors: Option<Doors>,
    /// Speaks TLS with these instead of plain HTTP; who may ask is the handler's business.
    pub scrapes: Option<Scrapes>,
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
            closing,
            doors,
            scrapes,
        } = self;
        let talk = move |stream: TcpStream| {
            let (handler, caller) = (handler.clone(), stream.peer_addr());
            let answer = service_fn(move |mut request: Request<Incoming>| {
                let caller = caller.as_ref().ok().map(|at| Caller(at.ip()));
                caller.and_then(|caller| request.extensions_mut().insert(caller));
                let answer = handler(&request);
                async move {
                    let mut response = match answer {
                        Answer::Now(response) => response,
                        Answer::Later(response) => response.await,
                    };
                    let name = header::HeaderValue::from_static(SERVER);
                    response.headers_mut().insert(header::SERVER, name);
                    Ok::<_, Infallible>(response)
                }
            });
            let scrapes = scrapes.clone();
            async move {
                if let Some(scrapes) = scrapes {
                    if let Some(stream) = scrapes.accept(stream).await {
                        converse(stream, answer).await;
                    }
                } else if let Some(stream) = without_preface(stream, clock).await {
                    converse(stream, answer).await;
                }
            }
        };
        let bound = async {
            let ours = |tables: &Tables| *tables == Tables::Ours;
            tables.wait_for(ours).await.ok().map(drop)?;
            Some(bind(everywhere(addr), &clock, backoff, failed).await)
        };
        let served = async {
            let listener = tokio::select! {
                bound = bound => bound,
                () = closing.cancelled() => None,
            };
            let Some(listener) = listener else { return };
            let _open = doors.as_ref().map(Doors::open);
            serve_until(listener, clock, talk, closing.cancelled()).await;
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = served => {}
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
