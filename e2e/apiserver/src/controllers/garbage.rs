//! Garbage collector: objects whose owners are gone, and the two other ways of deletion.

use std::sync::Arc;

use serde_json::Value;

use super::desk::Desk;
use super::driver::{Controller, Outcome};
use crate::error::Result;
use crate::object::{self, is_deleting, list_at, meta_mut, str_at};
use crate::store::Change;
use crate::verbs::delete::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};

/// The controller. A key is `table` and the key in it.
pub(crate) struct Garbage;

impl Controller for Garbage {
    const NAME: &'static str = "garbage";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        let mut keys = Vec::new();
        if let Some(new) = &change.new {
            let owned = !list_at(new, &["metadata", "ownerReferences"]).is_empty();
            if owned || has_gc_finalizer(new) {
                keys.push(join(&change.table, &change.key));
            }
            // A blocking dependent may have gone or lost its mark.
            keys.extend(blocked_owners(desk, new));
        } else {
            let gone = change.object();
            keys.extend(
                desk.dependents(gone)
                    .into_iter()
                    .map(|(table, one)| join(&table, &object::key_of(&one))),
            );
            keys.extend(blocked_owners(desk, gone));
        }
        keys
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some((table, key)) = key.split_once(' ') else {
            return Ok(None);
        };
        let Some(object) = desk.get(table, key) else {
            return Ok(None);
        };
        if is_deleting(&object) {
            let finalizers = object::finalizers(&object);
            if finalizers.iter().any(|one| one == ORPHAN) {
                orphan(desk, table, &object)?;
            } else if finalizers.iter().any(|one| one == FOREGROUND) {
                foreground(desk, table, &object)?;
            }
            return Ok(None);
        }
        collect(desk, table, &object)?;
        Ok(None)
    }
}

fn join(table: &str, key: &str) -> String {
    format!("{table} {key}")
}

fn has_gc_finalizer(object: &Value) -> bool {
    is_deleting(object)
        && object::finalizers(object)
            .iter()
            .any(|one| one == ORPHAN || one == FOREGROUND)
}

/// Owners that wait in foreground deletion.
fn blocked_owners(desk: &Desk, dependent: &Value) -> Vec<String> {
    let owners = list_at(dependent, &["metadata", "ownerReferences"]).iter();
    owners
        .filter_map(|owner| {
            let (table, found) = resolve(desk, dependent, owner)?;
            let found = found.filter(|owner| has_gc_finalizer(owner))?;
            Some(join(&table, &object::key_of(&found)))
        })
        .collect()
}

/// Table of an owner, and the owner itself if it is there with the right UID. None if its kind is not served.
fn resolve(desk: &Desk, dependent: &Value, owner: &Value) -> Option<(String, Option<Arc<Value>>)> {
    let kind = desk.kind_of(str_at(owner, &["apiVersion"]), str_at(owner, &["kind"]))?;
    let namespace = if kind.namespaced {
        object::namespace(dependent)
    } else {
        ""
    };
    let found = desk.get(
        &kind.table,
        &object::key(namespace, str_at(owner, &["name"])),
    );
    let found = found.filter(|found| object::uid(found) == str_at(owner, &["uid"]));
    Some((kind.table.clone(), found))
}

/// Deletes an object none of whose owners is left; owners that are gone are struck off.
fn collect(desk: &Desk, table: &str, object: &Value) -> Result<()> {
    let owners = list_at(object, &["metadata", "ownerReferences"]);
    let (mut solid, mut waiting) = (Vec::new(), false);
    for owner in owners {
        match resolve(desk, object, owner) {
            // An unknown kind is no proof that the owner is gone.
            None => solid.push(owner.clone()),
            Some((_, None)) => {}
            Some((_, Some(found))) => {
                let foreground = is_deleting(&found)
                    && object::finalizers(&found)
                        .iter()
                        .any(|one| one == FOREGROUND);
                if foreground {
                    waiting = true;
                } else {
                    solid.push(owner.clone());
                }
            }
        }
    }
    if owners.is_empty() || solid.len() == owners.len() {
        return Ok(());
    }
    if !solid.is_empty() {
        let mut kept = object.clone();
        meta_mut(&mut kept).insert("ownerReferences".into(), solid.into());
        return desk.update(table, kept).map(drop);
    }
    let propagation = if waiting && has_dependents(desk, object) {
        Some(Propagation::Foreground)
    } else if object::finalizers(object).iter().any(|one| one == ORPHAN) {
        Some(Propagation::Orphan)
    } else {
        Some(Propagation::Background)
    };
    desk.delete(
        table,
        object,
        DeleteOptions {
            propagation,
            ..DeleteOptions::default()
        },
    )
}

fn has_dependents(desk: &Desk, object: &Value) -> bool {
    !desk.dependents(object).is_empty()
}

/// Strikes the owner off its dependents, then lets it go.
fn orphan(desk: &Desk, table: &str, owner: &Value) -> Result<()> {
    for (table, dependent) in desk.dependents(owner) {
        let mut freed = Value::clone(&dependent);
        let mut owners = list_at(&freed, &["metadata", "ownerReferences"]).to_vec();
        owners.retain(|reference| reference["uid"] != object::uid(owner));
        meta_mut(&mut freed).insert("ownerReferences".into(), owners.into());
        desk.update(&table, freed)?;
    }
    remove_finalizer(desk, table, owner, ORPHAN)
}

/// Deletes dependents; the owner goes once none of them blocks.
fn foreground(desk: &Desk, table: &str, owner: &Value) -> Result<()> {
    let mut blocked = false;
    for (table, dependent) in desk.dependents(owner) {
        let blocks = list_at(&dependent, &["metadata", "ownerReferences"])
            .iter()
            .any(|reference| {
                reference["uid"] == object::uid(owner) && reference["blockOwnerDeletion"] == true
            });
        blocked |= blocks;
        if !is_deleting(&dependent) {
            collect(desk, &table, &dependent)?;
        }
    }
    // A dependent without grace is gone by now, and its end wakes the owner again.
    if blocked {
        Ok(())
    } else {
        remove_finalizer(desk, table, owner, FOREGROUND)
    }
}

fn remove_finalizer(desk: &Desk, table: &str, owner: &Value, finalizer: &str) -> Result<()> {
    let mut freed = owner.clone();
    let mut finalizers = object::finalizers(&freed);
    finalizers.retain(|one| one != finalizer);
    object::set_finalizers(&mut freed, &finalizers);
    desk.update(table, freed).map(drop)
}
