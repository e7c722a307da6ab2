//! What the publisher sends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use onehop_core::id::ServiceKey;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Occurrence, Publisher, Reporter, Severity, about_service};
use onehop_runtime::metrics::Metrics;
use serde_json::Value;

/// Path and body of each request.
type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// A client that accepts every patch, except that the first is refused.
fn server(requests: Requests) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = Arc::clone(&requests);
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut requests = requests.lock().unwrap();
            requests.push((path, serde_json::from_slice(&body).unwrap()));
            let code = if requests.len() == 1 { 500 } else { 200 };
            Ok::<_, std::io::Error>(
                Response::builder()
                    .status(code)
                    .body(Body::from(body))
                    .unwrap(),
            )
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn one_event_object_per_fact_with_a_count() {
    let requests = Requests::default();
    let clock = Clock::fixed("2026-01-01T00:00:00Z".parse::<Time>().unwrap());
    let reporter = Reporter {
        component: "onehop-test".into(),
        instance: "me".into(),
    };
    let (publisher, writer) = Publisher::new(
        server(requests.clone()),
        clock,
        reporter,
        &Metrics::default(),
    );
    let writer = tokio::spawn(writer);
    let fact = Occurrence {
        about: about_service(&ServiceKey::new("shop", "web"), &"u1".into()),
        severity: Severity::Warning,
        reason: "AllocationFailed",
        message: "pool blue has no free address".to_owned(),
    };
    for _ in 0..3 {
        publisher.publish(fact.clone());
        clock.sleep(Duration::from_mins(1)).await;
    }
    drop(publisher);
    writer.await.unwrap();
    let requests = requests.lock().unwrap();
    let counts: Vec<_> = requests
        .iter()
        .map(|(_, e)| e["count"].as_i64().unwrap())
        .collect();
    assert_eq!(counts, [1, 1, 2], "the refused one does not count");
    let (path, event) = &requests[2];
    assert!(
        path.starts_with("/api/v1/namespaces/shop/events/web."),
        "{path}"
    );
    assert!(requests.iter().all(|(p, _)| p == path), "one object");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "AllocationFailed");
    assert_eq!(event["involvedObject"]["uid"], "u1");
    assert_eq!(event["firstTimestamp"], "2026-01-01T00:01:00Z");
    assert_eq!(event["lastTimestamp"], "2026-01-01T00:02:00Z");
}
