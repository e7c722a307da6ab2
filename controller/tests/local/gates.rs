//! Readiness gates of pods follow the health of their targets (AWS-500 to AWS-512, ZD-90).

use std::net::IpAddr;
use std::time::Duration;

use e2e_cloud::engine::Operation;
use k8s_openapi::api::core::v1::{Event, Pod, PodCondition};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams};
use onehop_controller::plan::gates;
use onehop_core::id::{PortKey, Protocol, ServiceKey};
use serde_json::json;

use crate::gated::{self, gated_pod};
use crate::world::World;
use crate::{FIRST, POOL, has_address, pod_mode};

const POD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 1));

/// The gate of port `http` of a Service of the namespace that all tests use.
fn gate_of(service: &str) -> String {
    let key = PortKey::new("http", Protocol::Tcp);
    let service = ServiceKey::new("default", service);
    gates::name(&"demo-local".into(), &service, 80, &key)
}

/// The endpoint of that pod, as the endpoint controller has it while the pod is not ready.
async fn endpoint(world: &World, service: &str, uid: &str) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": format!("{service}-1"), "labels": { "kubernetes.io/service-name": service } },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{
            "addresses": [POD], "nodeName": "node-1",
            "conditions": { "ready": false, "serving": false, "terminating": false },
            "targetRef": { "kind": "Pod", "name": "pod-1", "uid": uid },
        }],
    });
    let params = PatchParams::apply("test").force();
    world
        .api::<EndpointSlice>()
        .patch(&format!("{service}-1"), &params, &Patch::Apply(slice))
        .await
        .unwrap();
}

async fn conditions(world: &World) -> Vec<PodCondition> {
    gated::conditions(&world.admin(), 1).await
}

async fn says(world: &World, gate: &str) -> Option<(String, String)> {
    gated::says(&world.admin(), 1, gate).await
}

async fn comes_to_say(world: &World, gate: &str, status: &str, reason: &str) {
    let said = Some((status.to_owned(), reason.to_owned()));
    let what = format!("the gate says {status} {reason}");
    world
        .eventually(&what, async |w| says(w, gate).await == said)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aws412_aws506_a_pod_that_waits_for_its_gate_becomes_a_target_and_the_gate_follows() {
    let mut world = World::start(POOL).await;
    // A load balancer at rest is looked at that often.
    world.tune.sweep = Duration::from_secs(2);
    world.answers(POD, false);
    let controller = world.controller();
    world.service("web", pod_mode()).await;
    let gate = gate_of("web");
    let uid = gated_pod(&world.admin(), 1, &["example.org/other", &gate]).await;
    endpoint(&world, "web", &uid).await;
    // Somebody else's gate is shut, too: the pod is no target yet, and its gate has a condition all the same.
    comes_to_say(&world, &gate, "Unknown", "Target.NotRegistered").await;
    assert_eq!(world.writes(Operation::RegisterTargets), 0, "AWS-412");
    let others =
        json!({ "status": { "conditions": [{ "type": "example.org/other", "status": "True" }] } });
    world
        .api::<Pod>()
        .patch_status("pod-1", &PatchParams::default(), &Patch::Strategic(others))
        .await
        .unwrap();
    comes_to_say(&world, &gate, "False", "Target.FailedHealthChecks").await;
    assert_eq!(world.writes(Operation::RegisterTargets), 1, "AWS-412");
    world.answers(POD, true);
    comes_to_say(&world, &gate, "True", "Healthy").await;
    has_address(&world, "web", FIRST).await;
    let all = conditions(&world).await;
    let kinds: Vec<_> = all.iter().map(|c| c.type_.as_str()).collect();
    let kept = ["ContainersReady", "Ready", "example.org/other"];
    assert!(
        kept.iter().all(|kind| kinds.contains(kind)),
        "the kubelet's are kept: {kinds:?}"
    );
    let settled = async |w: &World| {
        let version = w.server.resource_version();
        w.quiet(Duration::from_secs(2)).await;
        w.server.resource_version() == version
    };
    world
        .eventually("I4: nothing more is written", settled)
        .await;
    world.answers(POD, false);
    comes_to_say(&world, &gate, "False", "Target.FailedHealthChecks").await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ai10_aws505_a_gate_of_nobody_is_opened() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    let (gone, theirs) = (gate_of("gone"), gate_of("theirs"));
    let foreign = json!({ "loadBalancerClass": "example.org/other" });
    world.service("theirs", foreign).await;
    let peers = "target-health.elbv2.k8s.aws/k8s-default-gone-0123456789";
    gated_pod(&world.admin(), 1, &[&gone, &theirs, peers]).await;
    comes_to_say(&world, &gone, "True", "NoTargetGroup").await;
    assert_eq!(
        says(&world, &theirs).await,
        None,
        "perhaps another install's"
    );
    assert_eq!(
        says(&world, peers).await,
        None,
        "AWS-504: another program's"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aws507_a_gate_that_waits_for_too_long_is_opened_loudly() {
    let mut world = World::start(POOL).await;
    world.tune.gate_limit = Duration::from_secs(1);
    world.answers(POD, false);
    let controller = world.controller();
    world.service("web", pod_mode()).await;
    let gate = gate_of("web");
    let uid = gated_pod(&world.admin(), 1, &[&gate]).await;
    endpoint(&world, "web", &uid).await;
    comes_to_say(&world, &gate, "True", "GateFailSafe").await;
    let told = async |w: &World| {
        let told = w.told("web").await;
        told.iter()
            .any(|(reason, text)| reason == "GateFailSafe" && text.contains("pod-1"))
    };
    world.eventually("AWS-507: an event says so", told).await;
    let counted = controller.metric("onehop_readiness_gate_fail_safes_total");
    assert_eq!(counted.as_deref(), Some("1"), "AWS-507");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zd95_aws508_advice_is_given_once_for_as_long_as_it_holds() {
    let world = World::start(POOL).await;
    let asks = json!({ "onehop.dev/pod-readiness-gate-inject": "enabled" });
    world.label_namespace("default", asks).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    let deployment = |unavailable: u32| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
            "spec": {
                "replicas": 1, "paused": true, "selector": { "matchLabels": { "app": "web" } },
                "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": unavailable, "maxSurge": 1 } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "server", "image": "pod-server" }] },
                },
            },
        })
    };
    let apply = async |unavailable| {
        let params = PatchParams::apply("test").force();
        let patch = Patch::Apply(deployment(unavailable));
        let all = world.api::<k8s_openapi::api::apps::v1::Deployment>();
        all.patch("web", &params, &patch).await.unwrap();
    };
    let times = async |reason: &str| {
        let all = world.api::<Event>().list(&ListParams::default()).await;
        let all = all.unwrap().items.into_iter();
        let of_reason = all.filter(|e| e.reason.as_deref() == Some(reason));
        of_reason.map(|e| e.count.unwrap_or(1)).sum::<i32>()
    };
    apply(1).await;
    let said = async |_: &World| {
        times("SingleReplica").await == 1 && times("ReadinessGateMissing").await == 1
    };
    world.eventually("ZD-95, AWS-508: it is said", said).await;
    // Passes go by: nothing is said again.
    world.endpoints("web", &[1, 2], &[]).await;
    world.quiet(Duration::from_secs(2)).await;
    assert!(said(&world).await, "ZD-120: once");
    let lacking = async |_: &World| {
        controller
            .metric("onehop_pods_without_readiness_gate")
            .as_deref()
            == Some("2")
    };
    world.eventually("AWS-508: they are counted", lacking).await;
    controller.stop().await;
}
