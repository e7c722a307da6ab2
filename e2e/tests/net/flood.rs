//! Many Services at once, and programs that are killed in the middle of them (I6).

use crate::support::{PodOnA, world_with_pod_on_a};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Service;
use kube::api::ListParams;
use onehop_e2e::{
    traffic::ask_tcp,
    world::{Cluster, ServiceManifest, eventually, sockets_of},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

const SERVICES: usize = 40;
const WITHIN: Duration = Duration::from_mins(1);

fn names() -> impl Iterator<Item = String> {
    (0..SERVICES).map(|i| format!("many-{i}"))
}

async fn services(world: &PodOnA) -> Result<Vec<Service>, String> {
    let listed = world.objects.api::<Service>();
    let listed = listed.list(&ListParams::default()).await;
    let ours = |service: &Service| {
        let name = service.metadata.name.as_deref();
        name.is_some_and(|name| name.starts_with("many-"))
    };
    let all = listed.map_err(|e| e.to_string())?.items;
    Ok(all.into_iter().filter(ours).collect())
}

fn has_address(service: &Service) -> bool {
    let status = service.status.as_ref();
    let balancer = status.and_then(|s| s.load_balancer.as_ref());
    balancer.is_some_and(|b| b.ingress.as_ref().is_some_and(|i| !i.is_empty()))
}

/// Every Service answers on a node.
async fn all_answer(world: &PodOnA, node: &str) -> Result<()> {
    let sockets = sockets_of(world.kubelet(node)?.node().netns(), Ipv4Addr::UNSPECIFIED);
    for service in services(world).await.map_err(anyhow::Error::msg)? {
        let spec = service.spec.context("a spec")?;
        let address: IpAddr = spec.cluster_ip.context("a ClusterIP")?.parse()?;
        let to = SocketAddr::from((address, 80));
        eventually(
            &world.clock,
            &format!("{to} answers on node {node}"),
            WITHIN,
            async || {
                let asked = ask_tcp(&sockets, to).await;
                asked.map(drop).map_err(|f| format!("{f:?}"))
            },
        )
        .await?;
    }
    Ok(())
}

pub(crate) async fn i6_many_services_made_and_deleted_at_once_through_kills_end_right(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifests = names().map(|name| ServiceManifest::load_balancer(&name, "web").json());
    try_join_all(manifests.map(|manifest| world.objects.apply(manifest))).await?;
    world.kill_agent("a")?;
    world.controller.kill()?;
    eventually(
        &world.clock,
        "every Service has an address",
        WITHIN,
        async || {
            let done = services(&world).await?.into_iter().filter(has_address);
            let (done, made) = (done.count(), world.load_balancers());
            if (done, made) == (SERVICES, SERVICES) {
                Ok(())
            } else {
                Err(format!("{done} have one, {made} load balancers"))
            }
        },
    )
    .await?;
    all_answer(&world, "a").await?;
    all_answer(&world, "b").await?;
    let names: Vec<String> = names().collect();
    try_join_all(names.iter().map(|name| world.objects.delete_service(name))).await?;
    world.kill_agent("b")?;
    world.controller.kill()?;
    eventually(&world.clock, "nothing is left", WITHIN, async || {
        let left = services(&world).await?.len();
        let (balancers, groups) = (world.load_balancers(), world.target_groups());
        let elements = ["a", "b"].map(|node| {
            let ruleset = world.ruleset(node).unwrap_or_default();
            ruleset.matches("goto n").count()
        });
        if (left, balancers, groups, elements) == (0, 0, 0, [0, 0]) {
            Ok(())
        } else {
            let cloud = format!("{balancers} load balancers, {groups} groups");
            Err(format!("{left} Services, {cloud}, verdicts {elements:?}"))
        }
    })
    .await?;
    world.end().await
}
