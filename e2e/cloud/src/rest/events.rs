//! `/v1/events`: the log as JSON lines, from a number on, once or without end (FC-102).

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Deserialize;

use crate::cloud::Cloud;
use crate::engine::{ApiError, Seq};

use super::error::Failure;

/// Lines per chunk: bounds what a slow reader holds in memory.
const CHUNK: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Window {
    /// Number of the last event already known.
    #[serde(default)]
    since: Seq,
    /// Whether to go on as events come.
    #[serde(default)]
    follow: bool,
}

pub(super) async fn stream(
    State(cloud): State<Cloud>,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(Window { since, follow }) =
        window.map_err(|error| ApiError::invalid("query", error.body_text()))?;
    let lines = stream::unfold((cloud, since), move |(cloud, since)| async move {
        // Subscribed before the look, so that no event falls between the two.
        let mut turns = cloud.turns();
        loop {
            let events = cloud.events_after(since, CHUNK);
            if let Some(last) = events.last().map(|event| event.seq) {
                let chunk: String = events.iter().map(|event| event.line() + "\n").collect();
                return Some((Ok::<_, std::io::Error>(Bytes::from(chunk)), (cloud, last)));
            }
            if !follow || turns.changed().await.is_err() {
                return None;
            }
        }
    });
    let head = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((head, Body::from_stream(lines)).into_response())
}
