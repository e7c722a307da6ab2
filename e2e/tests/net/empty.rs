//! Empty endpoint lists: refused where there is no endpoint at all, dropped where a Local policy finds none here.

use crate::{
    cells::Frontend,
    support::{Place, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use onehop_e2e::{
    traffic::{FailureKind, Transport},
    world::{Cluster, ServiceManifest, eventually},
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn s48_a_service_without_any_endpoint_is_refused(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = ServiceManifest::cluster_ip("nobody", "nobody").with("type", json!("NodePort"));
    world.objects.apply(manifest.json()).await?;
    let spec = world
        .objects
        .service("nobody")
        .await?
        .spec
        .context("a spec")?;
    let cluster: SocketAddr = (
        spec.cluster_ip
            .context("a ClusterIP")?
            .parse::<std::net::IpAddr>()?,
        80,
    )
        .into();
    let port = spec
        .ports
        .iter()
        .flatten()
        .find_map(|p| p.node_port)
        .context("a node port")?;
    let node: SocketAddr = (world.place(Place::NodeA).1, u16::try_from(port)?).into();
    for (place, to) in [
        (Place::PodOnA, cluster),
        (Place::NodeB, cluster),
        (Place::Outside, node),
        (Place::PodOnB, node),
    ] {
        eventually(
            &world.clock,
            &format!("{to} refuses {place:?}"),
            WITHIN,
            async || match world.ask_from(place, Transport::Tcp, to).await {
                Err(f) if f.kind == FailureKind::Refused => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await?;
    }
    let udp = world.ask_from(Place::PodOnA, Transport::Udp, cluster).await;
    assert!(
        matches!(&udp, Err(f) if f.kind == FailureKind::Refused),
        "UDP: {udp:?}"
    );
    world.end().await
}

pub(crate) async fn s55_policy_local_without_local_endpoint_is_dropped_for_outside_clients_only(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let service =
        ServiceManifest::load_balancer("web", "web").with("externalTrafficPolicy", json!("Local"));
    let service = world.serve(service).await?;
    let to = service.address(Frontend::NodePortB, Transport::Tcp);
    let outside = world.ask_from(Place::Outside, Transport::Tcp, to).await;
    assert!(
        matches!(&outside, Err(f) if f.kind == FailureKind::TimeoutConnect),
        "{outside:?}"
    );
    let node = world.ask_from(Place::NodeB, Transport::Tcp, to).await;
    assert!(
        node.is_ok(),
        "the node itself is served from the Cluster list: {node:?}"
    );
    world.end().await
}

pub(crate) async fn s25_an_undefined_port_of_a_cluster_ip_is_refused(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let service = world
        .serve(ServiceManifest::load_balancer("web", "web"))
        .await?;
    let to = SocketAddr::new(service.cluster_ip().ip(), 81);
    let seen = world.ask_from(Place::PodOnB, Transport::Tcp, to).await;
    assert!(
        matches!(&seen, Err(f) if f.kind == FailureKind::Refused),
        "{seen:?}"
    );
    world.end().await
}
