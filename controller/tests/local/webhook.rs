//! What the webhook gives to new pods, asked over TLS as an API server asks. That one really calls it, and trusts it, is
//! e2e's to show.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use onehop_controller::plan::gates;
use onehop_controller::webhook::{Pair, State};
use onehop_core::id::{PortKey, Protocol, ServiceKey};
use onehop_core::time::Time;
use serde_json::{Value, json};

use crate::cluster::read;
use crate::world::{Controller, World};
use crate::{POOL, pod_mode};

const NAME: &str = "onehop-webhook.default.svc";

/// A controller with a webhook, and what asks it.
struct Asker {
    controller: Controller,
    client: reqwest::Client,
    port: u16,
}

impl Asker {
    async fn start(world: &World) -> Self {
        // TLS goes by the machine's clock.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let now = Time::from_millis(now.as_millis().try_into().unwrap());
        let pair = Pair::make(&[NAME.to_owned()], now, Duration::from_hours(9000 * 24)).unwrap();
        let authority = pair.authority.clone();
        let state = State {
            serving: pair,
            next: None,
            former: Vec::new(),
        };
        let secret = json!({
            "metadata": { "name": "onehop-webhook" },
            "data": { "state.json": STANDARD.encode(serde_json::to_string(&state).unwrap()) },
        });
        let secret = read(secret);
        world
            .api::<Secret>()
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        *world.tune.webhook.lock().unwrap() = Some(listener);
        let controller = world.controller().working().await;
        let root = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
        let client = reqwest::Client::builder()
            .tls_certs_only([root])
            .resolve(NAME, at)
            .build()
            .unwrap();
        let asker = Self {
            controller,
            client,
            port: at.port(),
        };
        // It shows what the Secret has.
        world
            .eventually("the webhook is served", async |_| {
                asker
                    .try_ask("gates", "default", &json!({}))
                    .await
                    .is_some()
            })
            .await;
        asker
    }

    async fn try_ask(&self, what: &str, namespace: &str, pod: &Value) -> Option<Value> {
        let url = format!("https://{NAME}:{}/pods/{what}", self.port);
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": { "uid": "u", "namespace": namespace, "object": pod },
        });
        let answer = self.client.post(url).json(&review).send().await.ok()?;
        answer.error_for_status().unwrap().json().await.ok()
    }

    /// The operations for a new pod with these labels.
    async fn ask(&self, what: &str, namespace: &str, labels: Value) -> Vec<Value> {
        let pod = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c" }] } });
        let answer = self.try_ask(what, namespace, &pod).await.unwrap();
        let response = &answer["response"];
        assert_eq!(
            (&response["allowed"], &response["uid"]),
            (&json!(true), &json!("u"))
        );
        let Some(patch) = response.get("patch") else {
            return Vec::new();
        };
        let patch = STANDARD.decode(patch.as_str().unwrap()).unwrap();
        serde_json::from_slice(&patch).unwrap()
    }

    async fn gates(&self, namespace: &str, labels: Value) -> Vec<String> {
        let operations = self.ask("gates", namespace, labels).await;
        let gates = operations.first().map(|o| o["value"].clone());
        let gates = gates
            .into_iter()
            .flat_map(|g| g.as_array().cloned().unwrap());
        gates
            .map(|g| g["conditionType"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn gate(service: &str, port: u16, name: &str) -> String {
    let key = PortKey::new(name, Protocol::Tcp);
    let service = ServiceKey::new("default", service);
    gates::name(&"demo-local".into(), &service, port, &key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aws501_a_pod_gets_a_gate_for_each_port_whose_targets_are_pods() {
    let world = World::start(POOL).await;
    let two = json!({
        "allocateLoadBalancerNodePorts": false,
        "ports": [
            { "name": "http", "port": 80, "targetPort": 8080 },
            { "name": "https", "port": 443, "targetPort": 8443 },
        ],
    });
    world.service("web", two).await;
    world
        .service("nodes", json!({ "selector": { "app": "web" } }))
        .await;
    let foreign = json!({ "selector": { "app": "web" }, "loadBalancerClass": "example.org/other" });
    world.service("foreign", foreign).await;
    world.service("other", pod_mode()).await;
    let asker = Asker::start(&world).await;
    let mut both = [gate("web", 80, "http"), gate("web", 443, "https")];
    both.sort();
    let labels = json!({ "app": "web", "pod-template-hash": "1" });
    assert_eq!(
        asker.gates("default", labels.clone()).await,
        both,
        "AWS-501"
    );
    assert_eq!(
        asker.gates("elsewhere", labels.clone()).await,
        [""; 0],
        "another namespace"
    );
    assert_eq!(
        asker.gates("default", json!({})).await,
        [""; 0],
        "chosen by none"
    );
    // AWS-500: the peer's label counts for Services of the peer's class only.
    assert_eq!(
        asker.ask("peers-gates", "default", labels.clone()).await,
        [json!(null); 0]
    );
    // ZD-91: the local cloud has no tail to wait for.
    assert_eq!(
        asker.ask("pause", "default", labels).await,
        [json!(null); 0]
    );
    // A Service that comes just before its pods is enough.
    world.service("new", pod_mode()).await;
    let known = async |_: &World| {
        asker.gates("default", json!({ "app": "new" })).await == [gate("new", 80, "http")]
    };
    world
        .eventually("AWS-501: it is known at once", known)
        .await;
    let expiry = asker
        .controller
        .metric("onehop_webhook_certificate_expiry_seconds");
    assert_ne!(expiry.as_deref(), Some("0"), "C-77");
    asker.controller.stop().await;
}
