//! The answer on healthCheckNodePort while endpoints come, move and terminate.

use crate::support::{PodOnA, READY_WITHIN, world_with_pod_on_a};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_e2e::world::{Cluster, HttpAnswer, OnTerm, ServiceManifest, eventually, pod};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);

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
