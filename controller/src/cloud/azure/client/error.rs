//! From ARM's answers to classes (AZ-368, AZ-380, AZ-381). Codes decide; the one exception is a text that Azure puts
//! anywhere (AZ-370).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::cloud::azure::document::{at, text};
use crate::cloud::{Class, CloudError};

/// A PUT that came later has cancelled this one.
const SUPERSEDED: &str = "CanceledAndSupersededDueToAnotherOperation";

/// Something that is referred to is in no good state.
const UNPROVISIONED: &str = "ReferencedResourceNotProvisioned";

/// What ARM said instead of doing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// HTTP status; that of the first answer where an operation failed later.
    pub(super) status: u16,
    /// The code, and those of the details.
    pub(super) codes: Vec<String>,
    /// The messages, joined.
    pub(super) message: String,
    /// When to come back.
    pub(super) retry_after: Option<Duration>,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Read again at once and plan anew.
    ReadAgain,
    /// Come back later.
    Later,
    /// Something else has to be mended first.
    MendFirst,
    /// Not before the Service or the configuration changes.
    UserError,
    /// A right is missing.
    Denied,
    /// A limit of the subscription or of Azure.
    Limit,
    /// It is not there.
    NotThere,
}

impl Refused {
    /// Reads an error body: `{"error": {"code", "message", "details": […]}}`.
    pub(super) fn read(status: u16, body: &Value, retry_after: Option<Duration>) -> Self {
        let error = body.get("error").unwrap_or(body);
        let details = at(error, &["details"]).and_then(Value::as_array);
        let all: Vec<&Value> = std::iter::once(error)
            .chain(details.into_iter().flatten())
            .collect();
        let of = |key: &str| -> Vec<String> {
            let texts = all.iter().filter_map(|one| text(one, &[key]));
            texts.map(str::to_owned).collect()
        };
        Self {
            status,
            codes: of("code"),
            message: of("message").join("; "),
            retry_after,
        }
    }

    /// Whether what it names has to be written once more before this can be (AZ-184).
    pub(super) fn is_unprovisioned(&self) -> bool {
        self.codes.iter().any(|code| code == UNPROVISIONED)
    }

    /// Ids of public IPs that its message names.
    pub(super) fn public_ips(&self) -> BTreeSet<String> {
        let ends = |c: char| c.is_whitespace() || "'\",;()".contains(c);
        let words = self
            .message
            .split(ends)
            .map(|word| word.trim_end_matches('.'));
        let ids = words.filter(|word| {
            let mut end = word.rsplit('/');
            let (name, kind) = (end.next(), end.next());
            let named = name.is_some_and(|name| !name.is_empty());
            word.starts_with("/subscriptions/")
                && named
                && kind.is_some_and(|kind| kind.eq_ignore_ascii_case("publicIPAddresses"))
        });
        ids.map(str::to_owned).collect()
    }

    /// The class of AZ-381.
    pub(super) fn then(&self) -> Then {
        let any = |list: &[&str]| self.codes.iter().any(|code| list.contains(&code.as_str()));
        let superseded = self.message.contains(SUPERSEDED) || any(&[SUPERSEDED]);
        if self.status == 412
            || superseded
            || any(&["PreconditionFailed", "PreconditionFailedEtagMismatch"])
        {
            return Then::ReadAgain;
        }
        if any(&[
            UNPROVISIONED,
            "PublicIPAddressCannotBeDeleted",
            "InUseSubnetCannotBeDeleted",
        ]) {
            return Then::MendFirst;
        }
        if any(&[
            "LoadBalancerRuleCountLimitReachedForNic",
            "LoadBalancerFrontendIPConfigurationCountLimitReached",
            "PublicIPCountLimitReached",
        ]) {
            return Then::Limit;
        }
        let later = [
            "TooManyRequests",
            "OperationNotAllowed",
            "RetryableError",
            "RetryableErrorDueToAnotherOperation",
            "AnotherOperationInProgress",
            "Conflict",
        ];
        match self.status {
            404 => Then::NotThere,
            403 => Then::Denied,
            408 | 409 | 429 | 500.. => Then::Later,
            _ if any(&later) => Then::Later,
            _ => Then::UserError,
        }
    }

    /// In the words of all clouds; code and message are kept (AZ-365).
    pub(super) fn error(&self, tried: &str) -> CloudError {
        let class = match self.then() {
            Then::ReadAgain => Class::Conflict,
            Then::Later if matches!(self.status, 409 | 429) => Class::Throttled,
            Then::Later => Class::Transient,
            Then::MendFirst => Class::InUse,
            Then::UserError | Then::Denied => Class::WrongInput,
            Then::Limit => Class::Quota,
            Then::NotThere => Class::NotFound,
        };
        let codes = if self.codes.is_empty() {
            self.status.to_string()
        } else {
            self.codes.join(", ")
        };
        let hint = match self.then() {
            Then::Denied => {
                "; the custom role of the chart (files/azure-role.json) lists the actions that are needed"
            }
            _ => "",
        };
        CloudError {
            retry_after: self.retry_after,
            ..CloudError::new(class, tried, format!("{codes}: {}{hint}", self.message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn then(status: u16, code: &str, detail: Option<&str>) -> Then {
        let details: Vec<_> = detail
            .into_iter()
            .map(|code| json!({"code": code, "message": "m"}))
            .collect();
        Refused::read(
            status,
            &json!({"error": {"code": code, "message": "m", "details": details}}),
            None,
        )
        .then()
    }

    #[test]
    fn az380_az381_every_code_has_a_class() {
        let rows: [(u16, &[&str], Then); 7] = [
            (412, &["PreconditionFailed"], Then::ReadAgain),
            (
                429,
                &["TooManyRequests", "OperationNotAllowed", "RetryableError"],
                Then::Later,
            ),
            (
                409,
                &["AnotherOperationInProgress", "Conflict"],
                Then::Later,
            ),
            (
                400,
                &[
                    "PublicIPAddressCannotBeDeleted",
                    "InUseSubnetCannotBeDeleted",
                ],
                Then::MendFirst,
            ),
            (
                400,
                &[
                    "PublicIPReferencedByMultipleIPConfigs",
                    "LoadBalancerInUseByVirtualMachineScaleSet",
                    "LoadBalancerWithoutFrontendIPCantHaveChildResources",
                    "DuplicateResourceName",
                    "RulesUseSameBackendPortProtocolAndPool",
                    "RulesUseSameFrontendPortProtocolAndIPConfig",
                    "AtleastOneIpV4RequiredForIpV6LbFrontendIpConfiguration",
                    "DifferentSkuLoadBalancersAndPublicIPAddressNotAllowed",
                    "PrivateIPAddressNotInSubnet",
                    "PrivateIPAddressIsAllocated",
                    "SecurityRuleConflict",
                    "DnsRecordInUse",
                    "InvalidResourceReference",
                    "MissingJsonReferenceId",
                ],
                Then::UserError,
            ),
            (
                403,
                &["AuthorizationFailed", "LinkedAuthorizationFailed"],
                Then::Denied,
            ),
            (
                404,
                &["ResourceNotFound", "ResourceGroupNotFound", "NotFound"],
                Then::NotThere,
            ),
        ];
        for (status, codes, expected) in rows {
            for code in codes {
                assert_eq!(then(status, code, None), expected, "{code}");
            }
        }
        assert_eq!(
            then(
                429,
                "RetryableError",
                Some("ReferencedResourceNotProvisioned")
            ),
            Then::MendFirst,
            "AZ-184"
        );
        assert_eq!(
            then(409, "CanceledAndSupersededDueToAnotherOperation", None),
            Then::ReadAgain,
            "AZ-370"
        );
        assert_eq!(
            then(400, "LoadBalancerRuleCountLimitReachedForNic", None),
            Then::Limit
        );
        assert_eq!(then(503, "x", None), Then::Later, "AZ-372");
    }

    #[test]
    fn az184_what_has_to_be_mended_is_read_out_of_the_message() {
        let message = "Cannot proceed with operation because resource /subscriptions/s/resourceGroups/g/providers/\
                       Microsoft.Network/publicIPAddresses/one used by resource /subscriptions/s/resourceGroups/g/\
                       providers/Microsoft.Network/loadBalancers/lb is not in Succeeded state. Also \
                       '/subscriptions/s/resourceGroups/G/providers/Microsoft.Network/publicipaddresses/two'.";
        let detail = json!({"code": UNPROVISIONED, "message": message});
        let body =
            json!({"error": {"code": "RetryableError", "message": "later", "details": [detail]}});
        let refused = Refused::read(429, &body, None);
        assert!(refused.is_unprovisioned());
        let of = |group: &str, name: &str| {
            format!("/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Network/{name}")
        };
        assert_eq!(
            refused.public_ips(),
            [
                of("g", "publicIPAddresses/one"),
                of("G", "publicipaddresses/two")
            ]
            .into()
        );
    }

    #[test]
    fn az365_az368_code_message_and_details_are_kept() {
        let body = json!({"error": {"code": "A", "message": "first", "details": [{"code": "B", "message": "second"}]}});
        let error =
            Refused::read(400, &body, Some(Duration::from_secs(3))).error("write load balancer lb");
        let said = error.to_string();
        for part in ["write load balancer lb", "A, B", "first; second"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(error.retry_after, Some(Duration::from_secs(3)), "AZ-371");
        let denied = json!({"error": {"code": "AuthorizationFailed", "message": "does not have authorization to perform action 'x/write'"}});
        assert!(
            Refused::read(403, &denied, None)
                .error("t")
                .to_string()
                .contains("x/write"),
            "AZ-381"
        );
    }
}
