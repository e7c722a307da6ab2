//! The agent's two ways to run (crd.md section 8): which Services it serves, and where it answers for the node.

use crate::support::{Place, PodOnA, world_with_pod_on_a};
use anyhow::{Context, Result};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, Proxy, ServiceManifest, eventually},
};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

const WITHIN: Duration = Duration::from_secs(10);

async fn cluster_ip(world: &PodOnA, name: &str) -> Result<SocketAddr> {
    let spec = world.objects.service(name).await?.spec.context("a spec")?;
    let address: IpAddr = spec.cluster_ip.context("a ClusterIP")?.parse()?;
    Ok((address, 80).into())
}

async fn answers(world: &PodOnA, to: SocketAddr) -> Result<()> {
    eventually(&world.clock, &format!("{to} answers"), WITHIN, async || {
        let asked = world.ask_from(Place::PodOnB, Transport::Tcp, to).await;
        asked.map(|_| ()).map_err(|f| format!("{f:?}"))
    })
    .await
}

pub(crate) async fn s02_beside_serves_labelled_services_only(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let ours = ServiceManifest::cluster_ip("ours", "web");
    let theirs = ServiceManifest::cluster_ip("theirs", "web").unlabelled();
    world.objects.apply(theirs.json()).await?;
    world.objects.apply(ours.json()).await?;
    answers(&world, cluster_ip(&world, "ours").await?).await?;
    let theirs = cluster_ip(&world, "theirs").await?.ip().to_string();
    assert!(
        !world.ruleset("b")?.contains(&theirs),
        "no rule of ours names a Service of kube-proxy"
    );
    let node = world.place(Place::NodeB).1;
    assert_eq!(
        world.http_get((node, 10356).into(), "/healthz")?.status,
        200
    );
    assert!(
        world.http_get((node, 10256).into(), "/healthz").is_err(),
        "10256 is kube-proxy's"
    );
    world.end().await
}

pub(crate) async fn s02_s129_s310_replace_serves_all_and_answers_on_kube_proxys_ports(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on.with_proxy(Proxy::Replace)).await?;
    let unlabelled = ServiceManifest::load_balancer("web", "web").unlabelled();
    let served = world.serve(unlabelled).await?;
    answers(&world, served.cluster_ip()).await?;
    let node = world.place(Place::NodeB).1;
    for port in [10356, 10256] {
        for path in ["/healthz", "/livez"] {
            let status = world.http_get((node, port).into(), path)?.status;
            assert_eq!(status, 200, "{path} on {port}");
        }
    }
    let mode = world.http_get_on_node("b", (Ipv4Addr::LOCALHOST, 10249).into(), "/proxyMode")?;
    assert_eq!(mode.body, "nftables");
    world.end().await
}
