//! `kube::Client`s that call the server in process, without a socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::client::Body as KubeBody;
use tower::Service;

use crate::http::{Body, handle};
use crate::server::{ApiServer, Identity};

/// A transport for kube-rs: each request is one call of the server.
#[derive(Clone)]
pub struct Transport {
    server: ApiServer,
    identity: Identity,
}

impl Service<Request<KubeBody>> for Transport {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<KubeBody>) -> Self::Future {
        let (server, identity) = (self.server.clone(), self.identity.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // The body of an in-process request is in memory; reading it cannot fail half-way.
            let body = body
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            Ok(handle::handle(
                &server,
                &identity,
                &Request::from_parts(parts, body),
            ))
        })
    }
}

impl ApiServer {
    /// The transport under [`ApiServer::client`], to put layers around it.
    pub fn transport(&self, identity: &Identity) -> Transport {
        Transport {
            server: self.clone(),
            identity: identity.clone(),
        }
    }

    /// A client that speaks in the name of an identity.
    pub fn client(&self, identity: &Identity) -> kube::Client {
        kube::Client::new(self.transport(identity), "default")
    }
}
