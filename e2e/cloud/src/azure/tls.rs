//! TLS in front of the API: Resource Manager's clients refuse to send tokens without (AZ-490).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Longest handshake: the next client waits for it.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A certificate for the server and its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// A listener whose connections are TLS.
pub(super) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    pub(super) fn new(tcp: TcpListener, certificate: &Certificate) -> io::Result<Self> {
        let wrong = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let chain = CertificateDer::from_pem_slice(certificate.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes());
        let (chain, key) = (chain.map_err(|e| wrong(&e))?, key.map_err(|e| wrong(&e))?);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(&e))?
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .map_err(|e| wrong(&e))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
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
