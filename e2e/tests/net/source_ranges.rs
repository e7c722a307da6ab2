//! loadBalancerSourceRanges: checked before translation, for load balancer addresses only.

use crate::{
    lab::Want,
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::Result;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, Family, ServiceManifest},
};
use serde_json::json;
use std::net::SocketAddr;

use Place::{NodeA, NodeB, Outside, PodOnA as OnA, PodOnB as OnB};

fn web(ranges: &[String]) -> ServiceManifest {
    // Of no mode: what a Service with ranges gets by itself has to hold them.
    ServiceManifest::load_balancer("web", "web").with("loadBalancerSourceRanges", json!(ranges))
}

async fn outcomes(
    world: &PodOnA,
    to: SocketAddr,
    ranges: &[String],
    served: &[Place],
    dropped: &[Place],
) -> Result<()> {
    world.objects.apply(web(ranges).json()).await?;
    // The first of each shows that the change has come everywhere it is asked from.
    for place in served {
        let web = Want::From(&["web"]);
        world.becomes(*place, Transport::Tcp, to, web).await?;
        world.gets(*place, Transport::Udp, to, web).await?;
    }
    for place in dropped {
        world
            .becomes(*place, Transport::Tcp, to, Want::Silence)
            .await?;
    }
    Ok(())
}

pub(crate) async fn s70_s71_s73_s74_ranges_hold_for_everybody_at_the_load_balancers_address(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let everybody = [OnA, NodeA, OnB, NodeB, Outside];
    world.objects.apply(web(&[]).json()).await?;
    let to = SocketAddr::new(world.lb_address("web").await?, 80);
    onehop_e2e::world::first_answer(&world, to).await?;
    let host = |place| format!("{}/{}", world.place(place).1, on.family.bits());
    let halves = match on.family {
        Family::V4 => ["0.0.0.0/1", "128.0.0.0/1"],
        Family::V6 => ["::/1", "8000::/1"],
    };
    let other_family = match on.family {
        Family::V4 => "2001:db8:dead::/48",
        Family::V6 => "192.0.2.0/24",
    };

    // S-74, S-71: one pod and its node; others in the cluster are no exception.
    let some = [host(OnA), host(NodeA)];
    outcomes(&world, to, &some, &[OnA, NodeA], &[OnB, NodeB, Outside]).await?;
    // S-70: the ClusterIP is not concerned.
    let cluster = world.objects.service("web").await?.spec;
    let cluster = cluster.and_then(|s| s.cluster_ip).unwrap_or_default();
    let cluster = SocketAddr::new(cluster.parse()?, 80);
    world
        .gets(OnB, Transport::Tcp, cluster, Want::From(&["web"]))
        .await?;
    // S-74: everything, in two halves.
    let all = halves.map(str::to_owned);
    outcomes(&world, to, &all, &everybody, &[]).await?;
    // S-74: an address that nobody has.
    let nobody = format!(
        "{}/{}",
        on.family.of([192, 0, 2, 1].into()),
        on.family.bits()
    );
    outcomes(&world, to, &[nobody], &[], &everybody).await?;
    // S-73: ranges of the other family say nothing about this one.
    outcomes(&world, to, &[other_family.to_owned()], &everybody, &[]).await?;
    // S-50: a flow that is there goes on when its client is shut out; new ones are dropped.
    let long = onehop_e2e::traffic::LongFlow::open(
        &world.sockets,
        to,
        std::time::Duration::from_millis(200),
        world.clock,
    )
    .await
    .map_err(|f| anyhow::anyhow!("{f:?}"))?;
    outcomes(&world, to, &some, &[OnA], &[Outside]).await?;
    let end = long.end().await;
    assert!(
        end.as_ref().is_some_and(|end| end.cut.is_none()),
        "S-50, I12: {end:?}"
    );
    // S-74: cleared.
    outcomes(&world, to, &[], &everybody, &[]).await?;
    world.end().await
}

/// S-72: on a node that has the load balancer's address bound, what it sends there has that address as its source; where
/// the node itself is allowed, that is allowed, too.
pub(crate) async fn s72_a_node_that_is_allowed_may_come_from_the_load_balancers_address_itself(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let served = world.serve(web(&[])).await?;
    let to = served.lb();
    let bound = format!("{}/{}", to.ip(), on.family.bits());
    world.on_node("a", "ip", &["addr", "add", &bound, "dev", "lo"])?;
    let host = |place| format!("{}/{}", world.place(place).1, on.family.bits());
    outcomes(&world, to, &[host(NodeA)], &[NodeA], &[OnA, NodeB]).await?;
    outcomes(&world, to, &[host(OnA)], &[OnA], &[NodeA]).await?;
    world.on_node("a", "ip", &["addr", "del", &bound, "dev", "lo"])?;
    outcomes(&world, to, &[], &[NodeA, OnB], &[]).await?;
    world.end().await
}
