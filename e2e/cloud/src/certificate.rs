//! Certificates with which the cloud's own servers and listeners end TLS; tests make them when they run.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate for a server and its key, both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Certificate {
    /// What ends TLS with it. An error says what is wrong with certificate or key.
    pub(crate) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let wrong = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let chain = CertificateDer::from_pem_slice(self.certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        let (chain, key) = (chain.map_err(|e| wrong(&e))?, key.map_err(|e| wrong(&e))?);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| wrong(&e))?
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .map_err(|e| wrong(&e))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
