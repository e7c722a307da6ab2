//! Our object types as a real API server and older or newer readers see them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use onehop_core::crd::{
    ClientIp, LoadBalancer, LoadBalancerSpec, LoadBalancerStatus, NodeTargets, PortCounts,
    TargetHealth, TargetMode, TargetState, definitions, manifests,
};
use serde_json::{Value, json};

#[test]
fn the_chart_has_the_definitions_that_the_types_make() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/onehop/files/crds");
    for (file, manifest) in manifests() {
        let text = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
        let in_tree: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            in_tree, manifest,
            "{file} is not what the types make: cargo run -p onehop-core --example crds -- charts/onehop/files/crds"
        );
    }
}

/// Visits every schema below this one with its path.
fn walk(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, visit);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner_schema) = schema.get(inner) {
            walk(&format!("{path}[]"), inner_schema, visit);
        }
    }
}

#[test]
fn schemas_are_structural_and_use_nothing_that_a_server_warns_about() {
    for (file, manifest) in manifests() {
        let schema = &manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        walk(&file, schema, &mut |path, schema| {
            assert!(schema["type"].is_string(), "{path} has no type: {schema}");
            for keyword in ["oneOf", "anyOf", "allOf", "$ref", "nullable"] {
                assert!(schema.get(keyword).is_none(), "{path} has {keyword}");
            }
            let format = schema["format"].as_str().unwrap_or("int64");
            assert!(
                matches!(format, "int32" | "int64" | "date-time"),
                "{path}: {format}"
            );
            assert!(
                !schema["enum"]
                    .as_array()
                    .is_some_and(|e| e.contains(&json!("unknown")))
            );
        });
    }
}

#[test]
fn every_list_of_our_own_writers_is_replaced_as_a_whole_and_installs_are_not() {
    let (_, manifest) = manifests()
        .find(|(file, _)| file == "nodetargets.yaml")
        .unwrap();
    let spec = &manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut lists = 0;
    walk("spec", spec, &mut |path, schema| {
        if schema["type"] == "array" {
            lists += 1;
            assert_eq!(schema["x-kubernetes-list-type"], "atomic", "{path}");
        }
    });
    assert!(lists >= 8, "{lists}");
    assert_eq!(
        spec["properties"]["installs"]["x-kubernetes-map-type"],
        "granular"
    );
}

#[test]
fn c104_columns_of_load_balancers_and_pools() {
    let columns = |priority: i32| -> Vec<String> {
        let all = definitions().into_iter().flat_map(|d| d.spec.versions);
        let all = all.flat_map(|v| v.additional_printer_columns.unwrap_or_default());
        all.filter(|c| c.priority.unwrap_or(0) == priority)
            .map(|c| c.name)
            .collect()
    };
    let plain = columns(0).join(" ");
    assert!(
        plain.starts_with("SERVICE MODE ADDRESS TARGETS HELD DRAINING READY AGE "),
        "{plain}"
    );
    assert!(
        plain.ends_with("ASSIGNED AVAILABLE CONFLICT AGE"),
        "{plain}"
    );
    assert_eq!(columns(1).join(" "), "PROVIDER CLASS REASON");
}

fn load_balancer(port: Value) -> Value {
    json!({
        "apiVersion": "onehop.dev/v1alpha1",
        "kind": "LoadBalancer",
        "metadata": { "namespace": "shop", "name": "web" },
        "spec": {
            "provider": "local", "class": "onehop.dev/local", "serviceUID": "u1",
            "scheme": "internal", "families": ["IPv4"], "ports": [port],
            "sources": ["10.0.9.0/24"],
            "membership": {
                "policy": "zero-drop", "floorPercent": 100, "holdMaxSeconds": 600,
                "tailMaxSeconds": 0, "lateFlows": "forward",
            },
        },
    })
}

#[test]
fn fields_are_spelled_as_specified() {
    let port = json!({
        "name": "http", "protocol": "TCP", "port": 80, "mode": "pod", "targetPort": 8080,
        "clientIP": "preserve",
        "health": {
            "by": "traffic", "protocol": "TCP", "intervalSeconds": 5, "timeoutSeconds": 2,
            "healthy": 2, "unhealthy": 2,
        },
    });
    let object = load_balancer(port);
    let read: LoadBalancer = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), object);
    let object = json!({
        "apiVersion": "onehop.dev/v1alpha1",
        "kind": "NodeTargets",
        "metadata": { "name": "n1" },
        "spec": { "installs": { "demo-local": {
            "targets": [{
                "service": { "namespace": "shop", "name": "web", "uid": "u1" },
                "portName": "http", "protocol": "TCP", "address": "10.244.1.2",
                "targetPort": 8080, "podUID": "p1", "podName": "web-1", "health": "agent",
                "anyOutside": true, "clientIP": "preserve", "state": "active",
                "since": "2026-01-01T00:00:00Z",
            }],
            "local": [{
                "service": { "namespace": "shop", "name": "api", "uid": "u2" },
                "portName": "", "protocol": "UDP", "nodePort": 30080,
                "healthCheckNodePort": 30081, "state": "held", "since": "2026-01-01T00:00:00Z",
                "lateFlows": "drop",
            }],
            "vips": [{
                "service": { "namespace": "shop", "name": "api", "uid": "u2" },
                "address": "198.51.100.7", "ports": [{ "protocol": "TCP", "port": 80 }],
            }],
            "cluster": {
                "podCIDRs": ["10.244.0.0/16"], "nodeCIDRs": ["10.0.1.0/24"],
                "tailMaxSeconds": 0, "holdMaxSeconds": 600,
            },
        } } },
    });
    let read: NodeTargets = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), object);
}

#[test]
fn k11_unknown_fields_and_values_of_a_later_version_are_read() {
    let port = json!({
        "name": "http", "protocol": "TCP", "port": 80, "mode": "tunnel", "clientIP": "encrypted",
        "colour": "blue",
    });
    let read: LoadBalancer = serde_json::from_value(load_balancer(port)).unwrap();
    assert_eq!(read.spec.ports[0].mode, TargetMode::Unknown);
    assert_eq!(read.spec.ports[0].client_ip, ClientIp::Unknown);
    let read: onehop_core::crd::NodeTarget = serde_json::from_value(json!({
        "service": { "namespace": "shop", "name": "web", "uid": "u1" },
        "portName": "http", "protocol": "TCP", "address": "10.244.1.2", "targetPort": 8080,
        "podUID": "p1", "podName": "web-1", "health": "oracle", "clientIP": "snat",
        "state": "parked", "since": "2026-01-01T00:00:00Z",
    }))
    .unwrap();
    assert_eq!(
        (read.health, read.state),
        (TargetHealth::Unknown, TargetState::Unknown)
    );
}

#[test]
fn c104_summary_adds_up_over_ports() {
    let spec: LoadBalancerSpec = serde_json::from_value(
        load_balancer(
            json!({ "name": "", "protocol": "TCP", "port": 80, "mode": "pod", "clientIP": "snat" }),
        )["spec"]
            .clone(),
    )
    .unwrap();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let mut status: LoadBalancerStatus = serde_json::from_value(json!({
        "addresses": [{ "ip": "198.51.100.7", "family": "IPv4" }],
        "conditions": [
            condition("Programmed", "True", "Programmed"),
            condition("TargetsReady", "False", "NoHealthyTarget"),
        ],
    }))
    .unwrap();
    let count = |healthy, registered, held, draining| PortCounts {
        healthy,
        registered,
        held,
        draining,
        ..PortCounts::default()
    };
    status.ports = vec![count(1, 2, 1, 0), count(3, 4, 0, 2)];
    let summary = status.summarize(&spec);
    assert_eq!((&*summary.mode, &*summary.address), ("pod", "198.51.100.7"));
    assert_eq!(
        (&*summary.targets, summary.held, summary.draining),
        ("4/6", 1, 2)
    );
    assert_eq!(
        (&*summary.ready, &*summary.reason),
        ("False", "NoHealthyTarget")
    );
}
