//! Columns of pods.

use serde_json::Value;

use super::columns::or_none;
use super::{AGE, Column, NAME, Row, age, column, wide};
use crate::object::{at, is_deleting, list_at, str_at};

pub(super) static COLUMNS: &[Column] = &[
    NAME,
    column("Ready", |row| Summary::of(row.object).ready_text().into()),
    column("Status", |row| Summary::of(row.object).reason.into()),
    column("Restarts", |row| restarts(row).into()),
    AGE,
    wide("IP", |row| {
        or_none(&row.object["status"]["podIPs"][0]["ip"], "<none>")
    }),
    wide("Node", |row| {
        or_none(at(row.object, &["spec", "nodeName"]), "<none>")
    }),
    wide("Nominated Node", |row| {
        or_none(at(row.object, &["status", "nominatedNodeName"]), "<none>")
    }),
    wide("Readiness Gates", |row| gates(row.object).into()),
];

/// What the columns READY and STATUS tell.
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let phase = str_at(pod, &["status", "phase"]);
        let own = str_at(pod, &["status", "reason"]);
        let mut summary = Self {
            ready: 0,
            total: list_at(pod, &["spec", "containers"]).len(),
            reason: if own.is_empty() {
                phase.to_owned()
            } else {
                own.to_owned()
            },
        };
        summary.read_containers(pod);
        if is_deleting(pod) && own == "NodeLost" {
            summary.reason = "Unknown".into();
        } else if is_deleting(pod) && !["Failed", "Succeeded"].contains(&phase) {
            summary.reason = "Terminating".into();
        }
        summary
    }

    fn read_containers(&mut self, pod: &Value) {
        let (mut running, mut error) = (false, None);
        for container in list_at(pod, &["status", "containerStatuses"]).iter().rev() {
            let state = &container["state"];
            let waiting = str_at(state, &["waiting", "reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if let Some(end) = state["terminated"].as_object() {
                let end = Value::Object(end.clone());
                self.reason = end_reason(&end);
                if end["exitCode"] != 0 {
                    error = Some(self.reason.clone());
                }
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            let ready = list_at(pod, &["status", "conditions"])
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            self.reason = match (running, error) {
                (true, _) if ready => "Running".into(),
                (_, Some(error)) => error,
                (true, None) => "NotReady".into(),
                (false, None) => "Completed".into(),
            };
        }
    }

    fn ready_text(&self) -> String {
        format!("{}/{}", self.ready, self.total)
    }
}

fn end_reason(end: &Value) -> String {
    let (reason, signal) = (
        str_at(end, &["reason"]),
        end["signal"].as_i64().unwrap_or(0),
    );
    match reason {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", end["exitCode"]),
        reason => reason.to_owned(),
    }
}

fn restarts(row: Row) -> String {
    let statuses = list_at(row.object, &["status", "containerStatuses"]);
    let count: i64 = statuses
        .iter()
        .filter_map(|container| container["restartCount"].as_i64())
        .sum();
    let last = statuses
        .iter()
        .map(|container| str_at(container, &["lastState", "terminated", "finishedAt"]))
        .max();
    match last {
        Some(last) if count != 0 && !last.is_empty() => {
            format!("{count} ({} ago)", age::since(last, row.now))
        }
        _ => count.to_string(),
    }
}

fn gates(pod: &Value) -> String {
    let gates = list_at(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let is_true = |gate: &&Value| {
        let conditions = list_at(pod, &["status", "conditions"]);
        let own = conditions
            .iter()
            .find(|condition| condition["type"] == gate["conditionType"]);
        own.is_some_and(|condition| condition["status"] == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}
