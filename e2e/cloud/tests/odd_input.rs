//! The REST API under odd input: whatever comes, an answer comes back, in the API's own form, and no handler breaks.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use common::START;
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Profile};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use onehop_runtime::clock::Clock;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Longest that an answer may take, in virtual time.
const WITHIN: Duration = Duration::from_secs(5);

struct Api {
    router: Router,
    _driver: Driver,
}

impl Api {
    fn start() -> Self {
        let config = Config {
            profile: Profile::local(),
            seed: 1,
            scale: Scale::new(START, 1),
            ranges: vec!["198.51.100.0/24".parse().unwrap()],
        };
        let cloud = Cloud::new(config, Clock::fixed(START));
        let driver = Driver::start(cloud.clone());
        for (zone, last) in [("a", 1), ("b", 2)] {
            let up = Arc::new(VirtualNode::new(|_| true));
            driver.attach(zone, [10, 0, 9, last].into(), up);
        }
        Self {
            router: rest::router_with_control(cloud),
            _driver: driver,
        }
    }

    async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("Idempotency-Key", "k").body(body.into());
        let answer = async {
            let answer = self.router.clone().oneshot(request.unwrap()).await.unwrap();
            let status = answer.status();
            let body = to_bytes(answer.into_body(), 1 << 24).await.unwrap();
            (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
        };
        let within = tokio::time::timeout(WITHIN, answer).await;
        within.unwrap_or_else(|_| panic!("{method} {path}: no answer"))
    }

    /// Refused with this status and code, in the API's form; the message.
    async fn refused(
        &self,
        (method, path, body): (&str, &str, String),
        (status, code): (u16, &str),
    ) -> String {
        let (got, answer) = self.send(method, path, body).await;
        assert_eq!(
            (got.as_u16(), &answer["code"]),
            (status, &json!(code)),
            "{method} {path}: {answer}"
        );
        assert!(answer["details"].is_object(), "{answer}");
        answer["message"].as_str().unwrap().to_owned()
    }

    async fn made(&self, path: &str, body: &Value) -> String {
        let (status, made) = self.send("POST", path, body.to_string()).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        made["id"].as_str().unwrap().to_owned()
    }
}

fn group() -> Value {
    json!({"name": "web", "protocol": "TCP", "mode": "pod"})
}

fn balancer() -> Value {
    json!({"name": "web", "addresses": ["198.51.100.7"]})
}

#[tokio::test(start_paused = true)]
async fn what_no_handler_has_seen_is_refused_in_the_same_form() {
    let api = Api::start();
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(3 << 20));
    api.refused(
        ("POST", "/v1/groups", large.clone()),
        (413, "body_too_large"),
    )
    .await;
    api.refused(("PUT", "/control/faults", large), (413, "body_too_large"))
        .await;
    for path in [
        "/",
        "/v1",
        "/v1/groups/",
        "/v2/groups",
        "/control",
        "/control/nothing",
    ] {
        let said = api
            .refused(("GET", path, String::new()), (404, "no_such_path"))
            .await;
        assert!(said.contains(path), "{said}");
    }
    for (method, path) in [
        ("PATCH", "/v1/groups"),
        ("DELETE", "/v1/events"),
        ("GET", "/control/edits"),
    ] {
        let said = api
            .refused((method, path, String::new()), (405, "method_not_allowed"))
            .await;
        assert!(said.contains(method), "{said}");
    }
    // A path that is no text, and a query that is none.
    api.refused(("GET", "/v1/groups/%ff", String::new()), (400, "invalid"))
        .await;
    api.refused(("GET", "/v1/groups?tag", String::new()), (400, "invalid"))
        .await;
    api.refused(
        ("GET", "/v1/events?since=-1", String::new()),
        (400, "invalid"),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_number_of_an_event_that_is_far_ahead_is_an_empty_list() {
    let api = Api::start();
    for since in [u64::MAX, u64::MAX - 1, 1 << 40] {
        let (status, lines) = api
            .send("GET", &format!("/v1/events?since={since}"), Body::empty())
            .await;
        assert_eq!((status, lines), (StatusCode::OK, Value::Null));
    }
    api.refused(
        (
            "GET",
            "/v1/events?since=18446744073709551616",
            String::new(),
        ),
        (400, "invalid"),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn times_of_probes_have_a_range_that_the_refusal_names() {
    let api = Api::start();
    for (field, bad) in [
        ("interval", json!(0)),
        ("interval", json!(1e-9)),
        ("interval", json!(0.099)),
        ("timeout", json!(1e-9)),
        ("timeout", json!(3601)),
        ("interval", json!(1e300)),
        ("interval", json!(-2)),
    ] {
        let mut body = group();
        body["health"] = json!({"protocol": "TCP", field: bad});
        let said = api
            .refused(("POST", "/v1/groups", body.to_string()), (400, "invalid"))
            .await;
        let expected = format!("health.{field}: must be a number of seconds from 0.1 to 3600");
        assert!(said.contains(&expected), "{said}");
    }
    let mut body = group();
    body["health"] = json!({"protocol": "TCP", "interval": 0.1, "timeout": 0.1});
    api.made("/v1/groups", &body).await;
}

#[tokio::test(start_paused = true)]
async fn zones_that_are_not_there_and_empty_sharing_keys_are_refused() {
    let api = Api::start();
    let with = |field: &str, value: Value| {
        let mut body = balancer();
        body[field] = value;
        body.to_string()
    };
    let create = |body: String| ("POST", "/v1/loadbalancers", body);
    let said = api
        .refused(create(with("zones", json!(["a", "c"]))), (400, "invalid"))
        .await;
    assert!(
        said.contains("zones[1]: \"c\" is no zone of this cloud: a, b"),
        "{said}"
    );
    let said = api
        .refused(create(with("zones", json!(["a", "a"]))), (400, "invalid"))
        .await;
    assert!(said.contains("zones[1]: is there twice"), "{said}");
    for key in ["", "  "] {
        let said = api
            .refused(create(with("sharingKey", json!(key))), (400, "invalid"))
            .await;
        assert!(said.contains("sharingKey: must not be empty"), "{said}");
    }
    let lb = api.made("/v1/loadbalancers", &balancer()).await;
    let put = format!("/v1/loadbalancers/{lb}");
    api.refused(("PUT", &put, with("zones", json!(["c"]))), (400, "invalid"))
        .await;
}

/// Nodes may have zones that this cloud does not know: their targets are taken, say what they were told, and are near for
/// every LB node, as those without a zone are.
#[tokio::test]
async fn a_target_in_a_zone_that_is_not_there_is_as_one_without_a_zone() {
    let api = Api::start();
    let id = api.made("/v1/groups", &group()).await;
    let register = format!("/v1/groups/{id}/targets");
    let targets = json!({"targets": [
        {"address": "10.244.1.1", "port": 80, "zone": "b"},
        {"address": "10.244.1.2", "port": 80, "zone": "nowhere"},
    ]});
    let (status, told) = api.send("POST", &register, targets.to_string()).await;
    assert!(status.is_success(), "{told}");
    let (_, listed) = api.send("GET", &register, Body::empty()).await;
    let zones: Vec<&Value> = listed["targets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|target| &target["zone"])
        .collect();
    assert_eq!(zones, ["b", "nowhere"], "{listed}");
}

/// Values where the API wants others, or the same ones at their ends.
fn odd() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![
            Just(0),
            Just(-1),
            Just(i64::MAX),
            Just(i64::MIN),
            Just(65536)
        ]
        .prop_map(Value::from),
        prop_oneof![Just(u64::MAX)].prop_map(Value::from),
        prop_oneof![Just(1e-9), Just(1e308), Just(-0.0), Just(0.5)].prop_map(|n: f64| json!(n)),
        prop_oneof![
            Just(""),
            Just(" "),
            Just("web"),
            Just("TCP"),
            Just("UDP"),
            Just("vip"),
            Just("a"),
            Just("::"),
            Just("0.0.0.0"),
            Just("198.51.100.7"),
            Just("fe80::1"),
            Just("224.0.0.1"),
            Just("group-000001"),
            Just("/\r\nHost: x"),
            Just("\u{0}"),
            Just("\u{fffd}\u{202e}"),
            Just("lostAfter"),
            Just("lb-000001"),
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(field(), inner, 0..5).prop_map(|of| json!(of)),
        ]
    })
}

/// Names that the API knows, and some that it does not.
fn field() -> impl Strategy<Value = String> {
    let names = vec![
        "name",
        "tags",
        "addresses",
        "zones",
        "crossZone",
        "preserveClientIP",
        "sharingKey",
        "protocol",
        "mode",
        "health",
        "drainSeconds",
        "interval",
        "timeout",
        "healthy",
        "unhealthy",
        "port",
        "path",
        "targets",
        "address",
        "zone",
        "group",
        "describeLag",
        "throttle",
        "quotas",
        "denied",
        "badText",
        "failingProbes",
        "operations",
        "effect",
        "times",
        "edit",
        "id",
        "from",
        "to",
        "perSecond",
        "burst",
        "",
        "other",
    ];
    proptest::sample::select(names).prop_map(str::to_owned)
}

/// A good body with one of its fields replaced or added, or anything at all.
fn body() -> impl Strategy<Value = Value> {
    let good = vec![
        group(),
        balancer(),
        json!({"group": "group-000001"}),
        json!({"targets": [{"address": "10.244.1.1", "port": 80}]}),
        json!({"edit": "removeTargets", "id": "group-000001", "targets": ["10.244.1.1:80"]}),
        json!({"edit": "changeLoadBalancer", "id": "lb-000001", "addresses": ["198.51.100.8"]}),
        json!({"edit": "changeGroup", "id": "group-000001", "healthPort": 0, "drainSeconds": u32::MAX}),
        json!({"effect": {"partial": {"refuse": 1, "lose": u32::MAX}}, "times": u32::MAX}),
        json!({"describeLag": {"from": 1e18, "to": 0}, "throttle": [{"perSecond": 0, "burst": 0}]}),
        json!({"describeLag": [1.7e19]}),
    ];
    let edited = (
        proptest::sample::select(good),
        proptest::option::of((field(), odd())),
    );
    let edited = edited.prop_map(|(mut body, edit)| {
        if let Some((field, value)) = edit {
            body[field] = value;
        }
        body
    });
    prop_oneof![3 => edited, 1 => odd()]
}

fn request() -> impl Strategy<Value = (&'static str, String, Value)> {
    let method = prop_oneof![
        Just("GET"),
        Just("POST"),
        Just("PUT"),
        Just("DELETE"),
        Just("HEAD"),
        Just("OPTIONS"),
        Just("BREW")
    ];
    let id = prop_oneof![
        Just("lb-000001"),
        Just("group-000001"),
        Just("x"),
        Just("%00"),
        Just("%ff"),
        Just("..")
    ];
    let listener = prop_oneof![
        Just("80-tcp"),
        Just("65536-tcp"),
        Just("-"),
        Just("0-udp"),
        Just("80-TCP-80")
    ];
    let query = prop_oneof![
        4 => Just(""), 1 => Just("?tag=a=b"), 1 => Just("?tag"), 1 => Just("?target=x"), 1 => Just("?target=10.244.1.1:80"),
        1 => Just("?since=18446744073709551615"), 1 => Just("?since=0&since=1"), 1 => Just("?%ff=%"), 1 => Just("?=&&=")
    ];
    let path = (0..12_usize, id, listener, query).prop_map(|(which, id, listener, query)| {
        let path = match which {
            0 => "/v1/loadbalancers".to_owned(),
            1 => format!("/v1/loadbalancers/{id}"),
            2 => format!("/v1/loadbalancers/{id}/listeners"),
            3 => format!("/v1/loadbalancers/{id}/listeners/{listener}"),
            4 => "/v1/groups".to_owned(),
            5 => format!("/v1/groups/{id}"),
            6 => format!("/v1/groups/{id}/targets"),
            7 => "/v1/events".to_owned(),
            8 => "/control/faults".to_owned(),
            9 => "/control/injections".to_owned(),
            10 => "/control/edits".to_owned(),
            _ => format!("/{id}"),
        };
        path + query
    });
    (method, path, body())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Only what was injected may answer 5xx, and that is taken back before each request.
    #[test]
    fn no_input_breaks_the_cloud_or_keeps_a_client_waiting(
        requests in proptest::collection::vec(request(), 1..25)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { let mut of = runtime; of.enable_all().start_paused(true).build().unwrap() };
        runtime.block_on(async {
            let api = Api::start();
            for (method, path, body) in requests {
                api.send("DELETE", "/control/injections", Body::empty()).await;
                let (status, answer) = api.send(method, &path, body.to_string()).await;
                assert!(!status.is_server_error(), "{method} {path} {body}: {status} {answer}");
                if status.is_client_error() && method != "HEAD" {
                    let said = (answer["code"].is_string(), answer["message"].is_string());
                    assert_eq!(said, (true, true), "{method} {path} {body}: {status} {answer}");
                }
                // Time goes on, with probes and whatever else is due.
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
            let (status, _) = api.send("GET", "/control/state", Body::empty()).await;
            assert_eq!(status, StatusCode::OK);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn methods_without_a_body_are_answered() {
    let api = Api::start();
    for method in [Method::HEAD, Method::OPTIONS, Method::TRACE] {
        let (status, _) = api.send(method.as_str(), "/v1/groups", Body::empty()).await;
        assert!(!status.is_server_error(), "{method}: {status}");
    }
}
