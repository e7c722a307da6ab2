//! Small accessors for objects kept as JSON.
//!
//! Everything in this crate reads and writes `serde_json::Value`; these helpers are the only place that knows the
//! layout of metadata.

use serde_json::{Map, Value};

/// Follows a path of object keys; `Null` where it ends early.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |value, key| &value[*key])
}

/// String at a path, empty if absent.
pub(crate) fn str_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// Integer at a path.
pub(crate) fn int_at(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).as_i64()
}

/// List at a path, empty if absent.
pub(crate) fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// Mutable map at a path; missing and null parts, and parts of another type, become maps.
pub(crate) fn map_mut<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut value = value;
    for key in path {
        value = as_map(value).entry(*key).or_insert(Value::Null);
    }
    as_map(value)
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // Made an object two lines above.
        _ => unreachable!("value is an object"),
    }
}

/// Metadata, made if absent.
pub(crate) fn meta_mut(value: &mut Value) -> &mut Map<String, Value> {
    map_mut(value, &["metadata"])
}

/// `metadata.name`.
pub(crate) fn name(value: &Value) -> &str {
    str_at(value, &["metadata", "name"])
}

/// `metadata.namespace`.
pub(crate) fn namespace(value: &Value) -> &str {
    str_at(value, &["metadata", "namespace"])
}

/// `metadata.uid`.
pub(crate) fn uid(value: &Value) -> &str {
    str_at(value, &["metadata", "uid"])
}

/// `metadata.resourceVersion`, as text.
pub(crate) fn version(value: &Value) -> &str {
    str_at(value, &["metadata", "resourceVersion"])
}

/// True once a delete was accepted and something still keeps the object.
pub(crate) fn is_deleting(value: &Value) -> bool {
    !at(value, &["metadata", "deletionTimestamp"]).is_null()
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(value: &Value) -> Vec<String> {
    list_at(value, &["metadata", "finalizers"])
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Writes `metadata.finalizers`; none removes the field.
pub(crate) fn set_finalizers(value: &mut Value, finalizers: &[String]) {
    if finalizers.is_empty() {
        meta_mut(value).remove("finalizers");
    } else {
        meta_mut(value).insert("finalizers".into(), finalizers.into());
    }
}

/// A label's value.
pub(crate) fn label<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value["metadata"]["labels"][key].as_str()
}

/// Storage key below a resource: `namespace/name`, or the name alone. A namespace sorts as etcd sorts it.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

/// Key of an object.
pub(crate) fn key_of(value: &Value) -> String {
    key(namespace(value), name(value))
}

/// Copies or removes `field` of `to` so that it equals that of `from`.
pub(crate) fn carry(to: &mut Map<String, Value>, from: &Value, field: &str) {
    match &from[field] {
        Value::Null => to.remove(field),
        value => to.insert(field.into(), value.clone()),
    };
}

/// Removes nulls in maps at every depth: a Go server never keeps one.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
