//! The status of a Deployment: counts, availability and progress. Pure.

use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use serde_json::{Value, json};

use super::pods::condition;
use super::rollout::{max_unavailable, replicas, status};
use crate::object::{self, int_at};

fn count(deployment: &Value, field: &str) -> i64 {
    status(deployment, field)
}

/// True if the status says that the rollout is done (`DeploymentComplete`).
pub(crate) fn is_complete(deployment: &Value) -> bool {
    let wanted = replicas(deployment);
    ["updatedReplicas", "replicas", "availableReplicas"]
        .iter()
        .all(|field| count(deployment, field) == wanted)
        && int_at(deployment, &["status", "observedGeneration"])
            >= int_at(deployment, &["metadata", "generation"])
}

fn deadline(deployment: &Value) -> Option<Duration> {
    let seconds = int_at(deployment, &["spec", "progressDeadlineSeconds"])?;
    // The largest number means none.
    if seconds == i64::from(i32::MAX) {
        None
    } else {
        Some(Duration::from_secs(u64::try_from(seconds).ok()?))
    }
}

fn progressing(reason: &str, message: &str, value: &str, now: &str) -> Value {
    json!({
        "type": "Progressing", "status": value, "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now
    })
}

/// Sets a condition unless it says the same already; a transition is a change of status (`SetDeploymentCondition`).
fn set(conditions: &mut Vec<Value>, mut condition: Value) {
    let known = conditions
        .iter()
        .position(|known| known["type"] == condition["type"]);
    if let Some(at) = known {
        let known = &conditions[at];
        if known["status"] == condition["status"] && known["reason"] == condition["reason"] {
            return;
        }
        if known["status"] == condition["status"] {
            condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
        }
        conditions.remove(at);
    }
    conditions.push(condition);
}

/// Notes that a set was found or made; false if nothing changed.
pub(crate) fn note_progress(
    deployment: &mut Value,
    reason: &str,
    message: &str,
    now: &str,
    always: bool,
) -> bool {
    if deadline(deployment).is_none() || (!always && condition(deployment, "Progressing").is_some())
    {
        return false;
    }
    let mut conditions = deployment["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    set(&mut conditions, progressing(reason, message, "True", now));
    deployment["status"]["conditions"] = conditions.into();
    true
}

/// The status that a Deployment should have (`calculateStatus` and `syncRolloutStatus`).
pub(crate) fn of(
    deployment: &Value,
    sets: &[Arc<Value>],
    new: Option<&Value>,
    now: Time,
    paused: bool,
) -> Value {
    let sum = |field: &str| sets.iter().map(|set| status(set, field)).sum::<i64>();
    let available = sum("availableReplicas");
    let total: i64 = sets.iter().map(|set| replicas(set)).sum();
    let mut result = json!({"observedGeneration": deployment["metadata"]["generation"]});
    let counts = [
        ("replicas", sum("replicas")),
        (
            "updatedReplicas",
            new.map_or(0, |new| status(new, "replicas")),
        ),
        ("readyReplicas", sum("readyReplicas")),
        ("availableReplicas", available),
        ("unavailableReplicas", (total - available).max(0)),
    ];
    for (field, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
        result[field] = count.into();
    }
    result["terminatingReplicas"] = sum("terminatingReplicas").into();
    let collisions = &deployment["status"]["collisionCount"];
    if !collisions.is_null() {
        result["collisionCount"] = collisions.clone();
    }
    let stamp = now.whole_seconds().to_string();
    let mut conditions = deployment["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    set(&mut conditions, availability(deployment, available, &stamp));
    if !paused {
        settle_progress(deployment, &result, new, &mut conditions, now);
    }
    settle_failure(sets, &mut conditions);
    result["conditions"] = conditions.into();
    result
}

fn availability(deployment: &Value, available: i64, now: &str) -> Value {
    let enough = available >= replicas(deployment) - max_unavailable(deployment);
    let (value, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    json!({
        "type": "Available", "status": value, "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": now
    })
}

fn settle_progress(
    deployment: &Value,
    result: &Value,
    new: Option<&Value>,
    conditions: &mut Vec<Value>,
    now: Time,
) {
    if deadline(deployment).is_none() {
        conditions.retain(|condition| condition["type"] != "Progressing");
        return;
    }
    let current = condition(deployment, "Progressing");
    let number = |object: &Value, field: &str| object[field].as_i64().unwrap_or(0);
    let done = number(result, "replicas") == number(result, "updatedReplicas")
        && current.is_some_and(|current| current["reason"] == "NewReplicaSetAvailable");
    if done {
        return;
    }
    let subject = new.map_or_else(
        || format!("Deployment {:?}", object::name(deployment)),
        |new| format!("ReplicaSet {:?}", object::name(new)),
    );
    let stamp = now.whole_seconds().to_string();
    let mut after = deployment.clone();
    after["status"] = result.clone();
    if is_complete(&after) {
        let message = format!("{subject} has successfully progressed.");
        set(
            conditions,
            progressing("NewReplicaSetAvailable", &message, "True", &stamp),
        );
    } else if has_progressed(&deployment["status"], result) {
        let mut condition = progressing(
            "ReplicaSetUpdated",
            &format!("{subject} is progressing."),
            "True",
            &stamp,
        );
        if let Some(current) = current.filter(|current| current["status"] == "True") {
            condition["lastTransitionTime"] = current["lastTransitionTime"].clone();
        }
        conditions.retain(|condition| condition["type"] != "Progressing");
        conditions.push(condition);
    } else if has_timed_out(deployment, now) {
        let message = format!("{subject} has timed out progressing.");
        set(
            conditions,
            progressing("ProgressDeadlineExceeded", &message, "False", &stamp),
        );
    }
}

fn has_progressed(before: &Value, after: &Value) -> bool {
    let number = |status: &Value, field: &str| status[field].as_i64().unwrap_or(0);
    let old = |status: &Value| number(status, "replicas") - number(status, "updatedReplicas");
    let more = |field: &str| number(after, field) > number(before, field);
    more("updatedReplicas")
        || old(after) < old(before)
        || more("readyReplicas")
        || more("availableReplicas")
}

fn last_update(deployment: &Value) -> Option<Time> {
    condition(deployment, "Progressing")?["lastUpdateTime"]
        .as_str()?
        .parse()
        .ok()
}

fn has_timed_out(deployment: &Value, now: Time) -> bool {
    let Some(current) = condition(deployment, "Progressing") else {
        return false;
    };
    match current["reason"].as_str() {
        Some("NewReplicaSetAvailable") => false,
        Some("ProgressDeadlineExceeded") => true,
        _ => match (deadline(deployment), last_update(deployment)) {
            (Some(deadline), Some(since)) => since + deadline < now,
            _ => false,
        },
    }
}

fn settle_failure(sets: &[Arc<Value>], conditions: &mut Vec<Value>) {
    conditions.retain(|condition| condition["type"] != "ReplicaFailure");
    let failure = sets.iter().find_map(|set| condition(set, "ReplicaFailure"));
    if let Some(failure) = failure {
        let mut failure = failure.clone();
        failure["lastUpdateTime"] = failure["lastTransitionTime"].clone();
        conditions.push(failure);
    }
}

/// Time until a rollout without progress fails.
pub(crate) fn next_look(deployment: &Value, now: Time) -> Option<Duration> {
    let current = condition(deployment, "Progressing")?;
    let settled = ["NewReplicaSetAvailable", "ProgressDeadlineExceeded"];
    if settled.iter().any(|reason| current["reason"] == *reason) {
        return None;
    }
    // A second more: the comparison is strict and times are whole seconds.
    let end = last_update(deployment)? + deadline(deployment)? + Duration::from_secs(1);
    Some(end.since(now))
}
