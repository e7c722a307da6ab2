//! Refusals with AWS's codes.

use axum::http::StatusCode;

use super::xml::escape;
use crate::engine::ApiError;

/// A refused call.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    code: &'static str,
    message: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A parameter that is missing or wrong.
    pub(super) fn validation(message: impl Into<String>) -> Self {
        Self::new("ValidationError", message)
    }

    /// A parameter that is missing.
    pub(super) fn missing(name: &str) -> Self {
        Self::new(MISSING, format!("{name} is missing"))
    }

    /// The same in a service's own words: `ELBv2` has one code for all that is wrong with parameters, EC2 two.
    pub(super) fn of(self, service: &str) -> Self {
        let code = match (service == "ec2", self.code) {
            (true, "ValidationError") => "InvalidParameterValue",
            (false, MISSING) => "ValidationError",
            (_, code) => code,
        };
        Self { code, ..self }
    }

    /// Whether no answer goes out at all (FC-97).
    pub(super) fn is_lost(&self) -> bool {
        self.code == LOST
    }

    pub(super) fn status(&self) -> StatusCode {
        match self.code {
            "AccessDenied"
            | "UnauthorizedOperation"
            | "SignatureDoesNotMatch"
            | "InvalidClientTokenId" => StatusCode::FORBIDDEN,
            "ServiceUnavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "InternalFailure" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// The body, in the form of the service.
    pub(super) fn xml(&self, service: &str, request: &str) -> String {
        let (code, message) = (self.code, escape(&self.message));
        if service == "ec2" {
            return format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Response><Errors><Error><Code>{code}</Code>\
                 <Message>{message}</Message></Error></Errors><RequestID>{request}</RequestID></Response>"
            );
        }
        let kind = if self.status().is_server_error() {
            "Receiver"
        } else {
            "Sender"
        };
        format!(
            "<ErrorResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\"><Error>\
             <Type>{kind}</Type><Code>{code}</Code><Message>{message}</Message></Error>\
             <RequestId>{request}</RequestId></ErrorResponse>"
        )
    }
}

/// EC2's code for a parameter that is missing.
const MISSING: &str = "MissingParameter";

/// Inner word for a connection that drops; never goes out.
const LOST: &str = "lost";

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let message = error.to_string();
        let code = match &error {
            ApiError::NotFound {
                kind: "load balancer",
                ..
            } => "LoadBalancerNotFound",
            ApiError::NotFound {
                kind: "listener", ..
            } => "ListenerNotFound",
            ApiError::NotFound { .. } => "TargetGroupNotFound",
            ApiError::GroupInUse { .. } => "ResourceInUse",
            ApiError::Throttled { .. } => "ThrottlingException",
            ApiError::QuotaExceeded { quota, .. } => match *quota {
                "loadBalancers" => "TooManyLoadBalancers",
                "groups" => "TooManyTargetGroups",
                "listenersPerLoadBalancer" => "TooManyListeners",
                _ => "TooManyTargets",
            },
            ApiError::Forbidden { .. } => "AccessDenied",
            ApiError::Unavailable { .. } => "ServiceUnavailable",
            ApiError::Internal { .. } => "InternalFailure",
            ApiError::ConnectionLost { .. } => LOST,
            ApiError::BadAttribute { .. } => "InvalidConfigurationRequest",
            _ => "ValidationError",
        };
        Self::new(code, message)
    }
}
