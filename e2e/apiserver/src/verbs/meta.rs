//! Decoding of request bodies and the rules of metadata that hold for every kind.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::error::{ApiError, FieldError, Problem, Result};
use crate::kind::{Kind, Trait};
use crate::object::{self, at, is_deleting, list_at, meta_mut, str_at};
use crate::state::Call;

/// Brings a request body into the stored form: version, nulls, unknown custom fields, types, defaults.
pub(crate) fn decode(kind: &Kind, mut body: Value) -> Result<Value> {
    let expected = kind.api_version();
    let Value::Object(fields) = &mut body else {
        let message =
            "couldn't get version/kind; json parse error: json: cannot unmarshal into a map";
        return Err(ApiError::bad_request(message));
    };
    let given = fields
        .entry("apiVersion")
        .or_insert_with(|| expected.clone().into());
    if *given != expected.as_str() {
        let given = given.as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({given}) does not match the expected API version ({expected})"
        )));
    }
    let given = fields
        .entry("kind")
        .or_insert_with(|| kind.kind.clone().into());
    if *given != *kind.kind {
        let given = given.as_str().unwrap_or_default();
        let (version, wanted) = (&kind.version, &kind.kind);
        return Err(ApiError::bad_request(format!(
            "{given} in version {version:?} cannot be handled as a {wanted}: converting to {wanted}: unknown conversion"
        )));
    }
    if !kind.is_custom() {
        quantities_to_text(&mut body);
    }
    check_types(kind, &body)?;
    Ok(normalise(kind, body))
}

/// Quantities may be written as numbers; Go keeps their text.
fn quantities_to_text(value: &mut Value) {
    const HOLDERS: [&str; 6] = [
        "limits",
        "requests",
        "capacity",
        "allocatable",
        "overhead",
        "hard",
    ];
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::Object(quantities) if HOLDERS.contains(&name.as_str()) => {
                        for quantity in quantities
                            .values_mut()
                            .filter(|quantity| quantity.is_number())
                        {
                            *quantity = quantity.to_string().into();
                        }
                    }
                    field => quantities_to_text(field),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                quantities_to_text(item);
            }
        }
        _ => {}
    }
}

fn check_types(kind: &Kind, body: &Value) -> Result<()> {
    let meta = &body["metadata"];
    let wrong = if !meta.is_object() && !meta.is_null() {
        Some("metadata: expected a map".to_owned())
    } else {
        (kind.hooks.decode)(body)
            .err()
            .map(|error| error.to_string())
    };
    match wrong {
        None => Ok(()),
        Some(why) => Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: json: {why}",
            kind = kind.kind,
            version = kind.version,
        ))),
    }
}

fn normalise(kind: &Kind, mut body: Value) -> Value {
    match &kind.schema {
        Some(schema) => {
            object::drop_nulls(meta_mut(&mut body).entry("labels").or_insert(Value::Null));
            schema.prune_and_default(&mut body);
        }
        None => object::drop_nulls(&mut body),
    }
    let meta = meta_mut(&mut body);
    meta.retain(|_, value| !value.is_null());
    for list in ["finalizers", "ownerReferences", "managedFields"] {
        if meta
            .get(list)
            .is_some_and(|list| list.as_array().is_some_and(Vec::is_empty))
        {
            meta.remove(list);
        }
    }
    for text in [
        "namespace",
        "generateName",
        "uid",
        "resourceVersion",
        "name",
    ] {
        if meta.get(text).is_some_and(|value| value == "") {
            meta.remove(text);
        }
    }
    if let Some(conversion) = &kind.conversion {
        body = (conversion.to_stored)(body);
    }
    (kind.hooks.default)(&mut body);
    body
}

/// The stored object as a version shows it.
pub(crate) fn encode<'a>(kind: &Kind, stored: &'a Value) -> Cow<'a, Value> {
    let version = kind.api_version();
    if stored["apiVersion"] == version.as_str() {
        return Cow::Borrowed(stored);
    }
    let mut shown = stored.clone();
    if let Some(conversion) = &kind.conversion {
        shown = (conversion.from_stored)(shown);
    }
    shown["apiVersion"] = version.into();
    Cow::Owned(shown)
}

/// Takes namespace and name from the URL where the body has none; refuses others.
pub(crate) fn settle_identity(call: &Call, body: &mut Value) -> Result<()> {
    let given = object::namespace(body).to_owned();
    if !given.is_empty() && given != call.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !call.namespace.is_empty() {
        meta_mut(body).insert("namespace".into(), call.namespace.clone().into());
    }
    if call.name.is_empty() {
        return Ok(());
    }
    match object::name(body) {
        "" => drop(meta_mut(body).insert("name".into(), call.name.clone().into())),
        same if same == call.name => {}
        other => {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({other}) does not match the name on the URL ({})",
                call.name
            )));
        }
    }
    Ok(())
}

/// Names, labels, annotations, finalizers and owners of any object.
pub(crate) fn validate_metadata(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = object::name(object);
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else if let Some(problem) = name_problem(kind, name) {
        errors.push(FieldError::invalid("metadata.name", name, problem));
    }
    for (key, value) in at(object, &["metadata", "labels"])
        .as_object()
        .into_iter()
        .flatten()
    {
        if let Some(problem) = key_problem(key) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                key.as_str(),
                problem,
            ));
        }
        if let Some(problem) = label_value_problem(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                value.clone(),
                problem,
            ));
        }
    }
    let mut size = 0;
    for (key, value) in at(object, &["metadata", "annotations"])
        .as_object()
        .into_iter()
        .flatten()
    {
        size += key.len() + value.as_str().unwrap_or_default().len();
        if let Some(problem) = key_problem(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                key.as_str(),
                problem,
            ));
        }
    }
    if size > 256 * 1024 {
        let detail = "may not be more than 262144 bytes";
        errors.push(FieldError::new(
            Problem::TooLong,
            "metadata.annotations",
            "",
            detail,
        ));
    }
    for finalizer in object::finalizers(object) {
        if let Some(problem) = key_problem(&finalizer) {
            errors.push(FieldError::invalid(
                "metadata.finalizers",
                finalizer,
                problem,
            ));
        }
    }
    validate_owners(object, &mut errors);
    errors
}

fn validate_owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = Vec::new();
    for owner in list_at(object, &["metadata", "ownerReferences"]) {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(
                    path,
                    "",
                    format!("{field} must not be empty"),
                ));
            }
        }
        if owner["controller"] == true {
            controllers.push(owner);
        }
    }
    if controllers.len() > 1 {
        let path = "metadata.ownerReferences";
        let all = at(object, &["metadata", "ownerReferences"]).clone();
        let kinds: Vec<String> = controllers
            .iter()
            .map(|owner| format!("{}/{}", str_at(owner, &["kind"]), str_at(owner, &["name"])))
            .collect();
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {}",
            kinds.join(" and ")
        );
        errors.push(FieldError::invalid(path, all, detail));
    }
}

/// What an update must not change.
pub(crate) fn validate_metadata_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_deleting(old) {
        let before = object::finalizers(old);
        let added: Vec<String> = object::finalizers(new)
            .into_iter()
            .filter(|finalizer| !before.contains(finalizer))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", detail));
        }
    }
    let fields = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    for field in fields {
        let (before, after) = (&old["metadata"][field], &new["metadata"][field]);
        if before != after {
            let path = format!("metadata.{field}");
            errors.push(FieldError::invalid(
                path,
                after.clone(),
                "field is immutable",
            ));
        }
    }
    errors
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn name_problem(kind: &Kind, name: &str) -> Option<String> {
    if kind.has(Trait::PathName) {
        let bad = name == "." || name == ".." || name.contains(['/', '%']);
        return bad.then(|| "may not contain '/' or '%'".to_owned());
    }
    if kind.has(Trait::LabelName) {
        return if name.len() > 63 {
            Some("must be no more than 63 characters".into())
        } else {
            (!is_dns_label(name)).then(|| LABEL.to_owned())
        };
    }
    if name.len() > 253 {
        return Some("must be no more than 253 characters".into());
    }
    (!is_dns_subdomain(name)).then(|| SUBDOMAIN.to_owned())
}

/// RFC 1123 label.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(legal)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn is_dns_subdomain(name: &str) -> bool {
    // Parts of a subdomain may be longer than a label.
    let part = |part: &str| {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty()
            && part.bytes().all(legal)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    name.split('.').all(part)
}

/// Label and annotation keys and finalizers: `prefix/name`.
fn key_problem(key: &str) -> Option<String> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Some("prefix part must be non-empty".into());
        }
        if !is_dns_subdomain(prefix) {
            return Some(format!("prefix part {SUBDOMAIN}"));
        }
    }
    if name.is_empty() {
        return Some("name part must be non-empty".into());
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 characters".into());
    }
    (!is_word(name)).then(|| QUALIFIED.to_owned())
}

fn label_value_problem(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 characters".into());
    }
    (!value.is_empty() && !is_word(value)).then(|| LABEL_VALUE.to_owned())
}

fn is_word(word: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let edge = |letter: char| letter.is_ascii_alphanumeric();
    word.bytes().all(legal) && word.starts_with(edge) && word.ends_with(edge)
}

/// The success answer of a deletion.
pub(crate) fn deleted_status(kind: &Kind, object: &Value) -> Value {
    let mut details =
        json!({"name": object::name(object), "kind": kind.plural, "uid": object::uid(object)});
    if !kind.group.is_empty() {
        details["group"] = kind.group.clone().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
