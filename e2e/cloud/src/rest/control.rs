//! The control interface (FC-10): knobs, faults and edits out of band. Apart from the API, since no
//! cloud has it: the product must never reach it.
//!
//! | Path | Verbs | Body |
//! | --- | --- | --- |
//! | `/control/faults` | GET PUT DELETE | [`Faults`]: hold until changed |
//! | `/control/injections` | GET POST DELETE | [`Injection`]: hits the next calls |
//! | `/control/edits` | POST | [`Edit`]: a change behind the product's back |
//! | `/control/state` | GET | numbers of calls and what broke the cloud's own rules |

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::error::{self, Failure};
use super::handlers::read;
use crate::cloud::Cloud;
use crate::engine::{Edit, Faults, Injection};

/// The control interface over `cloud`.
pub fn router(cloud: Cloud) -> Router {
    Router::new()
        .route(
            "/control/faults",
            get(get_faults).put(put_faults).delete(clear_faults),
        )
        .route(
            "/control/injections",
            get(get_injections)
                .post(add_injection)
                .delete(clear_injections),
        )
        .route("/control/edits", post(edit))
        .route("/control/state", get(state))
        .method_not_allowed_fallback(error::method_not_allowed)
        .with_state(cloud)
        .layer(from_fn(error::in_our_form))
}

async fn get_faults(State(cloud): State<Cloud>) -> Json<Faults> {
    Json(cloud.look(|engine| engine.faults().clone()))
}

async fn put_faults(State(cloud): State<Cloud>, body: Bytes) -> Result<Json<Faults>, Failure> {
    let faults: Faults = read(&body)?;
    cloud.with(|engine, now| engine.set_faults(now, faults));
    Ok(get_faults(State(cloud)).await)
}

async fn clear_faults(State(cloud): State<Cloud>) -> StatusCode {
    cloud.with(|engine, now| engine.set_faults(now, Faults::default()));
    StatusCode::NO_CONTENT
}

async fn get_injections(State(cloud): State<Cloud>) -> Json<Value> {
    Json(cloud.look(|engine| json!({ "items": engine.injections() })))
}

async fn add_injection(State(cloud): State<Cloud>, body: Bytes) -> Result<StatusCode, Failure> {
    let injection: Injection = read(&body)?;
    cloud.with(|engine, _| engine.inject(injection));
    Ok(StatusCode::NO_CONTENT)
}

async fn clear_injections(State(cloud): State<Cloud>) -> StatusCode {
    cloud.with(|engine, _| engine.clear_injections());
    StatusCode::NO_CONTENT
}

async fn edit(State(cloud): State<Cloud>, body: Bytes) -> Result<StatusCode, Failure> {
    let edit: Edit = read(&body)?;
    cloud.with(|engine, now| engine.edit(now, &edit))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn state(State(cloud): State<Cloud>) -> Json<Value> {
    let answer = |engine: &crate::engine::Engine| {
        let calls: serde_json::Map<String, Value> = engine
            .calls()
            .iter()
            .map(|(operation, count)| (format!("{operation:?}"), json!(count)))
            .collect();
        json!({ "calls": calls, "violations": engine.violations() })
    };
    Json(cloud.look(answer))
}
