//! What a signal about a node does to each part, and that it is as before once it is taken back (ZD-78).

use crate::lab::WITHIN;
use crate::support::{PodOnA, world_with_pod_on_a};
use anyhow::{Context, Result};
use e2e_cloud::{
    assertions::writes_after,
    engine::{Engine, TargetState as InCloud},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use onehop_core::{
    crd::{NodeTargets, TargetState},
    node::{EXCLUDE_LABEL, GOING_TAINTS, OUT_OF_SERVICE_TAINT},
};
use onehop_e2e::world::{Cluster, OnTerm, ServiceManifest, eventually};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Longer than anybody takes who would act on a signal.
const NOTHING_WITHIN: Duration = Duration::from_secs(1);
const POD_HEALTH: u16 = 10290;

/// Where node b and its pod stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    /// The agent's own port.
    healthz: u16,
    /// The port of a Service with policy Local.
    local_health: u16,
    /// The answer for the pod.
    pod_health: u16,
    /// Whether load balancers have the node, with policy Cluster and with Local.
    node: [bool; 2],
    /// Whether one has the pod, and what its node is told of it.
    pod: (bool, Option<TargetState>),
}

const AS_EVER: Stand = Stand {
    healthz: 200,
    local_health: 200,
    pod_health: 200,
    node: [true; 2],
    pod: (true, Some(TargetState::Active)),
};

struct Scene {
    world: PodOnA,
    node: IpAddr,
    pod: IpAddr,
    local_health: u16,
}

impl Scene {
    async fn set(on: Cluster) -> Result<Self> {
        let world = world_with_pod_on_a(on).await?;
        world.add_pod_on_b(OnTerm::Exit).await?;
        let of = |name| ServiceManifest::load_balancer(name, "web");
        let _nodes = world.serve(of("nodes")).await?;
        let local = of("local").with("externalTrafficPolicy", json!("Local"));
        let _local = world.serve(local).await?;
        let _pods = world.serve(of("pods").pod_mode()).await?;
        let spec = world.objects.service("local").await?.spec;
        let port = spec.and_then(|s| s.health_check_node_port);
        let port = port.context("a health port")?;
        let family = world.cluster.family;
        Ok(Self {
            node: family.of(world.node("b")?.address()),
            pod: family.of(world.pod_place("web-b").await?.1),
            local_health: u16::try_from(port)?,
            world,
        })
    }

    /// Whether a Service's load balancer sends to an address, as far as the controller has a say.
    fn has(&self, service: &str, address: IpAddr) -> bool {
        let owner = format!("default/{service}");
        let groups = self.world.cloud.look(Engine::inventory).groups;
        let of_it = groups
            .into_iter()
            .filter(|(group, _)| group.spec.tags.get("onehop.dev/service") == Some(&owner));
        let targets = of_it.flat_map(|(_, targets)| targets);
        let gone = [InCloud::Draining, InCloud::Unused];
        let mut registered = targets.filter(|t| !gone.contains(&t.state));
        registered.any(|t| t.target.ip() == address)
    }

    fn status(&self, to: SocketAddr, path: &str) -> u16 {
        self.world
            .http_get(to, path)
            .map_or(0, |answer| answer.status)
    }

    async fn stand(&self) -> Result<Stand, String> {
        let objects: Api<NodeTargets> = Api::all(self.world.kube());
        let object = objects.get("b").await.map_err(|error| error.to_string())?;
        let mut targets = object.spec.installs.values().flat_map(|i| &i.targets);
        let target = targets.find(|t| {
            t.service.name == "pods" && t.address == self.pod && t.port_name.as_str() == "tcp"
        });
        let health = self.world.cluster.proxy.health_port();
        Ok(Stand {
            healthz: self.status((self.node, health).into(), "/healthz"),
            local_health: self.status((self.node, self.local_health).into(), "/healthz"),
            pod_health: self.status((self.pod, POD_HEALTH).into(), "/t/e2e/default/pods/tcp"),
            node: ["nodes", "local"].map(|service| self.has(service, self.node)),
            pod: (self.has("pods", self.pod), target.map(|t| t.state)),
        })
    }

    async fn becomes(&self, what: &str, wanted: Stand) -> Result<()> {
        eventually(&self.world.clock, what, WITHIN, async || {
            let stand = self.stand().await?;
            (stand == wanted)
                .then_some(())
                .ok_or_else(|| format!("{stand:?}"))
        })
        .await
    }

    async fn patch(&self, patch: &Value, status: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.world.kube());
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        if status {
            nodes.patch_status("b", &params, &patch).await?;
        } else {
            nodes.patch("b", &params, &patch).await?;
        }
        Ok(())
    }
}

fn taint(key: &str) -> Value {
    json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}})
}

/// ZD-T42. What a going node's own deletion mark does, which cannot be taken back, is in `node_faults.rs`; guards run on
/// whatever is said of their node.
pub(crate) async fn zd_t42_zd78_w18_signals_about_a_node_do_what_the_table_says_until_they_are_taken_back(
    on: Cluster,
) -> Result<()> {
    let scene = Scene::set(on).await?;
    scene.becomes("all is well", AS_EVER).await?;
    let (no_taint, no_label) = (
        json!({"spec": {"taints": null}}),
        json!({"metadata": {"labels": {EXCLUDE_LABEL: null}}}),
    );
    // Nothing replaces the pod, which serves: it is held, and its answer with it (ZD-76).
    let going = Stand {
        healthz: 503,
        node: [false; 2],
        pod: (true, Some(TargetState::Held)),
        ..AS_EVER
    };
    let out = Stand {
        healthz: 503,
        // This cloud sends nothing new to what was taken out: it is released at once, and nobody answers for it any more.
        pod_health: 0,
        node: [false; 2],
        // Said for a minute more.
        pod: (false, Some(TargetState::Released)),
        ..AS_EVER
    };
    // ZD-72: it drains, and its own health does not fail.
    let excluded = Stand {
        node: [false; 2],
        ..AS_EVER
    };
    let cordon = |on: Value| json!({"spec": {"unschedulable": on}});
    let mut rows = vec![
        ("cordon", cordon(json!(true)), cordon(json!(null)), AS_EVER),
        (
            EXCLUDE_LABEL,
            json!({"metadata": {"labels": {EXCLUDE_LABEL: "true"}}}),
            no_label,
            excluded,
        ),
        (
            OUT_OF_SERVICE_TAINT,
            taint(OUT_OF_SERVICE_TAINT),
            no_taint.clone(),
            out,
        ),
    ];
    let going = GOING_TAINTS.map(|key| (key, taint(key), no_taint.clone(), going));
    rows.extend(going);
    for (signal, set, taken_back, wanted) in rows {
        let before = scene.world.cloud.look(|engine| engine.log().last());
        scene.patch(&set, false).await?;
        if wanted == AS_EVER {
            scene.world.clock.sleep(NOTHING_WITHIN).await;
        }
        scene.becomes(&format!("ZD-78: {signal}"), wanted).await?;
        scene.patch(&taken_back, false).await?;
        let what = format!("ZD-T42: {signal} is taken back");
        scene.becomes(&what, AS_EVER).await?;
        if wanted == AS_EVER {
            let events = scene.world.cloud.events_after(before, usize::MAX);
            let writes = writes_after(&events, before);
            assert!(writes.is_empty(), "ZD-78: {signal}: {writes:?}");
        }
    }
    not_ready(&scene).await?;
    scene.world.end().await
}

/// NotReady: nothing changes, nothing is written.
async fn not_ready(scene: &Scene) -> Result<()> {
    let before = scene.world.cloud.look(|engine| engine.log().last());
    for status in ["False", "True"] {
        let condition = json!({"type": "Ready", "status": status});
        scene
            .patch(&json!({"status": {"conditions": [condition]}}), true)
            .await?;
        scene.world.clock.sleep(NOTHING_WITHIN).await;
        scene.becomes("ZD-78: NotReady", AS_EVER).await?;
    }
    let writes = writes_after(&scene.world.cloud.events_after(before, usize::MAX), before);
    assert!(writes.is_empty(), "ZD-78: NotReady: {writes:?}");
    Ok(())
}
