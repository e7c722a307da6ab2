//! As much of `OpenAPI` v3 as kubectl asks for: that every kind can be patched with `fieldValidation`.
//!
//! The schemas themselves are not served: kubectl then leaves the checks of fields to the server.

use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::kinds::Kinds;

/// `/openapi/v3`: one document per group and version.
pub(crate) fn index(kinds: &Kinds) -> Value {
    let paths: Map<String, Value> = kinds
        .iter()
        .map(|kind| {
            let name = document_name(&kind.group, &kind.version);
            let url = format!("/openapi/v3/{name}?hash={}", kinds.iter().count());
            (name, json!({ "serverRelativeURL": url }))
        })
        .collect();
    json!({ "paths": paths })
}

fn document_name(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// `/openapi/v3/<document>`.
pub(crate) fn document(kinds: &Kinds, name: &str) -> Option<Value> {
    let own: Vec<&Kind> = kinds
        .iter()
        .map(AsRef::as_ref)
        .filter(|kind| document_name(&kind.group, &kind.version) == name)
        .collect();
    if own.is_empty() {
        return None;
    }
    let paths: Map<String, Value> = own
        .iter()
        .map(|kind| (object_path(name, kind), operations(kind)))
        .collect();
    Some(json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.37.2"}, "paths": paths,
        "components": {"schemas": {}}
    }))
}

fn object_path(document: &str, kind: &Kind) -> String {
    let scope = if kind.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    format!("/{document}{scope}/{}/{{name}}", kind.plural)
}

fn operations(kind: &Kind) -> Value {
    let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
        .into_iter()
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
        .collect();
    json!({"patch": {
        "parameters": parameters,
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": kind.group, "kind": kind.kind, "version": kind.version},
        "responses": {"200": {"description": "OK"}}
    }})
}
