//! The server on a socket: TLS with certificates made at run time, bearer tokens, kubeconfigs.
//!
//! The caller brings the listener, so that it can live in any network namespace.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::ApiError;
use crate::http::{Body, handle, respond};
use crate::pki::{Credentials, Issued, kubeconfig};
use crate::server::{ApiServer, Identity};

/// Why the server could not be put on a socket.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate could be made.
    #[error("making the API server's certificate failed: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The certificate was not accepted by the TLS library.
    #[error("setting up TLS failed: {0}")]
    Tls(#[from] rustls::Error),
    /// The listener cannot be used.
    #[error("taking over the listener failed: {0}")]
    Listener(#[from] io::Error),
}

fn acceptor(issued: &Issued) -> Result<TlsAcceptor, TlsError> {
    let (certificate, key) = issued.der();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A server on a socket. Dropping it closes the listener and every connection.
#[must_use]
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    _stop: DropGuard,
}

impl Serving {
    /// Address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl ApiServer {
    /// Serves HTTPS on a listener; `names` are the host names and addresses that clients use.
    ///
    /// # Errors
    /// If no certificate can be made or the listener cannot be used.
    pub fn serve_tls(
        &self,
        listener: std::net::TcpListener,
        names: &[String],
    ) -> Result<Serving, TlsError> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let mut names = names.to_vec();
        names.push("kubernetes.default.svc".into());
        names.push("localhost".into());
        if !address.ip().is_unspecified() {
            names.push(address.ip().to_string());
        }
        names.sort();
        names.dedup();
        let acceptor = acceptor(&self.authority()?.server(&names)?)?;
        let stop = CancellationToken::new();
        tokio::spawn(accept(self.clone(), listener, acceptor, stop.clone()));
        Ok(Serving {
            address,
            _stop: stop.drop_guard(),
        })
    }

    /// Certificate of the authority, as PEM.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn ca_pem(&self) -> Result<String, TlsError> {
        Ok(self.authority()?.pem().to_owned())
    }

    /// A kubeconfig for an identity, as YAML.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn kubeconfig(&self, server_url: &str, identity: &Identity) -> Result<String, TlsError> {
        let token = self.token(identity);
        let credentials = Credentials::Token(&token);
        Ok(kubeconfig(
            server_url,
            self.authority()?.pem(),
            &credentials,
        ))
    }
}

async fn accept(
    server: ApiServer,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(server.clone(), stream, acceptor.clone());
                let stop = stop.clone();
                tokio::spawn(async move {
                    tokio::select! { () = stop.cancelled() => {} () = connection => {} }
                });
            }
            Err(error) => tracing::warn!(%error, "accepting a connection failed"),
        }
    }
}

async fn connection(server: ApiServer, stream: TcpStream, acceptor: TlsAcceptor) {
    // Events of a watch are small and must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY was refused");
    }
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
    };
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { answer(&server, request).await }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    if let Err(error) = builder
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(error, "a connection ended");
    }
}

async fn answer(
    server: &ApiServer,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let Some(identity) = identity(server, request.headers()) else {
        return Ok(respond::error(&ApiError::unauthorized()));
    };
    let (parts, body) = request.into_parts();
    let body: Bytes = body.collect().await?.to_bytes();
    Ok(handle::handle(
        server,
        &identity,
        &Request::from_parts(parts, body),
    ))
}

fn identity(server: &ApiServer, headers: &HeaderMap) -> Option<Identity> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    server.identity(header.strip_prefix("Bearer ")?)
}
