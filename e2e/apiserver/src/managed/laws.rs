//! Laws of apply that hold for any sequence of writes.

use std::sync::Arc;

use onehop_core::time::Time;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::set::FieldSet;
use super::{Manager, apply, track};
use crate::kinds::Kinds;
use crate::object::meta_mut;
use crate::shape::Shape;
use crate::state::{Call, Part};

fn call(manager: &str) -> Call {
    let kinds = Kinds::built_in();
    Call {
        kind: Arc::clone(kinds.get("", "v1", "services").unwrap()),
        namespace: "ns".into(),
        name: "a".into(),
        part: Part::Main,
        manager: manager.into(),
        dry_run: false,
        validation: crate::verbs::strict::FieldValidation::Ignore,
        now: Time::EPOCH,
    }
}

/// A configuration of a Service: some labels, some ports, a type.
fn config() -> impl Strategy<Value = Value> {
    let labels = proptest::collection::btree_map("[a-d]", "[x-z]", 0..4);
    let ports = proptest::collection::btree_map(1..4_u16, proptest::option::of("[m-o]"), 0..3);
    let kind = proptest::option::of(prop_oneof![Just("ClusterIP"), Just("NodePort")]);
    (labels, ports, kind).prop_map(|(labels, ports, kind)| {
        let mut spec = Map::new();
        let ports: Vec<Value> = ports
            .into_iter()
            .map(|(port, name)| match name {
                Some(name) => json!({"port": port, "name": name}),
                None => json!({"port": port}),
            })
            .collect();
        if !ports.is_empty() {
            spec.insert("ports".into(), ports.into());
        }
        if let Some(kind) = kind {
            spec.insert("type".into(), kind.into());
        }
        let mut config = json!({"metadata": {"name": "a"}});
        if !labels.is_empty() {
            config["metadata"]["labels"] = serde_json::to_value(labels).unwrap();
        }
        if !spec.is_empty() {
            config["spec"] = spec.into();
        }
        config
    })
}

fn content(object: &Value) -> Value {
    let mut content = object.clone();
    meta_mut(&mut content).remove("managedFields");
    content
}

fn empty() -> Value {
    json!({"metadata": {"name": "a"}})
}

fn applied(live: &Value, manager: &str, config: &Value) -> Value {
    apply(&call(manager), live, config, true).unwrap()
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(first in config(), second in config()) {
        let live = applied(&applied(&empty(), "one", &first), "two", &second);
        let once = applied(&live, "one", &first);
        prop_assert_eq!(applied(&once, "one", &first), once);
    }

    #[test]
    fn whoever_applies_nothing_leaves_what_the_others_applied(mine in config(), theirs in config()) {
        let theirs_alone = applied(&empty(), "two", &theirs);
        let both = applied(&applied(&empty(), "one", &mine), "two", &theirs);
        let after = applied(&both, "one", &empty());
        prop_assert_eq!(content(&after), content(&theirs_alone));
    }

    #[test]
    fn the_last_configuration_of_one_applier_is_the_object(first in config(), last in config()) {
        let live = applied(&applied(&empty(), "one", &first), "one", &last);
        prop_assert_eq!(content(&live), last);
    }

    #[test]
    fn a_forced_apply_takes_every_field_that_it_changes(mine in config(), theirs in config()) {
        let live = applied(&applied(&empty(), "two", &theirs), "one", &mine);
        // Nobody else owns a value other than the one that is there, so another apply of theirs conflicts or agrees.
        let again = apply(&call("one"), &live, &mine, false);
        prop_assert!(again.is_ok(), "{:?}", again);
    }

    #[test]
    fn a_plain_writer_owns_exactly_what_it_changed(before in config(), after in config()) {
        let live = applied(&empty(), "one", &before);
        let mut new = after.clone();
        track(&call("editor"), Manager::Update, &live, &mut new);
        if content(&live) == after {
            prop_assert_eq!(&new["metadata"]["managedFields"], &live["metadata"]["managedFields"]);
        } else {
            // The applier lost what changed, so its next apply without force meets the editor or changes nothing.
            let owned = FieldSet::of(&Shape::built_in("Service"), &after);
            for entry in new["metadata"]["managedFields"].as_array().into_iter().flatten() {
                let fields = FieldSet::from_json(&entry["fieldsV1"]);
                let leaves = fields.paths();
                prop_assert!(!leaves.is_empty());
            }
            prop_assert!(!owned.is_empty() || new["metadata"]["managedFields"].is_null() || content(&new) == after);
        }
    }

    #[test]
    fn field_sets_obey_the_laws_of_sets(a in config(), b in config()) {
        let shape = Shape::built_in("Service");
        let (a, b) = (FieldSet::of(&shape, &a), FieldSet::of(&shape, &b));
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert!(a.difference(&a).is_empty());
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert_eq!(FieldSet::from_json(&a.to_json()), a);
    }
}
