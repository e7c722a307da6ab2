//! Decoding of request bodies and the rules of metadata that hold for every kind.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::strict;
use crate::error::{ApiError, FieldError, Problem, Result};
use crate::kind::{Kind, Trait};
use crate::kinds::typed;
use crate::object::{self, at, is_deleting, list_at, meta_mut, str_at};
use crate::shape::{Form, Shape};
use crate::state::Call;

/// Brings a request body into the stored form: version, nulls, unknown custom fields, types, defaults.
///
/// Gives the paths of fields that the kind does not know, too; they are dropped.
pub(crate) fn decode(kind: &Kind, mut body: Value) -> Result<(Value, Vec<String>)> {
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
    let known = check_types(kind, &body)?;
    let unknown = strict::drop_unknown(&mut body, &known);
    Ok((normalise(kind, body), unknown))
}

/// Quantities may be written as numbers; Go keeps their text.
pub(crate) fn quantities_to_text(value: &mut Value) {
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

/// What the kind knows of a body.
fn check_types(kind: &Kind, body: &Value) -> Result<Value> {
    let meta = &body["metadata"];
    let read = if !meta.is_object() && !meta.is_null() {
        Err("metadata: expected a map".to_owned())
    } else {
        known_to(kind, body).map_err(|error| error.to_string())
    };
    read.map_err(|why| {
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: json: {why}",
            kind = kind.kind,
            version = kind.version,
        ))
    })
}

fn known_to(kind: &Kind, body: &Value) -> Result<Value, serde_json::Error> {
    let Some(schema) = &kind.schema else {
        return Ok((kind.hooks.decode)(body)?.unwrap_or_else(|| body.clone()));
    };
    let mut known = body.clone();
    schema.prune(&mut known);
    if body["metadata"].is_object() {
        known["metadata"] = typed::<ObjectMeta>(&body["metadata"])?.unwrap_or_default();
    }
    Ok(known)
}

fn normalise(kind: &Kind, mut body: Value) -> Value {
    if let Some(schema) = &kind.schema {
        object::drop_nulls(meta_mut(&mut body).entry("labels").or_insert(Value::Null));
        schema.prune_and_default(&mut body);
        let shape = Shape::built_in("ObjectMeta");
        if let Some(meta) = body.get_mut("metadata") {
            drop_empty(&shape, meta);
        }
    } else {
        object::drop_nulls(&mut body);
        drop_empty(&kind.shape, &mut body);
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

/// Lists that Go writes even when they are empty.
const SHOWN_EMPTY: [&str; 5] = ["endpoints", "ports", "containers", "addresses", "rules"];

/// Numbers and flags that are no pointers in Go, so that zero is not written.
const ZERO_HIDDEN: [&str; 7] = [
    "paused",
    "publishNotReadyAddresses",
    "hostNetwork",
    "unschedulable",
    "minReadySeconds",
    "healthCheckNodePort",
    "nodePort",
];

/// Drops empty maps and lists, as Go's `omitempty` does. Empty structs stay: in Go they are pointers.
pub(crate) fn drop_empty(shape: &Shape, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| match field {
                Value::Object(map) => {
                    !map.is_empty() || !matches!(shape.field(name).form, Form::Map(_))
                }
                Value::Array(list) => !list.is_empty() || SHOWN_EMPTY.contains(&name.as_str()),
                zero => !((*zero == 0 || *zero == false) && ZERO_HIDDEN.contains(&name.as_str())),
            });
            for (name, field) in fields {
                drop_empty(shape.field(name), field);
            }
        }
        Value::Array(items) => {
            for item in items {
                drop_empty(shape.items().0, item);
            }
        }
        _ => {}
    }
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
    if !call.kind.namespaced {
        meta_mut(body).remove("namespace");
    }
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
    for (index, finalizer) in object::finalizers(object).into_iter().enumerate() {
        let plain = !kind.is_custom()
            && !ANY_FINALIZER.contains(&kind.table.as_str())
            && !finalizer.contains('/')
            && !["orphan", "foregroundDeletion", "kubernetes"].contains(&finalizer.as_str());
        let unqualified = "name is neither a standard finalizer name nor is it fully qualified";
        let problem = key_problem(&finalizer).or_else(|| plain.then(|| unqualified.to_owned()));
        if let Some(problem) = problem {
            let path = if problem == unqualified {
                format!("metadata.finalizers[{index}]")
            } else {
                "metadata.finalizers".to_owned()
            };
            errors.push(FieldError::invalid(path, finalizer, problem));
        }
    }
    validate_owners(object, &mut errors);
    errors
}

fn validate_owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = Vec::new();
    for (index, owner) in list_at(object, &["metadata", "ownerReferences"])
        .iter()
        .enumerate()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences[{index}].{field}");
                errors.push(FieldError::required(path, "must not be empty"));
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
            let added: Vec<String> = added.iter().map(|one| format!("{one:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
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

/// Tables of kinds whose finalizers need no domain.
const ANY_FINALIZER: [&str; 3] = [
    "leases.coordination.k8s.io",
    "events",
    "poddisruptionbudgets.policy",
];

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_KEY: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
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
    subdomain_problem(name)
}

/// What keeps a name from being an RFC 1123 subdomain.
pub(crate) fn subdomain_problem(name: &str) -> Option<String> {
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
pub(crate) fn key_problem(key: &str) -> Option<String> {
    if key.matches('/').count() > 1 {
        return Some(LABEL_KEY.to_owned());
    }
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

pub(crate) fn label_value_problem(value: &str) -> Option<String> {
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
