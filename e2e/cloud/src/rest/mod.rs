//! The local cloud's REST API (harness.md section 6): JSON over HTTP, for provider `local`.
//!
//! | Resource | Verbs | Body |
//! | --- | --- | --- |
//! | `/v1/loadbalancers` | POST, GET `?tag=key=value` | [`LbBody`] → [`LbView`], `{items: [..]}` |
//! | `/v1/loadbalancers/{id}` | GET PUT DELETE | [`LbBody`] → [`LbView`] |
//! | `/v1/loadbalancers/{id}/listeners` | GET | `{items: [ListenerView]}` |
//! | `/v1/loadbalancers/{id}/listeners/{port}-{proto}` | GET PUT DELETE | `{group}` |
//! | `/v1/groups` | POST, GET `?tag=key=value` | [`GroupBody`] → [`GroupView`], `{items: [..]}` |
//! | `/v1/groups/{id}` | GET PUT DELETE | [`GroupBody`] → [`GroupView`] |
//! | `/v1/groups/{id}/targets` | POST (register) DELETE (deregister) | `{targets: [{address, port, zone?}]}` → `{targets: [TargetView]}` |
//! | `/v1/groups/{id}/targets` | GET `?target=address:port` | `{targets: [TargetView]}`: registered and draining ones, or those asked for |
//! | `/v1/events` | GET `?since=N&follow=true` | JSON lines |
//!
//! Creates need the header `Idempotency-Key` and answer 201, deletes 204. PUT replaces the whole
//! object. Who sends a `User-Agent` is named in the event log before each call that changes something.
//! Errors are `{code, message, details}`, also those that no handler has seen. Unknown fields are refused. Thin: all rules are the
//! engine's; this module only converts at the border.

mod callers;
pub mod control;
mod error;
mod events;
mod handlers;
mod resolve;
mod wire;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;

use crate::cloud::Cloud;
use error::Failure;

pub use wire::{
    GroupBody, GroupView, HealthBody, Items, LbBody, LbView, ListenerBody, ListenerView,
    TargetBody, TargetView, TargetsBody, TargetsView,
};

/// The API over `cloud`.
pub fn router(cloud: Cloud) -> Router {
    use handlers as h;
    Router::new()
        .route("/v1/loadbalancers", get(h::list_lbs).post(h::create_lb))
        .route(
            "/v1/loadbalancers/{id}",
            get(h::get_lb).put(h::update_lb).delete(h::delete_lb),
        )
        .route("/v1/loadbalancers/{id}/listeners", get(h::list_listeners))
        .route(
            "/v1/loadbalancers/{id}/listeners/{listener}",
            get(h::get_listener)
                .put(h::put_listener)
                .delete(h::delete_listener),
        )
        .route("/v1/groups", get(h::list_groups).post(h::create_group))
        .route(
            "/v1/groups/{id}",
            get(h::get_group)
                .put(h::update_group)
                .delete(h::delete_group),
        )
        .route(
            "/v1/groups/{id}/targets",
            get(h::get_targets).post(h::register).delete(h::deregister),
        )
        .route("/v1/events", get(events::stream))
        .fallback(|uri: Uri| async move {
            Failure::new(
                StatusCode::NOT_FOUND,
                "no_such_path",
                format!("no resource {uri}"),
            )
        })
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(from_fn_with_state(cloud.clone(), callers::note))
        .with_state(cloud)
        .layer(from_fn(error::in_our_form))
}

/// The API and the control interface over `cloud`.
pub fn router_with_control(cloud: Cloud) -> Router {
    control::router(cloud.clone()).merge(router(cloud))
}

/// Serves the API on `listener` until the task is dropped.
pub async fn serve(cloud: Cloud, listener: tokio::net::TcpListener) -> std::io::Result<()> {
    axum::serve(listener, router(cloud)).await
}

/// Serves the API and the control interface on one listener until the task is dropped.
pub async fn serve_with_control(
    cloud: Cloud,
    listener: tokio::net::TcpListener,
) -> std::io::Result<()> {
    axum::serve(listener, router_with_control(cloud)).await
}
