//! Terminating endpoints serve only while nothing is ready.

use crate::support::{Place, READY_WITHIN, world_with_pod_on_a};
use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, OnTerm, ServiceManifest, eventually, pod},
};
use std::time::Duration;

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
