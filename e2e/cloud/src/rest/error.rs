//! Errors on the wire: `{code, message, details}` with the status code that fits.

use axum::Json;
use axum::http::StatusCode;
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
}

impl Failure {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            details: json!({}),
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
        };
        Self {
            status,
            code: error.code(),
            message: error.to_string(),
            details,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.code, "message": self.message, "details": self.details });
        (self.status, Json(body)).into_response()
    }
}
