//! Kinds that are only asked and never stored: who am I, may I, give me a token.
//!
//! Identity only, no RBAC: everything is allowed to everybody who has a token.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::route::ResourcePath;
use super::{Body, respond};
use crate::error::{ApiError, Result};
use crate::object;
use crate::server::{ApiServer, Identity};

/// A kind that is only created.
pub(crate) struct Virtual {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
}

const fn row(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Virtual {
    Virtual {
        group,
        version: "v1",
        kind,
        plural,
        namespaced,
    }
}

/// All such kinds.
pub(crate) static KINDS: &[Virtual] = &[
    row(
        "authentication.k8s.io",
        "SelfSubjectReview",
        "selfsubjectreviews",
        false,
    ),
    row(
        "authentication.k8s.io",
        "TokenReview",
        "tokenreviews",
        false,
    ),
    row(
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        false,
    ),
    row(
        "authorization.k8s.io",
        "SubjectAccessReview",
        "subjectaccessreviews",
        false,
    ),
    row(
        "authorization.k8s.io",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        true,
    ),
    row(
        "authorization.k8s.io",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        false,
    ),
];

/// Answers if the path names one of these.
pub(crate) fn answer(
    server: &ApiServer,
    identity: &Identity,
    path: &ResourcePath,
    request: &Request<Bytes>,
) -> Option<Result<Response<Body>>> {
    if path.plural == "serviceaccounts" && path.part == "token" {
        return Some(token(server, path, request));
    }
    let kind = KINDS
        .iter()
        .find(|kind| (kind.group, kind.plural) == (path.group.as_str(), path.plural.as_str()))?;
    if request.method() != Method::POST {
        return Some(Err(ApiError::method_not_allowed()));
    }
    let mut body: Value = serde_json::from_slice(request.body()).unwrap_or_else(|_| json!({}));
    body["kind"] = kind.kind.into();
    body["apiVersion"] = format!("{}/{}", kind.group, kind.version).into();
    body["status"] = match kind.kind {
        "SelfSubjectReview" => json!({"userInfo": user(identity)}),
        "TokenReview" => {
            let known = server.identity(body["spec"]["token"].as_str().unwrap_or_default());
            known.map_or_else(
                || json!({"user": {}}),
                |known| json!({"authenticated": true, "user": user(&known)}),
            )
        }
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}], "incomplete": false
        }),
        _ => json!({"allowed": true, "reason": "every identity may do everything here"}),
    };
    Some(Ok(respond::json(StatusCode::CREATED, &body)))
}

fn user(identity: &Identity) -> Value {
    json!({"username": identity.user(), "groups": identity.groups()})
}

/// `serviceaccounts/token`.
fn token(
    server: &ApiServer,
    path: &ResourcePath,
    request: &Request<Bytes>,
) -> Result<Response<Body>> {
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed());
    }
    let account = server
        .state()
        .store
        .get("serviceaccounts", &object::key(&path.namespace, &path.name))
        .cloned();
    account.ok_or_else(|| {
        ApiError::not_found(
            &crate::error::GroupResource::new("", "serviceaccounts"),
            &path.name,
        )
    })?;
    let token = server.token(&Identity::service_account(&path.namespace, &path.name));
    let mut body: Value = serde_json::from_slice(request.body()).unwrap_or_else(|_| json!({}));
    let seconds = body["spec"]["expirationSeconds"].as_u64().unwrap_or(3600);
    let expires = server.clock().now() + std::time::Duration::from_secs(seconds);
    body["kind"] = "TokenRequest".into();
    body["apiVersion"] = "authentication.k8s.io/v1".into();
    body["status"] =
        json!({"token": token, "expirationTimestamp": expires.whole_seconds().to_string()});
    Ok(respond::json(StatusCode::CREATED, &body))
}
