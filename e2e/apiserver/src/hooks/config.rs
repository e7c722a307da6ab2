//! `ConfigMaps` and Secrets: keys, and what an immutable one refuses.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Map, Value};

use super::default;
use crate::error::FieldError;
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::map_mut;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Behaviour of `ConfigMaps`.
pub(crate) static CONFIG_MAP: Hooks = Hooks {
    decode: typed::<ConfigMap>,
    validate: |map, old| validate(map, old, &["data", "binaryData"]),
    ..Hooks::PLAIN
};

/// Behaviour of Secrets.
pub(crate) static SECRET: Hooks = Hooks {
    default: secret_defaults,
    decode: typed::<Secret>,
    validate: |secret, old| validate(secret, old, &["data"]),
    fields: &["type"],
    ..Hooks::PLAIN
};

/// Text given for convenience is kept as data.
fn secret_defaults(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else {
        return;
    };
    default(fields, "type", "Opaque");
    let Some(Value::Object(texts)) = fields.remove("stringData") else {
        return;
    };
    let data = map_mut(secret, &["data"]);
    for (key, text) in texts {
        data.insert(
            key,
            STANDARD.encode(text.as_str().unwrap_or_default()).into(),
        );
    }
}

const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn validate(object: &Value, old: Option<&Value>, parts: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let keys = |part: &str| object[part].as_object().into_iter().flat_map(Map::keys);
    for part in parts {
        for key in keys(part) {
            let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let path = format!("{part}[{key}]");
            if key.is_empty() || !key.chars().all(legal) {
                errors.push(FieldError::invalid(&*path, key.as_str(), KEY));
            }
            if *part == "data" && !object["binaryData"][key].is_null() {
                let detail = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(&*path, key.as_str(), detail));
            }
        }
    }
    let Some(old) = old.filter(|old| old["immutable"] == true) else {
        return errors;
    };
    let detail = "field is immutable when `immutable` is set";
    if object["immutable"] != true {
        errors.insert(0, FieldError::forbidden("immutable", detail));
    }
    for (at, part) in parts.iter().enumerate() {
        if object[part] != old[part] {
            let place = errors
                .len()
                .min(at + usize::from(object["immutable"] != true));
            errors.insert(place, FieldError::forbidden(*part, detail));
        }
    }
    errors
}
