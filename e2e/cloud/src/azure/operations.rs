//! Writes that go on after their answer (AZ-360 to AZ-365).

use axum::http::{HeaderName, Method, StatusCode};
use onehop_core::time::Time;
use serde_json::{Value, json};

use super::GoesOn;
use super::error::Refusal;
use super::resources::{Answer, Ask, Subscription, Target};

/// A write that goes on after its answer.
#[derive(Debug)]
pub(super) struct Operation {
    ends: Time,
    subject: String,
    failed: Option<Refusal>,
    goes_on: GoesOn,
}

/// Requests that a subscription has, by direction (AZ-374): the header that says what is left, and how many at first.
const REQUESTS: [(&str, u64); 2] = [
    ("x-ms-ratelimit-remaining-subscription-global-reads", 16_500),
    (
        "x-ms-ratelimit-remaining-subscription-global-writes",
        12_000,
    ),
];

impl Subscription {
    /// What is left of the requests: never given back, a test does not take that long.
    pub(super) fn left(&self) -> [(&'static str, u64); 2] {
        let count = |reads: bool| -> u64 {
            let of = self.calls.iter();
            let of = of.filter(|(call, _)| call.starts_with("GET ") == reads);
            of.map(|(_, count)| count).sum()
        };
        REQUESTS.map(|(name, all)| (name, all.saturating_sub(count(name.ends_with("reads")))))
    }

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

    /// What a resource says of itself where no header tells (AZ-362).
    pub(super) fn state_of(&self, id: &str, now: Time) -> Option<&'static str> {
        let tells =
            |it: &&Operation| it.goes_on == GoesOn::Resource && it.subject.eq_ignore_ascii_case(id);
        let last = self.operations.values().filter(tells);
        let last = last.max_by_key(|operation| operation.ends)?;
        match &last.failed {
            _ if now < last.ends => Some("Updating"),
            Some(_) => Some("Failed"),
            None => None,
        }
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
        let goes_on = match ask.method {
            Method::PUT => self.faults.goes_on,
            _ => GoesOn::Operation,
        };
        let operation = Operation {
            ends: now + self.setup.operation,
            subject: target.id.clone(),
            failed,
            goes_on,
        };
        self.operations.insert(guid.clone(), operation);
        let url = format!(
            "{}/subscriptions/{}/providers/Microsoft.Network/locations/{}/operations/{guid}?api-version=2025-05-01",
            ask.base, self.setup.subscription, self.setup.location
        );
        let later = (axum::http::header::RETRY_AFTER, self.retry_after());
        match goes_on {
            GoesOn::Operation => {
                let operation = HeaderName::from_static("azure-asyncoperation");
                answer.headers.extend([(operation, url), later]);
            }
            GoesOn::Resource => {
                answer.body["properties"]["provisioningState"] = json!("Updating");
            }
            GoesOn::Location => {
                let url = url.replace("/operations/", "/operationResults/");
                answer = Answer::of(StatusCode::ACCEPTED, Value::Null);
                let location = (axum::http::header::LOCATION, url);
                answer.headers.extend([location, later]);
            }
        }
        let lost = self
            .faults
            .lose_answer
            .iter()
            .position(|kind| *kind == target.kind);
        answer.lost = lost.map(|at| self.faults.lose_answer.remove(at)).is_some();
        answer
    }
}
