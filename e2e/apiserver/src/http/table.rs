//! Rows and columns for `kubectl get`.

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object;

/// Objects as a `meta.k8s.io/v1` Table.
pub(crate) fn of<'a>(
    _kind: &Kind,
    items: impl Iterator<Item = &'a Value>,
    list_meta: &Value,
) -> Value {
    let rows: Vec<Value> = items
        .map(|item| {
            json!({
                "cells": [object::name(item), item["metadata"]["creationTimestamp"]],
                "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]
                }
            })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
            {"name": "Created At", "type": "date", "format": "", "description": "", "priority": 0}
        ],
        "rows": rows
    })
}
