//! PUT and the common end of every patch: from the stored object to its next state.

use std::sync::Arc;

use serde_json::Value;

use super::meta;
use crate::error::{ApiError, FieldError, Result};
use crate::kind::{Kind, Trait};
use crate::managed::{self, Manager};
use crate::object::{self, carry, is_deleting, meta_mut};
use crate::state::{Call, Part, State};

/// An object after a write, and whether it is new.
pub(crate) struct Written {
    pub(crate) object: Arc<Value>,
    pub(crate) created: bool,
}

impl State {
    /// Replaces an object, or one part of it, by a request body.
    pub(crate) fn replace(&mut self, call: &Call, body: Value) -> Result<Written> {
        let mut object = self.take_in(call, body)?;
        meta::settle_identity(call, &mut object)?;
        if call.kind.has(Trait::CreateOnUpdate) {
            check_number(object::version(&object))?;
        }
        let old = self.store.get(&call.kind.table, &call.key()).cloned();
        let Some(old) = old else {
            if call.part != Part::Main || !call.kind.has(Trait::CreateOnUpdate) {
                return Err(call.not_found());
            }
            check_uid(call, &object, None)?;
            if !call.dry_run {
                meta_mut(&mut object).remove("resourceVersion");
            }
            let object = self.create(call, object)?;
            return Ok(Written {
                object,
                created: true,
            });
        };
        check_uid(call, &object, Some(&old))?;
        check_version(call, &mut object, &old)?;
        managed::track(call, Manager::Update, &old, &mut object);
        let object = self.store_update(call, &old, object)?;
        Ok(Written {
            object,
            created: false,
        })
    }

    /// Stores the next state of an object: immutable fields, hooks, validation, removal by emptied finalizers.
    pub(crate) fn store_update(
        &mut self,
        call: &Call,
        old: &Arc<Value>,
        mut new: Value,
    ) -> Result<Arc<Value>> {
        let kind = call.kind.clone();
        keep_metadata(&mut new, old);
        let mut errors;
        if call.part == Part::Status {
            keep_all_but_status(&kind, &mut new, old);
            errors = metadata_problems(&kind, &new, old);
            errors.extend((kind.hooks.validate_status)(&new, old));
        } else {
            if kind.has(Trait::Status) && call.part != Part::Finalize {
                let status = old["status"].clone();
                set_or_remove(&mut new, "status", status);
            }
            (kind.hooks.prepare)(&mut self.allocations, &mut new, Some(old))?;
            errors = metadata_problems(&kind, &new, old);
            errors.extend((kind.hooks.validate)(&new, Some(old)));
        }
        errors.extend(kind.schema.iter().flat_map(|schema| schema.validate(&new)));
        if !errors.is_empty() {
            return Err(ApiError::invalid(&kind.group_kind(), &call.name, &errors));
        }
        if call.part != Part::Status {
            bump_generation(&kind, &mut new, old);
        }
        if managed::same_but_times(&new, old) {
            return Ok(old.clone());
        }
        let graceful =
            object::int_at(old, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) != 0;
        if is_deleting(old)
            && !graceful
            && object::finalizers(&new).is_empty()
            && namespace_is_empty(&kind, &new)
        {
            self.purge(call, &call.key());
            return Ok(Arc::new(new));
        }
        Ok(self.commit(call, new))
    }
}

/// Everything that is wrong with the metadata of an object's next state.
fn metadata_problems(kind: &Kind, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = meta::validate_metadata(kind, new);
    errors.extend(meta::validate_metadata_update(new, old));
    // The names of single finalizers are looked at last.
    errors.sort_by_key(|error| error.field.starts_with("metadata.finalizers["));
    errors
}

/// A namespace also waits for the finalizers of its spec.
fn namespace_is_empty(kind: &Kind, object: &Value) -> bool {
    kind.table != "namespaces" || object::list_at(object, &["spec", "finalizers"]).is_empty()
}

/// A body with a UID is meant for that object alone.
pub(crate) fn check_uid(call: &Call, body: &Value, old: Option<&Value>) -> Result<()> {
    let wanted = object::uid(body);
    let found = old.map_or("", object::uid);
    if wanted.is_empty() || wanted == found {
        return Ok(());
    }
    let mut path = format!("/{}", call.kind.plural);
    if !call.kind.group.is_empty() && call.kind.is_custom() {
        path = format!("/{}{path}", call.kind.group);
    }
    let key = format!("/registry{path}/{}", call.key());
    Err(ApiError::conflict(
        &call.kind.resource(),
        &call.name,
        format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
        ),
    ))
}

/// Optimistic locking; a body without version takes the stored one where the kind allows it.
pub(crate) fn check_version(call: &Call, body: &mut Value, old: &Value) -> Result<()> {
    let stored = object::version(old).to_owned();
    match object::version(body) {
        "" | "0" if !(call.kind.has(Trait::ConditionalUpdate) || call.kind.is_custom()) => {
            meta_mut(body).insert("resourceVersion".into(), stored.into());
            Ok(())
        }
        "" | "0" => {
            let detail = "must be specified for an update";
            let error = FieldError::invalid("metadata.resourceVersion", 0, detail);
            Err(ApiError::invalid(
                &call.kind.resource(),
                &call.name,
                &[error],
            ))
        }
        same if same == stored => Ok(()),
        text => {
            check_number(text)?;
            Err(ApiError::stale_version(&call.kind.resource(), &call.name))
        }
    }
}

/// A version is a number, if it is there at all.
fn check_number(version: &str) -> Result<()> {
    if version.is_empty() || version.parse::<u64>().is_ok() {
        return Ok(());
    }
    Err(ApiError::unknown(format!(
        "strconv.ParseUint: parsing {version:?}: invalid syntax"
    )))
}

/// Fields that the server owns stay what they were.
fn keep_metadata(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let meta = meta_mut(new);
    for field in ["generation", "creationTimestamp", "selfLink"] {
        carry(meta, old, field);
    }
    if meta.get("uid").is_none() {
        carry(meta, old, "uid");
    }
    if !old["deletionTimestamp"].is_null() {
        if meta.get("deletionTimestamp").is_none() {
            carry(meta, old, "deletionTimestamp");
        }
        if meta.get("deletionGracePeriodSeconds").is_none() {
            carry(meta, old, "deletionGracePeriodSeconds");
        }
    }
}

/// A status write leaves everything else; custom kinds even their metadata.
fn keep_all_but_status(kind: &Kind, new: &mut Value, old: &Value) {
    let status = new["status"].take();
    let meta = new["metadata"].take();
    *new = old.clone();
    set_or_remove(new, "status", status);
    if kind.table == "pods" && new["status"]["qosClass"].is_null() {
        carry(
            object::map_mut(new, &["status"]),
            &old["status"],
            "qosClass",
        );
    }
    if kind.is_custom() {
        carry(meta_mut(new), &meta, "managedFields");
    } else {
        new["metadata"] = meta;
        if kind.table == "pods" {
            carry(meta_mut(new), &old["metadata"], "ownerReferences");
        }
        if kind.table == "deployments.apps" {
            let labels = &old["metadata"];
            carry(meta_mut(new), labels, "labels");
        }
    }
}

fn set_or_remove(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        if value.is_null() {
            fields.remove(field);
        } else {
            fields.insert(field.into(), value);
        }
    }
}

/// Counts a change of anything but metadata and status.
fn bump_generation(kind: &Kind, new: &mut Value, old: &Value) {
    if !kind.has(Trait::Generation) {
        return;
    }
    let asks = |object: &Value| {
        let mut asks = object.as_object().cloned().unwrap_or_default();
        asks.remove("metadata");
        // A kind without the subresource owns no status that others write.
        if kind.has(Trait::Status) {
            asks.remove("status");
        }
        asks
    };
    // What these two kinds' controllers also go by.
    let counted = match kind.table.as_str() {
        "deployments.apps" => Some("annotations"),
        "endpointslices.discovery.k8s.io" => Some("labels"),
        _ => None,
    };
    let also = counted.is_some_and(|field| new["metadata"][field] != old["metadata"][field]);
    if also || asks(new) != asks(old) {
        let generation = object::int_at(old, &["metadata", "generation"]).unwrap_or(0) + 1;
        meta_mut(new).insert("generation".into(), generation.into());
    }
}
