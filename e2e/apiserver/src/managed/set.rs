//! Sets of field paths, in the form that `fieldsV1` has: the algebra of structured-merge-diff.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::shape::{ListKind, Shape};

/// One step of a path, written as in `fieldsV1`: `f:name`, `k:{"name":"x"}`, `v:"x"`.
pub(crate) type Step = String;

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    nodes: BTreeMap<Step, Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    /// The path up to here is in the set itself.
    member: bool,
    below: FieldSet,
}

impl Node {
    fn to_json(&self) -> Value {
        let mut below = self.below.to_json();
        if self.member && !self.below.is_empty() {
            below["."] = Value::Object(Map::new());
        }
        below
    }
}

/// The step to a named field.
pub(crate) fn field_step(name: &str) -> Step {
    format!("f:{name}")
}

/// The step to an item of a list; none where the list is atomic or a key is missing.
pub(crate) fn item_step(kind: &ListKind, item: &Value) -> Option<Step> {
    match kind {
        ListKind::Atomic => None,
        ListKind::Set => Some(format!("v:{item}")),
        ListKind::Keyed(keys) => {
            let mut identity = Map::new();
            for (key, default) in keys {
                if let Some(value) = item.get(key).or(default.as_ref()) {
                    identity.insert(key.clone(), value.clone());
                }
            }
            (!identity.is_empty()).then(|| format!("k:{}", Value::Object(identity)))
        }
    }
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds one path.
    pub(crate) fn insert(&mut self, path: &[Step]) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let node = self.nodes.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// True if the step itself is in the set.
    pub(crate) fn has(&self, step: &str) -> bool {
        self.nodes.get(step).is_some_and(|node| node.member)
    }

    /// The paths below a step.
    pub(crate) fn below(&self, step: &str) -> Option<&Self> {
        self.nodes
            .get(step)
            .map(|node| &node.below)
            .filter(|below| !below.is_empty())
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (step, node) in &other.nodes {
            let mine = all.nodes.entry(step.clone()).or_default();
            mine.member |= node.member;
            mine.below = mine.below.union(&node.below);
        }
        all
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.combine(|step, node| {
            let theirs = other.nodes.get(step)?;
            Some((
                node.member && theirs.member,
                node.below.intersection(&theirs.below),
            ))
        })
    }

    /// Paths that are here and not there; a path's children stay.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        self.combine(|step, node| match other.nodes.get(step) {
            Some(theirs) => Some((
                node.member && !theirs.member,
                node.below.difference(&theirs.below),
            )),
            None => Some((node.member, node.below.clone())),
        })
    }

    /// Paths that are here and neither there nor below a path that is there.
    pub(crate) fn without_subtrees(&self, other: &Self) -> Self {
        self.combine(|step, node| match other.nodes.get(step) {
            Some(theirs) if theirs.member => None,
            Some(theirs) => Some((node.member, node.below.without_subtrees(&theirs.below))),
            None => Some((node.member, node.below.clone())),
        })
    }

    fn combine(&self, decide: impl Fn(&str, &Node) -> Option<(bool, Self)>) -> Self {
        let nodes = self.nodes.iter().filter_map(|(step, node)| {
            let (member, below) = decide(step, node)?;
            (member || !below.is_empty()).then(|| (step.clone(), Node { member, below }))
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// The set with every named field above one of its paths
    /// (`EnsureNamedFieldsAreMembers`).
    pub(crate) fn with_named_parents(&self, shape: &Shape) -> Self {
        let nodes = self.nodes.iter().map(|(step, node)| {
            let named = step.strip_prefix("f:");
            let below = match named {
                Some(name) => node.below.with_named_parents(shape.field(name)),
                None => node.below.with_named_parents(shape.items().0),
            };
            let member =
                node.member || (!below.is_empty() && named.is_some_and(|name| shape.names(name)));
            (step.clone(), Node { member, below })
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// Every path, in the words of messages: `.spec.ports[port=80,protocol="TCP"].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        for (step, node) in &self.nodes {
            let path = format!("{prefix}{}", step_text(step));
            if node.member {
                paths.push(path.clone());
            }
            node.below.collect_paths(&path, paths);
        }
    }

    /// The JSON of `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        Value::Object(
            self.nodes
                .iter()
                .map(|(step, node)| (step.clone(), node.to_json()))
                .collect(),
        )
    }

    /// Reads `fieldsV1`.
    pub(crate) fn from_json(json: &Value) -> Self {
        let mut set = Self::default();
        for (step, below) in json
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(step, _)| *step != ".")
        {
            let empty = below.as_object().is_none_or(Map::is_empty);
            let node = Node {
                member: empty || !below["."].is_null(),
                below: Self::from_json(below),
            };
            set.nodes.insert(step.clone(), node);
        }
        set
    }

    /// Everything that a value sets: what an applied configuration owns (`ToFieldSet`).
    pub(crate) fn of(shape: &Shape, value: &Value) -> Self {
        let mut set = Self::default();
        match value {
            Value::Object(fields) if !shape.atomic => {
                for (name, field) in fields {
                    let inner = shape.field(name);
                    let below = Self::of(inner, field);
                    let empty = matches!(field, Value::Object(fields) if fields.is_empty())
                        || field.is_null();
                    let free_key = !shape.names(name);
                    let leaf = is_leaf(inner, field) || empty || free_key;
                    set.nodes.insert(
                        field_step(name),
                        Node {
                            member: leaf,
                            below,
                        },
                    );
                }
            }
            Value::Array(items) if !shape.atomic => {
                let (element, kind) = shape.items();
                for item in items {
                    let Some(step) = item_step(kind, item) else {
                        return Self::default();
                    };
                    set.nodes.insert(
                        step,
                        Node {
                            member: true,
                            below: Self::of(element, item),
                        },
                    );
                }
            }
            _ => {}
        }
        set.nodes
            .retain(|_, node| node.member || !node.below.is_empty());
        set
    }
}

/// True for values that have one owner as a whole.
pub(crate) fn is_leaf(shape: &Shape, value: &Value) -> bool {
    match value {
        Value::Object(_) => shape.atomic,
        Value::Array(_) => shape.atomic || *shape.items().1 == ListKind::Atomic,
        _ => true,
    }
}

fn step_text(step: &str) -> String {
    let quoted = |value: &Value| value.to_string();
    match step.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("v", value)) => format!("[={value}]"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys
                .iter()
                .map(|(key, value)| format!("{key}={}", quoted(value)))
                .collect();
            format!("[{}]", keys.join(","))
        }
        _ => step.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_applied_deployment_owns_is_as_the_real_server_writes_it() {
        let config = json!({
            "metadata": {"labels": {"app": "x"}},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "x"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}}
            }
        });
        let set = FieldSet::of(&Shape::built_in("Deployment"), &config);
        let expected = json!({
            "f:metadata": {"f:labels": {"f:app": {}}},
            "f:spec": {
                "f:replicas": {},
                "f:selector": {},
                "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:image": {}, "f:name": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}
                }}}}
            }
        });
        assert_eq!(set.to_json(), expected);
        assert_eq!(FieldSet::from_json(&expected), set);
    }

    #[test]
    fn set_algebra_keeps_parents_and_children_apart() {
        let a = FieldSet::from_json(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let b = FieldSet::from_json(&json!({"f:a": {}}));
        assert_eq!(
            a.difference(&b).to_json(),
            json!({"f:a": {"f:b": {}}, "f:c": {}})
        );
        assert_eq!(a.without_subtrees(&b).to_json(), json!({"f:c": {}}));
        assert_eq!(a.intersection(&b).to_json(), json!({"f:a": {}}));
        assert_eq!(b.union(&a), a);
        assert_eq!(a.paths(), [".a", ".a.b", ".c"]);
    }
}
