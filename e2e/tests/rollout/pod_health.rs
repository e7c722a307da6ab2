//! Health of pods, answered by the agent at the pods' own addresses (ZD-30 to ZD-39), as the load balancer node and
//! others see it. Pods are on the second interface of their node, whose replies must leave by it.

use crate::{promise::told, support::WITHIN};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use onehop_core::crd::{HealthBy, LoadBalancer, LoadBalancerPort, NodeTarget, TargetState};
use onehop_e2e::world::{
    Cluster, Family, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
};
use serde_json::json;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

const PORT: u16 = 10290;
const SERVES: OnTerm = OnTerm::ServeSeconds(25);

/// Pods `one` on node a and `two` on node b behind Service `web`; `other` on node a behind nothing.
struct Scene {
    world: World,
    one: IpAddr,
    two: IpAddr,
    other: IpAddr,
}

impl Scene {
    async fn set(family: Family) -> Result<Self> {
        let config = WorldConfig {
            cluster: Cluster::default().in_family(family),
            ..WorldConfig::default()
        };
        let world = World::start(config).await?;
        for (name, app, node) in [
            ("one", "web", "a"),
            ("two", "web", "b"),
            ("other", "no", "a"),
        ] {
            world.objects.create(pod(name, app, node, SERVES)).await?;
        }
        for name in ["one", "two", "other"] {
            world.objects.pod_ready("default", name, WITHIN).await?;
        }
        let service = ServiceManifest::load_balancer("web", "web").pod_mode();
        world.objects.apply(service.json()).await?;
        let address = SocketAddr::from((world.lb_address("web").await?, 80));
        first_answer(&world, address).await?;
        // An answer tells of one pod: the nodes are told, and tell, each at its own time.
        let what = "K-24: agents answer for the pods";
        eventually(&world.clock, what, WITHIN, async || {
            let objects = world.objects.api::<LoadBalancer>();
            let object = objects.get("web").await.map_err(|e| e.to_string())?;
            let by = |port: &LoadBalancerPort| port.health.as_ref().map(|h| h.by);
            let ports = object.spec.ports;
            let all = ports.iter().all(|port| by(port) == Some(HealthBy::Agent));
            all.then_some(()).ok_or(format!("{ports:?}"))
        })
        .await?;
        let address = async |name: &str| anyhow::Ok(family.of(world.pod_place(name).await?.1));
        let (one, two) = (address("one").await?, address("two").await?);
        let other = address("other").await?;
        let scene = Self {
            world,
            one,
            two,
            other,
        };
        for pod in [one, two] {
            let what = "ZD-31: healthy at its address";
            scene.is(pod, "/t/e2e/default/web/tcp", 200, what).await?;
        }
        Ok(scene)
    }

    /// What the load balancer node hears of a pod at a path.
    fn asked(&self, pod: IpAddr, path: &str) -> Result<u16, String> {
        let answer = self.world.http_get((pod, PORT).into(), path);
        answer.map(|a| a.status).map_err(|e| format!("{e:#}"))
    }

    async fn becomes(&self, path: &str, status: u16, what: &str) -> Result<()> {
        self.is(self.one, path, status, what).await
    }

    async fn is(&self, pod: IpAddr, path: &str, status: u16, what: &str) -> Result<()> {
        eventually(&self.world.clock, what, WITHIN, async || {
            let asked = self.asked(pod, path);
            (asked == Ok(status))
                .then_some(())
                .ok_or(format!("{asked:?}"))
        })
        .await
    }
}

async fn the_agent_answers_for_pods(family: Family) -> Result<()> {
    let scene = Scene::set(family).await?;
    let world = &scene.world;
    for port in ["tcp", "udp"] {
        let path = format!("/t/e2e/default/web/{port}");
        ensure!(scene.asked(scene.one, &path) == Ok(200), "ZD-31: {path}");
    }
    // ZD-31: no such path, and no target of it. The pod that is no target has its port for itself: nobody listens.
    for path in [
        "/t/e2e/default/api/tcp",
        "/t/other/default/web/tcp",
        "/healthz",
    ] {
        ensure!(scene.asked(scene.one, path) == Ok(503), "ZD-31: {path}");
    }
    let path = "/t/e2e/default/web/tcp";
    ensure!(scene.asked(scene.other, path).is_err(), "ZD-35");
    // ZD-35, ZD-43: pods, and the other node, reach the pod's own port, which is closed.
    let to = SocketAddr::new(scene.one, PORT);
    ensure!(world.http_get_on_node("b", to, path).is_err(), "ZD-35");
    // Node and pod are the same to the agent: without a pod that was meant nobody is healthy.
    let node = family.of(world.kubelet("a")?.node().address());
    ensure!(scene.asked(node, path) == Ok(503), "ZD-31");
    // ZD-34: while another one serves, health fails from the deletion mark on.
    let pods = world.objects.api::<Pod>();
    pods.delete("one", &DeleteParams::default()).await?;
    scene
        .becomes(path, 503, "the pod that ends is not healthy")
        .await?;
    // ZD-22a, ZD-31: the last one is held, and healthy while it serves.
    pods.delete("two", &DeleteParams::default()).await?;
    let what = "the last pod is held";
    eventually(&world.clock, what, WITHIN, async || {
        let told = told(world).await?;
        let held = |t: &&NodeTarget| t.pod_name == "two" && t.state == TargetState::Held;
        match told.iter().filter(held).count() {
            2 => Ok(()),
            held => Err(format!("{held} held of {told:?}")),
        }
    })
    .await?;
    ensure!(scene.asked(scene.two, path) == Ok(200), "ZD-31: held");
    let now = DeleteParams::default().grace_period(0);
    for pod in ["one", "two"] {
        pods.delete(pod, &now).await?;
    }
    world.objects.delete_service("web").await?;
    world.service_gone("web").await?;
    scene.world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn zd30_zd31_zd35_the_agent_answers_for_pods_at_their_addresses() -> Result<()> {
    the_agent_answers_for_pods(Family::V4).await
}

#[tokio::test(flavor = "multi_thread")]
async fn zd30_zd31_zd35_the_agent_answers_for_pods_in_ipv6_too() -> Result<()> {
    the_agent_answers_for_pods(Family::V6).await
}

/// ZD-T40, K-29: nobody can tell the new process anything, and it answers as the old one did.
#[tokio::test(flavor = "multi_thread")]
async fn zd18_zd38_zd_t40_a_restart_without_the_api_server_changes_no_answer() -> Result<()> {
    let mut scene = Scene::set(Family::V4).await?;
    let path = "/t/e2e/default/web/tcp";
    // What is kept is written a moment after it is known: all that is known is there once nothing was written for longer.
    let kept = scene.world.folder().join("node-a.json");
    let what = "the answers are kept";
    let clock = scene.world.clock;
    eventually(&clock, what, WITHIN, async || {
        let text = std::fs::read_to_string(&kept).map_err(|e| e.to_string())?;
        let file: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let written = file["written"].as_i64().unwrap_or(i64::MAX);
        let old = clock.now().as_millis().saturating_sub(written) > 2_000;
        let there = text.contains("\"healthy\":true") && text.contains("\"installs\":{\"");
        (there && old).then_some(()).ok_or(text)
    })
    .await?;
    scene.world.without_api_server()?;
    scene.world.kill_agent("a")?;
    let died = clock.now();
    scene.becomes(path, 200, "the new agent answers").await?;
    let took = clock.now().since(died);
    ensure!(took < Duration::from_secs(5), "ZD-38: {took:?}");
    ensure!(scene.asked(scene.one, "/t/e2e/default/api/tcp") == Ok(503));
    scene.world.with_api_server()?;
    scene.world.agent_restarted("a", WITHIN).await?;
    ensure!(scene.asked(scene.one, path) == Ok(200), "ZD-18");
    scene.world.end().await
}

/// ZD-78: what signals about a node do to the answers for its pods.
#[tokio::test(flavor = "multi_thread")]
async fn zd71_zd76_zd78_a_dead_node_fails_the_health_of_its_pods_and_a_cordoned_one_does_not()
-> Result<()> {
    let scene = Scene::set(Family::V4).await?;
    let world = &scene.world;
    let path = "/t/e2e/default/web/tcp";
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(world.kube());
    let patch = async |spec: serde_json::Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        nodes.patch("a", &PatchParams::default(), &patch).await
    };
    patch(json!({"unschedulable": true})).await?;
    for _ in 0..10 {
        ensure!(scene.asked(scene.one, path) == Ok(200), "ZD-71: cordon");
        world.clock.sleep(Duration::from_millis(50)).await;
    }
    let taint = |key| json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
    let all_taken_back = json!({"taints": null, "unschedulable": null});
    // Nothing replaces the pod yet, so it is held, and serves.
    for key in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"] {
        patch(taint(key)).await?;
        let what = format!("the pod is held: {key}");
        eventually(&world.clock, &what, WITHIN, async || {
            let told = told(world).await?;
            let held = |t: &&NodeTarget| t.pod_name == "one" && t.state == TargetState::Held;
            match told.iter().filter(held).count() {
                2 => Ok(()),
                held => Err(format!("{held} held of {told:?}")),
            }
        })
        .await?;
        scene.becomes(path, 200, "ZD-76: held and serving").await?;
        patch(all_taken_back.clone()).await?;
    }
    patch(taint("node.kubernetes.io/out-of-service")).await?;
    scene.becomes(path, 503, "ZD-78: out of service").await?;
    patch(all_taken_back).await?;
    scene
        .becomes(path, 200, "ZD-78: the signal is taken back")
        .await?;
    scene.world.end().await
}
