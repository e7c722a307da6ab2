//! Metrics where others than the own machine reach them: over TLS, and for those only who may read them (S-300).
//!
//! A scraper shows a token; the API server says whose it is (`TokenReview`) and whether that one may `get` the path
//! `/metrics` (`SubjectAccessReview`), as for its own metrics. Nothing else answers on such a port, and who shows no token
//! learns nothing of what does.

mod access;
mod certificate;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use kube::Client;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::access::Access;
use self::certificate::OwnCertificate;
use crate::clock::Clock;
use crate::http::{converse, serve_each};
use crate::metrics::CONTENT_TYPE;

/// The path that answers, and that a scraper has to be allowed to `get`.
pub const PATH: &str = "/metrics";
/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Who stands at the door of a port of metrics. Clones share what is known of tokens.
#[derive(Clone)]
pub struct Scrapes {
    acceptor: TlsAcceptor,
    access: Arc<Access>,
    clock: Clock,
}

/// What a request asks for, before it is known whether it may.
#[derive(Clone, Debug)]
pub struct Asked {
    token: Option<String>,
    answer: StatusCode,
}

impl Asked {
    /// Of a request.
    pub fn of<B>(request: &Request<B>) -> Self {
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        let answer = match request.uri().path() {
            PATH if reads => StatusCode::OK,
            PATH => StatusCode::METHOD_NOT_ALLOWED,
            _ => StatusCode::NOT_FOUND,
        };
        Self {
            token: token(request.headers()),
            answer,
        }
    }
}

/// The token of a request: `Authorization: Bearer …`, whose first word is written as one likes (RFC 9110, 11.1).
fn token(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

impl Scrapes {
    /// With a certificate made here for this name, and reviews by this client.
    pub fn new(name: &str, client: Client, clock: Clock) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(OwnCertificate::new(name, clock)));
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            access: Arc::new(Access::new(client, clock)),
            clock,
        })
    }

    /// The connection once it speaks TLS; none if it does not.
    pub async fn accept(&self, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = self.clock.within(HANDSHAKE, self.acceptor.accept(stream));
        match handshake.await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a handshake with a scraper failed");
                None
            }
            Err(_) => None,
        }
    }

    /// The answer to a request; `page` is made for who may read it only.
    pub async fn answer(
        &self,
        asked: Asked,
        page: impl FnOnce() -> String,
    ) -> Response<Full<Bytes>> {
        let status = match &asked.token {
            None => StatusCode::UNAUTHORIZED,
            Some(token) => match self.access.of(token).await {
                StatusCode::OK => asked.answer,
                refused => refused,
            },
        };
        let (kind, text) = match status {
            StatusCode::OK => (CONTENT_TYPE, page()),
            refused => ("text/plain", format!("{refused}\n")),
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// Answers on this port, and nothing but this, until the future is dropped.
    pub async fn serve(
        self,
        listener: TcpListener,
        page: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) {
        let talk = |stream| {
            let (scrapes, page) = (self.clone(), page.clone());
            async move {
                let Some(stream) = scrapes.accept(stream).await else {
                    return;
                };
                let service = service_fn(move |request| {
                    let (asked, scrapes, page) =
                        (Asked::of(&request), scrapes.clone(), page.clone());
                    async move { Ok::<_, Infallible>(scrapes.answer(asked, page).await) }
                });
                converse(stream, service).await;
            }
        };
        serve_each(listener, self.clock, talk).await;
    }
}

#[cfg(test)]
mod tests;
