//! The cloud's own API as any of its users calls it: over HTTP, from the management network.

use super::{World, node_view::http, start::CLOUD};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering};

impl World {
    /// One call, as `PUT /v1/groups/group-000001`; the answer's body, null where there is none. An answer that is no
    /// success is an error that tells it.
    pub fn cloud_call(&self, request: &str, body: &Value) -> Result<Value> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = format!("by-hand-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [("Idempotency-Key", key.as_str())];
        let netns = self.fabric().management();
        let answer = http(netns, CLOUD, request, &headers, &text).context(request.to_owned())?;
        let good = (200..300).contains(&answer.status);
        ensure!(good, "{request}: {} {}", answer.status, answer.body);
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&answer.body).context(request.to_owned())
    }
}
