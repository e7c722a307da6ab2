//! Schemas that the derive cannot make, and what the derived ones need for a real API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Number, Value};

/// Conditions as the API machinery defines them, keyed by their type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "type": "string", "maxLength": 32768 },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 }
            }
        }
    })
}

/// A list of label selectors as the API machinery defines them.
pub(super) fn label_selectors(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
                "matchExpressions": {
                    "type": "array",
                    "x-kubernetes-list-type": "atomic",
                    "items": {
                        "type": "object",
                        "required": ["key", "operator"],
                        "properties": {
                            "key": { "type": "string" },
                            "operator": { "type": "string" },
                            "values": {
                                "type": "array",
                                "x-kubernetes-list-type": "atomic",
                                "items": { "type": "string" }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// The definition with what a server would warn about taken out of its schemas.
pub(super) fn settled(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        {
            settle(schema);
        }
    }
    crd
}

/// Optional fields are left out, never null, and `uint16` and its like are formats of Rust's, not
/// of `OpenAPI`: the bounds beside them say the same.
fn settle(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if schema
        .format
        .as_deref()
        .is_some_and(|f| f.starts_with("uint"))
    {
        let bound = match schema.format.take().as_deref() {
            Some("uint16") => Some(f64::from(u16::MAX)),
            Some("uint32") => Some(f64::from(u32::MAX)),
            _ => None,
        };
        schema.maximum = schema.maximum.or(bound);
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        settle(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        settle(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        settle(values);
    }
}

/// The definition as JSON, with whole numbers written as such (the type holds bounds as floats).
pub(super) fn manifest(crd: &CustomResourceDefinition) -> Value {
    // Plain data with string keys: there is nothing in it that JSON cannot hold.
    let mut manifest = serde_json::to_value(crd).unwrap_or_default();
    write_whole_numbers(&mut manifest);
    manifest
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "whole and within 2^53, checked"
)]
fn write_whole_numbers(value: &mut Value) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => {
            let float = number
                .as_f64()
                .filter(|f| number.is_f64() && f.abs() < EXACT);
            if let Some(whole) = float.filter(|f| f.fract() == 0.0) {
                *number = Number::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        _ => {}
    }
}
