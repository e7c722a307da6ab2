//! No value without an effect: each one of `values.yaml` is changed, alone, and the rendering is another one.

use crate::sets::{overlay, with};
use anyhow::{Context, Result};
use onehop_e2e::chart::{Chart, minimal_values};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Changes that matter together with some other values.
#[derive(Deserialize)]
struct Case {
    with: Value,
    change: Value,
}

/// Paths of everything that can be set, as `a.b`: what is no map, and maps that are empty by default.
fn leaves(path: &str, value: &Value) -> Vec<(String, Value)> {
    match value.as_object().filter(|map| !map.is_empty()) {
        None => vec![(path.to_owned(), value.clone())],
        Some(map) => map
            .iter()
            .flat_map(|(key, value)| leaves(&join(path, key), value))
            .collect(),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}\u{0}{key}")
    }
}

/// Values in which only the one at this path is set.
fn at(path: &str, value: &Value) -> Value {
    path.rsplit('\u{0}')
        .fold(value.clone(), |inner, key| json!({ key: inner }))
}

fn defaults() -> Result<Value> {
    let text = std::fs::read_to_string(Chart::folder().join("values.yaml"))?;
    serde_saphyr::from_str(&text).context("values.yaml")
}

/// What else the changed value needs, so that the chart renders with it.
fn needed(path: &str) -> Value {
    match path.replace('\u{0}', ".").as_str() {
        "provider" => json!({"vpcId": "vpc-0"}),
        "serviceAccount.create" => json!({"serviceAccount": {"name": "mine"}}),
        "agent.serviceAccount.create" => json!({"agent": {"serviceAccount": {"name": "mine"}}}),
        _ => json!({}),
    }
}

/// C-60: no value is there for show.
#[test]
fn c60_every_value_has_an_effect() -> Result<()> {
    let chart = Chart::of_this_build()?;
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("effects.yaml"))?;
    let defaults = defaults()?;
    let known: BTreeSet<String> = leaves("", &defaults).into_iter().map(|(p, _)| p).collect();
    let mut tried = BTreeSet::new();
    for case in cases {
        let base = if case.with["provider"] == "aws" {
            let mut base = json!({"clusterName": "demo"});
            overlay(&mut base, &case.with);
            base
        } else {
            with(case.with)
        };
        for (path, value) in changes(&known, &case.change) {
            let shown = path.replace('\u{0}', ".");
            let mut before = base.clone();
            overlay(&mut before, &needed(&path));
            let mut after = before.clone();
            overlay(&mut after, &at(&path, &value));
            let before = chart.template(&before).with_context(|| shown.clone())?;
            let after = chart.template(&after).with_context(|| shown.clone())?;
            assert!(before != after, "{shown}: {value} changes nothing");
            tried.insert(path);
        }
    }
    let left: Vec<String> = known
        .difference(&tried)
        .map(|path| path.replace('\u{0}', "."))
        .collect();
    assert!(left.is_empty(), "effects.yaml has no change of {left:?}");
    Ok(())
}

/// The changes of a case, cut where `values.yaml` has its leaves.
fn changes(known: &BTreeSet<String>, change: &Value) -> Vec<(String, Value)> {
    fn walk(known: &BTreeSet<String>, path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        let inner = value.as_object().filter(|_| !known.contains(path));
        match inner {
            None => found.push((path.to_owned(), value.clone())),
            Some(map) => {
                for (key, value) in map {
                    walk(known, &join(path, key), value, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(known, "", change, &mut found);
    found
}

/// C-60: the schema knows what `values.yaml` has and nothing else, down to where users write what they like.
#[test]
fn c60_the_schema_knows_every_value() -> Result<()> {
    let text = std::fs::read_to_string(Chart::folder().join("values.schema.json"))?;
    let schema: Value = serde_json::from_str(&text)?;
    for (path, _) in leaves("", &defaults()?) {
        let mut at = &schema;
        for key in path.split('\u{0}') {
            let Some(properties) = at["properties"].as_object() else {
                break;
            };
            at = properties
                .get(key)
                .with_context(|| format!("the schema has no {}", path.replace('\u{0}', ".")))?;
        }
    }
    let mut open = Vec::new();
    unknown("", &schema, &defaults()?, &mut open);
    assert!(
        open.is_empty(),
        "in the schema and not in values.yaml: {open:?}"
    );
    assert!(Chart::of_this_build()?.lint(&minimal_values()).is_ok());
    Ok(())
}

/// Properties of a strict block that have no default.
fn unknown(path: &str, schema: &Value, values: &Value, found: &mut Vec<String>) {
    let strict = schema["additionalProperties"] == false;
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        match values.get(key) {
            Some(value) => unknown(&path, inner, value, found),
            // Helm's own, and what is an empty map or list by default.
            None if path == ".global" || !strict || *values == json!({}) => {}
            None => found.push(path),
        }
    }
}
