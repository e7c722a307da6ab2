//! Writes that go on after their answer (AZ-360 to AZ-365).

use axum::http::{HeaderName, StatusCode};
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::error::Refusal;
use super::resources::{Answer, Ask, Subscription, Target};

/// A write that goes on after its answer.
#[derive(Debug)]
pub(super) struct Operation {
    ends: Time,
    subject: String,
    failed: Option<Refusal>,
}

impl Subscription {
    pub(super) fn look_at(&mut self, ask: &Ask, id: &str, now: Time) -> Result<Answer, Refusal> {
        *self.calls.entry("GET operations".to_owned()).or_default() += 1;
        let operation = self
            .operations
            .get(id)
            .ok_or_else(|| Refusal::not_found(id))?;
        // AZ-364: the other URL of a removal, whose status speaks.
        let by_status = ask.path.contains("/operationResults/");
        if now < operation.ends {
            let mut answer = if by_status {
                Answer::of(StatusCode::ACCEPTED, Value::Null)
            } else {
                Answer::of(StatusCode::OK, json!({"status": "InProgress"}))
            };
            answer
                .headers
                .push((axum::http::header::RETRY_AFTER, self.retry_after()));
            return Ok(answer);
        }
        Ok(match &operation.failed {
            Some(refusal) if by_status => return Err(refusal.clone()),
            None if by_status => Answer::of(StatusCode::NO_CONTENT, Value::Null),
            None => Answer::of(StatusCode::OK, json!({"status": "Succeeded"})),
            Some(refusal) => {
                let status = if refusal.code.starts_with("Canceled") {
                    "Canceled"
                } else {
                    "Failed"
                };
                Answer::of(
                    StatusCode::OK,
                    json!({"status": status, "error": refusal.body()["error"]}),
                )
            }
        })
    }

    fn retry_after(&self) -> String {
        self.setup.operation.as_secs_f64().ceil().to_string()
    }

    /// A write cancels the one that is still going on (AZ-380).
    pub(super) fn superseded(&mut self, id: &str, now: Time) {
        for operation in self.operations.values_mut() {
            if operation.subject.eq_ignore_ascii_case(id)
                && now < operation.ends
                && operation.failed.is_none()
            {
                let message = "The operation was canceled by a later one.";
                let code = "CanceledAndSupersededDueToAnotherOperation";
                operation.failed = Some(Refusal::new(StatusCode::CONFLICT, code, message));
                operation.ends = now;
            }
        }
    }

    pub(super) fn operation(
        &mut self,
        ask: &Ask,
        target: &Target,
        mut answer: Answer,
        now: Time,
    ) -> Answer {
        let guid = self.guid();
        let take = |list: &mut Vec<(String, &'static str)>| {
            let found = list.iter().position(|(kind, _)| *kind == target.kind)?;
            Some(list.remove(found).1)
        };
        let failed = take(&mut self.faults.fail_operation);
        let failed = failed.map(|code| Refusal::bad(code, "as the test asks for"));
        let operation = Operation {
            ends: now + self.setup.operation,
            subject: target.id.clone(),
            failed,
        };
        self.operations.insert(guid.clone(), operation);
        let url = format!(
            "{}/subscriptions/{}/providers/Microsoft.Network/locations/{}/operations/{guid}?api-version=2025-05-01",
            ask.base, self.setup.subscription, self.setup.location
        );
        answer
            .headers
            .push((HeaderName::from_static("azure-asyncoperation"), url));
        answer
            .headers
            .push((axum::http::header::RETRY_AFTER, self.retry_after()));
        let lost = self
            .faults
            .lose_answer
            .iter()
            .position(|kind| *kind == target.kind);
        answer.lost = lost.map(|at| self.faults.lose_answer.remove(at)).is_some();
        answer
    }
}
