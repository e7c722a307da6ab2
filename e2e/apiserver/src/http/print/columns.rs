//! Columns of the built-in kinds.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{AGE, Column, NAME, Row, age, column, number, pod, wide, workload};
use crate::object::{self, at, int_at, list_at, str_at};

/// Columns of a table of the store.
pub(super) fn of(table: &str) -> &'static [Column] {
    match table {
        "pods" => pod::COLUMNS,
        "services" => SERVICES,
        "nodes" => NODES,
        "namespaces" => NAMESPACES,
        "events" => EVENTS,
        "configmaps" => CONFIG_MAPS,
        "secrets" => SECRETS,
        "endpointslices.discovery.k8s.io" => SLICES,
        "leases.coordination.k8s.io" => LEASES,
        "deployments.apps" => workload::DEPLOYMENTS,
        "replicasets.apps" => workload::REPLICA_SETS,
        "daemonsets.apps" => workload::DAEMON_SETS,
        "statefulsets.apps" => workload::STATEFUL_SETS,
        "poddisruptionbudgets.policy" => BUDGETS,
        "customresourcedefinitions.apiextensions.k8s.io" => CREATED,
        _ => PLAIN,
    }
}

static PLAIN: &[Column] = &[NAME, AGE];
static CREATED: &[Column] = &[
    NAME,
    column("Created At", |row| {
        row.object["metadata"]["creationTimestamp"].clone()
    }),
];

static NAMESPACES: &[Column] = &[
    NAME,
    column("Status", |row| {
        str_at(row.object, &["status", "phase"]).into()
    }),
    AGE,
];

fn entries(value: &Value) -> usize {
    value.as_object().map_or(0, serde_json::Map::len)
}

static CONFIG_MAPS: &[Column] = &[
    NAME,
    column("Data", |row| {
        (entries(&row.object["data"]) + entries(&row.object["binaryData"])).into()
    }),
    AGE,
];

static SECRETS: &[Column] = &[
    NAME,
    column("Type", |row| row.object["type"].clone()),
    column("Data", |row| entries(&row.object["data"]).into()),
    AGE,
];

static LEASES: &[Column] = &[
    NAME,
    column("Holder", |row| {
        str_at(row.object, &["spec", "holderIdentity"]).into()
    }),
    AGE,
];

static BUDGETS: &[Column] = &[
    NAME,
    column("Min Available", |row| {
        or_none(at(row.object, &["spec", "minAvailable"]), "N/A")
    }),
    column("Max Unavailable", |row| {
        or_none(at(row.object, &["spec", "maxUnavailable"]), "N/A")
    }),
    number("Allowed Disruptions", |row| {
        int_at(row.object, &["status", "disruptionsAllowed"])
            .unwrap_or(0)
            .into()
    }),
    AGE,
];

/// A value as text, or a word for its absence.
pub(super) fn or_none(value: &Value, none: &str) -> Value {
    match value {
        Value::Null => none.into(),
        Value::String(text) if text.is_empty() => none.into(),
        Value::String(text) => text.as_str().into(),
        other => other.to_string().into(),
    }
}

static SERVICES: &[Column] = &[
    NAME,
    column("Type", |row| str_at(row.object, &["spec", "type"]).into()),
    column("Cluster-IP", |row| {
        or_none(&row.object["spec"]["clusterIPs"][0], "<none>")
    }),
    column("External-IP", |row| external_ip(row.object).into()),
    column("Port(s)", |row| service_ports(row.object).into()),
    AGE,
    wide("Selector", |row| {
        workload::labels(at(row.object, &["spec", "selector"])).into()
    }),
];

fn external_ip(service: &Value) -> String {
    let extra: Vec<&str> = list_at(service, &["spec", "externalIPs"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match str_at(service, &["spec", "type"]) {
        "ExternalName" => str_at(service, &["spec", "externalName"]).to_owned(),
        "LoadBalancer" => {
            let shown = |ingress: &Value| {
                let texts = [ingress["ip"].as_str(), ingress["hostname"].as_str()];
                texts
                    .into_iter()
                    .flatten()
                    .find(|text| !text.is_empty())
                    .map(str::to_owned)
            };
            let ingress = list_at(service, &["status", "loadBalancer", "ingress"]);
            let mut all: Vec<String> = ingress
                .iter()
                .filter_map(shown)
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
            all.extend(extra.iter().map(ToString::to_string));
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        _ if extra.is_empty() => "<none>".to_owned(),
        _ => extra.join(","),
    }
}

fn service_ports(service: &Value) -> String {
    let ports: Vec<String> = list_at(service, &["spec", "ports"])
        .iter()
        .map(|port| {
            let (number, protocol) = (&port["port"], str_at(port, &["protocol"]));
            match port["nodePort"].as_i64().filter(|node| *node > 0) {
                Some(node) => format!("{number}:{node}/{protocol}"),
                None => format!("{number}/{protocol}"),
            }
        })
        .collect();
    if ports.is_empty() {
        "<none>".to_owned()
    } else {
        ports.join(",")
    }
}

static SLICES: &[Column] = &[
    NAME,
    column("AddressType", |row| {
        str_at(row.object, &["addressType"]).into()
    }),
    column("Ports", |row| {
        let ports = list_at(row.object, &["ports"]).iter();
        few(ports
            .map(|port| {
                port["port"]
                    .as_i64()
                    .map_or("*".to_owned(), |port| port.to_string())
            })
            .collect())
        .into()
    }),
    column("Endpoints", |row| {
        let endpoints = list_at(row.object, &["endpoints"]).iter();
        let addresses = endpoints.flat_map(|endpoint| list_at(endpoint, &["addresses"]));
        few(addresses
            .filter_map(|address| address.as_str().map(str::to_owned))
            .collect())
        .into()
    }),
    AGE,
];

/// The first three, and how many more.
fn few(all: Vec<String>) -> String {
    if all.is_empty() {
        return "<unset>".to_owned();
    }
    let more = all.len().saturating_sub(3);
    let shown = all.into_iter().take(3).collect::<Vec<_>>().join(",");
    if more > 0 {
        format!("{shown} + {more} more...")
    } else {
        shown
    }
}

static NODES: &[Column] = &[
    NAME,
    column("Status", |row| node_status(row.object).into()),
    column("Roles", |row| node_roles(row.object).into()),
    AGE,
    column("Version", |row| node_info(row, "kubeletVersion", "").into()),
    wide("Internal-IP", |row| {
        node_address(row.object, "InternalIP").into()
    }),
    wide("External-IP", |row| {
        node_address(row.object, "ExternalIP").into()
    }),
    wide("OS-Image", |row| {
        node_info(row, "osImage", "<unknown>").into()
    }),
    wide("Kernel-Version", |row| {
        node_info(row, "kernelVersion", "<unknown>").into()
    }),
    wide("Container-Runtime", |row| {
        node_info(row, "containerRuntimeVersion", "<unknown>").into()
    }),
];

fn node_info(row: Row, field: &str, none: &str) -> String {
    match str_at(row.object, &["status", "nodeInfo", field]) {
        "" => none.to_owned(),
        text => text.to_owned(),
    }
}

fn node_status(node: &Value) -> String {
    let ready = list_at(node, &["status", "conditions"])
        .iter()
        .find(|condition| condition["type"] == "Ready");
    let mut words = vec![match ready.and_then(|ready| ready["status"].as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node["spec"]["unschedulable"] == true {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn node_roles(node: &Value) -> String {
    let labels = at(node, &["metadata", "labels"])
        .as_object()
        .into_iter()
        .flatten();
    let roles: Vec<&str> = labels
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    }
}

fn node_address(node: &Value, kind: &str) -> String {
    let address = list_at(node, &["status", "addresses"])
        .iter()
        .find(|address| address["type"] == kind);
    address
        .and_then(|address| address["address"].as_str())
        .unwrap_or("<none>")
        .to_owned()
}

static EVENTS: &[Column] = &[
    column("Last Seen", |row| last_seen(row).into()),
    column("Type", |row| row.object["type"].clone()),
    column("Reason", |row| row.object["reason"].clone()),
    column("Object", |row| event_object(row.object).into()),
    wide("Subobject", |row| {
        str_at(row.object, &["involvedObject", "fieldPath"]).into()
    }),
    wide("Source", |row| event_source(row.object).into()),
    column("Message", |row| {
        str_at(row.object, &["message"]).trim().into()
    }),
    wide("First Seen", |row| first_seen(row).into()),
    wide("Count", |row| event_count(row.object).into()),
    wide("Name", |row| object::name(row.object).into()),
];

fn first_seen(row: Row) -> String {
    let field = if row.object["firstTimestamp"].is_null() {
        "eventTime"
    } else {
        "firstTimestamp"
    };
    age::of(row, &[field])
}

fn last_seen(row: Row) -> String {
    if !row.object["series"].is_null() {
        return age::of(row, &["series", "lastObservedTime"]);
    }
    if row.object["lastTimestamp"].is_null() {
        first_seen(row)
    } else {
        age::of(row, &["lastTimestamp"])
    }
}

fn event_count(event: &Value) -> i64 {
    let series = event["series"]["count"].as_i64();
    series
        .or(event["count"].as_i64())
        .filter(|count| *count > 0)
        .unwrap_or(1)
}

fn event_object(event: &Value) -> String {
    let kind = str_at(event, &["involvedObject", "kind"]).to_lowercase();
    match str_at(event, &["involvedObject", "name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn event_source(event: &Value) -> String {
    let component = str_at(event, &["source", "component"]);
    let component = if component.is_empty() {
        str_at(event, &["reportingComponent"])
    } else {
        component
    };
    match str_at(event, &["source", "host"]) {
        "" => component.to_owned(),
        host => format!("{component}, {host}"),
    }
}
