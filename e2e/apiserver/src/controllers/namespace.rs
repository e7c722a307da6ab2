//! Namespaces: default objects of new ones, content of ending ones.

use std::time::Duration;

use serde_json::{Value, json};

use super::desk::Desk;
use super::driver::{Controller, Outcome};
use crate::object::{self, is_deleting};
use crate::store::Change;
use crate::verbs::delete::DeleteOptions;

/// The controller.
pub(crate) struct Namespaces;

impl Controller for Namespaces {
    const NAME: &'static str = "namespace";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        if change.table.as_ref() == "namespaces" {
            return vec![change.key.clone()];
        }
        // Each object that goes brings its ending namespace nearer to its end.
        let namespace = object::namespace(change.object());
        let ending = change.new.is_none()
            && desk
                .get("namespaces", namespace)
                .is_some_and(|found| is_deleting(&found));
        let default_account = change.new.is_none() && change.table.as_ref() == "serviceaccounts";
        if ending || default_account {
            vec![namespace.to_owned()]
        } else {
            Vec::new()
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some(namespace) = desk.get("namespaces", key) else {
            return Ok(None);
        };
        if !is_deleting(&namespace) {
            if desk
                .get("serviceaccounts", &object::key(key, "default"))
                .is_none()
            {
                desk.create(
                    "serviceaccounts",
                    key,
                    json!({"metadata": {"name": "default"}}),
                )?;
            }
            return Ok(None);
        }
        if !empty_out(desk, key)? {
            // Graceful ends wake this key; a stuck finalizer is looked at from time to time.
            return Ok(Some(Duration::from_secs(15)));
        }
        let mut done = Value::clone(&namespace);
        done["spec"]["finalizers"] = json!([]);
        desk.finalize(done)?;
        Ok(None)
    }
}

/// Deletes everything in a namespace; true once nothing is left.
fn empty_out(desk: &Desk, namespace: &str) -> crate::error::Result<bool> {
    let mut empty = true;
    for kind in desk.kinds().into_iter().filter(|kind| kind.namespaced) {
        for object in desk.list(&kind.table, namespace) {
            if !is_deleting(&object) {
                desk.delete(&kind.table, &object, DeleteOptions::default())?;
            }
            empty &= desk.get(&kind.table, &object::key_of(&object)).is_none();
        }
    }
    Ok(empty)
}
