//! Typed operations on objects for server-side apply: merge, compare and removal of paths.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{FieldSet, Step, field_step, is_leaf, item_step};
use crate::shape::{Form, ListKind, Shape};

/// The live value with an applied one laid over it.
pub(crate) fn merge(shape: &Shape, live: &Value, applied: &Value) -> Value {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) if !shape.atomic => {
            let mut merged = live.clone();
            for (name, value) in applied {
                let value = match live.get(name) {
                    Some(old) => merge(shape.field(name), old, value),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(applied))
            if !is_leaf(shape, &Value::Array(Vec::new())) =>
        {
            let (element, kind) = shape.items();
            merge_lists(element, kind, live, applied)
        }
        _ => applied.clone(),
    }
}

/// Items in the order of the applied list; live ones that it does not name keep their place between its items.
fn merge_lists(element: &Shape, kind: &ListKind, live: &[Value], applied: &[Value]) -> Value {
    let steps = |items: &[Value]| -> Vec<Option<Step>> {
        items.iter().map(|item| item_step(kind, item)).collect()
    };
    let (left, right) = (steps(live), steps(applied));
    let old: BTreeMap<&Step, &Value> = left.iter().flatten().zip(live).collect();
    let merged = |at: usize| match right[at].as_ref().and_then(|step| old.get(step)) {
        Some(old) => merge(element, old, &applied[at]),
        None => applied[at].clone(),
    };
    let mut shared = right
        .iter()
        .filter(|step| step.as_ref().is_some_and(|step| old.contains_key(step)));
    let mut next = shared.next();
    let mut done: Vec<&Option<Step>> = Vec::new();
    let mut items = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            if left[l] == right[r] {
                done.push(&right[r]);
                items.push(merged(r));
                (l, r) = (l + 1, r + 1);
                next = shared.next();
                continue;
            }
            if right.contains(&left[l]) && next.is_some_and(|next| *next != left[l]) {
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            if !right.contains(&left[l]) {
                items.push(live[l].clone());
                l += 1;
                continue;
            }
            if done.contains(&&left[l]) {
                l += 1;
                continue;
            }
        }
        if r < right.len() {
            done.push(&right[r]);
            items.push(merged(r));
            if next == Some(&right[r]) {
                next = shared.next();
            }
            r += 1;
        }
    }
    Value::Array(items)
}

/// The value without the paths of a set. What has nothing left is null: the sets made of the result count on that.
pub(crate) fn remove(shape: &Shape, value: &Value, paths: &FieldSet) -> Value {
    match value {
        Value::Object(fields) if !shape.atomic => {
            let mut kept = Map::new();
            for (name, field) in fields {
                let step = field_step(name);
                if paths.has(&step) {
                    continue;
                }
                let field = match paths.below(&step) {
                    Some(below) => remove(shape.field(name), field, below),
                    None => field.clone(),
                };
                kept.insert(name.clone(), field);
            }
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Object(kept)
            }
        }
        Value::Array(items) if !is_leaf(shape, value) => {
            let (element, kind) = shape.items();
            let kept: Vec<Value> = items
                .iter()
                .filter_map(|item| match item_step(kind, item) {
                    Some(step) if paths.has(&step) => None,
                    Some(step) => match paths.below(&step) {
                        Some(below) => Some(remove(element, item, below)),
                        None => Some(item.clone()),
                    },
                    None => Some(item.clone()),
                })
                .collect();
            if kept.is_empty() {
                Value::Null
            } else {
                Value::Array(kept)
            }
        }
        // Containers with one owner have no part that could go alone.
        Value::Object(_) | Value::Array(_) => Value::Null,
        _ => value.clone(),
    }
}

/// How one object differs from another.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) added: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Comparison {
    /// Compares two objects of a shape.
    pub(crate) fn of(shape: &Shape, old: &Value, new: &Value) -> Self {
        let mut comparison = Self::default();
        comparison.compare(shape, Some(old), Some(new), &mut Vec::new());
        comparison
    }

    /// Added and modified paths.
    pub(crate) fn changed(&self) -> FieldSet {
        self.added.union(&self.modified)
    }

    fn compare(
        &mut self,
        shape: &Shape,
        old: Option<&Value>,
        new: Option<&Value>,
        path: &mut Vec<Step>,
    ) {
        // Null is nothing, unless it stands where something was or comes.
        let something = |value: &&Value| !value.is_null();
        match (old, new) {
            (Some(old), Some(new)) => self.compare_both(shape, old, new, path),
            (old, new) => match (old.filter(something), new.filter(something)) {
                (None, Some(only)) => self.one_side(shape, only, path, true),
                (Some(only), None) => self.one_side(shape, only, path, false),
                _ => {}
            },
        }
    }

    fn compare_both(&mut self, shape: &Shape, old: &Value, new: &Value, path: &mut Vec<Step>) {
        let empty = is_empty(old) && is_empty(new);
        match (old, new) {
            (Value::Object(left), Value::Object(right)) if !shape.atomic && !empty => {
                for name in left
                    .keys()
                    .chain(right.keys().filter(|name| !left.contains_key(*name)))
                {
                    let field = shape.field(name);
                    // A Go struct that is no pointer is there even where JSON leaves it out.
                    let zero = field.always_there.then(|| zero_of(field));
                    let old = left.get(name).or(zero.as_ref());
                    let new = right.get(name).or(zero.as_ref());
                    path.push(field_step(name));
                    self.compare(field, old, new, path);
                    path.pop();
                }
            }
            (Value::Array(left), Value::Array(right)) if !is_leaf(shape, old) && !empty => {
                let (element, kind) = shape.items();
                let (left, right) = (by_step(kind, left), by_step(kind, right));
                for step in left
                    .keys()
                    .chain(right.keys().filter(|step| !left.contains_key(*step)))
                {
                    path.push(step.clone());
                    self.compare(
                        element,
                        left.get(step).copied(),
                        right.get(step).copied(),
                        path,
                    );
                    path.pop();
                }
            }
            _ if old != new => self.modified.insert(path),
            _ => {}
        }
    }

    fn one_side(&mut self, shape: &Shape, only: &Value, path: &mut Vec<Step>, added: bool) {
        let mut below = |this: &mut Self, step: Step, shape: &Shape, value: &Value| {
            path.push(step);
            if added {
                this.compare(shape, None, Some(value), path);
            } else {
                this.compare(shape, Some(value), None, path);
            }
            path.pop();
        };
        match only {
            Value::Object(fields) if !shape.atomic && !fields.is_empty() => {
                for (name, value) in fields {
                    below(self, field_step(name), shape.field(name), value);
                }
            }
            Value::Array(items) if !is_leaf(shape, only) && !items.is_empty() => {
                let (element, kind) = shape.items();
                for (step, value) in by_step(kind, items) {
                    below(self, step, element, value);
                }
            }
            _ => {}
        }
        if added {
            self.added.insert(path);
        } else {
            self.removed.insert(path);
        }
    }
}

fn zero_of(shape: &Shape) -> Value {
    match shape.form {
        Form::List { .. } => Value::Array(Vec::new()),
        _ => Value::Object(Map::new()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn by_step<'a>(kind: &ListKind, items: &'a [Value]) -> BTreeMap<Step, &'a Value> {
    items
        .iter()
        .filter_map(|item| Some((item_step(kind, item)?, item)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(list: &Value) -> Vec<&str> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn keyed_lists_merge_by_key_and_keep_the_order_of_the_applied_one() {
        let shape = Shape::built_in("PodSpec");
        let containers = shape.field("containers");
        let list =
            |names: &[&str]| Value::Array(names.iter().map(|name| json!({"name": name})).collect());
        let merged =
            |live: &[&str], applied: &[&str]| merge(containers, &list(live), &list(applied));
        assert_eq!(
            names(&merged(&["a", "b", "c"], &["c", "a"])),
            ["b", "c", "a"]
        );
        assert_eq!(names(&merged(&["a", "b"], &["x"])), ["a", "b", "x"]);
        assert_eq!(names(&merged(&[], &["x", "y"])), ["x", "y"]);
    }

    #[test]
    fn removal_takes_a_list_item_by_its_key() {
        let shape = Shape::built_in("ServiceSpec");
        let value = json!({"ports": [{"port": 80}, {"port": 81}]});
        let paths =
            FieldSet::from_json(&json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {}}}));
        assert_eq!(
            remove(&shape, &value, &paths),
            json!({"ports": [{"port": 81}]})
        );
    }
}
