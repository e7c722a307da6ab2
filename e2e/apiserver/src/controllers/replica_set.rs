//! `ReplicaSet`: adopts, creates and deletes pods until their number is right.

use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use serde_json::{Value, json};

use super::desk::{Desk, controller_ref, controller_reference, is_controlled_by};
use super::driver::{Controller, Outcome};
use super::pods::{is_active, is_over, is_ready, ready_since, until_available};
use crate::error::{ApiError, Result};
use crate::object::{self, at, int_at, is_deleting, list_at, meta_mut, str_at};
use crate::selector::Selector;
use crate::store::Change;
use crate::verbs::delete::DeleteOptions;

/// Table of `ReplicaSets`.
pub(crate) const TABLE: &str = "replicasets.apps";

/// Most pods that one look creates or deletes.
const BURST: usize = 500;

/// The controller.
pub(crate) struct ReplicaSets;

impl Controller for ReplicaSets {
    const NAME: &'static str = "replicaset";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        match change.table.as_ref() {
            TABLE => vec![change.key.clone()],
            "pods" => {
                let mut keys: Vec<String> = change
                    .old
                    .iter()
                    .chain(&change.new)
                    .filter_map(|pod| owner_key(pod))
                    .collect();
                if keys.is_empty() && change.new.is_some() {
                    keys = adopters(desk, change.object());
                }
                keys.dedup();
                keys
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some(set) = desk.get(TABLE, key) else {
            return Ok(None);
        };
        let pods = claim(desk, &set)?;
        let (active, terminating): (Vec<_>, Vec<_>) = pods
            .into_iter()
            .filter(|pod| !is_over(pod))
            .partition(|pod| is_active(pod));
        let managed = if is_deleting(&set) {
            Ok(())
        } else {
            scale(desk, &set, &active)
        };
        let now = desk.clock().now();
        let set = write_status(
            desk,
            &set,
            &active,
            terminating.len(),
            managed.as_ref().err(),
        )?;
        managed?;
        Ok(next_look(&set, &active, now))
    }
}

fn owner_key(pod: &Value) -> Option<String> {
    let owner = controller_ref(pod).filter(|owner| owner["kind"] == "ReplicaSet")?;
    Some(object::key(object::namespace(pod), owner["name"].as_str()?))
}

/// Sets that may take over a pod without controller.
fn adopters(desk: &Desk, pod: &Value) -> Vec<String> {
    if controller_ref(pod).is_some() {
        return Vec::new();
    }
    let sets = desk.list(TABLE, object::namespace(pod));
    sets.iter()
        .filter(|set| selector(set).matches(pod))
        .map(|set| object::key_of(set))
        .collect()
}

fn selector(set: &Value) -> Selector {
    Selector::of_label_selector(at(set, &["spec", "selector"]))
}

/// Pods of a set: its own that still match, and matching orphans, which it adopts. Others of its own are let go.
fn claim(desk: &Desk, set: &Value) -> Result<Vec<Arc<Value>>> {
    let selector = selector(set);
    let mut claimed = Vec::new();
    for pod in desk.list("pods", object::namespace(set)) {
        let matches = selector.matches(&pod);
        match controller_ref(&pod) {
            Some(owner) if owner["uid"] == object::uid(set) => {
                if matches {
                    claimed.push(pod);
                } else if is_active(&pod) {
                    release(desk, set, &pod)?;
                }
            }
            None if matches && is_active(&pod) && !is_deleting(set) => {
                claimed.push(adopt(desk, set, &pod)?);
            }
            _ => {}
        }
    }
    Ok(claimed)
}

fn adopt(desk: &Desk, set: &Value, pod: &Value) -> Result<Arc<Value>> {
    let mut pod = pod.clone();
    let mut owners = list_at(&pod, &["metadata", "ownerReferences"]).to_vec();
    owners.push(controller_reference(set));
    meta_mut(&mut pod).insert("ownerReferences".into(), owners.into());
    desk.update("pods", pod)
}

fn release(desk: &Desk, set: &Value, pod: &Value) -> Result<()> {
    let mut pod = pod.clone();
    let mut owners = list_at(&pod, &["metadata", "ownerReferences"]).to_vec();
    owners.retain(|owner| owner["uid"] != object::uid(set));
    meta_mut(&mut pod).insert("ownerReferences".into(), owners.into());
    desk.update("pods", pod).map(drop)
}

fn scale(desk: &Desk, set: &Value, active: &[Arc<Value>]) -> Result<()> {
    let wanted = usize::try_from(int_at(set, &["spec", "replicas"]).unwrap_or(1)).unwrap_or(0);
    for _ in active.len()..wanted.min(active.len() + BURST) {
        let pod = desk
            .create("pods", object::namespace(set), new_pod(set))
            .inspect_err(|error| {
                desk.event(
                    set,
                    "Warning",
                    "FailedCreate",
                    &format!("Error creating: {error}"),
                );
            })?;
        desk.event(
            set,
            "Normal",
            "SuccessfulCreate",
            &format!("Created pod: {}", object::name(&pod)),
        );
    }
    if active.len() > wanted {
        let surplus = (active.len() - wanted).min(BURST);
        for pod in to_delete(desk, set, active).into_iter().take(surplus) {
            desk.delete("pods", &pod, DeleteOptions::default())?;
            desk.event(
                set,
                "Normal",
                "SuccessfulDelete",
                &format!("Deleted pod: {}", object::name(&pod)),
            );
        }
    }
    Ok(())
}

fn new_pod(set: &Value) -> Value {
    let template = at(set, &["spec", "template"]);
    let mut meta = json!({
        "generateName": format!("{}-", object::name(set)),
        "ownerReferences": [controller_reference(set)],
    });
    for field in ["labels", "annotations", "finalizers"] {
        let value = &template["metadata"][field];
        if !value.is_null() {
            meta[field] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})
}

/// Pods in the order in which they go: those that serve least first (`ActivePodsWithRanks`).
fn to_delete(desk: &Desk, set: &Value, active: &[Arc<Value>]) -> Vec<Arc<Value>> {
    let related = related_pods(desk, set);
    let on_node = |node: &str| {
        related
            .iter()
            .filter(|pod| str_at(pod, &["spec", "nodeName"]) == node)
            .count()
    };
    let now = desk.clock().now();
    let mut pods = active.to_vec();
    pods.sort_by_cached_key(|pod| {
        let node = str_at(pod, &["spec", "nodeName"]);
        let phase = match str_at(pod, &["status", "phase"]) {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let cost: i64 = str_at(
            pod,
            &[
                "metadata",
                "annotations",
                "controller.kubernetes.io/pod-deletion-cost",
            ],
        )
        .parse()
        .unwrap_or(0);
        let restarts = list_at(pod, &["status", "containerStatuses"])
            .iter()
            .filter_map(|container| container["restartCount"].as_i64())
            .max()
            .unwrap_or(0);
        let created = str_at(pod, &["metadata", "creationTimestamp"]).parse().ok();
        (
            !node.is_empty(),
            phase,
            is_ready(pod),
            cost,
            std::cmp::Reverse(on_node(node)),
            age_rank(ready_since(pod), now),
            std::cmp::Reverse(restarts),
            age_rank(created, now),
            object::uid(pod).to_owned(),
        )
    });
    pods
}

/// Ages are compared by their order of magnitude, so that among pods of about the same age the choice is free.
fn age_rank(since: Option<Time>, now: Time) -> u32 {
    since.map_or(0, |since| {
        let seconds = now.since(since).as_secs();
        u64::BITS - seconds.leading_zeros()
    })
}

/// Active pods of all sets with the same controller: one node shall not lose more than others.
fn related_pods(desk: &Desk, set: &Value) -> Vec<Arc<Value>> {
    let namespace = object::namespace(set);
    let uids: Vec<String> = match controller_ref(set).and_then(|owner| owner["uid"].as_str()) {
        Some(owner) => {
            let sets = desk.list(TABLE, namespace);
            sets.iter()
                .filter(|set| is_controlled_by(set, owner))
                .map(|set| object::uid(set).to_owned())
                .collect()
        }
        None => vec![object::uid(set).to_owned()],
    };
    let mut pods = desk.list("pods", namespace);
    pods.retain(|pod| is_active(pod) && uids.iter().any(|uid| is_controlled_by(pod, uid)));
    pods
}

fn write_status(
    desk: &Desk,
    set: &Value,
    active: &[Arc<Value>],
    terminating: usize,
    failure: Option<&ApiError>,
) -> Result<Arc<Value>> {
    // The scale may just have changed nothing but pods; the set itself is as it was read.
    let min_ready = int_at(set, &["spec", "minReadySeconds"]).unwrap_or(0);
    let now = desk.clock().now();
    let labels = Selector::of_map(at(set, &["spec", "template", "metadata", "labels"]));
    let available = active
        .iter()
        .filter(|pod| until_available(pod, min_ready, now) == Some(Duration::ZERO))
        .count();
    let mut status = json!({
        "replicas": active.len(),
        "observedGeneration": set["metadata"]["generation"],
        "terminatingReplicas": terminating,
    });
    let counts = [
        (
            "fullyLabeledReplicas",
            active.iter().filter(|pod| labels.matches(pod)).count(),
        ),
        (
            "readyReplicas",
            active.iter().filter(|pod| is_ready(pod)).count(),
        ),
        ("availableReplicas", available),
    ];
    for (field, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        status[field] = count.into();
    }
    if let Some(failure) = failure {
        let known = super::pods::condition(set, "ReplicaFailure").cloned();
        status["conditions"] = json!([known.unwrap_or_else(|| json!({
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure.to_string(),
            "lastTransitionTime": desk.stamp()
        }))]);
    }
    if status == set["status"] {
        return Ok(Arc::new(set.clone()));
    }
    let mut set = set.clone();
    set["status"] = status;
    desk.update_status(TABLE, set)
}

/// The next pod to become available by its age alone.
fn next_look(set: &Value, active: &[Arc<Value>], now: Time) -> Option<Duration> {
    let min_ready = int_at(set, &["spec", "minReadySeconds"]).unwrap_or(0);
    let waits = active
        .iter()
        .filter_map(|pod| until_available(pod, min_ready, now));
    waits.filter(|wait| !wait.is_zero()).min()
}
