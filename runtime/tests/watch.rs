//! The watch against a server that misbehaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher;
use onehop_core::time::Time;
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use onehop_runtime::watch::{ObjectKey, Seen, WatchMetrics, watch};
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// A client whose n-th request is answered by the n-th of these; then by silence.
fn server(answers: Vec<(u16, String)>) -> Client {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let service = tower::service_fn(move |_: Request<Body>| {
        let next = answers.lock().unwrap().next();
        async move {
            let Some((code, body)) = next else {
                return std::future::pending().await;
            };
            let body = Body::from(body.into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    Client::new(service, "default")
}

fn service(name: &str, port: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"namespace":"shop","name":"{name}","resourceVersion":"8","managedFields":[{{"manager":"m"}}]}},"spec":{{"ports":[{{"port":{port}}}]}}}}"#
    )
}

fn list(items: &[String]) -> (u16, String) {
    let items = items.join(",");
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"ServiceList","metadata":{{"resourceVersion":"7"}},"items":[{items}]}}"#
    );
    (200, text)
}

fn changes(changes: &[(&str, String)]) -> (u16, String) {
    let line =
        |(kind, object): &(&str, String)| format!(r#"{{"type":"{kind}","object":{object}}}"#);
    (
        200,
        changes.iter().map(line).collect::<Vec<_>>().join("\n") + "\n",
    )
}

fn failure() -> (u16, String) {
    (503, r#"{"kind":"Status","status":"Failure","message":"later","reason":"ServiceUnavailable","code":503}"#.to_owned())
}

fn summary(seen: &Seen<Service>) -> String {
    match seen {
        Seen::ListBegun => "begun".to_owned(),
        Seen::ListDone => "done".to_owned(),
        Seen::Listed(s) | Seen::Applied(s) => {
            assert_eq!(s.metadata.managed_fields, None);
            format!("+{}", ObjectKey::of(s))
        }
        Seen::Unreadable(key) => format!("?{key}"),
        Seen::Deleted(key) => format!("-{key}"),
    }
}

#[tokio::test(start_paused = true)]
async fn errors_are_waited_out_and_bad_objects_are_skipped() {
    let client = server(vec![
        failure(),
        failure(),
        list(&[service("a", "80"), service("b", r#""none""#)]),
        changes(&[
            ("MODIFIED", service("a", r#""none""#)),
            ("MODIFIED", service("c", "81")),
            ("DELETED", service("b", r#""none""#)),
        ]),
    ]);
    let metrics = Metrics::default();
    let counters = WatchMetrics::new(&metrics);
    let backoff = Policy::WATCH.start(&mut SmallRng::seed_from_u64(1));
    let mut stream = watch::<Service>(client, watcher::Config::default(), backoff, &counters);
    let mut seen = Vec::new();
    let clock = Clock::fixed(Time::EPOCH);
    let all = async {
        while let Some(item) = stream.next().await {
            seen.push(summary(&item));
        }
    };
    clock
        .within(Duration::from_mins(1), all)
        .await
        .expect_err("a watch never ends");
    seen.retain(|s| s != "begun");
    assert_eq!(seen, ["+shop/a", "?shop/b", "done", "+shop/c", "-shop/b"]);
    let page = metrics.page();
    assert!(
        page.contains(r#"watch_errors_total{kind="Service"} 2"#),
        "{page}"
    );
    assert!(
        page.contains(r#"watch_bad_objects_total{kind="Service"} 2"#),
        "{page}"
    );
}
