//! The controller's own HTTP: metrics on one port, health on another.

use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use onehop_runtime::metrics::{CONTENT_TYPE, Metrics};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::Phase;

/// Why a port is not served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another by flag")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Binds an address.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError { address, source })
}

/// `/metrics`.
pub fn metrics(metrics: Metrics) -> Router {
    let page = move || async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.page()) };
    Router::new().route("/metrics", get(page))
}

/// What readiness says of a phase.
pub fn standing(phase: &Phase) -> (StatusCode, String) {
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    match phase {
        Phase::Working => (StatusCode::OK, "ok".to_owned()),
        Phase::Standby { leader } => (StatusCode::OK, format!("standby: {leader} leads")),
        Phase::Starting => (unavailable, "filling caches".to_owned()),
        Phase::Listing { kinds } => (
            unavailable,
            format!(
                "waiting for the first list of {}: are onehop's CRDs installed, does the API server answer, and may \
                 this ServiceAccount list them? Nothing is written until then; the log has each answer",
                kinds.join(", ")
            ),
        ),
        Phase::Refused { why } => (unavailable, format!("not started: {why}")),
    }
}

/// `/healthz` and `/livez`: the process lives. `/readyz`: it reconciles, or would at once if the leader
/// went; a rollout of replicas must not wait for leadership.
pub fn health(phase: watch::Receiver<Phase>) -> Router {
    let ready = move || async move { standing(&phase.borrow()) };
    let alive = || async { "ok" };
    Router::new()
        .route("/healthz", get(alive))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
}
