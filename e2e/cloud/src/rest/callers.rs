//! Who changes something: noted in the event log before the call, so that a test can tell the calls of
//! one controller from those of another.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::cloud::Cloud;

/// Notes the caller of a mutating call, if it says who it is.
pub(super) async fn note(State(cloud): State<Cloud>, request: Request, next: Next) -> Response {
    let caller = request.headers().get(header::USER_AGENT);
    if *request.method() != Method::GET
        && let Some(caller) = caller.and_then(|c| c.to_str().ok())
    {
        let call = format!("{} {}", request.method(), request.uri().path());
        let fields = [("caller", caller.into()), ("call", call.into())];
        let fields = fields.map(|(key, value): (&str, serde_json::Value)| (key.to_owned(), value));
        cloud.observe("rest", "write", BTreeMap::from(fields), None);
    }
    next.run(request).await
}
