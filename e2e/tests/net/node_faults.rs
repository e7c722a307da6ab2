//! What befalls nodes (FC-79a): they are taken away in order, lose the API server, never have an agent, or their kubelet
//! dies. A crash is in `node_gone.rs`; a stopped and a killed agent in `coexistence.rs`.

use crate::{
    lab::{WITHIN, Want, selectorless},
    support::{Place, PodOnA, world_of, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use e2e_cloud::engine::{Engine, HealthCheck, TargetState};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use onehop_e2e::{
    traffic::{Endpoint, Load, LongFlow, Running, Transport},
    world::{Cluster, OnTerm, ServiceManifest, WorldConfig, eventually, first_answer},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

const PER_SECOND: u32 = 40;
/// From the signal to the node's end. Shorter than any cloud's notice; the local cloud takes two probes, 2 s apart.
const NOTICE: Duration = Duration::from_secs(8);

fn load(world: &PodOnA, address: SocketAddr) -> Running {
    let to = Endpoint {
        transport: Transport::Tcp,
        address,
    };
    let load = Load {
        to,
        per_second: PER_SECOND,
    };
    load.start(world.sockets.clone(), world.clock)
}

/// Ends a load of which nothing may have failed.
async fn without_loss(load: Running, what: &str) {
    let (ledger, _) = load.stop().await;
    let failed: Vec<_> = ledger.failures().collect();
    assert!(failed.is_empty(), "{what}: {failed:?}");
    let answers = ledger.answers().count();
    assert!(answers > 0, "{what}");
}

/// FC-79a, S-111, ZD-70, L-33: an autoscaler's taint, a spot warning, the exclusion label and the deletion mark, and the node is
/// dark a while later. Connections go elsewhere in time.
pub(crate) async fn fc79a_s111_nodes_that_are_taken_away_with_a_signal_cost_no_connection(
    on: Cluster,
) -> Result<()> {
    let world = world_of(WorldConfig {
        cluster: on,
        nodes: vec!["a", "b", "c", "d", "e"],
        ..WorldConfig::default()
    })
    .await?;
    let served = world
        .serve(ServiceManifest::load_balancer("web", "web"))
        .await?;
    let running = load(&world, served.lb());
    let taint = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let exclude = "node.kubernetes.io/exclude-from-external-load-balancers";
    let signals = [
        ("b", taint("ToBeDeletedByClusterAutoscaler")),
        ("c", taint("aws-node-termination-handler/spot-itn")),
        ("d", json!({"metadata": {"labels": {exclude: "true"}}})),
        // Without a finalizer nobody would see the mark.
        (
            "e",
            json!({"metadata": {"finalizers": ["example.com/drain"]}}),
        ),
    ];
    let nodes: Api<Node> = Api::all(world.kube());
    for (node, patch) in &signals {
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
    }
    nodes.delete("e", &DeleteParams::default()).await?;
    world.clock.sleep(NOTICE).await;
    for (node, _) in &signals {
        world.kubelet(node)?.node().go_dark()?;
    }
    // As long as a client would wait for a node that is not there.
    world.clock.sleep(NOTICE).await;
    without_loss(running, "FC-79a, ZD-70, L-33").await;
    let free: Value = json!({"metadata": {"finalizers": null}});
    nodes
        .patch("e", &PatchParams::default(), &Patch::Merge(free))
        .await?;
    world.end().await
}

/// FC-79a: a node that cannot reach the API server serves what it knows, says that it is well, and catches up.
pub(crate) async fn fc79a_a_node_without_the_api_server_serves_what_it_knows_and_catches_up(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = selectorless("cut").with("type", json!("NodePort"));
    let exposed = world.expose(manifest).await?;
    world.serve_by("cut", &["web"]).await?;
    let node_port = exposed.node_port("tcp")?;
    let [a, b] = [Place::NodeA, Place::NodeB].map(|node| world.place(node).1);
    let [at_a, at_b] = [a, b].map(|node| SocketAddr::new(node, node_port));
    let web = Want::From(&["web"]);
    for to in [at_a, at_b] {
        world
            .becomes(Place::Outside, Transport::Tcp, to, web)
            .await?;
    }
    let every = Duration::from_millis(100);
    let long = LongFlow::open(&world.sockets, at_b, every, world.clock).await;
    let long = long.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    world.kubelet("b")?.node().cut_off(true)?;
    world.serve_by("cut", &["ask-a"]).await?;
    let follows = Want::From(&["ask-a"]);
    world
        .becomes(Place::Outside, Transport::Tcp, at_a, follows)
        .await?;
    // The endpoint that b knows of still answers.
    world
        .gets(Place::Outside, Transport::Tcp, at_b, web)
        .await?;
    let healthz = SocketAddr::new(b, world.cluster.proxy.health_port());
    assert_eq!(world.http_get(healthz, "/healthz")?.status, 200, "FC-79a");
    world.kubelet("b")?.node().cut_off(false)?;
    world
        .becomes(Place::Outside, Transport::Tcp, at_b, follows)
        .await?;
    let end = long.end().await.context("the flow's end")?;
    assert!(end.cut.is_none(), "FC-79a, S-90: {end:?}");
    world.end_with_a_node_cut_off().await
}

/// Health checks of all groups.
fn checks(world: &PodOnA) -> Vec<Option<HealthCheck>> {
    let groups = world.cloud.look(Engine::inventory).groups;
    groups
        .into_iter()
        .map(|(group, _)| group.spec.health)
        .collect()
}

/// Waits until so many targets are healthy in each group.
async fn healthy(world: &PodOnA, count: usize) -> Result<()> {
    let what = format!("{count} healthy targets in each group");
    eventually(&world.clock, &what, WITHIN, async || {
        let groups = world.cloud.look(Engine::inventory).groups;
        let of = |targets: &[e2e_cloud::engine::TargetStatus]| {
            let good = targets.iter().filter(|t| t.state == TargetState::Healthy);
            good.count()
        };
        let counts: Vec<usize> = groups.iter().map(|(_, targets)| of(targets)).collect();
        if counts.iter().all(|n| *n == count) && !counts.is_empty() {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await
}

/// FC-79a, K-24: no agent was ever on node b. Its pods are targets like any other, get the ordinary treatment when they
/// end, and nothing changes for anybody else.
pub(crate) async fn fc79a_k24_pods_on_a_node_without_an_agent_are_targets_like_any_other(
    on: Cluster,
) -> Result<()> {
    let world = world_of(WorldConfig {
        cluster: on,
        without_proxy: vec!["b"],
        // Else they would wait for the agent for five minutes (K-24).
        pod_health: false,
        ..WorldConfig::default()
    })
    .await?;
    world.add_pod_on_b(OnTerm::ServeSeconds(5)).await?;
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    world.objects.apply(manifest.json()).await?;
    let lb = SocketAddr::from((world.lb_address("web").await?, 80));
    first_answer(&world, lb).await?;
    healthy(&world, 2).await?;
    world
        .served_by(Place::Outside, lb, &["web", "web-b"])
        .await?;
    let before = checks(&world);
    let running = load(&world, lb);
    let pods = world.objects.api::<Pod>();
    pods.delete("web-b", &DeleteParams::default()).await?;
    healthy(&world, 1).await?;
    world.served_by(Place::Outside, lb, &["web"]).await?;
    without_loss(running, "FC-79a, K-24").await;
    assert_eq!(checks(&world), before, "K-24: no health check changes");
    world.end().await
}

/// FC-79a: the kubelet is gone, so that no pod of its node is told to end; its deletion stays a mark until somebody
/// forces it. New connections go elsewhere, and nothing is lost, although the pod's process runs on for ever.
pub(crate) async fn fc79a_pods_whose_kubelet_is_gone_get_no_new_connection_and_lose_none(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world.add_pod_on_b(OnTerm::Exit).await?;
    let manifest = ServiceManifest::load_balancer("web", "web").pod_mode();
    let lb = world.serve(manifest).await?.lb();
    healthy(&world, 2).await?;
    world
        .served_by(Place::Outside, lb, &["web", "web-b"])
        .await?;
    let running = load(&world, lb);
    world.kubelet("b")?.die();
    let pods = world.objects.api::<Pod>();
    pods.delete("web-b", &DeleteParams::default()).await?;
    healthy(&world, 1).await?;
    world.served_by(Place::Outside, lb, &["web"]).await?;
    let marked = pods.get("web-b").await?.metadata.deletion_timestamp;
    assert!(marked.is_some(), "FC-79a: nobody ended it");
    let now = DeleteParams::default().grace_period(0);
    pods.delete("web-b", &now).await?;
    world.served_by(Place::Outside, lb, &["web"]).await?;
    without_loss(running, "FC-79a").await;
    world.end().await
}
