//! Rows and columns for `kubectl get`, as the printers of the real server make them.

mod age;
mod columns;
mod jsonpath;
mod pod;
mod workload;

use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::object;

/// What a cell is made from.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) object: &'a Value,
    pub(crate) now: Time,
}

/// A column of a built-in kind.
pub(crate) struct Column {
    name: &'static str,
    kind: &'static str,
    /// Shown with `-o wide` only.
    wide: bool,
    cell: fn(Row) -> Value,
}

const fn column(name: &'static str, cell: fn(Row) -> Value) -> Column {
    Column {
        name,
        kind: "string",
        wide: false,
        cell,
    }
}

const fn number(name: &'static str, cell: fn(Row) -> Value) -> Column {
    Column {
        name,
        kind: "integer",
        wide: false,
        cell,
    }
}

const fn wide(name: &'static str, cell: fn(Row) -> Value) -> Column {
    Column {
        name,
        kind: "string",
        wide: true,
        cell,
    }
}

const NAME: Column = column("Name", |row| object::name(row.object).into());
const AGE: Column = column("Age", |row| {
    age::of(row, &["metadata", "creationTimestamp"]).into()
});

/// What a row carries of its object (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

/// Objects as a `meta.k8s.io/v1` Table.
pub(crate) fn table<'a>(
    kind: &Kind,
    items: impl Iterator<Item = &'a Value>,
    include: Include,
    now: Time,
    list_meta: &Value,
) -> Value {
    let rows: Vec<Value> = items
        .map(|object| {
            let row = Row { object, now };
            let mut shown = json!({ "cells": cells(kind, row) });
            match include {
                Include::Nothing => {}
                Include::Object => shown["object"] = object.clone(),
                Include::Metadata => {
                    shown["object"] = json!({
                        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]
                    });
                }
            }
            shown
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_meta,
        "columnDefinitions": definitions(kind), "rows": rows
    })
}

fn definitions(kind: &Kind) -> Vec<Value> {
    let Some(schema) = &kind.schema else {
        return columns::of(&kind.table)
            .iter()
            .map(Column::definition)
            .collect();
    };
    let mut all = vec![NAME.definition()];
    if schema.columns.is_empty() {
        all.push(AGE.definition());
    }
    all.extend(schema.columns.iter().map(|column| {
        json!({
            "name": column["name"], "type": column["type"], "format": column["format"].as_str().unwrap_or_default(),
            "description": column["description"].as_str().unwrap_or_default(),
            "priority": column["priority"].as_i64().unwrap_or(0)
        })
    }));
    all
}

impl Column {
    fn definition(&self) -> Value {
        let format = if self.name == "Name" { "name" } else { "" };
        json!({
            "name": self.name, "type": self.kind, "format": format, "description": "",
            "priority": i32::from(self.wide)
        })
    }
}

fn cells(kind: &Kind, row: Row) -> Vec<Value> {
    let Some(schema) = &kind.schema else {
        return columns::of(&kind.table)
            .iter()
            .map(|column| (column.cell)(row))
            .collect();
    };
    let mut cells = vec![(NAME.cell)(row)];
    if schema.columns.is_empty() {
        cells.push((AGE.cell)(row));
    }
    cells.extend(schema.columns.iter().map(|column| {
        let path = column["jsonPath"].as_str().unwrap_or_default();
        custom_cell(
            row,
            column["type"].as_str().unwrap_or_default(),
            &jsonpath::find(row.object, path),
        )
    }));
    cells
}

/// A cell of a custom kind: the first value that the path finds.
fn custom_cell(row: Row, kind: &str, found: &[&Value]) -> Value {
    let Some(first) = found.first() else {
        return Value::Null;
    };
    match kind {
        "date" => first
            .as_str()
            .map_or(Value::Null, |time| age::since(time, row.now).into()),
        "string" => match found {
            [Value::String(text)] => text.as_str().into(),
            [only] => only.to_string().into(),
            several => several
                .iter()
                .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join(",")
                .into(),
        },
        _ => (*first).clone(),
    }
}
