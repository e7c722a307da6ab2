//! Scheduler: gives every new pod a node, spread evenly.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::desk::{Desk, controller_ref};
use super::driver::{Controller, Outcome};
use super::pods::{condition, is_active, is_ready};
use crate::object::{self, at, is_deleting, label, list_at, map_mut, str_at};
use crate::selector::Selector;
use crate::store::Change;
use crate::verbs::special::set_condition;

/// Label of a node's zone.
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";

/// The scheduler.
#[derive(Default)]
pub(crate) struct Scheduler;

impl Controller for Scheduler {
    const NAME: &'static str = "scheduler";
    const MANAGER: &'static str = "kube-scheduler";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        match (change.table.as_ref(), &change.new) {
            ("pods", Some(pod)) if is_waiting(pod) => vec![change.key.clone()],
            // Room may have come up.
            ("pods", None) | ("nodes", Some(_)) => {
                let pods = desk.list("pods", "");
                pods.iter()
                    .filter(|pod| is_waiting(pod))
                    .map(|pod| object::key_of(pod))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some(pod) = desk.get("pods", key).filter(|pod| is_waiting(pod)) else {
            return Ok(None);
        };
        let nodes = desk.list("nodes", "");
        match choose(desk, &pod, &nodes) {
            Some(node) => {
                desk.bind(&pod, &node)?;
                let message = format!("Successfully assigned {key} to {node}");
                desk.event(&pod, "Normal", "Scheduled", &message);
            }
            None => refuse(desk, &pod, nodes.len())?,
        }
        Ok(None)
    }
}

fn is_waiting(pod: &Value) -> bool {
    str_at(pod, &["spec", "nodeName"]).is_empty()
        && is_active(pod)
        && str_at(pod, &["spec", "schedulerName"]) == "default-scheduler"
        && list_at(pod, &["spec", "schedulingGates"]).is_empty()
}

fn refuse(desk: &Desk, pod: &Value, nodes: usize) -> crate::error::Result<()> {
    let message = format!("0/{nodes} nodes are available");
    if condition(pod, "PodScheduled").is_some_and(|known| known["message"] == message.as_str()) {
        return Ok(());
    }
    let mut waiting = pod.clone();
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastProbeTime": null, "lastTransitionTime": desk.stamp()
    });
    set_condition(map_mut(&mut waiting, &["status"]), condition);
    desk.update_status("pods", waiting)?;
    desk.event(pod, "Warning", "FailedScheduling", &message);
    Ok(())
}

/// The node with the fewest pods of the same controller, in the zone with the fewest.
fn choose(desk: &Desk, pod: &Value, nodes: &[Arc<Value>]) -> Option<String> {
    let pods: Vec<Arc<Value>> = desk
        .list("pods", "")
        .into_iter()
        .filter(|pod| is_active(pod))
        .collect();
    let owner = controller_ref(pod).map(|owner| &owner["uid"]);
    let mut on_node: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for other in &pods {
        let counts = on_node
            .entry(str_at(other, &["spec", "nodeName"]))
            .or_default();
        counts.1 += 1;
        if owner.is_some() && controller_ref(other).map(|owner| &owner["uid"]) == owner {
            counts.0 += 1;
        }
    }
    let counts = |node: &Value| on_node.get(object::name(node)).copied().unwrap_or_default();
    let zone = |node: &Value| label(node, ZONE).unwrap_or_default().to_owned();
    let in_zone = |wanted: &str| {
        nodes
            .iter()
            .filter(|node| zone(node) == wanted)
            .map(|node| counts(node).0)
            .sum::<usize>()
    };
    let fitting = nodes
        .iter()
        .filter(|node| fits(pod, node) && respects_others(pod, node, nodes, &pods));
    let best = fitting.min_by_key(|node| {
        let (same, all) = counts(node);
        (
            same,
            in_zone(&zone(node)),
            all,
            object::name(node).to_owned(),
        )
    });
    best.map(|node| object::name(node).to_owned())
}

/// Filters that look at the node alone.
fn fits(pod: &Value, node: &Value) -> bool {
    let uncordoned = node["spec"]["unschedulable"] != true || tolerates(pod, &unschedulable());
    let wanted = at(pod, &["spec", "nodeSelector"])
        .as_object()
        .into_iter()
        .flatten();
    is_ready(node)
        && !is_deleting(node)
        && uncordoned
        && Selector::of_map(&Value::Object(
            wanted.map(|(k, v)| (k.clone(), v.clone())).collect(),
        ))
        .matches(node)
        && fits_affinity(pod, node)
        && list_at(node, &["spec", "taints"]).iter().all(|taint| {
            !matches!(taint["effect"].as_str(), Some("NoSchedule" | "NoExecute"))
                || tolerates(pod, taint)
        })
}

/// Taint of a cordoned node.
pub(crate) fn unschedulable() -> Value {
    json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
}

/// True if a pod bears a taint.
pub(crate) fn tolerates(pod: &Value, taint: &Value) -> bool {
    list_at(pod, &["spec", "tolerations"])
        .iter()
        .any(|toleration| bears(toleration, taint))
}

/// True if a toleration covers a taint.
pub(crate) fn bears(toleration: &Value, taint: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let key = text(&toleration["key"]);
    let (effect, exists) = (
        text(&toleration["effect"]),
        toleration["operator"] == "Exists",
    );
    (effect.is_empty() || effect == text(&taint["effect"]))
        && (key == text(&taint["key"]) || (key.is_empty() && exists))
        && (exists || text(&toleration["value"]) == text(&taint["value"]))
}

/// Required node affinity: one of the terms must match.
fn fits_affinity(pod: &Value, node: &Value) -> bool {
    let path = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ];
    let terms = list_at(at(pod, &path), &["nodeSelectorTerms"]);
    terms.is_empty()
        || terms.iter().any(|term| {
            let by_label = json!({"matchExpressions": term["matchExpressions"]});
            let by_name = list_at(term, &["matchFields"]).iter().all(|field| {
                let named = list_at(field, &["values"])
                    .iter()
                    .any(|value| value == object::name(node));
                named == (field["operator"] == "In")
            });
            Selector::of_label_selector(&by_label).matches(node) && by_name
        })
}

/// Required pod affinity and anti-affinity.
fn respects_others(pod: &Value, node: &Value, nodes: &[Arc<Value>], pods: &[Arc<Value>]) -> bool {
    let terms = |side: &str| {
        let path = [
            "spec",
            "affinity",
            side,
            "requiredDuringSchedulingIgnoredDuringExecution",
        ];
        list_at(pod, &path).to_vec()
    };
    let near = |term: &Value| {
        let key = str_at(term, &["topologyKey"]);
        let place = label(node, key);
        let selector = Selector::of_label_selector(&term["labelSelector"]);
        pods.iter().any(|other| {
            let home = nodes
                .iter()
                .find(|node| object::name(node) == str_at(other, &["spec", "nodeName"]));
            let same_place = home.is_some_and(|home| place.is_some() && label(home, key) == place);
            object::namespace(other) == object::namespace(pod)
                && same_place
                && selector.matches(other)
        })
    };
    terms("podAffinity").iter().all(near) && !terms("podAntiAffinity").iter().any(near)
}
