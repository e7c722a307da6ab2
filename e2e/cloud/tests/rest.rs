//! The REST API as a client meets it (harness.md section 6), over a cloud whose LB node is virtual.
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
use common::{FRONT, START};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Operation, Profile};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use futures::StreamExt;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};
use tower::ServiceExt;

struct Api {
    router: Router,
    cloud: Cloud,
    _driver: Driver,
}

impl Api {
    /// Everything whose last octet is below 100 is up.
    fn start() -> Self {
        let config = Config {
            profile: Profile::local(),
            seed: 1,
            scale: Scale::new(START, 1),
            ranges: vec!["198.51.100.0/24".parse().unwrap()],
        };
        let cloud = Cloud::new(config, Clock::fixed(START));
        let driver = Driver::start(cloud.clone());
        let up = |at: std::net::SocketAddr| match at.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3] < 100,
            std::net::IpAddr::V6(_) => false,
        };
        driver.attach("a", [10, 0, 9, 1].into(), Arc::new(VirtualNode::new(up)));
        Self {
            router: rest::router(cloud.clone()),
            cloud,
            _driver: driver,
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Body,
    ) -> axum::response::Response {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        self.router
            .clone()
            .oneshot(request.body(body).unwrap())
            .await
            .unwrap()
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let key = body.get("name").and_then(Value::as_str).map(str::to_owned);
        let body = if body.is_null() {
            Body::empty()
        } else {
            Body::from(body.to_string())
        };
        let answer = self.send(method, path, key.as_deref(), body).await;
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        )
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call(Method::GET, path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    async fn create(&self, path: &str, body: Value) -> String {
        let (status, made) = self.call(Method::POST, path, body).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        made["id"].as_str().unwrap().to_owned()
    }
}

fn lb_body(name: &str) -> Value {
    json!({ "name": name, "tags": { "onehop.dev/service": "shop/web" }, "addresses": [FRONT] })
}

fn group_body(name: &str) -> Value {
    let health = json!({ "protocol": "HTTP", "port": 10256, "path": "/healthz" });
    json!({ "name": name, "protocol": "TCP", "mode": "pod", "health": health })
}

#[tokio::test(start_paused = true)]
async fn a_service_is_built_looked_at_and_torn_down() {
    let api = Api::start();
    let group = api.create("/v1/groups", group_body("web")).await;
    let lb = api.create("/v1/loadbalancers", lb_body("web")).await;
    let listener = format!("/v1/loadbalancers/{lb}/listeners/80-tcp");
    let (status, body) = api
        .call(Method::PUT, &listener, json!({ "group": group }))
        .await;
    assert_eq!(
        (status, &body["port"], &body["protocol"]),
        (StatusCode::OK, &json!(80), &json!("TCP"))
    );

    let targets = format!("/v1/groups/{group}/targets");
    let two = json!({ "targets": [
        { "address": "10.244.1.5", "port": 8080 },
        { "address": "10.244.1.200", "port": 8080, "zone": "a" },
    ] });
    let (status, registered) = api.call(Method::POST, &targets, two).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(registered["targets"][0]["state"], "initial");
    assert_eq!(
        registered["targets"][0]["reason"],
        "Elb.RegistrationInProgress"
    );
    tokio::time::sleep(Duration::from_secs(4)).await;
    let states = api.get(&targets).await;
    assert_eq!(states["targets"][1]["state"], "unhealthy");
    assert_eq!(states["targets"][1]["reason"], "Target.FailedHealthChecks");
    assert_eq!(states["targets"][0]["state"], "healthy");
    assert_eq!(states["targets"][0]["since"], "2027-01-15T08:00:00Z");

    let one = json!({ "targets": [{ "address": "10.244.1.5", "port": 8080 }] });
    let (status, left) = api.call(Method::DELETE, &targets, one).await;
    assert_eq!(
        (status, &left["targets"][0]["state"]),
        (StatusCode::OK, &json!("draining"))
    );
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(
        api.get(&targets).await["targets"].as_array().unwrap().len(),
        1
    );
    let asked = api.get(&format!("{targets}?target=10.244.1.5:8080")).await;
    assert_eq!(asked["targets"][0]["state"], "unused");

    let seen = api.get(&format!("/v1/loadbalancers/{lb}")).await;
    assert_eq!(seen["state"], "active");
    assert_eq!(seen["preserveClientIP"], true);
    assert_eq!(
        seen["listeners"],
        json!([{ "port": 80, "protocol": "TCP", "group": group }])
    );
    let (status, refused) = api
        .call(Method::DELETE, &format!("/v1/groups/{group}"), Value::Null)
        .await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("group_in_use"))
    );
    assert_eq!(refused["details"]["loadBalancers"], json!([lb]));
    for path in [
        listener,
        format!("/v1/loadbalancers/{lb}"),
        format!("/v1/groups/{group}"),
    ] {
        let (status, _) = api.call(Method::DELETE, &path, Value::Null).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{path}");
        let (status, _) = api.call(Method::GET, &path, Value::Null).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(api.cloud.calls()[&Operation::DeleteLoadBalancer], 1);
}

#[tokio::test(start_paused = true)]
async fn defaults_are_the_profiles_and_what_is_shown_can_be_put_back() {
    let api = Api::start();
    let group = api.create("/v1/groups", group_body("web")).await;
    let path = format!("/v1/groups/{group}");
    let seen = api.get(&path).await;
    assert_eq!(seen["drainSeconds"], 10.0);
    let check = json!({
        "protocol": "HTTP", "port": 10256, "path": "/healthz",
        "interval": 2.0, "timeout": 1.0, "healthy": 1, "unhealthy": 2,
    });
    assert_eq!(seen["health"], check);
    let mut edited = group_body("web");
    edited["health"] = seen["health"].clone();
    edited["drainSeconds"] = json!(2.5);
    assert_eq!(seen["choice"], "fiveTuple");
    edited["choice"] = json!("addresses");
    let (status, put) = api.call(Method::PUT, &path, edited).await;
    assert_eq!(
        (status, &put["drainSeconds"], &put["choice"]),
        (StatusCode::OK, &json!(2.5), &json!("addresses"))
    );
    // A TCP group is always probed, a UDP group only when it asks.
    let bare = |protocol: &str| json!({ "name": protocol, "protocol": protocol, "mode": "node" });
    let tcp = api.create("/v1/groups", bare("TCP")).await;
    let udp = api.create("/v1/groups", bare("UDP")).await;
    assert_eq!(
        api.get(&format!("/v1/groups/{tcp}")).await["health"]["protocol"],
        "TCP"
    );
    assert_eq!(
        api.get(&format!("/v1/groups/{udp}")).await["health"],
        Value::Null
    );
}

#[tokio::test(start_paused = true)]
async fn lists_are_by_tag() {
    let api = Api::start();
    let lb = api.create("/v1/loadbalancers", lb_body("web")).await;
    let mine = api
        .get("/v1/loadbalancers?tag=onehop.dev%2Fservice=shop%2Fweb")
        .await;
    assert_eq!(mine["items"][0]["id"], json!(lb));
    let others = api
        .get("/v1/loadbalancers?tag=onehop.dev/service=shop/other")
        .await;
    assert_eq!(others["items"], json!([]));
    assert_eq!(
        api.get("/v1/loadbalancers").await["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let (status, _) = api
        .call(Method::GET, "/v1/groups?name=web", Value::Null)
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_held_is_409_and_names_the_holder() {
    let api = Api::start();
    let holder = api.create("/v1/loadbalancers", lb_body("web")).await;
    let (status, refused) = api
        .call(Method::POST, "/v1/loadbalancers", lb_body("other"))
        .await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("address_in_use"))
    );
    assert_eq!(refused["details"]["address"], FRONT);
    assert_eq!(refused["details"]["holder"]["id"], json!(holder));
    assert_eq!(
        refused["details"]["holder"]["tags"]["onehop.dev/service"],
        "shop/web"
    );
    assert!(refused["message"].as_str().unwrap().contains("web"));
    let mut far = lb_body("far");
    far["addresses"] = json!(["192.0.2.1"]);
    let (status, refused) = api.call(Method::POST, "/v1/loadbalancers", far).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(refused["code"], "address_not_routed");
}

#[tokio::test(start_paused = true)]
async fn creates_need_a_key_and_are_repeatable_with_it() {
    let api = Api::start();
    let body = || Body::from(lb_body("web").to_string());
    let answer = api
        .send(Method::POST, "/v1/loadbalancers", None, body())
        .await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let first = api.create("/v1/loadbalancers", lb_body("web")).await;
    assert_eq!(api.create("/v1/loadbalancers", lb_body("web")).await, first);
    let mut other = lb_body("web");
    other["addresses"] = json!(["198.51.100.99"]);
    let (status, refused) = api.call(Method::POST, "/v1/loadbalancers", other).await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::CONFLICT, &json!("idempotency_key_reused"))
    );
}

#[tokio::test(start_paused = true)]
async fn every_wrong_field_is_named_and_nothing_is_made() {
    let api = Api::start();
    let wrong = json!({
        "name": "", "protocol": "TCP", "mode": "pod", "drainSeconds": -1,
        "health": { "protocol": "HTTP", "port": 0, "path": "x y", "interval": 0, "healthy": 0 },
    });
    let answer = api
        .send(
            Method::POST,
            "/v1/groups",
            Some("k"),
            Body::from(wrong.to_string()),
        )
        .await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    let refused: Value = serde_json::from_slice(&bytes).unwrap();
    let fields: Vec<_> = refused["details"]["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["field"].as_str().unwrap())
        .collect();
    let expected = [
        "name",
        "drainSeconds",
        "health.interval",
        "health.port",
        "health.healthy",
        "health.path",
    ];
    assert_eq!(fields, expected);
    let unknown = json!({ "name": "g", "protocol": "TCP", "mode": "pod", "colour": "red" });
    let malformed = json!({ "name": "g", "protocol": "SCTP", "mode": "pod" });
    for body in [unknown, malformed, json!([])] {
        let (status, refused) = {
            let body = Body::from(body.to_string());
            let answer = api.send(Method::POST, "/v1/groups", Some("k"), body).await;
            let status = answer.status();
            let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
            (status, serde_json::from_slice::<Value>(&bytes).unwrap())
        };
        assert_eq!(
            (status, &refused["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid"))
        );
    }
    assert_eq!(api.get("/v1/groups").await["items"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_exist_is_404_and_what_cannot_be_done_405() {
    let api = Api::start();
    for path in [
        "/v1/loadbalancers/x",
        "/v1/groups/x",
        "/v1/groups/x/targets",
        "/v2",
    ] {
        let (status, refused) = api.call(Method::GET, path, Value::Null).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(
            refused["code"].is_string() && refused["message"].is_string(),
            "{path}"
        );
    }
    let (status, refused) = api.call(Method::PATCH, "/v1/groups/x", Value::Null).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(refused["code"], "method_not_allowed");
    let lb = api.create("/v1/loadbalancers", lb_body("web")).await;
    let udp = json!({ "name": "dns", "protocol": "UDP", "mode": "pod" });
    let udp = api.create("/v1/groups", udp).await;
    for listener in ["80-tcp", "0-tcp", "80", "http-tcp", "80-sctp"] {
        let path = format!("/v1/loadbalancers/{lb}/listeners/{listener}");
        let (status, _) = api.call(Method::PUT, &path, json!({ "group": udp })).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{listener}");
    }
    let (status, refused) = api
        .call(Method::GET, "/v1/events?since=x", Value::Null)
        .await;
    assert_eq!(
        (status, &refused["code"]),
        (StatusCode::BAD_REQUEST, &json!("invalid"))
    );
}

#[tokio::test(start_paused = true)]
async fn events_are_read_from_a_number_on_and_followed() {
    let api = Api::start();
    let lines = |bytes: &[u8]| -> Vec<Value> {
        let text = std::str::from_utf8(bytes).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    api.create("/v1/loadbalancers", lb_body("web")).await;
    let answer = api
        .send(Method::GET, "/v1/events?since=2", None, Body::empty())
        .await;
    let all = lines(&to_bytes(answer.into_body(), 1 << 20).await.unwrap());
    assert_eq!(all[0]["seq"], 3);
    assert_eq!(
        all.last().unwrap()["seq"],
        api.cloud.look(|engine| engine.log().last())
    );
    assert!(all.iter().any(|line| line["kind"] == "address_assigned"));

    let since = all.last().unwrap()["seq"].as_u64().unwrap();
    let path = format!("/v1/events?since={since}&follow=true");
    let answer = api.send(Method::GET, &path, None, Body::empty()).await;
    let mut stream = answer.into_body().into_data_stream();
    // Nothing is lost between subscribing and reading, whatever comes first.
    let created = api.create("/v1/groups", group_body("web"));
    let followed = async {
        loop {
            let chunk = stream.next().await.unwrap().unwrap();
            if lines(&chunk)
                .iter()
                .any(|line| line["operation"] == "CreateGroup")
            {
                return;
            }
        }
    };
    let both = futures::future::join(followed, created);
    tokio::time::timeout(Duration::from_secs(5), both)
        .await
        .unwrap();
}
