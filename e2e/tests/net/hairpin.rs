//! A pod that reaches itself through its own Service.

use crate::support::world_with_pod_on_a;
use anyhow::Result;
use onehop_e2e::{
    traffic::{ask_tcp, ask_udp},
    world::{Cluster, ServiceManifest, eventually, sockets_of},
};
use std::{net::Ipv4Addr, time::Duration};

const WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn s66_a_pod_reaches_itself_through_its_cluster_ip_and_is_masqueraded(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let service = world
        .serve(ServiceManifest::load_balancer("web", "web"))
        .await?;
    let (netns, own) = world.pod_place("web").await?;
    let sockets = sockets_of(&netns, Ipv4Addr::UNSPECIFIED);
    for to in [service.cluster_ip(), service.lb()] {
        // The agent captures the load balancer's address once it is published, a moment later.
        let (answer, _) = eventually(&world.clock, &format!("tcp {to}"), WITHIN, async || {
            ask_tcp(&sockets, to).await.map_err(|f| format!("{f:?}"))
        })
        .await?;
        assert_ne!(
            answer.peer.ip(),
            world.cluster.family.of(own),
            "an unmasqueraded hairpin never gets an answer"
        );
        ask_udp(&sockets, to)
            .await
            .map_err(|f| anyhow::anyhow!("udp {to}: {f:?}"))?;
    }
    world.end().await
}
