//! `/healthz` and `/livez` of the proxy itself (S-110 to S-112). Cloud load balancers and people
//! ask; the kubelet does not (S-113).

use std::sync::Arc;

use http::StatusCode;

use super::board::{Board, ProxyAnswer};
use crate::http::{Handler, response};
use crate::metrics::Metrics;

/// Answers both paths from the board and counts the answers by code.
pub fn handler(board: Arc<Board>, metrics: Arc<Metrics>) -> Handler {
    Arc::new(move |request| {
        let answer = board.proxy();
        let (status, body) = match request.uri().path() {
            "/healthz" => {
                let (status, body) = healthz(&answer);
                metrics.healthz(status);
                (status, body)
            }
            "/livez" => {
                let (status, body) = livez(&answer);
                metrics.livez(status);
                (status, body)
            }
            _ => return response(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n"),
        };
        response(status, "application/json", body)
    })
}

fn livez(answer: &ProxyAnswer) -> (StatusCode, String) {
    let (updated, now) = times(answer);
    let body = format!("{{\"lastUpdated\": {updated:?},\"currentTime\": {now:?}}}");
    (status(answer.live), body)
}

fn healthz(answer: &ProxyAnswer) -> (StatusCode, String) {
    let (updated, now) = times(answer);
    let eligible = answer.node_eligible;
    let body = format!(
        "{{\"lastUpdated\": {updated:?},\"currentTime\": {now:?}, \"nodeEligible\": {eligible}}}"
    );
    (status(answer.live && answer.programmed && eligible), body)
}

fn status(ok: bool) -> StatusCode {
    if ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn times(answer: &ProxyAnswer) -> (String, String) {
    let updated = answer.last_updated.map(|time| time.to_string());
    (updated.unwrap_or_default(), answer.now.to_string())
}
