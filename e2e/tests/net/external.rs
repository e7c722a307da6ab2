//! External addresses that no node has, and two Services that claim the same.

use crate::{
    lab::{Want, selectorless},
    support::{Place, world_with_pod_on_a},
};
use anyhow::Result;
use onehop_e2e::{traffic::Transport, world::Cluster};
use serde_json::json;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub(crate) async fn s21_s33_external_addresses_serve_and_of_two_claims_the_older_wins(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let external: IpAddr = on.family.of([198, 51, 100, 201].into());
    let to = SocketAddr::new(external, 80);
    // The network brings it to node a, without any node having it.
    let node = world.kubelet("a")?.node();
    node.announce(external)?;
    let with = |name| selectorless(name).with("externalIPs", json!([external.to_string()]));
    let older = world.expose(with("older")).await?;
    world.serve_by("older", &["web"]).await?;
    // Before node a has the rules it sends what comes for the address back to the network, its own packets too.
    // A Service's frontends are programmed at once: its cluster IP tells.
    for transport in [Transport::Tcp, Transport::Udp] {
        world
            .becomes(
                Place::NodeA,
                transport,
                older.cluster(80),
                Want::From(&["web"]),
            )
            .await?;
    }
    // S-21
    for place in [
        Place::NodeA,
        Place::PodOnA,
        Place::PodOnB,
        Place::NodeB,
        Place::Outside,
    ] {
        for transport in [Transport::Tcp, Transport::Udp] {
            world
                .becomes(place, transport, to, Want::From(&["web"]))
                .await?;
        }
    }
    // S-33: another Service with the same address and port changes nothing, and its other frontends work.
    // Times of objects are in seconds.
    world.clock.sleep(Duration::from_millis(1_100)).await;
    let newer = world.expose(with("newer")).await?;
    world.serve_by("newer", &["ask-b"]).await?;
    world
        .becomes(
            Place::PodOnA,
            Transport::Tcp,
            newer.cluster(80),
            Want::From(&["ask-b"]),
        )
        .await?;
    let seen = world.answering(Place::PodOnA, to, 12).await?;
    assert!(seen.iter().eq(["web"]), "S-33: {seen:?}");
    // When the older one goes the newer one gets it.
    world.objects.delete_service("older").await?;
    for place in [Place::NodeA, Place::PodOnA, Place::Outside] {
        world
            .becomes(place, Transport::Tcp, to, Want::From(&["ask-b"]))
            .await?;
    }
    world.end().await
}
