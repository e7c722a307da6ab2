//! Subresources that are no plain part of their object: scale, binding and eviction.

use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::patch::{PatchKind, apply_json_patch, not_an_object};
use super::strict::drop_unknown;
use crate::error::{ApiError, FieldError, GroupResource, Result};
use crate::kinds::typed;
use crate::managed::{self, Manager};
use crate::object::{self, at, is_deleting, map_mut, str_at};
use crate::state::{Call, Part, State};

impl State {
    /// The `autoscaling/v1` Scale of an object.
    pub(crate) fn scale(&self, call: &Call) -> Result<Value> {
        let object = self.fetch(call)?;
        scale_of(call, &object)
    }

    /// Replaces the number of replicas.
    pub(crate) fn replace_scale(&mut self, call: &Call, mut scale: Value) -> Result<Value> {
        let unknown = unknown_to_scale(&mut scale);
        self.judge(call, &unknown, |_, fields| {
            ApiError::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: strict decoding error: {fields}"
            ))
        })?;
        self.set_scale(call, &scale)
    }

    fn set_scale(&mut self, call: &Call, scale: &Value) -> Result<Value> {
        let old = self.fetch(call)?;
        let paths = call
            .kind
            .scale
            .as_ref()
            .ok_or_else(ApiError::no_such_path)?;
        let wanted = object::version(scale);
        if !wanted.is_empty() && wanted != object::version(&old) {
            return Err(ApiError::stale_version(&call.kind.resource(), &call.name));
        }
        let replicas = at(scale, &["spec", "replicas"]).as_i64().unwrap_or(0);
        if replicas < 0 {
            let detail = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", replicas, detail);
            return Err(ApiError::invalid(
                &GroupResource::new("autoscaling", "Scale"),
                &call.name,
                &[error],
            ));
        }
        let mut new = Value::clone(&old);
        let (parents, field) = split_path(&paths.spec);
        map_mut(&mut new, &parents).insert(field.to_owned(), replicas.into());
        managed::track(call, Manager::Update, &old, &mut new);
        let whole = Call {
            part: Part::Main,
            ..call.clone()
        };
        let new = self.store_update(&whole, &old, new)?;
        scale_of(call, &new)
    }

    /// Patches the scale of an object.
    pub(crate) fn patch_scale(
        &mut self,
        call: &Call,
        form: PatchKind,
        patch: &Value,
    ) -> Result<Value> {
        let mut scale = self.scale(call)?;
        match form {
            PatchKind::Json => apply_json_patch(&mut scale, patch)?,
            _ => json_patch::merge(&mut scale, patch),
        }
        let replicas = at(&scale, &["spec", "replicas"]);
        if !replicas.is_null() && !replicas.is_i64() {
            let why = "json: spec.replicas should be a number";
            return Err(not_an_object(&scale, why));
        }
        let patched = scale.clone();
        let unknown = unknown_to_scale(&mut scale);
        self.judge(call, &unknown, |_, fields| {
            not_an_object(&patched, &format!("strict decoding error: {fields}"))
        })?;
        self.set_scale(call, &scale)
    }

    /// Binds a pod to a node, as the scheduler does.
    pub(crate) fn bind(&mut self, call: &Call, binding: &Value) -> Result<Value> {
        let old = self.fetch(call)?;
        let node = str_at(binding, &["target", "name"]);
        let resource = GroupResource::new("", "pods/binding");
        if is_deleting(&old) {
            let why = format!(
                "pod {} is being deleted, cannot be assigned to a host",
                call.name
            );
            return Err(ApiError::conflict(&resource, &call.name, why));
        }
        let bound = str_at(&old, &["spec", "nodeName"]);
        if !bound.is_empty() {
            let why = format!("pod {} is already assigned to node {bound:?}", call.name);
            return Err(ApiError::conflict(&resource, &call.name, why));
        }
        if node.is_empty() {
            let error = FieldError::required("target.name", "");
            return Err(ApiError::invalid(
                &GroupResource::new("", "Binding"),
                &call.name,
                &[error],
            ));
        }
        let mut new = Value::clone(&old);
        map_mut(&mut new, &["spec"]).insert("nodeName".into(), node.into());
        if let Some(annotations) = binding["metadata"]["annotations"].as_object() {
            map_mut(&mut new, &["metadata", "annotations"]).extend(annotations.clone());
        }
        let condition = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": call.now.whole_seconds().to_string()
        });
        set_condition(map_mut(&mut new, &["status"]), condition);
        self.commit(call, new);
        Ok(
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        )
    }

    /// Evicts a pod. Disruption budgets are not consulted.
    pub(crate) fn evict(&mut self, call: &Call, eviction: &Value) -> Result<Value> {
        let options = DeleteOptions::parse(&eviction["deleteOptions"])?;
        self.delete(call, &options)?;
        Ok(
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        )
    }

    /// Replaces `spec.finalizers` of a namespace.
    pub(crate) fn finalize(&mut self, call: &Call, body: Value) -> Result<Arc<Value>> {
        let old = self.fetch(call)?;
        let mut new = Value::clone(&old);
        let body = self.take_in(call, body)?;
        map_mut(&mut new, &["spec"]).remove("finalizers");
        if let Some(finalizers) = body["spec"]["finalizers"]
            .as_array()
            .filter(|list| !list.is_empty())
        {
            map_mut(&mut new, &["spec"]).insert("finalizers".into(), finalizers.clone().into());
        }
        self.store_update(call, &old, new)
    }
}

fn split_path(path: &str) -> (Vec<&str>, &str) {
    let mut parents: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    let field = parents.pop().unwrap_or_default();
    (parents, field)
}

/// Drops what the type has not, and gives the paths; nothing of what is no scale at all.
fn unknown_to_scale(scale: &mut Value) -> Vec<String> {
    match typed::<Scale>(scale) {
        Ok(Some(known)) => drop_unknown(scale, &known),
        _ => Vec::new(),
    }
}

fn scale_of(call: &Call, object: &Value) -> Result<Value> {
    let paths = call
        .kind
        .scale
        .as_ref()
        .ok_or_else(ApiError::no_such_path)?;
    let number = |path: &str| {
        let (mut parents, field) = split_path(path);
        parents.push(field);
        at(object, &parents).as_i64().unwrap_or(0)
    };
    let selector = match &paths.selector {
        Some(path) => {
            let (mut parents, field) = split_path(path);
            parents.push(field);
            str_at(object, &parents).to_owned()
        }
        None => label_selector_text(at(object, &["spec", "selector"])),
    };
    let mut meta = json!({});
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        meta[field] = object["metadata"][field].clone();
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {"replicas": number(&paths.spec)}, "status": {"replicas": number(&paths.status)}
    });
    if number(&paths.spec) == 0 {
        scale["spec"] = json!({});
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

/// A `metav1.LabelSelector` in the form of a query.
pub(crate) fn label_selector_text(selector: &Value) -> String {
    let mut terms: Vec<String> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for term in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let key = term["key"].as_str().unwrap_or_default();
        let values: Vec<&str> = term["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        terms.push(match term["operator"].as_str() {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.join(",")
}

/// Sets a condition by its type.
pub(crate) fn set_condition(status: &mut serde_json::Map<String, Value>, condition: Value) {
    let list = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = list.as_array_mut() else {
        return;
    };
    match list.iter_mut().find(|old| old["type"] == condition["type"]) {
        Some(old) => *old = condition,
        None => list.push(condition),
    }
}
