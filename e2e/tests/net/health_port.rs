//! The answer on healthCheckNodePort while endpoints come, move and terminate.

use crate::support::{Place, PodOnA, READY_WITHIN, world_with_pod_on_a};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use onehop_e2e::world::{Cluster, HttpAnswer, OnTerm, ServiceManifest, eventually, pod};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);
/// Longer than the longest pause between attempts to bind.
const RETRIED_WITHIN: Duration = Duration::from_secs(45);

async fn answers(world: &PodOnA, to: SocketAddr, status: u16) -> Result<HttpAnswer> {
    eventually(
        &world.clock,
        &format!("{to} answers {status}"),
        WITHIN,
        async || match world.http_get(to, "/healthz") {
            Ok(answer) if answer.status == status => Ok(answer),
            other => Err(format!("{other:?}")),
        },
    )
    .await
}

pub(crate) async fn s101_s102_s103_health_port_follows_local_ready_endpoints(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world
        .objects
        .create(pod("hc-a", "hc", "a", OnTerm::ServeSeconds(25)))
        .await?;
    world
        .objects
        .pod_ready("default", "hc-a", READY_WITHIN)
        .await?;
    let manifest =
        ServiceManifest::load_balancer("hc", "hc").with("externalTrafficPolicy", json!("Local"));
    let service = world.serve(manifest).await?;
    let port = world
        .objects
        .service("hc")
        .await?
        .spec
        .and_then(|s| s.health_check_node_port)
        .context("a health port")?;
    let [a, b] = service
        .nodes()
        .map(|node| SocketAddr::from((node, u16::try_from(port).unwrap_or(0))));

    let ready = answers(&world, a, 200).await?;
    assert_eq!(
        ready.body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"hc\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}"
    );
    assert_eq!(ready.headers["content-type"], "application/json");
    assert_eq!(ready.headers["x-content-type-options"], "nosniff");
    assert_eq!(ready.headers["x-load-balancing-endpoint-weight"], "1");
    let none = answers(&world, b, 503).await?;
    // C-43, L-25: nothing local, so the node does not answer for it.
    assert_eq!(none.headers["x-load-balancing-endpoint-weight"], "0");

    world
        .objects
        .create(pod("hc-b", "hc", "b", OnTerm::Exit))
        .await?;
    world
        .objects
        .pod_ready("default", "hc-b", READY_WITHIN)
        .await?;
    answers(&world, b, 200).await?;
    // Terminating endpoints never count, though they still serve.
    world
        .objects
        .api::<Pod>()
        .delete("hc-a", &DeleteParams::default())
        .await?;
    answers(&world, a, 503).await?;

    world.objects.delete_service("hc").await?;
    world.service_gone("hc").await?;
    eventually(
        &world.clock,
        "the health port is closed",
        WITHIN,
        async || match world.http_get(b, "/") {
            Err(_) => Ok(()),
            Ok(answer) => Err(format!("{answer:?}")),
        },
    )
    .await?;
    world.end().await
}

fn local(name: &str, port: u16) -> ServiceManifest {
    ServiceManifest::load_balancer(name, "web")
        // Its slices are hand-made: they stay when a node goes.
        .with("selector", json!(null))
        .with("externalTrafficPolicy", json!("Local"))
        .with("healthCheckNodePort", json!(port))
}

/// Somebody else holds the port: said on the Service, tried again, and open as soon as it is free.
pub(crate) async fn s105_a_health_port_that_is_taken_is_told_and_tried_again(
    on: Cluster,
) -> Result<()> {
    const PORT: u16 = 32_110;
    let world = world_with_pod_on_a(on).await?;
    let (netns, node) = world.place(Place::NodeA);
    let holder = netns.tcp_listener((node, PORT).into())?;
    world.expose(local("held", PORT)).await?;
    world.serve_by("held", &["web"]).await?;
    let events: kube::Api<Event> = world.objects.api();
    let what = "S-105: an event on the Service";
    eventually(&world.clock, what, WITHIN, async || {
        let all = events.list(&kube::api::ListParams::default()).await;
        let all = all.map_err(|e| e.to_string())?.items;
        let told = |event: &Event| {
            event.reason.as_deref() == Some("FailedToStartServiceHealthcheck")
                && event.involved_object.name.as_deref() == Some("held")
                && event.type_.as_deref() == Some("Warning")
        };
        if all.iter().any(told) {
            Ok(())
        } else {
            let reasons: Vec<_> = all.into_iter().filter_map(|e| e.reason).collect();
            Err(format!("{reasons:?}"))
        }
    })
    .await?;
    drop(holder);
    eventually(
        &world.clock,
        "S-105: open at last",
        RETRIED_WITHIN,
        async || match world.http_get((node, PORT).into(), "/healthz") {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    world.end().await
}

/// What is said of the node reaches /healthz, never the health ports of Services.
pub(crate) async fn s104_s111_taints_and_the_end_of_the_node_reach_healthz_only(
    on: Cluster,
) -> Result<()> {
    const PORT: u16 = 32_111;
    let world = world_with_pod_on_a(on).await?;
    world.expose(local("kept", PORT)).await?;
    world.serve_by("kept", &["web"]).await?;
    let node = world.place(Place::NodeA).1;
    let (service, healthz) = ((node, PORT).into(), SocketAddr::new(node, 10356));
    answers(&world, service, 200).await?;
    let nodes: kube::Api<Node> = kube::Api::all(world.kube());
    let taints = async |taints: serde_json::Value| {
        let patch = json!({"spec": {"taints": taints}});
        nodes
            .patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    for taint in ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"] {
        taints(json!([{"key": taint, "effect": "PreferNoSchedule"}])).await?;
        let answer = answers(&world, healthz, 503).await?;
        assert!(
            answer.body.contains("\"nodeEligible\":false")
                || answer.body.contains("\"nodeEligible\": false"),
            "S-111: {answer:?}"
        );
        assert_eq!(world.http_get(service, "/")?.status, 200, "S-104: {taint}");
        let livez = world.http_get(healthz, "/livez")?.status;
        assert_eq!(livez, 200, "S-110: {taint}");
        taints(json!(null)).await?;
        answers(&world, healthz, 200).await?;
    }
    // S-111: a cordon changes nothing.
    let cordon = json!({"spec": {"unschedulable": true}});
    nodes
        .patch("a", &PatchParams::default(), &Patch::Merge(cordon))
        .await?;
    assert_eq!(world.http_get(healthz, "/healthz")?.status, 200, "S-111");
    nodes.delete("a", &DeleteParams::default()).await?;
    answers(&world, healthz, 503).await?;
    assert_eq!(world.http_get(service, "/")?.status, 200, "S-104");
    world.end().await
}

/// S-109, K-29: the agent is killed and comes back while there is no API server. Until that is back, the health ports and
/// the rules are what they were.
/// When the agent of node a committed last, in seconds.
fn last_commit(world: &PodOnA) -> Result<f64> {
    let metrics = SocketAddr::from(([127, 0, 0, 1], 10349));
    let text = world.http_get_on_node("a", metrics, "/metrics")?.body;
    let of = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let ours = name.contains("sync_proxy_rules_last_timestamp_seconds");
        ours.then(|| value.parse().ok())?
    };
    let all = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(of);
    all.reduce(f64::max).context("no commit is counted")
}

pub(crate) async fn s109_k29_a_restart_without_the_api_server_changes_no_answer(
    on: Cluster,
) -> Result<()> {
    const PORT: u16 = 32_112;
    let world = world_with_pod_on_a(on).await?;
    let exposed = world.expose(local("kept", PORT)).await?;
    world.serve_by("kept", &["web"]).await?;
    let a = (world.place(Place::NodeA).1, PORT).into();
    answers(&world, a, 200).await?;
    // What is kept follows half a second after a commit, and holds for what that left in the kernel.
    let web = on.family.of(world.pod_place("web").await?.1).to_string();
    let file = world.folder().join("node-a.json");
    let what = "the answer is kept, and later than the last commit";
    eventually(&world.clock, what, WITHIN, async || {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let kept: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let written = kept["written"].as_f64().unwrap_or_default();
        let committed = last_commit(&world).map_err(|error| error.to_string())? * 1000.0;
        let holds = text.contains(&web) && text.contains("\"active\"") && written > committed;
        holds
            .then_some(())
            .ok_or_else(|| format!("last commit at {committed}: {text}"))
    })
    .await?;
    let node = world.kubelet("a")?.node();
    node.cut_off(true)?;
    world.kill_agent("a")?;
    let kept = answers(&world, a, 200).await?;
    let weight = &kept.headers["x-load-balancing-endpoint-weight"];
    assert_eq!(weight, "1", "S-109");
    let (tcp, web) = (
        onehop_e2e::traffic::Transport::Tcp,
        crate::lab::Want::From(&["web"]),
    );
    world
        .gets(Place::PodOnA, tcp, exposed.cluster(80), web)
        .await?;
    node.cut_off(false)?;
    world.proxies_ready().await?;
    // From here on the answer follows the cluster again.
    world.serve_by("kept", &["ask-b"]).await?;
    answers(&world, a, 503).await?;
    world.end_with_a_node_cut_off().await
}
