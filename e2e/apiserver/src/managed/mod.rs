//! `metadata.managedFields`: who set which field, and server-side apply on top of it.
//!
//! Follows `apimachinery/pkg/util/managedfields` and structured-merge-diff. Verbs call [`track`] for every plain write
//! and [`apply`] for an applied configuration.

pub(crate) mod merge;
pub(crate) mod set;

#[cfg(test)]
mod laws;

use std::collections::BTreeMap;

use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::object::{drop_nulls, list_at, meta_mut};
use crate::state::{Call, Part};
use merge::Comparison;
use set::FieldSet;

/// Kind of write that an entry stands for (`operation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Manager {
    Apply,
    Update,
}

impl Manager {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Identity of an entry. An applier is one whatever version it speaks, so that is no part of its identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    operation: Manager,
    manager: String,
    version: String,
    part: String,
}

impl Id {
    fn new(call: &Call, operation: Manager) -> Self {
        let version = if operation == Manager::Apply {
            String::new()
        } else {
            call.kind.api_version()
        };
        Self {
            operation,
            manager: call.manager.clone(),
            version,
            part: call.part.name().to_owned(),
        }
    }

    /// As conflict messages name it.
    fn text(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.part.is_empty() {
            text = format!("{text} with subresource {:?}", self.part);
        }
        if self.operation == Manager::Update {
            text = format!("{text} using {}", self.version);
        }
        text
    }
}

#[derive(Debug, Clone)]
struct Entry {
    fields: FieldSet,
    version: String,
    time: String,
}

/// Most entries of plain writers; older ones are put together.
const MAX_UPDATERS: usize = 10;

struct Managed {
    entries: BTreeMap<Id, Entry>,
}

impl Managed {
    fn read(object: &Value) -> Self {
        let entries = list_at(object, &["metadata", "managedFields"])
            .iter()
            .map(|entry| {
                let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
                let operation = if entry["operation"] == "Apply" {
                    Manager::Apply
                } else {
                    Manager::Update
                };
                let version = if operation == Manager::Apply {
                    String::new()
                } else {
                    text("apiVersion")
                };
                let id = Id {
                    operation,
                    manager: text("manager"),
                    version,
                    part: text("subresource"),
                };
                let fields = FieldSet::from_json(&entry["fieldsV1"]);
                (
                    id,
                    Entry {
                        fields,
                        version: text("apiVersion"),
                        time: text("time"),
                    },
                )
            });
        Self {
            entries: entries.collect(),
        }
    }

    /// The entries to which a plain write adds its own: those that it brings, so that kubectl can turn the fields of
    /// client-side apply into those of server-side apply, or the live ones if it brings none or writes a part only. An
    /// explicit `[{}]` resets the list.
    fn before(call: &Call, live: &Value, new: &Value) -> Self {
        let brought = list_at(new, &["metadata", "managedFields"]);
        let exists = !crate::object::uid(live).is_empty();
        if brought == [json!({})] {
            return Self {
                entries: BTreeMap::new(),
            };
        }
        if exists && call.part == Part::Main && !brought.is_empty() {
            return Self::read(new);
        }
        Self::read(live)
    }

    fn write(mut self, object: &mut Value) {
        self.cap();
        let mut entries: Vec<(Id, Entry)> = self.entries.into_iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            let key = |id: &Id, entry: &Entry| (id.operation, entry.time.clone(), id.clone());
            key(a, x).cmp(&key(b, y))
        });
        let list: Vec<Value> = entries
            .into_iter()
            .map(|(id, entry)| entry_json(&id, &entry))
            .collect();
        if list.is_empty() {
            meta_mut(object).remove("managedFields");
        } else {
            meta_mut(object).insert("managedFields".into(), Value::Array(list));
        }
    }

    /// Folds the oldest plain writers into one per version.
    fn cap(&mut self) {
        let mut updaters: Vec<(String, Id)> = self
            .entries
            .iter()
            .filter(|(id, _)| id.operation == Manager::Update && id.part.is_empty())
            .map(|(id, entry)| (entry.time.clone(), id.clone()))
            .collect();
        updaters.sort();
        let excess = updaters.len().saturating_sub(MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        for (_, id) in updaters.into_iter().take(excess + 1) {
            let Some(old) = self.entries.remove(&id) else {
                continue;
            };
            let bucket = Id {
                manager: "ancient-changes".into(),
                ..id
            };
            let fields = self
                .entries
                .get(&bucket)
                .map(|entry| entry.fields.clone())
                .unwrap_or_default();
            self.entries.insert(
                bucket,
                Entry {
                    fields: fields.union(&old.fields),
                    ..old
                },
            );
        }
    }

    /// Takes changed and removed fields away from everybody but `me`.
    fn give_up(&mut self, me: &Id, comparison: &Comparison) {
        let lost = comparison.changed().union(&comparison.removed);
        for (id, entry) in &mut self.entries {
            if id != me {
                entry.fields = entry.fields.difference(&lost);
            }
        }
        self.entries
            .retain(|id, entry| id == me || !entry.fields.is_empty());
    }

    /// Gives the fields of an object without any entry to a manager of its own, before the first apply.
    fn own_what_nobody_does(&mut self, call: &Call, live: &Value) {
        // An object that is about to be made has no UID.
        if !self.entries.is_empty() || crate::object::uid(live).is_empty() {
            return;
        }
        let nothing = json!({"apiVersion": live["apiVersion"], "kind": live["kind"]});
        let all = Comparison::of(&call.kind.shape, &nothing, live).changed();
        let fields = all.without_subtrees(&ignored(call));
        if fields.is_empty() {
            return;
        }
        let version = call.kind.api_version();
        let id = Id {
            operation: Manager::Update,
            manager: "before-first-apply".into(),
            version: version.clone(),
            part: String::new(),
        };
        let entry = Entry {
            fields,
            version,
            time: stamp(call.now),
        };
        self.entries.insert(id, entry);
    }

    /// Fields of others that a change touches.
    fn conflicts(&self, me: &Id, comparison: &Comparison) -> Vec<(Id, FieldSet)> {
        let changed = comparison.changed();
        let others = self.entries.iter().filter(|(id, _)| *id != me);
        others
            .map(|(id, entry)| (id.clone(), entry.fields.intersection(&changed)))
            .filter(|(_, fields)| !fields.is_empty())
            .collect()
    }
}

fn entry_json(id: &Id, entry: &Entry) -> Value {
    let mut json = json!({
        "manager": id.manager, "operation": id.operation.name(), "apiVersion": entry.version,
        "fieldsType": "FieldsV1", "fieldsV1": entry.fields.to_json(),
    });
    if !entry.time.is_empty() {
        json["time"] = entry.time.clone().into();
    }
    if !id.part.is_empty() {
        json["subresource"] = id.part.clone().into();
    }
    json
}

/// Metadata that the server owns, and the parts that a write through this path cannot change.
fn ignored(call: &Call) -> FieldSet {
    let server_owned = FieldSet::from_json(&json!({
        "f:apiVersion": {}, "f:kind": {},
        "f:metadata": {
            "f:creationTimestamp": {}, "f:deletionGracePeriodSeconds": {}, "f:deletionTimestamp": {},
            "f:generation": {}, "f:managedFields": {}, "f:name": {}, "f:namespace": {},
            "f:resourceVersion": {}, "f:selfLink": {}, "f:uid": {}
        }
    }));
    server_owned.union(&reset_by(call))
}

/// Parts that a write through this path cannot change (`GetResetFields`).
fn reset_by(call: &Call) -> FieldSet {
    if !call.kind.has(crate::kind::Trait::Status) {
        return FieldSet::default();
    }
    FieldSet::from_json(&match call.part {
        Part::Status if call.kind.is_custom() => json!({"f:spec": {}, "f:metadata": {}}),
        Part::Status if call.kind.table == "deployments.apps" => {
            json!({"f:spec": {}, "f:metadata": {"f:labels": {}}})
        }
        Part::Status => json!({"f:spec": {}}),
        _ => json!({"f:status": {}}),
    })
}

/// Records a plain write: the writer owns what it changed, the others lose it.
pub(crate) fn track(call: &Call, operation: Manager, live: &Value, new: &mut Value) {
    let mut managed = Managed::before(call, live, new);
    if managed.entries.is_empty() && !crate::object::uid(live).is_empty() {
        // Nobody's fields are looked after until the first apply.
        meta_mut(new).remove("managedFields");
        return;
    }
    let comparison = visible(call, Comparison::of(&call.kind.shape, live, new));
    let me = Id::new(call, operation);
    managed.give_up(&me, &comparison);
    let taken = comparison.changed();
    if let Some(entry) = managed.entries.get_mut(&me) {
        entry.fields = entry.fields.difference(&comparison.removed);
    }
    if !taken.is_empty() {
        let before = managed
            .entries
            .get(&me)
            .map(|entry| entry.fields.clone())
            .unwrap_or_default();
        let entry = Entry {
            fields: before.union(&taken),
            version: call.kind.api_version(),
            time: stamp(call.now),
        };
        managed.entries.insert(me.clone(), entry);
    }
    managed.entries.retain(|_, entry| !entry.fields.is_empty());
    managed.write(new);
}

fn stamp(now: Time) -> String {
    now.whole_seconds().to_string()
}

/// Server-side apply: the live object with a configuration laid over it and without what its applier gave up.
pub(crate) fn apply(call: &Call, live: &Value, config: &Value, force: bool) -> Result<Value> {
    let shape = &call.kind.shape;
    let mut managed = Managed::read(live);
    managed.own_what_nobody_does(call, live);
    let me = Id::new(call, Manager::Apply);
    let last = managed.entries.get(&me).map(|entry| entry.fields.clone());
    let reset = reset_by(call);
    // The name and its like count as applied until the pruning is done, else metadata would go with its last label.
    let whole = FieldSet::of(shape, config).without_subtrees(&reset);
    let entry = Entry {
        fields: whole,
        version: call.kind.api_version(),
        time: stamp(call.now),
    };
    managed.entries.insert(me.clone(), entry);

    let merged = merge::merge(shape, live, config);
    let mut new = match last {
        Some(last) if !last.is_empty() => prune(call, &merged, &managed, &last),
        _ => merged,
    };
    drop_nulls(&mut new);
    if let Some(entry) = managed.entries.get_mut(&me) {
        entry.fields = entry.fields.without_subtrees(&ignored(call));
    }
    let comparison = visible(call, Comparison::of(shape, live, &new));
    let conflicts = managed.conflicts(&me, &comparison);
    if !force && !conflicts.is_empty() {
        return Err(conflict_error(&conflicts));
    }
    managed.give_up(&me, &comparison);
    managed.entries.retain(|_, entry| !entry.fields.is_empty());
    keep_time_if_same(live, &new, &me, &mut managed);
    managed.write(&mut new);
    Ok(new)
}

/// A comparison without the paths that this write cannot change.
fn visible(call: &Call, comparison: Comparison) -> Comparison {
    let ignored = ignored(call);
    Comparison {
        added: comparison.added.without_subtrees(&ignored),
        modified: comparison.modified.without_subtrees(&ignored),
        removed: comparison.removed.without_subtrees(&ignored),
    }
}

/// An apply that changes nothing but ownership has the time of the last one that did, if there was one.
fn keep_time_if_same(live: &Value, new: &Value, me: &Id, managed: &mut Managed) {
    let mut before = live.clone();
    let mut after = new.clone();
    for object in [&mut before, &mut after] {
        meta_mut(object).remove("managedFields");
        drop_nulls(object);
    }
    if before == after
        && let Some(entry) = managed.entries.get_mut(me)
    {
        let old = Managed::read(live).entries.remove(me);
        entry.time = old.map(|old| old.time).unwrap_or_default();
    }
}

/// Removes what the applier applied before, applies no more, and nobody else owns.
fn prune(call: &Call, merged: &Value, managed: &Managed, last: &FieldSet) -> Value {
    let shape = &call.kind.shape;
    let named = |set: &FieldSet| set.with_named_parents(shape);
    let all = named(&FieldSet::of(shape, merged));
    let without_last = merge::remove(shape, merged, &named(last));

    let owned = managed
        .entries
        .values()
        .fold(FieldSet::default(), |all, entry| all.union(&entry.fields));
    let left = named(&FieldSet::of(shape, &without_last));
    let with_owned = merge::remove(shape, merged, &all.difference(&left.union(&named(&owned))));

    let left = named(&FieldSet::of(shape, &with_owned));
    merge::remove(
        shape,
        merged,
        &all.difference(&left).intersection(&named(last)),
    )
}

fn conflict_error(conflicts: &[(Id, FieldSet)]) -> ApiError {
    let mut causes = Vec::new();
    let mut sections = Vec::new();
    for (id, fields) in conflicts {
        let mut lines = vec![format!("conflicts with {}:", id.text())];
        for path in fields.paths() {
            causes.push((format!("conflict with {}", id.text()), path.clone()));
            lines.push(format!("- {path}"));
        }
        sections.push(lines.join("\n"));
    }
    let message = match causes.as_slice() {
        [(who, path)] => format!("Apply failed with 1 conflict: {who}: {path}"),
        _ => format!(
            "Apply failed with {} conflicts: {}",
            causes.len(),
            sections.join("\n")
        ),
    };
    ApiError::apply_conflict(&causes, message)
}

/// Where a keyed list names one of its items twice.
pub(crate) fn duplicate_item(shape: &crate::shape::Shape, value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) if !shape.atomic => fields.iter().find_map(|(name, field)| {
            let below = duplicate_item(shape.field(name), field)?;
            Some(format!(".{name}{below}"))
        }),
        Value::Array(items) if !set::is_leaf(shape, value) => {
            let (element, kind) = shape.items();
            let mut seen = std::collections::BTreeSet::new();
            items.iter().find_map(|item| {
                let step = set::item_step(kind, item)?;
                if seen.insert(step) {
                    duplicate_item(element, item)
                } else {
                    Some(String::new())
                }
            })
        }
        _ => None,
    }
}

/// True if two objects differ in nothing but the times of their managedFields.
pub(crate) fn same_but_times(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        let mut meta = fields
            .remove("metadata")
            .and_then(|meta| meta.as_object().cloned())
            .unwrap_or_default();
        meta.remove("managedFields");
        meta.remove("resourceVersion");
        (fields, meta)
    };
    if without(new) != without(old) {
        return false;
    }
    let entries = |object: &Value| -> Vec<Value> {
        list_at(object, &["metadata", "managedFields"])
            .iter()
            .map(|entry| {
                let mut entry = entry.clone();
                entry["time"] = Value::Null;
                entry
            })
            .collect()
    };
    entries(new) == entries(old)
}
