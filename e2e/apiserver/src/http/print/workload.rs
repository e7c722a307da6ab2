//! Columns of Deployments and of the kinds beside them.

use serde_json::Value;

use super::{AGE, Column, NAME, Row, column, number, wide};
use crate::object::{at, int_at, list_at};

fn status(row: Row, field: &str) -> i64 {
    int_at(row.object, &["status", field]).unwrap_or(0)
}

fn replicas(row: Row) -> i64 {
    int_at(row.object, &["spec", "replicas"]).unwrap_or(0)
}

const CONTAINERS: Column = wide("Containers", |row| containers(row, "name").into());
const IMAGES: Column = wide("Images", |row| containers(row, "image").into());
const SELECTOR: Column = wide("Selector", |row| {
    selector(at(row.object, &["spec", "selector"])).into()
});

pub(super) static DEPLOYMENTS: &[Column] = &[
    NAME,
    column("Ready", |row| {
        format!("{}/{}", status(row, "readyReplicas"), replicas(row)).into()
    }),
    column("Up-to-date", |row| status(row, "updatedReplicas").into()),
    column("Available", |row| status(row, "availableReplicas").into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) static REPLICA_SETS: &[Column] = &[
    NAME,
    number("Desired", |row| replicas(row).into()),
    number("Current", |row| status(row, "replicas").into()),
    number("Ready", |row| status(row, "readyReplicas").into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) static DAEMON_SETS: &[Column] = &[
    NAME,
    number("Desired", |row| {
        status(row, "desiredNumberScheduled").into()
    }),
    number("Current", |row| {
        status(row, "currentNumberScheduled").into()
    }),
    number("Ready", |row| status(row, "numberReady").into()),
    number("Up-to-date", |row| {
        status(row, "updatedNumberScheduled").into()
    }),
    number("Available", |row| status(row, "numberAvailable").into()),
    column("Node Selector", |row| {
        labels(at(
            row.object,
            &["spec", "template", "spec", "nodeSelector"],
        ))
        .into()
    }),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) static STATEFUL_SETS: &[Column] = &[
    NAME,
    column("Ready", |row| {
        format!("{}/{}", status(row, "readyReplicas"), replicas(row)).into()
    }),
    AGE,
    CONTAINERS,
    IMAGES,
];

fn containers(row: Row, field: &str) -> String {
    let list = list_at(row.object, &["spec", "template", "spec", "containers"]).iter();
    list.filter_map(|container| container[field].as_str())
        .collect::<Vec<_>>()
        .join(",")
}

/// Labels as `a=b,c=d`.
pub(super) fn labels(labels: &Value) -> String {
    let terms: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if terms.is_empty() {
        "<none>".to_owned()
    } else {
        terms.join(",")
    }
}

fn selector(selector: &Value) -> String {
    let text = crate::verbs::special::label_selector_text(selector);
    if text.is_empty() {
        "<none>".to_owned()
    } else {
        text
    }
}
