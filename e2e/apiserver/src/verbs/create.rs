//! POST: a new object.

use std::sync::Arc;

use serde_json::{Value, json};

use super::meta;
use crate::error::{ApiError, GroupResource, Result};
use crate::kind::Trait;
use crate::managed::{self, Manager};
use crate::object::{self, is_deleting, meta_mut};
use crate::state::{Call, State};

/// Longest part of `generateName` that is kept.
const GENERATED_BASE: usize = 58;

impl State {
    /// Creates an object from a request body.
    pub(crate) fn create(&mut self, call: &Call, body: Value) -> Result<Arc<Value>> {
        let mut object = self.take_in(call, body)?;
        meta::settle_identity(call, &mut object)?;
        let mut fresh =
            json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": {}});
        (call.kind.hooks.zero)(&mut fresh);
        // What only the server sets is nobody's (`WipeObjectMetaSystemFields`).
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            meta_mut(&mut object).remove(field);
        }
        managed::track(call, Manager::Update, &fresh, &mut object);
        self.insert(call, object)
    }

    /// Stores a decoded object whose managedFields are settled.
    pub(crate) fn insert(&mut self, call: &Call, mut object: Value) -> Result<Arc<Value>> {
        self.check_namespace(call, &object)?;
        self.fill_metadata(call, &mut object)?;
        let kind = &call.kind;
        if kind.has(Trait::Status) && !kind.has(Trait::KeepsStatusOnCreate) {
            object
                .as_object_mut()
                .and_then(|fields| fields.remove("status"));
            // An empty status may be shown all the same.
            (kind.hooks.default)(&mut object);
        }
        (kind.hooks.prepare)(&mut self.allocations, &mut object, None)?;
        let mut errors = meta::validate_metadata(kind, &object);
        errors.extend((kind.hooks.validate)(&object, None));
        errors.extend(
            kind.schema
                .iter()
                .flat_map(|schema| schema.validate(&object)),
        );
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                &kind.group_kind(),
                object::name(&object),
                &errors,
            ));
        }
        // Storage refuses it, which a dry run does not reach.
        if !object::version(&object).is_empty() && !call.dry_run {
            return Err(ApiError::unknown(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if let Some(other) = self.store.get(&kind.table, &object::key_of(&object)) {
            let mut error = ApiError::already_exists(&kind.resource(), object::name(&object));
            if is_deleting(other) {
                error.message = format!("object is being deleted: {}", error.message);
            }
            return Err(error);
        }
        Ok(self.commit(call, object))
    }

    /// Objects live in namespaces that exist and are not going away.
    fn check_namespace(&self, call: &Call, object: &Value) -> Result<()> {
        if !call.kind.namespaced {
            return Ok(());
        }
        let namespaces = GroupResource::new("", "namespaces");
        let Some(namespace) = self.store.get("namespaces", &call.namespace) else {
            return Err(ApiError::not_found(&namespaces, &call.namespace));
        };
        if !is_deleting(namespace) {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {} because it is being terminated",
            call.namespace
        );
        let mut error = ApiError::forbidden(&call.kind.resource(), object::name(object), why);
        let message = format!("namespace {} is being terminated", call.namespace);
        error.details["causes"] = json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
        Err(error)
    }

    fn fill_metadata(&mut self, call: &Call, object: &mut Value) -> Result<()> {
        let base = object::str_at(object, &["metadata", "generateName"]).to_owned();
        if object::name(object).is_empty() && !base.is_empty() {
            let name = self.generate_name(call, &base)?;
            meta_mut(object).insert("name".into(), name.into());
        }
        let uid = self.allocations.uid();
        let meta = meta_mut(object);
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
        ] {
            meta.remove(field);
        }
        meta.insert("uid".into(), uid.into());
        meta.insert(
            "creationTimestamp".into(),
            call.now.whole_seconds().to_string().into(),
        );
        if call.kind.has(Trait::Generation) {
            meta.insert("generation".into(), 1.into());
        }
        Ok(())
    }

    /// A free name; the real server tries as often as this (KEP-4420).
    fn generate_name(&mut self, call: &Call, base: &str) -> Result<String> {
        let base: String = base.chars().take(GENERATED_BASE).collect();
        let mut name = String::new();
        for _ in 0..8 {
            name = format!("{base}{}", self.allocations.suffix(5));
            if self
                .store
                .get(&call.kind.table, &object::key(&call.namespace, &name))
                .is_none()
            {
                return Ok(name);
            }
        }
        Err(ApiError::generate_name_conflict(
            &call.kind.resource(),
            &name,
        ))
    }
}
