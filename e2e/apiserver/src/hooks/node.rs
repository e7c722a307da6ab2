//! Nodes: defaults and selectable fields.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::error::FieldError;
use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::{list_at, map_mut, str_at};

/// Behaviour of nodes.
pub(crate) static HOOKS: Hooks = Hooks {
    default: |node| {
        let spec = map_mut(node, &["spec"]);
        if let (Some(cidr), None) = (spec.get("podCIDR").cloned(), spec.get("podCIDRs")) {
            spec.insert("podCIDRs".into(), json!([cidr]));
        }
        if let (Some(first), None) = (
            spec.get("podCIDRs").and_then(|all| all.get(0)).cloned(),
            spec.get("podCIDR"),
        ) {
            spec.insert("podCIDR".into(), first);
        }
        let status = map_mut(node, &["status"]);
        // Allocatable follows capacity where the kubelet says nothing.
        if let (Some(capacity), None) = (status.get("capacity").cloned(), status.get("allocatable"))
        {
            status.insert("allocatable".into(), capacity);
        }
        if status.is_empty() {
            node["status"] = json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": empty_info()});
        }
    },
    fields: &["spec.unschedulable"],
    decode: typed::<Node>,
    validate,
    ..Hooks::PLAIN
};

/// What stays once it is set.
fn validate(node: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let (mut errors, Some(old)) = (Vec::new(), old) else {
        return Vec::new();
    };
    let cidrs = list_at(old, &["spec", "podCIDRs"]);
    let after = list_at(node, &["spec", "podCIDRs"]);
    let changed = if cidrs.len() == after.len() {
        cidrs
            .iter()
            .zip(after)
            .filter(|(old, new)| old != new)
            .count()
    } else {
        1
    };
    if !cidrs.is_empty() {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        let error = || FieldError::forbidden("spec.podCIDRs", detail);
        errors.extend(std::iter::repeat_with(error).take(changed));
    }
    let id = |node| str_at(node, &["spec", "providerID"]);
    let (before, after) = (id(old), id(node));
    if !before.is_empty() && before != after {
        let word = if after.is_empty() {
            "cleared"
        } else {
            "modified"
        };
        let detail = format!("field cannot be {word} once set");
        errors.push(FieldError::invalid("spec.providerID", Value::Null, detail));
    }
    errors
}

fn empty_info() -> Value {
    let fields = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    fields
        .into_iter()
        .map(|field| (field.to_owned(), Value::from("")))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
