//! Errors on the wire: `{code, message, details}` with the status code that fits.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::ApiError;

/// Longest refusal of the server's own that is read.
const LIMIT: usize = 1 << 16;

/// What the server refuses by itself, before any handler (a body that is too large, a path that is no text), says it in
/// plain text. Puts that into our form.
pub(super) async fn in_our_form(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let plain = response.headers().get(CONTENT_TYPE);
    let plain = plain.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !status.is_client_error() || !plain {
        return response;
    }
    let text = to_bytes(response.into_body(), LIMIT)
        .await
        .unwrap_or_default();
    let code = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "body_too_large",
        _ => "invalid",
    };
    Failure::new(status, code, String::from_utf8_lossy(&text)).into_response()
}

/// The answer to a method that a path does not know.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    let message = format!("{uri} does not know {method}");
    Failure::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}

/// A refusal, ready to be sent.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    code: &'static str,
    message: String,
    details: Value,
    /// The client gets no answer at all.
    lost: bool,
    retry_after: Option<u64>,
}

impl Failure {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            details: json!({}),
            lost: false,
            retry_after: None,
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let (status, details) = match &error {
            ApiError::Invalid(problems) => (StatusCode::BAD_REQUEST, json!({ "fields": problems })),
            ApiError::KeyMissing => (StatusCode::BAD_REQUEST, json!({})),
            ApiError::KeyReused { key } => (StatusCode::CONFLICT, json!({ "key": key })),
            ApiError::NotFound { kind, id } => {
                (StatusCode::NOT_FOUND, json!({ "kind": kind, "id": id }))
            }
            ApiError::AddressInUse { address, holder } => (
                StatusCode::CONFLICT,
                json!({ "address": address, "holder": holder }),
            ),
            ApiError::AddressNotRouted { address } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({ "address": address }),
            ),
            ApiError::GroupInUse { used_by, .. } => {
                (StatusCode::CONFLICT, json!({ "loadBalancers": used_by }))
            }
            ApiError::Throttled { operation, .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                json!({ "operation": operation }),
            ),
            ApiError::QuotaExceeded { quota, limit } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({ "quota": quota, "limit": limit }),
            ),
            ApiError::Forbidden { operation } => {
                (StatusCode::FORBIDDEN, json!({ "operation": operation }))
            }
            ApiError::BadAttribute { text } => (StatusCode::BAD_REQUEST, json!({ "text": text })),
            ApiError::Unavailable { .. } | ApiError::ConnectionLost { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, json!({}))
            }
            ApiError::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, json!({})),
        };
        Self {
            status,
            code: error.code(),
            message: error.to_string(),
            details,
            lost: matches!(error, ApiError::ConnectionLost { .. }),
            retry_after: retry_after(&error),
        }
    }
}

/// Whole seconds of cloud time, at least one, as the header has no smaller unit.
fn retry_after(error: &ApiError) -> Option<u64> {
    match error {
        ApiError::Throttled { retry_after, .. } => {
            Some((retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0)).max(1))
        }
        _ => None,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.lost {
            // The server drops the connection when a body fails before anything was sent.
            let fails =
                futures::stream::iter([Err::<Vec<u8>, _>(std::io::Error::other(self.code))]);
            return (self.status, Body::from_stream(fails)).into_response();
        }
        let body = json!({ "code": self.code, "message": self.message, "details": self.details });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
