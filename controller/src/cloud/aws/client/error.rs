//! From the services' error codes to classes (AWS-903, AWS-915): codes decide, never message texts.

use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};

use crate::cloud::{Class, CloudError};

/// The class of an error code.
pub(super) fn class(code: &str) -> Class {
    match code {
        "Throttling"
        | "ThrottlingException"
        | "TooManyRequestsException"
        | "RequestLimitExceeded"
        | "RequestThrottled" => Class::Throttled,
        "ResourceInUse"
        | "ResourceInUseException"
        | "DependencyViolation"
        | "InvalidGroup.InUse" => Class::InUse,
        "TargetGroupAssociationLimit" | "SecurityGroupLimitExceeded" => Class::Quota,
        "OperationNotPermitted" | "InvalidTarget" => Class::WrongInput,
        "PriorRequestNotComplete" | "InvalidGroup.Duplicate" | "InvalidPermission.Duplicate" => {
            Class::Conflict
        }
        "InternalFailure" | "InternalError" | "ServiceUnavailable" | "Unavailable"
        | "RequestExpired" => Class::Transient,
        code if code.contains("NotFound") => Class::NotFound,
        code if code.starts_with("TooMany") || code.ends_with("LimitExceeded") => Class::Quota,
        code if code.starts_with("Duplicate") => Class::Conflict,
        _ => Class::WrongInput,
    }
}

/// An answer in words, with what is missing where a right is (AWS-843).
pub(super) fn answer(code: &str, message: &str) -> String {
    if DENIED.contains(&code) {
        format!("{code}: {message}; the IAM policy lacks this action")
    } else {
        format!("{code}: {message}")
    }
}

/// Codes of a right that is missing.
const DENIED: [&str; 3] = [
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
];

/// Whether a right is missing.
pub(super) fn is_denied(error: &CloudError) -> bool {
    DENIED.iter().any(|code| has_code(error, code))
}

/// Whether an error has this code: its answer begins with it.
pub(super) fn has_code(error: &CloudError, code: &str) -> bool {
    error.answer.split(':').next() == Some(code)
}

/// An error of the ELB client.
pub(super) fn of_sdk<E>(tried: &str, error: &SdkError<E>) -> CloudError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match error {
        SdkError::ServiceError(refused) => {
            let refused = refused.err();
            let code = refused.code().unwrap_or("without a code");
            let message = refused.message().unwrap_or_default();
            CloudError::new(class(code), tried, answer(code, message))
        }
        SdkError::ConstructionFailure(_) => CloudError::new(Class::WrongInput, tried, chain(error)),
        _ => CloudError::new(Class::Transient, tried, chain(error)),
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws915_codes_of_the_calls_that_are_made_have_the_class_that_decides_their_retry() {
        let cases = [
            ("LoadBalancerNotFound", Class::NotFound),
            ("TargetGroupNotFound", Class::NotFound),
            ("ListenerNotFound", Class::NotFound),
            ("InvalidGroup.NotFound", Class::NotFound),
            ("InvalidPermission.NotFound", Class::NotFound),
            ("ResourceInUse", Class::InUse),
            ("DependencyViolation", Class::InUse),
            ("TooManyLoadBalancers", Class::Quota),
            ("TooManyTargets", Class::Quota),
            ("TooManyListeners", Class::Quota),
            ("TooManyTargetGroups", Class::Quota),
            ("TooManyRegistrationsForTargetId", Class::Quota),
            ("TargetGroupAssociationLimit", Class::Quota),
            ("RulesPerSecurityGroupLimitExceeded", Class::Quota),
            ("DuplicateLoadBalancerName", Class::Conflict),
            ("DuplicateTargetGroupName", Class::Conflict),
            ("DuplicateListener", Class::Conflict),
            ("InvalidGroup.Duplicate", Class::Conflict),
            ("InvalidPermission.Duplicate", Class::Conflict),
            ("ThrottlingException", Class::Throttled),
            ("Throttling", Class::Throttled),
            ("RequestLimitExceeded", Class::Throttled),
            ("InvalidConfigurationRequest", Class::WrongInput),
            ("InvalidTarget", Class::WrongInput),
            ("CertificateNotFound", Class::NotFound),
            ("UnsupportedProtocol", Class::WrongInput),
            ("OperationNotPermitted", Class::WrongInput),
            ("AccessDenied", Class::WrongInput),
            ("ServiceUnavailable", Class::Transient),
        ];
        for (code, wanted) in cases {
            assert_eq!(class(code), wanted, "{code}");
        }
    }

    #[test]
    fn aws903_codes_decide_and_never_what_a_message_says() {
        use aws_sdk_elasticloadbalancingv2::config::http::HttpResponse;
        use aws_sdk_elasticloadbalancingv2::error::ErrorMetadata;
        use aws_sdk_elasticloadbalancingv2::operation::delete_target_group::DeleteTargetGroupError;
        let refused = |code: &str, message: &str| {
            let told = ErrorMetadata::builder().code(code).message(message).build();
            let error = DeleteTargetGroupError::generic(told);
            let response = HttpResponse::new(400.try_into().unwrap(), "".into());
            of_sdk("delete", &SdkError::service_error(error, response)).class
        };
        let text = "TargetGroupNotFound: Throttling, ResourceInUse";
        assert_eq!(
            refused("ValidationError", text),
            Class::WrongInput,
            "AWS-903"
        );
        assert_eq!(
            refused("TargetGroupNotFound", ""),
            Class::NotFound,
            "AWS-903"
        );
        assert_eq!(
            refused("ResourceInUse", "not found"),
            Class::InUse,
            "AWS-903"
        );
    }

    #[test]
    fn aws843_a_missing_right_is_named() {
        let text = answer(
            "AccessDenied",
            "not authorized to perform: elasticloadbalancing:AddTags",
        );
        assert!(text.contains("elasticloadbalancing:AddTags") && text.contains("IAM policy"));
    }
}
