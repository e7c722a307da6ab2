//! The control interface and what faults look like on the wire, over a real connection.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::sync::Arc;

use common::START;
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Profile};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Served {
    address: std::net::SocketAddr,
    cloud: Cloud,
    _driver: Driver,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Served {
    async fn start() -> Self {
        let config = Config {
            profile: Profile::local(),
            seed: 1,
            scale: Scale::new(START, 1),
            ranges: vec![],
        };
        let cloud = Cloud::new(config, Clock::fixed(START));
        let driver = Driver::start(cloud.clone());
        let up = Arc::new(VirtualNode::new(|_| true));
        driver.attach("a", [10, 0, 9, 1].into(), up);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = rest::serve_with_control(cloud.clone(), listener);
        let server = tokio::spawn(async move { serve.await.unwrap() });
        Self {
            address,
            cloud,
            _driver: driver,
            server,
        }
    }

    /// The whole answer as it came, empty if none did.
    async fn raw(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: cloud\r\nconnection: close\r\n\
             idempotency-key: k\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A reset is no answer as well.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn ok(&self, method: &str, path: &str, body: &str) -> String {
        let answer = self.raw(method, path, body).await;
        assert!(
            answer.starts_with("HTTP/1.1 2"),
            "{method} {path}: {answer}"
        );
        answer
    }
}

const GROUP: &str = r#"{"name":"web","protocol":"TCP","mode":"pod"}"#;
const TARGETS: &str = r#"{"targets":[{"address":"10.244.1.1","port":8080}]}"#;

#[tokio::test]
async fn fc97_a_lost_answer_is_no_answer_at_all_and_the_change_was_made() {
    let served = Served::start().await;
    let lost = r#"{"operations":["CreateGroup"],"effect":"lostAfter"}"#;
    served.ok("POST", "/control/injections", lost).await;
    // FC-97
    assert_eq!(served.raw("POST", "/v1/groups", GROUP).await, "");
    let listed = served.ok("GET", "/v1/groups", "").await;
    assert!(listed.contains("group-000001"), "{listed}");
    let again = served.ok("POST", "/v1/groups", GROUP).await;
    assert!(again.contains("group-000001"), "{again}");
}

#[tokio::test]
async fn fct18_a_throttled_call_is_a_429_with_retry_after() {
    let served = Served::start().await;
    served.ok("POST", "/v1/groups", GROUP).await;
    let rule = r#"{"throttle":[{"operations":["RegisterTargets"],"perSecond":2,"burst":1}]}"#;
    served.ok("PUT", "/control/faults", rule).await;
    let path = "/v1/groups/group-000001/targets";
    served.ok("POST", path, TARGETS).await;
    let other = TARGETS.replace("1.1", "1.2");
    let refused = served.raw("POST", path, &other).await;
    // FC-T18
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert!(refused.contains(r#""code":"throttled""#), "{refused}");
    let targets = served.ok("GET", path, "").await;
    assert!(!targets.contains("10.244.1.2"), "{targets}");
    served.ok("DELETE", "/control/faults", "").await;
    served.ok("POST", path, &other).await;
}

#[tokio::test]
async fn fc10_the_control_interface_sets_injects_edits_and_tells() {
    let served = Served::start().await;
    served.ok("POST", "/v1/groups", GROUP).await;
    let edit = r#"{"edit":"addTargets","id":"group-000001","targets":["10.244.1.9:80"]}"#;
    served.ok("POST", "/control/edits", edit).await;
    let targets = served
        .ok("GET", "/v1/groups/group-000001/targets", "")
        .await;
    assert!(targets.contains("10.244.1.9"), "{targets}");
    let lag = r#"{"describeLag":{"from":1,"to":2.5},"quotas":{"groups":1}}"#;
    let told = served.ok("PUT", "/control/faults", lag).await;
    assert!(
        told.contains(r#""describeLag":{"from":1.0,"to":2.5}"#),
        "{told}"
    );
    let full = served
        .raw("POST", "/v1/groups", &GROUP.replace("web", "two"))
        .await;
    assert!(!full.starts_with("HTTP/1.1 2"), "{full}");
    let wrong = served
        .raw("PUT", "/control/faults", r#"{"describeLagg":1}"#)
        .await;
    assert!(wrong.starts_with("HTTP/1.1 400"), "{wrong}");
    assert!(wrong.contains("describeLagg"), "{wrong}");
    let broken = r#"{"effect":"internalError","times":9}"#;
    served.ok("POST", "/control/injections", broken).await;
    let failed = served.raw("GET", "/v1/groups", "").await;
    assert!(failed.starts_with("HTTP/1.1 500"), "{failed}");
    let left = served.ok("GET", "/control/injections", "").await;
    assert!(left.contains(r#""times":8"#), "{left}");
    served.ok("DELETE", "/control/injections", "").await;
    served.ok("GET", "/v1/groups", "").await;
    let state = served.ok("GET", "/control/state", "").await;
    assert!(state.contains(r#""CreateGroup":2"#), "{state}");
    assert!(state.contains(r#""violations":[]"#), "{state}");
    // FC-10: the log tells of both, and the API alone has no such path.
    let log = served.ok("GET", "/v1/events", "").await;
    assert!(
        log.contains("out_of_band") && log.contains("fault_injected"),
        "{log}"
    );
    let api = rest::router(served.cloud.clone());
    let request = axum::http::Request::get("/control/state");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(api, request).await.unwrap();
    assert_eq!(answer.status(), axum::http::StatusCode::NOT_FOUND);
}
