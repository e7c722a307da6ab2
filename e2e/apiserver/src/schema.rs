//! Structural schemas of custom kinds: pruning, defaults and validation as the real server does them.
//!
//! Patterns, formats and CEL rules are not evaluated.

use serde_json::Value;

use crate::error::{FieldError, Problem};

/// The schema of one version of a CRD.
#[derive(Debug)]
pub(crate) struct Schema {
    root: Value,
    /// Paths of `selectableFields`, without the leading dot.
    pub(crate) selectable: Vec<String>,
    /// Columns of `kubectl get`.
    pub(crate) columns: Vec<Value>,
}

impl Schema {
    pub(crate) fn new(version: &Value) -> Self {
        let paths = version["selectableFields"].as_array().into_iter().flatten();
        let selectable = paths.filter_map(|path| {
            Some(
                path["jsonPath"]
                    .as_str()?
                    .trim_start_matches('.')
                    .to_owned(),
            )
        });
        Self {
            root: version["schema"]["openAPIV3Schema"].clone(),
            selectable: selectable.collect(),
            columns: version["additionalPrinterColumns"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        }
    }

    /// The schema as its definition has it.
    pub(crate) fn root(&self) -> &Value {
        &self.root
    }

    /// Drops fields that the schema does not name, but for the envelope's.
    pub(crate) fn prune(&self, object: &mut Value) {
        Self::within_envelope(object, |object| prune(&self.root, object));
    }

    /// Drops fields that the schema does not name, then fills defaults.
    pub(crate) fn prune_and_default(&self, object: &mut Value) {
        Self::within_envelope(object, |object| {
            prune(&self.root, object);
            default(&self.root, object);
        });
    }

    /// Works on an object without its envelope, which is no matter of the schema, whatever that says of it.
    fn within_envelope(object: &mut Value, work: impl FnOnce(&mut Value)) {
        let Value::Object(fields) = &mut *object else {
            return;
        };
        let envelope: Vec<(&str, Value)> = ["apiVersion", "kind", "metadata"]
            .into_iter()
            .filter_map(|field| Some((field, fields.remove(field)?)))
            .collect();
        work(object);
        if let Value::Object(fields) = object {
            fields.extend(
                envelope
                    .into_iter()
                    .map(|(field, value)| (field.to_owned(), value)),
            );
        }
    }

    /// Everything in the object that breaks the schema.
    pub(crate) fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        validate(&self.root, object, "", &mut errors);
        errors
    }
}

fn preserves(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let properties = &schema["properties"];
            let additional = &schema["additionalProperties"];
            if !preserves(schema) && !additional.is_object() && additional != true {
                fields.retain(|name, _| !properties[name].is_null());
            }
            for (name, field) in fields {
                match &properties[name] {
                    Value::Null if additional.is_object() => prune(additional, field),
                    Value::Null => {}
                    property => prune(property, field),
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for item in items {
                prune(&schema["items"], item);
            }
        }
        _ => {}
    }
}

fn default(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let empty = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => property["nullable"] != true,
                    Some(_) => false,
                };
                if empty && !property["default"].is_null() {
                    fields.insert(name.clone(), property["default"].clone());
                } else if empty {
                    fields.remove(name);
                }
                if let Some(field) = fields.get_mut(name) {
                    default(property, field);
                }
            }
            if schema["additionalProperties"].is_object() {
                fields
                    .values_mut()
                    .for_each(|field| default(&schema["additionalProperties"], field));
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| default(&schema["items"], item)),
        _ => {}
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn validate(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !type_matches(schema, value) {
        let wanted = schema["type"].as_str().unwrap_or("integer or string");
        let detail = format!(
            "{} in body must be of type {wanted}: {:?}",
            path.trim_start_matches('.'),
            type_of(value)
        );
        let shown = type_of(value);
        errors.push(FieldError::new(
            Problem::TypeInvalid,
            trimmed(path),
            shown,
            detail,
        ));
        return;
    }
    if let Some(allowed) = schema["enum"]
        .as_array()
        .filter(|allowed| !allowed.contains(value))
    {
        let allowed: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
        errors.push(FieldError::not_supported(
            trimmed(path),
            value.clone(),
            &allowed,
        ));
    }
    check_size(schema, value, path, errors);
    match value {
        Value::Object(fields) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !fields.contains_key(name) {
                    errors.push(FieldError::required(trimmed(&format!("{path}.{name}")), ""));
                }
            }
            for (name, field) in fields {
                match &schema["properties"][name] {
                    Value::Null => validate(
                        &schema["additionalProperties"],
                        field,
                        &format!("{path}.{name}"),
                        errors,
                    ),
                    property => validate(property, field, &format!("{path}.{name}"), errors),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                validate(&schema["items"], item, &format!("{path}[{index}]"), errors);
            }
            check_keys(schema, items, path, errors);
        }
        _ => {}
    }
}

fn trimmed(path: &str) -> String {
    path.trim_start_matches('.').to_owned()
}

fn type_matches(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return matches!(type_of(value), "integer" | "string");
    }
    match schema["type"].as_str() {
        None => true,
        Some("number") => value.is_number(),
        Some(wanted) => wanted == type_of(value),
    }
}

fn check_size(schema: &Value, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let field = path.trim_start_matches('.');
    let limit = |name: &str| schema[name].as_f64();
    if let Some(number) = value.as_f64() {
        if let Some(least) = limit("minimum").filter(|least| number < *least) {
            let detail = format!("{field} in body should be greater than or equal to {least}");
            errors.push(FieldError::invalid(field, value.clone(), detail));
        }
        if let Some(most) = limit("maximum").filter(|most| number > *most) {
            let detail = format!("{field} in body should be less than or equal to {most}");
            errors.push(FieldError::invalid(field, value.clone(), detail));
        }
    }
    let length = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    if let Some(text) = value.as_str() {
        if let Some(least) =
            limit("minLength").filter(|least| length(text.chars().count()) < *least)
        {
            let detail = format!("{field} in body should be at least {least} chars long");
            errors.push(FieldError::invalid(field, value.clone(), detail));
        }
        if let Some(most) = limit("maxLength").filter(|most| length(text.chars().count()) > *most) {
            errors.push(FieldError::new(
                Problem::TooLong,
                field,
                "",
                format!("may not be more than {most} bytes"),
            ));
        }
    }
    if let Some(items) = value.as_array() {
        if let Some(least) = limit("minItems").filter(|least| length(items.len()) < *least) {
            let detail = format!("{field} in body should have at least {least} items");
            errors.push(FieldError::invalid(field, items.len(), detail));
        }
        if let Some(most) = limit("maxItems").filter(|most| length(items.len()) > *most) {
            let detail = format!("must have at most {most} items");
            errors.push(FieldError::new(
                Problem::TooMany,
                field,
                items.len(),
                detail,
            ));
        }
    }
}

/// Items of sets and keyed lists must differ.
fn check_keys(schema: &Value, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let identity = |item: &Value| match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Some(item.clone()),
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"]
                .as_array()
                .into_iter()
                .flatten();
            let keys = keys
                .filter_map(|key| Some((key.as_str()?.to_owned(), item[key.as_str()?].clone())));
            Some(Value::Object(keys.collect()))
        }
        _ => None,
    };
    let mut seen = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(identity) = identity(item) else {
            return;
        };
        if seen.contains(&identity) {
            errors.push(FieldError::duplicate(
                trimmed(&format!("{path}[{index}]")),
                identity,
            ));
        } else {
            seen.push(identity);
        }
    }
}
