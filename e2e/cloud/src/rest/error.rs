//! Errors on the wire: `{code, message, details}` with the status code that fits.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::ApiError;

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
