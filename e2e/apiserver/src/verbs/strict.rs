//! Fields that a kind does not know: dropped, and told as the client asked (`fieldValidation`).

use serde_json::Value;

use super::meta;
use crate::error::{ApiError, Result};
use crate::kind::Kind;
use crate::state::{Call, State};

/// What becomes of a request with unknown fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    Ignore,
    /// The answer carries a warning for each.
    #[default]
    Warn,
    Strict,
}

impl State {
    /// Takes in a request body: decoded, and without unknown fields.
    pub(crate) fn take_in(&mut self, call: &Call, body: Value) -> Result<Value> {
        let (object, unknown) = meta::decode(&call.kind, body)?;
        self.judge(call, &unknown, refused)?;
        Ok(object)
    }

    /// Refuses unknown fields, or remembers to warn of them.
    pub(crate) fn judge(
        &mut self,
        call: &Call,
        unknown: &[String],
        refused: impl FnOnce(&Kind, &str) -> ApiError,
    ) -> Result<()> {
        let words = || unknown.iter().map(|path| format!("unknown field {path:?}"));
        match call.validation {
            FieldValidation::Strict if !unknown.is_empty() => {
                let all: Vec<String> = words().collect();
                Err(refused(&call.kind, &all.join(", ")))
            }
            FieldValidation::Warn => {
                self.warnings.extend(words());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn refused(kind: &Kind, fields: &str) -> ApiError {
    ApiError::bad_request(format!(
        "{name} in version {version:?} cannot be handled as a {name}: strict decoding error: {fields}",
        name = kind.kind,
        version = kind.version,
    ))
}

/// Drops what is not in `known`, and gives the paths.
pub(crate) fn drop_unknown(body: &mut Value, known: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(body, known, "", &mut unknown);
    unknown
}

fn walk(body: &mut Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (body, known) {
        (Value::Object(fields), Value::Object(known)) => {
            let below = |name: &str| {
                if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}.{name}")
                }
            };
            fields.retain(|name, field| {
                let keep = field.is_null() || known.contains_key(name);
                if !keep {
                    unknown.push(below(name));
                }
                keep
            });
            for (name, field) in fields {
                if let Some(known) = known.get(name) {
                    walk(field, known, &below(name), unknown);
                }
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            for (index, (item, known)) in items.iter_mut().zip(known).enumerate() {
                walk(item, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}
