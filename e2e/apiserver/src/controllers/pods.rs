//! Questions about pods that several controllers ask.

use std::time::Duration;

use onehop_core::time::Time;
use serde_json::Value;

use crate::object::{is_deleting, list_at, str_at};

/// A condition of an object's status.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list_at(object, &["status", "conditions"])
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// True if the condition Ready is True.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// True once a pod has run to its end.
pub(crate) fn is_over(pod: &Value) -> bool {
    ["Failed", "Succeeded"].contains(&str_at(pod, &["status", "phase"]))
}

/// Neither over nor on its way out.
pub(crate) fn is_active(pod: &Value) -> bool {
    !is_over(pod) && !is_deleting(pod)
}

/// When a pod became ready.
pub(crate) fn ready_since(pod: &Value) -> Option<Time> {
    let ready = condition(pod, "Ready").filter(|ready| ready["status"] == "True")?;
    ready["lastTransitionTime"].as_str()?.parse().ok()
}

/// Time until a ready pod counts as available; zero if it does.
pub(crate) fn until_available(pod: &Value, min_ready: i64, now: Time) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    let wait = Duration::from_secs(u64::try_from(min_ready).unwrap_or(0));
    if wait.is_zero() {
        return Some(Duration::ZERO);
    }
    let since = ready_since(pod)?;
    Some((since + wait).since(now))
}
