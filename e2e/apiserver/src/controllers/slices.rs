//! `EndpointSlices` of Services with a selector.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::time::Time;
use serde_json::{Value, json};

use super::desk::Desk;
use super::driver::{Controller, Outcome, Retry};
use super::pods::{condition, is_over};
use super::slice_plan::{self, Plan, SERVICE_NAME};
use crate::object::{self, at, is_deleting, label, list_at, meta_mut, str_at};
use crate::selector::has_labels;
use crate::store::Change;
use crate::verbs::delete::DeleteOptions;

/// Table of `EndpointSlices`.
pub(crate) const TABLE: &str = "endpointslices.discovery.k8s.io";
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The controller.
#[derive(Default)]
pub(crate) struct Slices {
    /// Keys of the slices of each Service.
    slices: BTreeMap<String, BTreeSet<String>>,
    /// Times of changes that were told already.
    seen: BTreeMap<String, BTreeMap<String, Time>>,
}

impl Controller for Slices {
    const NAME: &'static str = "endpointslice";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        match change.table.as_ref() {
            "services" => vec![change.key.clone()],
            "pods" => services_of(desk, change),
            TABLE => self.note_slice(change).into_iter().collect(),
            "nodes" => {
                let zone = |node: &Value| label(node, super::scheduler::ZONE).map(str::to_owned);
                let moved = match (&change.old, &change.new) {
                    (Some(old), Some(new)) => zone(old) != zone(new),
                    _ => true,
                };
                let all = || {
                    desk.list("services", "")
                        .iter()
                        .map(|service| object::key_of(service))
                        .collect()
                };
                if moved { all() } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let service = desk.get("services", key);
        let Some(service) =
            service.filter(|service| has_selector(service) && !is_deleting(service))
        else {
            self.seen.remove(key);
            // Slices of a Service that is gone are garbage of their owner.
            return Ok(None);
        };
        let namespace = object::namespace(&service);
        let selector = at(&service, &["spec", "selector"]);
        let mut pods = desk.list("pods", namespace);
        pods.retain(|pod| has_labels(pod, selector) && !is_over(pod));
        let known = self.slices.get(key).into_iter().flatten();
        let mut slices: Vec<_> = known.filter_map(|slice| desk.get(TABLE, slice)).collect();
        slices.retain(|slice| !is_deleting(slice));
        let trigger = self.trigger_time(key, &service, &pods);
        let nodes: BTreeMap<String, _> = desk
            .list("nodes", "")
            .into_iter()
            .map(|node| (object::name(&node).to_owned(), node))
            .collect();
        let plan = slice_plan::plan(&service, &pods, &slices, &nodes);
        let missing = plan.missing_node.clone();
        carry_out(desk, namespace, plan, trigger)?;
        match missing {
            Some(pod) => Err(Retry::NotYet(format!("the node of pod {pod} is not known"))),
            None => Ok(None),
        }
    }
}

fn has_selector(service: &Value) -> bool {
    at(service, &["spec", "selector"])
        .as_object()
        .is_some_and(|selector| !selector.is_empty())
        && service["spec"]["type"] != "ExternalName"
}

fn is_ours(slice: &Value) -> bool {
    label(slice, slice_plan::MANAGED_BY) == Some(slice_plan::MANAGER)
}

/// Services that select a pod as it was or as it is.
fn services_of(desk: &Desk, change: &Change) -> Vec<String> {
    let mut services = desk.list("services", object::namespace(change.object()));
    services.retain(|service| {
        let selector = at(service, &["spec", "selector"]);
        has_selector(service)
            && change
                .old
                .iter()
                .chain(&change.new)
                .any(|pod| has_labels(pod, selector))
    });
    services
        .iter()
        .map(|service| object::key_of(service))
        .collect()
}

impl Slices {
    /// Follows a change of a slice; the answer is the Service that it is of.
    fn note_slice(&mut self, change: &Change) -> Option<String> {
        let service_of = |slice: &Value| {
            let name = label(slice, SERVICE_NAME).filter(|_| is_ours(slice))?;
            Some(object::key(object::namespace(slice), name))
        };
        if let Some(before) = change.old.as_deref().and_then(service_of)
            && let Some(slices) = self.slices.get_mut(&before)
        {
            slices.remove(&change.key);
            if slices.is_empty() {
                self.slices.remove(&before);
            }
        }
        if let Some(after) = change.new.as_deref().and_then(service_of) {
            self.slices
                .entry(after)
                .or_default()
                .insert(change.key.clone());
        }
        service_of(change.object())
    }

    /// The earliest change that no slice tells of yet (`TriggerTimeTracker`).
    fn trigger_time(
        &mut self,
        key: &str,
        service: &Value,
        pods: &[std::sync::Arc<Value>],
    ) -> Option<Time> {
        let now: BTreeMap<String, Time> = pods
            .iter()
            .filter_map(|pod| {
                let time = condition(pod, "Ready")?["lastTransitionTime"]
                    .as_str()?
                    .parse()
                    .ok()?;
                Some((object::name(pod).to_owned(), time))
            })
            .collect();
        match self.seen.insert(key.to_owned(), now.clone()) {
            None => str_at(service, &["metadata", "creationTimestamp"])
                .parse()
                .ok(),
            Some(before) => now
                .into_iter()
                .filter(|(pod, time)| before.get(pod) != Some(time))
                .map(|(_, time)| time)
                .min(),
        }
    }
}

fn carry_out(desk: &Desk, namespace: &str, plan: Plan, trigger: Option<Time>) -> Result<(), Retry> {
    let stamped = |mut slice: Value| {
        let annotations = meta_mut(&mut slice)
            .entry("annotations")
            .or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            match trigger {
                Some(time) => {
                    drop(annotations.insert(TRIGGER_TIME.into(), time.to_string().into()));
                }
                None => drop(annotations.remove(TRIGGER_TIME)),
            }
        }
        if list_at(&slice, &["endpoints"]).is_empty()
            && slice["metadata"]["annotations"] == json!({})
        {
            meta_mut(&mut slice).remove("annotations");
        }
        slice
    };
    for slice in plan.create {
        desk.create(TABLE, namespace, stamped(slice))?;
    }
    for slice in plan.update {
        desk.update(TABLE, stamped(slice))?;
    }
    for slice in plan.delete {
        desk.delete(TABLE, &slice, DeleteOptions::default())?;
    }
    Ok(())
}
