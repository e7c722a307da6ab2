//! `CustomResourceDefinitions`: a stored one makes its kinds served.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

use super::default;
use crate::error::FieldError;
use crate::kind::{Hooks, Kind, ScalePaths, Trait};
use crate::kinds::typed;
use crate::object::{self, list_at, map_mut, str_at};
use crate::schema::Schema;
use crate::shape::Shape;
use crate::state::State;

/// API group of the kind itself.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Its table in the store.
pub(crate) const TABLE: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Behaviour of CRDs.
pub(crate) static HOOKS: Hooks = Hooks {
    default: |crd| {
        let spec = map_mut(crd, &["spec"]);
        default(spec, "conversion", json!({"strategy": "None"}));
        let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) else {
            return;
        };
        let kind = names
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        default(names, "singular", kind.to_lowercase());
        default(names, "listKind", format!("{kind}List"));
    },
    prepare: |_, crd, old| {
        prepare(crd, old);
        Ok(())
    },
    validate,
    decode: typed::<CustomResourceDefinition>,
    ..Hooks::PLAIN
};

/// Names are accepted and the kind established at once: there is no other API server to agree with.
fn prepare(crd: &mut Value, old: Option<&Value>) {
    let since = object::str_at(old.unwrap_or(crd), &["metadata", "creationTimestamp"]).to_owned();
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "lastTransitionTime": since, "reason": reason, "message": message
        })
    };
    let stored = list_at(crd, &["spec", "versions"])
        .iter()
        .find(|version| version["storage"] == true);
    let stored = stored
        .map(|version| version["name"].clone())
        .unwrap_or_default();
    let mut versions = old
        .map(|old| list_at(old, &["status", "storedVersions"]).to_vec())
        .unwrap_or_default();
    if !versions.contains(&stored) {
        versions.push(stored);
    }
    let names = crd["spec"]["names"].clone();
    crd["status"] = json!({
        "acceptedNames": names,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "storedVersions": versions,
    });
}

fn validate(crd: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (group, plural) = (
        str_at(crd, &["spec", "group"]),
        str_at(crd, &["spec", "names", "plural"]),
    );
    let name = object::name(crd);
    let expected = format!("{plural}.{group}");
    if name != expected {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    let versions = list_at(crd, &["spec", "versions"]);
    if versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        let shown = Value::Array(versions.to_vec());
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", shown, detail));
    }
    for (index, version) in versions.iter().enumerate() {
        if version["schema"]["openAPIV3Schema"].is_null() {
            let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(path, "schemas are required"));
        }
    }
    errors
}

/// Serves, changes or stops serving what a CRD defines.
pub(crate) fn follow(state: &mut State, old: Option<&Value>, new: Option<&Value>) {
    if let Some(old) = old {
        state.kinds.remove(
            str_at(old, &["spec", "group"]),
            str_at(old, &["spec", "names", "plural"]),
        );
    }
    for kind in new.into_iter().flat_map(kinds) {
        state.kinds.insert(kind);
    }
}

static CUSTOM: Hooks = Hooks::PLAIN;

fn kinds(crd: &Value) -> Vec<Kind> {
    let versions = list_at(crd, &["spec", "versions"])
        .iter()
        .filter(|version| version["served"] == true);
    versions.map(|version| kind(crd, version)).collect()
}

fn kind(crd: &Value, version: &Value) -> Kind {
    let names = &crd["spec"]["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| {
        value
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect::<Vec<_>>()
    };
    let (group, plural) = (text(&crd["spec"]["group"]), text(&names["plural"]));
    let mut traits = vec![Trait::Generation];
    if version["subresources"]["status"].is_object() {
        traits.push(Trait::Status);
    }
    let scale = version["subresources"]["scale"]
        .as_object()
        .map(scale_paths);
    if scale.is_some() {
        traits.push(Trait::Scale);
    }
    Kind {
        table: Kind::table_name(&group, &plural),
        group: group.into(),
        version: text(&version["name"]).into(),
        kind: text(&names["kind"]).into(),
        list_kind: text(&names["listKind"]).into(),
        plural: plural.into(),
        singular: text(&names["singular"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: crd["spec"]["scope"] == "Namespaced",
        traits,
        hooks: &CUSTOM,
        shape: Shape::of_schema(&version["schema"]["openAPIV3Schema"]),
        schema: Some(Arc::new(Schema::new(version))),
        scale,
        conversion: None,
    }
}

fn scale_paths(scale: &Map<String, Value>) -> ScalePaths {
    let path = |field: &str| scale.get(field).and_then(Value::as_str).map(str::to_owned);
    ScalePaths {
        spec: path("specReplicasPath").unwrap_or_default(),
        status: path("statusReplicasPath").unwrap_or_default(),
        selector: path("labelSelectorPath"),
    }
}
