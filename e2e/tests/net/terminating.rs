//! Terminating endpoints serve only while nothing is ready.

use crate::{
    lab::{Want, pod_ports, selectorless},
    support::{Place, READY_WITHIN, world_with_pod_on_a},
};
use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, OnTerm, ServiceManifest, eventually, pod},
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn s47_terminating_endpoints_are_used_only_when_nothing_is_ready(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    // Both accept long after SIGTERM, so that who answers is the proxy's choice alone.
    for (name, node) in [("last-a", "a"), ("last-b", "b")] {
        world
            .objects
            .create(pod(name, "last", node, OnTerm::ServeSeconds(25)))
            .await?;
        world
            .objects
            .pod_ready("default", name, READY_WITHIN)
            .await?;
    }
    let service = world
        .serve(ServiceManifest::load_balancer("last", "last"))
        .await?;
    let pods = world.objects.api::<Pod>();
    pods.delete("last-a", &DeleteParams::default()).await?;
    let answering = async || {
        let mut names = Vec::new();
        for _ in 0..20 {
            let answer = world
                .ask_from(Place::PodOnA, Transport::Tcp, service.cluster_ip())
                .await;
            names.push(answer.map(|(a, _)| a.pod).map_err(|f| format!("{f:?}"))?);
        }
        names.sort();
        names.dedup();
        Ok::<_, String>(names)
    };
    eventually(
        &world.clock,
        "only the ready pod answers",
        WITHIN,
        async || match answering().await? {
            names if names == ["last-b"] => Ok(()),
            names => Err(format!("{names:?}")),
        },
    )
    .await?;
    pods.delete("last-b", &DeleteParams::default()).await?;
    eventually(
        &world.clock,
        "the terminating pods answer",
        WITHIN,
        async || match answering().await? {
            names if names == ["last-a", "last-b"] => Ok(()),
            names => Err(format!("{names:?}")),
        },
    )
    .await?;
    world.end().await
}

/// Nothing ready anywhere: each policy falls back to the terminating endpoints of its own list.
pub(crate) async fn s47_each_policy_falls_back_to_the_terminating_endpoints_of_its_list(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let policy = |internal: &str, external: &str| {
        selectorless("last")
            .with("type", json!("NodePort"))
            .with("internalTrafficPolicy", json!(internal))
            .with("externalTrafficPolicy", json!(external))
    };
    let exposed = world.expose(policy("Cluster", "Cluster")).await?;
    let mut endpoints = Vec::new();
    for pod in ["web", "ask-b"] {
        let mut endpoint = world.endpoint(pod).await?;
        endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        endpoints.push(endpoint);
    }
    // S-40: neither ready nor serving: never used.
    let mut over = world.endpoint("ask-a").await?;
    over["conditions"] = json!({"ready": false, "serving": false, "terminating": true});
    endpoints.push(over);
    world.slice("last", "last", endpoints, pod_ports()).await?;
    let cluster = exposed.cluster(80);
    let node_port = exposed.node_port("tcp")?;
    let [a, b] =
        [Place::NodeA, Place::NodeB].map(|node| SocketAddr::new(world.place(node).1, node_port));
    let all = ["web", "ask-b"];
    for (place, to) in [(Place::PodOnA, cluster), (Place::Outside, b)] {
        world.served_by(place, to, &all).await?;
    }
    world.objects.apply(policy("Local", "Local").json()).await?;
    for (place, to, pod) in [
        (Place::PodOnA, cluster, "web"),
        (Place::PodOnB, cluster, "ask-b"),
        (Place::NodeB, cluster, "ask-b"),
        (Place::Outside, a, "web"),
        (Place::Outside, b, "ask-b"),
    ] {
        world.served_by(place, to, &[pod]).await?;
    }
    // One of them ready: it is the only one, and where it is not the list is empty.
    let ready = vec![world.endpoint("ask-b").await?];
    world.slice("last", "last", ready, pod_ports()).await?;
    world
        .becomes(Place::Outside, Transport::Tcp, a, Want::Silence)
        .await?;
    world.served_by(Place::Outside, b, &["ask-b"]).await?;
    world.end().await
}

/// Endpoints that are not ready, published or not (S-07, S-40): the Service's field decides, also of terminating ones.
pub(crate) async fn s07_s40_unready_pods_serve_only_where_they_are_published(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let mut late = pod("late", "late", "b", OnTerm::ServeSeconds(25));
    // A port on which nobody ever listens.
    late["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"] = json!(1);
    world.objects.create(late).await?;
    let service = |publish: bool| {
        ServiceManifest::cluster_ip("late", "late").with("publishNotReadyAddresses", json!(publish))
    };
    let to = world.expose(service(true)).await?.cluster(80);
    let late = Want::From(&["late"]);
    for place in [Place::PodOnA, Place::NodeB] {
        world.becomes(place, Transport::Tcp, to, late).await?;
    }
    world.objects.apply(service(false).json()).await?;
    for place in [Place::PodOnA, Place::NodeB] {
        world
            .becomes(place, Transport::Tcp, to, Want::Refused)
            .await?;
    }
    world.objects.apply(service(true).json()).await?;
    for place in [Place::PodOnA, Place::NodeB] {
        world.becomes(place, Transport::Tcp, to, late).await?;
    }
    let pods = world.objects.api::<Pod>();
    pods.delete("late", &DeleteParams::default()).await?;
    eventually(&world.clock, "it terminates", WITHIN, async || {
        let pod = pods.get("late").await.map_err(|e| e.to_string())?;
        let marked = pod.metadata.deletion_timestamp;
        marked.map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await?;
    world.gets(Place::NodeB, Transport::Tcp, to, late).await?;
    world.objects.apply(service(false).json()).await?;
    world
        .becomes(Place::PodOnA, Transport::Tcp, to, Want::Refused)
        .await?;
    world.end().await
}
