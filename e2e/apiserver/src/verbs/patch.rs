//! PATCH: JSON, merge, strategic merge and apply.

use std::sync::Arc;

use serde_json::{Value, json};

use super::meta;
use super::update::{Written, check_uid, check_version};
use crate::error::{ApiError, FieldError, GroupResource, Problem, Result};
use crate::kind::Kind;
use crate::managed::{self, Manager};
use crate::object::{self, meta_mut};
use crate::state::{Call, Part, State};
use crate::strategic;

/// Form of a patch, by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    /// The form that a content type names.
    pub(crate) fn of(content_type: &str, kind: &Kind) -> Result<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        let found = match essence {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" if !kind.is_custom() => Some(Self::Strategic),
            "application/apply-patch+yaml" => Some(Self::Apply),
            _ => None,
        };
        found.ok_or_else(|| {
            let mut all = vec![
                "application/json-patch+json",
                "application/merge-patch+json",
            ];
            if !kind.is_custom() {
                all.push("application/strategic-merge-patch+json");
            }
            all.push("application/apply-patch+yaml");
            ApiError::unsupported_media_type(&all.join(", "))
        })
    }
}

impl State {
    /// Patches the object of a call; `force` is the word of server-side apply.
    pub(crate) fn patch(
        &mut self,
        call: &Call,
        form: PatchKind,
        patch: &Value,
        force: bool,
    ) -> Result<Written> {
        if form == PatchKind::Apply {
            return self.apply(call, patch, force);
        }
        let old = self.fetch(call)?;
        let shown = meta::encode(&call.kind, &old);
        let patched = patched(&call.kind, form, &shown, patch)?;
        let object = self.next(call, &old, patched)?;
        Ok(Written {
            object,
            created: false,
        })
    }

    /// Stores what a patch made of an object.
    fn next(&mut self, call: &Call, old: &Arc<Value>, patched: Value) -> Result<Arc<Value>> {
        let (mut new, unknown) = meta::decode(&call.kind, patched.clone())
            .map_err(|error| not_an_object(&patched, &error.message))?;
        self.judge(call, &unknown, |_, fields| {
            not_an_object(&patched, &format!("strict decoding error: {fields}"))
        })?;
        meta::settle_identity(call, &mut new)?;
        check_version(call, &mut new, old)?;
        managed::track(call, Manager::Update, old, &mut new);
        self.store_update(call, old, new)
    }

    fn apply(&mut self, call: &Call, config: &Value, force: bool) -> Result<Written> {
        let old = self.store.get(&call.kind.table, &call.key()).cloned();
        if old.is_none() && call.part != Part::Main {
            return Err(call.not_found());
        }
        let (mut config, named) = checked_config(call, config)?;
        let Some(old) = old else {
            named?;
            let wanted = object::uid(&config);
            if !wanted.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {wanted}, and no existing object was found"
                );
                return Err(ApiError::conflict(&call.kind.resource(), &call.name, why));
            }
            if !call.dry_run {
                meta_mut(&mut config).remove("resourceVersion");
            }
            let live =
                json!({"apiVersion": config["apiVersion"], "kind": config["kind"], "metadata": {}});
            let mut new = managed::apply(call, &live, &config, force)?;
            drop_empty(call, &mut new);
            (call.kind.hooks.default)(&mut new);
            if let Some(schema) = &call.kind.schema {
                schema.prune_and_default(&mut new);
            }
            let object = self.insert(call, new)?;
            return Ok(Written {
                object,
                created: true,
            });
        };
        check_uid(call, &config, Some(&old))?;
        let mut asked = config.clone();
        meta_mut(&mut config).remove("resourceVersion");
        let mut new = managed::apply(call, &old, &config, force)?;
        // Conflicts are told first.
        named?;
        check_version(call, &mut asked, &old).or_else(|error| {
            // An applied configuration needs no version, even where updates do.
            if object::version(&asked).is_empty() {
                Ok(())
            } else {
                Err(error)
            }
        })?;
        drop_empty(call, &mut new);
        (call.kind.hooks.default)(&mut new);
        if let Some(schema) = &call.kind.schema {
            schema.prune_and_default(&mut new);
        }
        let object = self.store_update(call, &old, new)?;
        Ok(Written {
            object,
            created: false,
        })
    }
}

/// Empty maps and lists that only the applied text has.
fn drop_empty(call: &Call, new: &mut Value) {
    if call.kind.is_custom() {
        let empty = |field: &Value| {
            field.as_object().is_some_and(serde_json::Map::is_empty)
                || field.as_array().is_some_and(Vec::is_empty)
        };
        meta_mut(new).retain(|_, field| !empty(field));
    } else {
        meta::drop_empty(&call.kind.shape, new);
    }
}

/// A patch that leaves something that is no object of its kind.
pub(crate) fn not_an_object(patched: &Value, why: &str) -> ApiError {
    let error = FieldError::invalid("patch", patched.to_string(), why);
    ApiError::invalid(&GroupResource::new("", ""), "", &[error])
}

/// An applied configuration: typed but not defaulted, since it owns only what it names. Also whether its name is the one
/// that the request is about.
fn checked_config(call: &Call, config: &Value) -> Result<(Value, Result<()>)> {
    if !object::list_at(config, &["metadata", "managedFields"]).is_empty() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let unusable = |why: &str| {
        ApiError::unknown(format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): {why}",
            object::namespace(config),
            object::name(config),
            format_args!("{}/{}", call.kind.group, call.kind.version),
            call.kind.kind
        ))
    };
    if config["apiVersion"].is_null() || config["kind"].is_null() {
        let kind = config["kind"].as_str().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "invalid object type: /, Kind={kind}"
        )));
    }
    // For the check alone; its defaults are not owned by the applier.
    let fits = config["apiVersion"] == call.kind.api_version() && config["kind"] == *call.kind.kind;
    let (_, unknown) = meta::decode(&call.kind, config.clone()).map_err(|error| {
        if fits {
            unusable(&error.message)
        } else {
            error
        }
    })?;
    let schema = call.kind.schema.iter();
    let mistyped = schema
        .flat_map(|schema| schema.validate(config))
        .find(|error| error.problem == Problem::TypeInvalid);
    if let Some(error) = mistyped {
        return Err(unusable(&error.to_string()));
    }
    if let Some(path) = managed::duplicate_item(&call.kind.shape, config) {
        return Err(unusable(&format!("{path}: duplicate entries for key")));
    }
    if let Some(first) = unknown.first() {
        return Err(unusable(&format!(".{first}: field not declared in schema")));
    }
    let mut config = config.clone();
    object::drop_nulls(&mut config);
    if !call.kind.is_custom() {
        meta::quantities_to_text(&mut config);
    }
    if let Some(conversion) = &call.kind.conversion {
        config = (conversion.to_stored)(config);
    }
    let named = meta::settle_identity(call, &mut config);
    Ok((config, named))
}

/// Whether the operation tests that nothing is where nothing is. The real server takes a `test` for
/// null so, and kube-rs counts on it when it adds the first finalizer; RFC 6902 would fail it.
fn tests_for_absence(operation: &json_patch::PatchOperation, object: &Value) -> bool {
    match operation {
        json_patch::PatchOperation::Test(test) => {
            test.value.is_null() && object.pointer(test.path.as_str()).is_none()
        }
        _ => false,
    }
}

/// The real server's library replaces a member that is not there by adding it; RFC 6902 would fail.
fn lenient(operation: json_patch::PatchOperation) -> json_patch::PatchOperation {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    match operation {
        json_patch::PatchOperation::Replace(replace)
            if last(replace.path.as_str()).parse::<usize>().is_err() =>
        {
            json_patch::PatchOperation::Add(json_patch::AddOperation {
                path: replace.path,
                value: replace.value,
            })
        }
        other => other,
    }
}

fn patched(kind: &Kind, form: PatchKind, shown: &Value, patch: &Value) -> Result<Value> {
    let mut new = shown.clone();
    match form {
        PatchKind::Json => apply_json_patch(&mut new, patch)?,
        PatchKind::Merge => {
            if !patch.is_object() {
                return Err(ApiError::bad_request(
                    "error decoding patch: json: cannot unmarshal into a map",
                ));
            }
            json_patch::merge(&mut new, patch);
        }
        PatchKind::Strategic | PatchKind::Apply => {
            new = strategic::merge(&kind.shape, shown, patch).map_err(ApiError::bad_request)?;
        }
    }
    Ok(new)
}

/// Applies a JSON patch.
pub(crate) fn apply_json_patch(object: &mut Value, patch: &Value) -> Result<()> {
    let patch: json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
    for operation in &patch.0 {
        if tests_for_absence(operation, object) {
            continue;
        }
        let operation = lenient(operation.clone());
        json_patch::patch(object, std::slice::from_ref(&operation)).map_err(|_| {
            ApiError::unprocessable(
                "the server rejected our request due to an error in our request",
            )
        })?;
    }
    Ok(())
}
