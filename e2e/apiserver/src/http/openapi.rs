//! As much of `OpenAPI` v3 as kubectl asks for: that every kind can be patched with `fieldValidation`, and for
//! `kubectl explain` the schemas of custom kinds, as their definitions have them.
//!
//! Built-in kinds have no schemas here: kubectl leaves the checks of fields to the server, and explains nothing.

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
        "components": {"schemas": schemas(&own)}
    }))
}

/// Name of the schema of every object's metadata.
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// What the definitions of custom kinds say, each with the fields that every object has.
fn schemas(own: &[&Kind]) -> Map<String, Value> {
    let custom = own.iter().filter_map(|kind| {
        let mut schema = kind.schema.as_ref()?.root().clone();
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": kind.group, "kind": kind.kind, "version": kind.version}]);
        for field in ["apiVersion", "kind"] {
            schema["properties"][field] = json!({"type": "string"});
        }
        schema["properties"]["metadata"] =
            json!({"allOf": [{"$ref": format!("#/components/schemas/{OBJECT_META}")}]});
        let domain: Vec<&str> = kind.group.rsplit('.').collect();
        let name = format!("{}.{}.{}", domain.join("."), kind.version, kind.kind);
        Some((name, schema))
    });
    let mut schemas: Map<String, Value> = custom.collect();
    if !schemas.is_empty() {
        schemas.insert(OBJECT_META.to_owned(), object_meta());
    }
    schemas
}

fn object_meta() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    json!({"type": "object", "properties": {
        "annotations": texts,
        "creationTimestamp": text,
        "deletionGracePeriodSeconds": {"type": "integer"},
        "deletionTimestamp": text,
        "finalizers": {"type": "array", "items": text},
        "generateName": text,
        "generation": {"type": "integer"},
        "labels": texts,
        "managedFields": {"type": "array", "items": {"type": "object"}},
        "name": text,
        "namespace": text,
        "ownerReferences": {"type": "array", "items": {"type": "object"}},
        "resourceVersion": text,
        "uid": text,
    }})
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
