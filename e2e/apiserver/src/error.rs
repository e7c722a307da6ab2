//! Error answers: `metav1.Status` exactly as apimachinery builds it.
//!
//! Every verb returns `ApiError`; the HTTP layer and the watch stream serialize it. The constructors carry the
//! names of apimachinery's `pkg/api/errors`, so that a message can be compared with its source.

use std::fmt;

use http::StatusCode;
use serde_json::{Map, Value, json};

/// Outcome of every operation of the server.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// A failed request: HTTP code and the parts of `metav1.Status`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    /// HTTP status code, repeated in the body.
    pub(crate) code: StatusCode,
    /// Machine-readable reason (`NotFound`, `Conflict`, …); empty = unknown.
    pub(crate) reason: &'static str,
    /// Sentence for people.
    pub(crate) message: String,
    /// `details` of the body; `Null` where the real server sends none.
    pub(crate) details: Value,
}

/// The resource that an error talks about (`schema.GroupResource`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupResource {
    /// API group, empty for core.
    pub(crate) group: String,
    /// Plural name, or kind where the real server uses the kind.
    pub(crate) resource: String,
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.resource)
        } else {
            write!(f, "{}.{}", self.resource, self.group)
        }
    }
}

impl GroupResource {
    /// Names a resource.
    pub(crate) fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
        }
    }

    fn details(&self, name: &str) -> Map<String, Value> {
        let mut details = Map::new();
        for (key, value) in [
            ("name", name),
            ("group", &self.group),
            ("kind", &self.resource),
        ] {
            if !value.is_empty() {
                details.insert(key.into(), value.into());
            }
        }
        details
    }
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: String) -> Self {
        Self {
            code,
            reason,
            message,
            details: Value::Null,
        }
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        self.details = Value::Object(resource.details(name));
        self
    }

    /// 404 for an object.
    pub(crate) fn not_found(resource: &GroupResource, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{resource} {name:?} not found"),
        )
        .about(resource, name)
    }

    /// 404 for a path that no kind serves.
    pub(crate) fn no_such_path() -> Self {
        let mut error = Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource".into(),
        );
        error.details = json!({});
        error
    }

    /// 409 on create.
    pub(crate) fn already_exists(resource: &GroupResource, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{resource} {name:?} already exists"),
        )
        .about(resource, name)
    }

    /// 409 when `generateName` met an existing name again and again.
    pub(crate) fn generate_name_conflict(resource: &GroupResource, name: &str) -> Self {
        let message = format!(
            "{resource} {name:?} already exists, the server was not able to generate a unique name for the object"
        );
        let mut error =
            Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(resource, name);
        error.details["retryAfterSeconds"] = json!(1);
        error
    }

    /// 409 on update or delete.
    pub(crate) fn conflict(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name)
    }

    /// 409 of optimistic locking, in the words of the real server.
    pub(crate) fn stale_version(resource: &GroupResource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// 409 of server-side apply; `causes` are (message, field).
    pub(crate) fn apply_conflict(causes: &[(String, String)], message: String) -> Self {
        let causes: Vec<Value> = causes
            .iter()
            .map(|(message, field)| json!({"reason": "FieldManagerConflict", "message": message, "field": field}))
            .collect();
        let mut error = Self::new(StatusCode::CONFLICT, "Conflict", message);
        error.details = json!({ "causes": causes });
        error
    }

    /// 410: the version asked for has left the history.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message.into())
    }

    /// 400.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message.into())
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "Unauthorized",
            "Unauthorized".into(),
        )
    }

    /// 403 on an object.
    pub(crate) fn forbidden(resource: &GroupResource, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("{resource} {name:?} is forbidden: {why}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(resource, name)
    }

    /// 405.
    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        let mut error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message);
        error.details = json!({});
        error
    }

    /// 406.
    pub(crate) fn not_acceptable(accepted: &str) -> Self {
        let message = format!("only the following media types are accepted: {accepted}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// 415.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
        )
    }

    /// 422 with the fields that are wrong. `kind` carries the kind's name as resource.
    pub(crate) fn invalid(kind: &GroupResource, name: &str, errors: &[FieldError]) -> Self {
        let mut error =
            Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", String::new()).about(kind, name);
        error.message = format!("{kind} {name:?} is invalid");
        if !errors.is_empty() {
            error.message = format!("{}: {}", error.message, aggregate(errors));
            error.details["causes"] = errors.iter().map(FieldError::cause).collect();
        }
        error
    }

    /// 422 as the patch handler answers for a failed JSON patch.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message.into());
        error.details = json!({});
        error
    }

    /// 500 for what apimachinery has no reason for.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message.into())
    }

    /// 500 with reason `InternalError`.
    pub(crate) fn internal(why: impl fmt::Display) -> Self {
        let message = format!("Internal error occurred: {why}");
        let mut error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
        error.details = json!({"causes": [{"message": why.to_string()}]});
        error
    }

    /// An error of any code, for fault injection.
    pub(crate) fn injected(
        code: StatusCode,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self::new(code, reason, message.into())
    }

    /// The `metav1.Status` body.
    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code.as_u16(),
        });
        if !self.reason.is_empty() {
            body["reason"] = self.reason.into();
        }
        if !self.details.is_null() {
            body["details"] = self.details.clone();
        }
        body
    }
}

/// One message stays as it is, several are listed without repetition (`utilerrors.Aggregate`).
fn aggregate(errors: &[FieldError]) -> String {
    let mut seen = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    if let [only] = seen.as_slice() {
        only.clone()
    } else {
        format!("[{}]", seen.join(", "))
    }
}

/// What is wrong with a field (`field.ErrorType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// A needed value is missing.
    Required,
    /// The value is malformed or out of range.
    Invalid,
    /// The value's JSON type is not the schema's.
    TypeInvalid,
    /// The value is not one of the allowed ones.
    NotSupported,
    /// The field may not be set now.
    Forbidden,
    /// The value appears twice.
    Duplicate,
    /// The value is too long; it is not repeated in the message.
    TooLong,
    /// The list has too many items.
    TooMany,
}

impl Problem {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Required => ("FieldValueRequired", "Required value"),
            Self::Invalid => ("FieldValueInvalid", "Invalid value"),
            Self::TypeInvalid => ("FieldValueTypeInvalid", "Invalid value"),
            Self::NotSupported => ("FieldValueNotSupported", "Unsupported value"),
            Self::Forbidden => ("FieldValueForbidden", "Forbidden"),
            Self::Duplicate => ("FieldValueDuplicate", "Duplicate value"),
            Self::TooLong => ("FieldValueTooLong", "Too long"),
            Self::TooMany => ("FieldValueTooMany", "Too many"),
        }
    }
}

/// One invalid field (`field.Error`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldError {
    /// Kind of problem.
    pub(crate) problem: Problem,
    /// Path such as `spec.ports[0].nodePort`.
    pub(crate) field: String,
    /// The bad value.
    pub(crate) value: Value,
    /// What would be right.
    pub(crate) detail: String,
}

impl FieldError {
    /// Builds an error of any kind.
    pub(crate) fn new(
        problem: Problem,
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            problem,
            field: field.into(),
            value: value.into(),
            detail: detail.into(),
        }
    }

    /// A malformed value.
    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(Problem::Invalid, field, value, detail)
    }

    /// A missing value.
    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Problem::Required, field, "", detail)
    }

    /// A field that may not be set.
    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Problem::Forbidden, field, "", detail)
    }

    /// A value outside an enumeration.
    pub(crate) fn not_supported(
        field: impl Into<String>,
        value: impl Into<Value>,
        allowed: &[&str],
    ) -> Self {
        let allowed: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        Self::new(
            Problem::NotSupported,
            field,
            value,
            format!("supported values: {}", allowed.join(", ")),
        )
    }

    /// A repeated value.
    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(Problem::Duplicate, field, value, "")
    }

    fn message(&self) -> String {
        let words = self.problem.words().1;
        let head = match self.problem {
            Problem::Required | Problem::Forbidden | Problem::TooLong => words.to_owned(),
            _ => format!("{words}: {}", self.value),
        };
        if self.detail.is_empty() {
            head
        } else {
            format!("{head}: {}", self.detail)
        }
    }

    fn cause(&self) -> Value {
        json!({"reason": self.problem.words().0, "message": self.message(), "field": self.field})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}
