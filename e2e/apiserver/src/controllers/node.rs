//! Node life cycle: taints that follow conditions and cordons, dead nodes, and pods on them.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::time::Time;
use serde_json::{Value, json};

use super::desk::Desk;
use super::driver::{Controller, Outcome};
use super::pods::{condition, is_ready};
use super::scheduler::{bears, unschedulable};
use crate::error::Result;
use crate::object::{self, is_deleting, list_at, map_mut, str_at};
use crate::store::Change;
use crate::verbs::delete::DeleteOptions;
use crate::verbs::special::set_condition;

const LEASES: &str = "leases.coordination.k8s.io";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Time that a missing node has to come (again).
const QUARANTINE: Duration = Duration::from_secs(40);
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The controller.
pub(crate) struct Nodes {
    /// Age of a Lease from which a node counts as dead.
    pub(crate) grace: Duration,
    /// Nodes that pods are bound to and that do not exist, since when.
    pub(crate) missing: BTreeMap<String, Time>,
}

impl Controller for Nodes {
    const NAME: &'static str = "node";

    fn wake(&mut self, _: &Desk, change: &Change) -> Vec<String> {
        match change.table.as_ref() {
            "nodes" => vec![change.key.clone()],
            LEASES => change
                .key
                .strip_prefix("kube-node-lease/")
                .map(str::to_owned)
                .into_iter()
                .collect(),
            "pods" => {
                let node = str_at(change.object(), &["spec", "nodeName"]);
                if node.is_empty() {
                    Vec::new()
                } else {
                    vec![node.to_owned()]
                }
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some(node) = desk.get("nodes", key) else {
            return self.collect_lost_pods(desk, key);
        };
        self.missing.remove(key);
        let now = desk.clock().now();
        // A node that never renewed a Lease is hand-made; its conditions are believed.
        let renewed = desk
            .get(LEASES, &object::key("kube-node-lease", key))
            .and_then(|lease| renewed(&lease));
        let silent = renewed.is_some_and(|renewed| now.since(renewed) >= self.grace);
        let node = if silent {
            mark_unknown(desk, &node)?
        } else {
            Value::clone(&node)
        };
        let node = settle_taints(desk, node)?;
        if !is_ready(&node) {
            mark_pods_not_ready(desk, key)?;
        }
        let eviction = evict(desk, &node, now)?;
        let silence = renewed
            .filter(|_| !silent)
            .map(|renewed| (renewed + self.grace).since(now));
        Ok(eviction.into_iter().chain(silence).min())
    }
}

fn renewed(lease: &Value) -> Option<Time> {
    str_at(lease, &["spec", "renewTime"]).parse().ok()
}

/// A silent node's conditions are unknown.
fn mark_unknown(desk: &Desk, node: &Value) -> Result<Value> {
    if condition(node, "Ready").is_some_and(|ready| ready["status"] == "Unknown") {
        return Ok(node.clone());
    }
    let mut unknown = node.clone();
    let status = map_mut(&mut unknown, &["status"]);
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        if kind != "Ready" && condition(node, kind).is_none() {
            continue;
        }
        set_condition(
            status,
            json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastTransitionTime": desk.stamp(),
                "lastHeartbeatTime": condition(node, kind).map(|known| known["lastHeartbeatTime"].clone())
            }),
        );
    }
    let node = desk.update_status("nodes", unknown)?;
    desk.event(
        &node,
        "Normal",
        "NodeNotReady",
        &format!("Node {} status is now: NodeNotReady", object::name(&node)),
    );
    Ok(Value::clone(&node))
}

/// Taints of this controller are those that the node's state asks for.
fn settle_taints(desk: &Desk, node: Value) -> Result<Value> {
    let ours = |taint: &Value| {
        [NOT_READY, UNREACHABLE, "node.kubernetes.io/unschedulable"]
            .iter()
            .any(|key| taint["key"] == *key)
    };
    let mut wanted = Vec::new();
    if node["spec"]["unschedulable"] == true {
        wanted.push(unschedulable());
    }
    let key = match condition(&node, "Ready").and_then(|ready| ready["status"].as_str()) {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        _ => None,
    };
    if let Some(key) = key {
        wanted.push(json!({"key": key, "effect": "NoSchedule"}));
        wanted.push(json!({"key": key, "effect": "NoExecute"}));
    }
    let present = list_at(&node, &["spec", "taints"]);
    let same = |a: &Value, b: &Value| a["key"] == b["key"] && a["effect"] == b["effect"];
    let mut taints: Vec<Value> = present
        .iter()
        .filter(|taint| !ours(taint) || wanted.iter().any(|one| same(one, taint)))
        .cloned()
        .collect();
    for mut taint in wanted {
        if !taints.iter().any(|known| same(known, &taint)) {
            taint["timeAdded"] = desk.stamp().into();
            taints.push(taint);
        }
    }
    if taints == present {
        return Ok(node);
    }
    let mut node = node;
    if taints.is_empty() {
        map_mut(&mut node, &["spec"]).remove("taints");
    } else {
        map_mut(&mut node, &["spec"]).insert("taints".into(), taints.into());
    }
    Ok(Value::clone(&*desk.update("nodes", node)?))
}

fn pods_of(desk: &Desk, node: &str) -> Vec<std::sync::Arc<Value>> {
    let mut pods = desk.list("pods", "");
    pods.retain(|pod| str_at(pod, &["spec", "nodeName"]) == node);
    pods
}

/// Pods of a node that is not ready are no endpoints (`MarkPodsNotReady`).
fn mark_pods_not_ready(desk: &Desk, node: &str) -> Result<()> {
    for pod in pods_of(desk, node).into_iter().filter(|pod| is_ready(pod)) {
        let mut marked = Value::clone(&pod);
        let mut ready = condition(&pod, "Ready").cloned().unwrap_or_default();
        ready["status"] = "False".into();
        ready["lastTransitionTime"] = desk.stamp().into();
        set_condition(map_mut(&mut marked, &["status"]), ready);
        desk.update_status("pods", marked)?;
    }
    Ok(())
}

/// Deletes pods that no longer bear a `NoExecute` taint; the answer is the time until the next.
fn evict(desk: &Desk, node: &Value, now: Time) -> Result<Option<Duration>> {
    let taints: Vec<&Value> = list_at(node, &["spec", "taints"])
        .iter()
        .filter(|taint| taint["effect"] == "NoExecute")
        .collect();
    if taints.is_empty() {
        return Ok(None);
    }
    let mut next: Option<Duration> = None;
    for pod in pods_of(desk, object::name(node))
        .into_iter()
        .filter(|pod| !is_deleting(pod))
    {
        let deadline = taints
            .iter()
            .filter_map(|taint| end_of_patience(&pod, taint, now))
            .min();
        match deadline {
            Some(deadline) if deadline <= now => {
                desk.delete("pods", &pod, DeleteOptions::default())?;
            }
            Some(deadline) => {
                let wait = deadline.since(now);
                next = Some(next.map_or(wait, |next| next.min(wait)));
            }
            None => {}
        }
    }
    Ok(next)
}

/// When a pod has to leave because of a taint; never, if it bears it for ever.
fn end_of_patience(pod: &Value, taint: &Value, now: Time) -> Option<Time> {
    let tolerations = list_at(pod, &["spec", "tolerations"])
        .iter()
        .filter(|toleration| bears(toleration, taint));
    let patience: Vec<Option<i64>> = tolerations
        .map(|toleration| toleration["tolerationSeconds"].as_i64())
        .collect();
    if patience.is_empty() {
        return Some(now);
    }
    let since: Time = str_at(taint, &["timeAdded"]).parse().unwrap_or(now);
    let seconds = patience.into_iter().flatten().min()?;
    Some(since + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

impl Nodes {
    /// Pods of a node that does not exist are deleted without grace, after a while in which it may yet come (`PodGC`).
    fn collect_lost_pods(&mut self, desk: &Desk, node: &str) -> Outcome {
        let pods = pods_of(desk, node);
        if pods.is_empty() {
            self.missing.remove(node);
            return Ok(None);
        }
        let now = desk.clock().now();
        let since = *self.missing.entry(node.to_owned()).or_insert(now);
        let wait = (since + QUARANTINE).since(now);
        if !wait.is_zero() {
            return Ok(Some(wait));
        }
        for pod in pods {
            desk.delete(
                "pods",
                &pod,
                DeleteOptions {
                    grace: Some(0),
                    ..DeleteOptions::default()
                },
            )?;
        }
        Ok(None)
    }
}
