//! A controller's way to read and write objects: the verbs, in its name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use onehop_runtime::clock::Clock;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::kind::Kind;
use crate::object::{self, list_at};
use crate::server::ApiServer;
use crate::state::{Call, Part};
use crate::verbs::delete::DeleteOptions;
use crate::verbs::strict::FieldValidation;

/// Access of one controller.
pub(crate) struct Desk {
    server: ApiServer,
    manager: &'static str,
    /// Keys of the events told so far, by what they say.
    events: Mutex<BTreeMap<String, String>>,
}

impl Desk {
    pub(crate) fn new(server: ApiServer, manager: &'static str) -> Self {
        Self {
            server,
            manager,
            events: Mutex::default(),
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.server.clock()
    }

    /// The time in the form of the API.
    pub(crate) fn stamp(&self) -> String {
        self.clock().now().whole_seconds().to_string()
    }

    pub(crate) fn get(&self, table: &str, key: &str) -> Option<Arc<Value>> {
        self.server.state().store.get(table, key).cloned()
    }

    /// Objects of a table in a namespace; of all namespaces if it is empty.
    pub(crate) fn list(&self, table: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.server
            .state()
            .store
            .list(table, namespace)
            .cloned()
            .collect()
    }

    /// Every kind that has a table.
    pub(crate) fn kinds(&self) -> Vec<Arc<Kind>> {
        self.server.state().kinds.stored().cloned().collect()
    }

    pub(crate) fn kind_of(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        self.server
            .state()
            .kinds
            .by_kind(api_version, kind)
            .cloned()
    }

    fn kind(&self, table: &str) -> Result<Arc<Kind>> {
        let known = self.server.state().kinds.of_table(table).cloned();
        known.ok_or_else(ApiError::no_such_path)
    }

    /// Objects that name an object as an owner, with their tables.
    pub(crate) fn dependents(&self, owner: &Value) -> Vec<(String, Arc<Value>)> {
        let state = self.server.state();
        let places = state.owners.dependents(object::uid(owner));
        places
            .filter_map(|(table, key)| Some((table.clone(), state.store.get(table, key)?.clone())))
            .collect()
    }

    fn call(&self, table: &str, namespace: &str, name: &str, part: Part) -> Result<Call> {
        Ok(Call {
            kind: self.kind(table)?,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            part,
            manager: self.manager.to_owned(),
            dry_run: false,
            validation: FieldValidation::Ignore,
            now: self.clock().now(),
        })
    }

    pub(crate) fn create(&self, table: &str, namespace: &str, object: Value) -> Result<Arc<Value>> {
        let call = self.call(table, namespace, "", Part::Main)?;
        self.server.state().create(&call, object)
    }

    /// Replaces an object at the version that it carries.
    pub(crate) fn update(&self, table: &str, object: Value) -> Result<Arc<Value>> {
        self.replace(table, object, Part::Main)
    }

    /// Replaces the status of an object at the version that it carries.
    pub(crate) fn update_status(&self, table: &str, object: Value) -> Result<Arc<Value>> {
        self.replace(table, object, Part::Status)
    }

    fn replace(&self, table: &str, object: Value, part: Part) -> Result<Arc<Value>> {
        let call = self.call(
            table,
            object::namespace(&object),
            object::name(&object),
            part,
        )?;
        Ok(self.server.state().replace(&call, object)?.object)
    }

    /// Deletes exactly this object; that it is gone already is no error.
    pub(crate) fn delete(&self, table: &str, object: &Value, options: DeleteOptions) -> Result<()> {
        let call = self.call(
            table,
            object::namespace(object),
            object::name(object),
            Part::Main,
        )?;
        let options = DeleteOptions {
            uid: Some(object::uid(object).to_owned()),
            ..options
        };
        match self.server.state().delete(&call, &options) {
            Err(error) if error.reason != "NotFound" => Err(error),
            _ => Ok(()),
        }
    }

    /// Binds a pod to a node.
    pub(crate) fn bind(&self, pod: &Value, node: &str) -> Result<()> {
        let call = self.call(
            "pods",
            object::namespace(pod),
            object::name(pod),
            Part::Binding,
        )?;
        self.server
            .state()
            .bind(&call, &json!({"target": {"kind": "Node", "name": node}}))
            .map(drop)
    }

    /// Replaces the finalizers of a namespace's spec.
    pub(crate) fn finalize(&self, namespace: Value) -> Result<()> {
        let call = self.call("namespaces", "", object::name(&namespace), Part::Finalize)?;
        self.server.state().finalize(&call, namespace).map(drop)
    }

    /// Tells of something that happened to an object; repeated events are counted.
    pub(crate) fn event(&self, about: &Value, kind: &str, reason: &str, message: &str) {
        let namespace = Some(object::namespace(about))
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or("default");
        let identity = format!("{} {reason} {message}", object::uid(about));
        let mut known = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let same = known.get(&identity).and_then(|key| self.get("events", key));
        let outcome = match same {
            Some(event) => {
                let mut event = Value::clone(&event);
                event["count"] = (event["count"].as_i64().unwrap_or(1) + 1).into();
                event["lastTimestamp"] = self.stamp().into();
                self.update("events", event)
            }
            None => self.create(
                "events",
                namespace,
                self.new_event(about, kind, reason, message),
            ),
        };
        match outcome {
            Ok(event) => drop(known.insert(identity, object::key_of(&event))),
            Err(error) => tracing::debug!(%error, reason, "an event was not recorded"),
        }
    }

    fn new_event(&self, about: &Value, kind: &str, reason: &str, message: &str) -> Value {
        let now = self.stamp();
        let component = if self.manager == "kube-scheduler" {
            "default-scheduler"
        } else {
            controller_of(about, self.manager)
        };
        json!({
            "metadata": {"generateName": format!("{}.", object::name(about))},
            "involvedObject": {
                "apiVersion": about["apiVersion"], "kind": about["kind"], "namespace": object::namespace(about),
                "name": object::name(about), "uid": object::uid(about), "resourceVersion": object::version(about)
            },
            "type": kind, "reason": reason, "message": message, "count": 1, "firstTimestamp": now,
            "lastTimestamp": now, "source": {"component": component}, "reportingComponent": component
        })
    }
}

/// Component that events about a kind come from.
fn controller_of(about: &Value, manager: &'static str) -> &'static str {
    match about["kind"].as_str() {
        Some("Deployment") => "deployment-controller",
        Some("ReplicaSet") => "replicaset-controller",
        Some("Node") => "node-controller",
        Some("Service") => "endpoint-slice-controller",
        _ => manager,
    }
}

/// The ownerReference of an object's controller.
pub(crate) fn controller_ref(object: &Value) -> Option<&Value> {
    list_at(object, &["metadata", "ownerReferences"])
        .iter()
        .find(|owner| owner["controller"] == true)
}

/// True if an object's controller has this UID.
pub(crate) fn is_controlled_by(object: &Value, uid: &str) -> bool {
    controller_ref(object).is_some_and(|owner| owner["uid"] == uid)
}

/// An ownerReference that makes `owner` the controller.
pub(crate) fn controller_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": object::name(owner),
        "uid": object::uid(owner), "controller": true, "blockOwnerDeletion": true
    })
}
