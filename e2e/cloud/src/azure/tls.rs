//! TLS in front of the API: Resource Manager's clients refuse to send tokens without (AZ-490).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use crate::certificate::Certificate;

/// Longest handshake: the next client waits for it.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A listener whose connections are TLS.
pub(super) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    pub(super) fn new(tcp: TcpListener, certificate: &Certificate) -> io::Result<Self> {
        let acceptor = certificate.acceptor()?;
        Ok(Self { tcp, acceptor })
    }
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = axum::serve::Listener::accept(&mut self.tcp).await;
            // A client that does not finish its handshake has no connection.
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, self.acceptor.accept(stream)).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}
