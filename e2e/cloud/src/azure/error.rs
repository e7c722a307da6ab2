//! Refusals with ARM's codes.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::engine::ApiError;

/// A refused call.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// A detail with a code of its own.
    pub(super) detail: Option<&'static str>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            detail: None,
        }
    }

    /// A request that says something wrong.
    pub(super) fn bad(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn not_found(id: &str) -> Self {
        let message = format!("The Resource '{id}' was not found.");
        Self::new(StatusCode::NOT_FOUND, "ResourceNotFound", message)
    }

    pub(super) fn precondition(id: &str) -> Self {
        let message = format!("Precondition failed: the etag of {id} is another one.");
        let refusal = Self::new(
            StatusCode::PRECONDITION_FAILED,
            "PreconditionFailed",
            message,
        );
        Self {
            detail: Some("PreconditionFailedEtagMismatch"),
            ..refusal
        }
    }

    /// Something that a resource refers to is in no good state (AZ-184).
    pub(super) fn unprovisioned(what: &str, of: &str) -> Self {
        let message = format!(
            "Cannot proceed with operation because resource {what} used by resource {of} is not in Succeeded state."
        );
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "RetryableError", message);
        Self {
            detail: Some("ReferencedResourceNotProvisioned"),
            ..refusal
        }
    }

    pub(super) fn body(&self) -> Value {
        let detail = |code: &&str| json!({"code": code, "message": self.message});
        let details: Vec<Value> = self.detail.iter().map(detail).collect();
        json!({"error": {"code": self.code, "message": self.message, "details": details}})
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        // What the engine refuses, the checks before should have: a fault of this façade, or one that was injected.
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            error.to_string(),
        )
    }
}
