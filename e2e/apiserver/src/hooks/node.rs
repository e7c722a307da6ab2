//! Nodes: defaults and selectable fields.

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::kind::Hooks;
use crate::kinds::typed;
use crate::object::map_mut;

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
    ..Hooks::PLAIN
};

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
