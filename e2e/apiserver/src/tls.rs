//! The server on a socket: TLS with certificates made at run time, bearer tokens, kubeconfigs.
//!
//! The caller brings the listener, so that it can live in any network namespace.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::ApiError;
use crate::http::{Body, handle, respond};
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

/// The authority that signs the certificates of one server.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kubernetes");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    fn acceptor(&self, names: &[String]) -> Result<TlsAcceptor, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.to_vec())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
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
        let acceptor = self.authority()?.acceptor(&names)?;
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
        Ok(self.authority()?.pem.clone())
    }

    /// A kubeconfig for an identity, as YAML.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub fn kubeconfig(&self, server_url: &str, identity: &Identity) -> Result<String, TlsError> {
        let authority = STANDARD.encode(self.ca_pem()?);
        let token = self.token(identity);
        Ok(format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: onehop\n  cluster:\n    server: {server_url}\n    certificate-authority-data: {authority}\nusers:\n- name: user\n  user:\n    token: {token}\ncontexts:\n- name: onehop\n  context:\n    cluster: onehop\n    user: user\n    namespace: default\ncurrent-context: onehop\n"
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
