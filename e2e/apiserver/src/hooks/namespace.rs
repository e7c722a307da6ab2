//! Namespaces: the finalizer of their spec, phase and name label.

use k8s_openapi::api::core::v1::Namespace;
use serde_json::{Value, json};

use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::{self, is_deleting, map_mut};

/// Behaviour of namespaces.
pub(crate) static HOOKS: Hooks = Hooks {
    default: |namespace| {
        map_mut(namespace, &["spec"]);
        map_mut(namespace, &["status"]);
        let name = object::name(namespace).to_owned();
        if !name.is_empty() {
            map_mut(namespace, &["metadata", "labels"])
                .insert("kubernetes.io/metadata.name".into(), name.into());
        }
    },
    prepare: |_, namespace, old| {
        prepare(namespace, old);
        Ok(())
    },
    fields: &["status.phase", "name"],
    decode: typed::<Namespace>,
    ..Hooks::PLAIN
};

fn prepare(namespace: &mut Value, old: Option<&Value>) {
    match old {
        None => {
            namespace["status"] = json!({"phase": "Active"});
            namespace["spec"]["finalizers"] = json!(["kubernetes"]);
        }
        // Only the finalize subresource changes this list, and it is for a namespace that goes away.
        Some(old) if !is_deleting(old) => {
            namespace["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
        }
        Some(_) => {}
    }
}
