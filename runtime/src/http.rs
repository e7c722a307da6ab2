//! Small HTTP servers: health ports, metrics, webhooks.
//!
//! The caller brings a listener (in tests, from a network namespace of its own) or has one bound
//! here, with retries while somebody else still holds the port.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1::Builder;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::clock::Clock;

/// Connections that one server works on at the same time; more wait in the listener's queue.
const CONNECTIONS: usize = 512;
/// Time in which a request's head must have come.
const HEAD: Duration = Duration::from_secs(5);
/// How long connections that were accepted may still take when a server ends.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// Pause after the system refused to accept a connection (out of descriptors).
const PAUSE: Duration = Duration::from_millis(50);

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds the address, trying again for as long as it takes. `failed` hears of each failure. Another process of the same
/// user may bind it, too, if it asks for that as this does: so one takes over from the other without a pause.
pub async fn bind(
    address: SocketAddr,
    clock: &Clock,
    mut backoff: Backoff,
    mut failed: impl FnMut(&std::io::Error),
) -> TcpListener {
    loop {
        match listen(address) {
            Ok(listener) => return listener,
            Err(error) => {
                failed(&error);
                clock.sleep(backoff.next_delay()).await;
            }
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the future is dropped, which closes the listener and every connection.
///
/// `service` answers one request; `hyper::service::service_fn` makes one from a function, and
/// `hyper_util::service::TowerToHyperService` from an axum router.
pub async fn serve<S, B, F>(listener: TcpListener, clock: Clock, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future = F>,
    S: Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    serve_each(listener, clock, move |stream| {
        converse(stream, service.clone())
    })
    .await;
}

/// Accepts connections until the future is dropped, which closes the listener and every connection. `talk` has each.
pub async fn serve_each<T, F>(listener: TcpListener, clock: Clock, talk: T)
where
    T: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    accept_each(&listener, clock, talk, &mut connections).await;
}

/// The same until `closing` ends: then it accepts no more, and what was accepted is answered, for a second at most.
pub async fn serve_until<T, F>(
    listener: TcpListener,
    clock: Clock,
    talk: T,
    closing: impl Future<Output = ()>,
) where
    T: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    tokio::select! {
        () = accept_each(&listener, clock, talk, &mut connections) => {}
        () = closing => {}
    }
    drop(listener);
    let answered = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = answered => {}
        () = clock.sleep(ANSWERED_WITHIN) => {}
    }
}

async fn accept_each<T, F>(
    listener: &TcpListener,
    clock: Clock,
    talk: T,
    connections: &mut JoinSet<()>,
) where
    T: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed, so there is always a permit in the end.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                clock.sleep(PAUSE).await;
                continue;
            }
        };
        let conversation = talk(stream);
        connections.spawn(async move {
            conversation.await;
            drop(permit);
        });
    }
}

/// Answers the requests of one connection.
pub async fn converse<S, B>(stream: impl AsyncRead + AsyncWrite + Unpin + Send, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // HTTP/1 only: probes and scrapers speak it, and a connection whose protocol is yet to be found
    // out would have no time-out.
    let mut server = Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        // Some probes of load balancers compare names of headers byte by byte.
        .title_case_headers(true);
    // The other side went away or sent no HTTP: its business.
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Policy;
    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::service::service_fn;
    use onehop_core::time::Time;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn serves_on_a_given_listener_and_closes_it_when_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Clock::fixed(Time::EPOCH);
        let hello = service_fn(|_| async { Ok(Response::new(Full::new(Bytes::from("hello")))) });
        let server = tokio::spawn(serve(listener, clock, hello));
        assert!(get(address).await.ends_with("hello"));
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let clock = Clock::fixed(Time::EPOCH);
        let hello = service_fn(|_| async { Ok(Response::new(Full::new(Bytes::from("hello")))) });
        let server = tokio::spawn(serve(listener, clock, hello));
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut heard = Vec::new();
        let closed = clock.within(2 * HEAD, silent.read_to_end(&mut heard)).await;
        assert!(closed.is_ok());
        server.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn s105_binding_goes_on_until_the_port_is_free() {
        let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = holder.local_addr().unwrap();
        let mut holder = Some(holder);
        let mut failures = 0;
        let backoff = Policy::BIND.start(&mut SmallRng::seed_from_u64(1));
        let clock = Clock::fixed(Time::EPOCH);
        let bound = bind(address, &clock, backoff, |_| {
            failures += 1;
            if failures == 3 {
                holder.take();
            }
        });
        assert_eq!(bound.await.local_addr().unwrap(), address);
        assert_eq!(failures, 3);
    }
}
