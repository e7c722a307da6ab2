//! The kinds that are tried and the values that their fields take: `kinds.yaml`, good and bad values alike.

use anyhow::{Context, Result};
use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Fields = BTreeMap<String, Vec<Value>>;

/// One kind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct KindRow {
    pub(crate) kind: String,
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub(crate) root: String,
    pub(crate) plural: String,
    /// How often it is chosen.
    pub(crate) weight: u32,
    #[serde(default)]
    pub(crate) cluster: bool,
    #[serde(default)]
    pub(crate) scale: bool,
    /// What makes a valid object.
    pub(crate) base: Value,
    /// Values by JSON pointer.
    pub(crate) fields: Fields,
    #[serde(default)]
    pub(crate) status_fields: Fields,
    /// Field selectors.
    #[serde(default)]
    pub(crate) selectors: Vec<String>,
    /// Strategic merge patches of its own.
    #[serde(default)]
    pub(crate) patches: Vec<Value>,
}

#[derive(Deserialize)]
struct File {
    metadata: Fields,
    kinds: Vec<KindRow>,
}

impl KindRow {
    /// All rows, each with the fields that every kind has.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let file: File =
            serde_saphyr::from_str(include_str!("kinds.yaml")).context("kinds.yaml")?;
        let mut kinds = file.kinds;
        for kind in &mut kinds {
            for (at, values) in &file.metadata {
                kind.fields
                    .entry(at.clone())
                    .or_insert_with(|| values.clone());
            }
        }
        Ok(kinds)
    }

    /// `v1` or `GROUP/VERSION`.
    pub(crate) fn api_version(&self) -> &str {
        self.root
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/")
    }

    /// Path of the collection.
    pub(crate) fn collection(&self, namespace: &str) -> String {
        let (root, plural) = (&self.root, &self.plural);
        if self.cluster {
            format!("{root}/{plural}")
        } else {
            format!("{root}/namespaces/{namespace}/{plural}")
        }
    }

    /// A valid object.
    pub(crate) fn object(&self, name: &str) -> Value {
        let mut object = self.base.clone();
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.clone().into();
        // By these, lists and watches find the objects of one sequence.
        let of = name.split('-').next().unwrap_or_default();
        object["metadata"] = json!({"name": name, "labels": {"app": "x", "mine": "1", "of": of}});
        object
    }

    /// The least that an applied configuration has.
    pub(crate) fn bare(&self, name: &str) -> Value {
        json!({"apiVersion": self.api_version(), "kind": self.kind, "metadata": {"name": name}})
    }

    /// A field and a value for it.
    pub(crate) fn field(&self, rng: &mut SmallRng, status: bool) -> (String, Value) {
        let fields = if status && !self.status_fields.is_empty() && rng.random_bool(0.85) {
            &self.status_fields
        } else {
            &self.fields
        };
        let names: Vec<&String> = fields.keys().collect();
        let name = names
            .choose(rng)
            .map_or("/metadata/labels", |name| name.as_str());
        let value = fields
            .get(name)
            .and_then(|values| values.choose(rng))
            .cloned();
        (name.to_owned(), value.unwrap_or(Value::Null))
    }
}
