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
            _ => {
                let body = "404 page not found\n";
                return response(StatusCode::NOT_FOUND, "text/plain", body).into();
            }
        };
        response(status, "application/json", body).into()
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

#[cfg(test)]
mod tests {
    use onehop_core::time::Time;

    use super::*;

    const GOOD: ProxyAnswer = ProxyAnswer {
        live: true,
        programmed: true,
        node_eligible: true,
        last_updated: Some(Time::EPOCH),
        now: Time::EPOCH,
    };

    #[test]
    fn s111_healthz_is_livez_and_an_eligible_node() {
        let (status, body) = healthz(&GOOD);
        assert_eq!(status, StatusCode::OK);
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["nodeEligible"], true);
        assert_eq!(body["lastUpdated"], body["currentTime"]);
        let leaving = ProxyAnswer {
            node_eligible: false,
            ..GOOD
        };
        assert_eq!(healthz(&leaving).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(livez(&leaving).0, StatusCode::OK);
    }

    #[test]
    fn s112_fresh_node_is_live_but_not_healthy() {
        let fresh = ProxyAnswer {
            programmed: false,
            last_updated: None,
            ..GOOD
        };
        assert_eq!(healthz(&fresh).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(livez(&fresh).0, StatusCode::OK);
        let late = ProxyAnswer {
            live: false,
            ..GOOD
        };
        assert_eq!(livez(&late).0, StatusCode::SERVICE_UNAVAILABLE);
    }
}
