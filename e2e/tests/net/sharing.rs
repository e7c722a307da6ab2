//! Two Services on one address of the load balancer (C-29): packets of each protocol reach the pods of its own.

use crate::support::{Place, PodOnA, world_with_pod_on_a};
use anyhow::Result;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, OnTerm, POD_PORT, ServiceManifest, eventually, first_answer, pod},
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const KEY: &str = "onehop.dev/allow-shared-ip";

fn service(name: &str, protocol: &str) -> ServiceManifest {
    let port = json!({"name": "p", "port": 80, "protocol": protocol, "targetPort": POD_PORT});
    ServiceManifest::load_balancer(name, name)
        .with("ports", json!([port]))
        .annotated(KEY, "web")
}

pub(crate) async fn c29_tcp_and_udp_on_one_number_of_one_address_reach_the_pods_of_two_services(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world
        .objects
        .create(pod("dns", "dns", "b", OnTerm::Exit))
        .await?;
    world
        .objects
        .pod_ready("default", "dns", crate::support::READY_WITHIN)
        .await?;
    world.objects.apply(service("web", "TCP").json()).await?;
    world.objects.apply(service("dns", "UDP").json()).await?;
    let address = world.lb_address("web").await?;
    assert_eq!(world.lb_address("dns").await?, address, "C-29");
    let to: SocketAddr = (address, 80).into();
    first_answer(&world, to).await?;
    for place in [Place::Outside, Place::PodOnA, Place::NodeB] {
        for (transport, name) in [(Transport::Tcp, "web"), (Transport::Udp, "dns")] {
            let answer = world.ask_from(place, transport, to).await;
            let (answer, _) =
                answer.map_err(|e| anyhow::anyhow!("{place:?} {transport:?}: {e:?}"))?;
            assert_eq!(answer.pod, name, "C-29: {place:?} over {transport:?}");
        }
    }
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "FC-100");
    world.end().await
}

pub(crate) async fn c19_c29_an_address_is_shared_in_vip_mode_and_one_that_leaves_takes_nothing_along(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world
        .objects
        .create(pod("dns", "dns", "b", OnTerm::Exit))
        .await?;
    world
        .objects
        .pod_ready("default", "dns", crate::support::READY_WITHIN)
        .await?;
    let web = service("web", "TCP").vip_mode();
    let dns = service("dns", "UDP").vip_mode();
    world.objects.apply(web.json()).await?;
    world.objects.apply(dns.json()).await?;
    let address = world.lb_address("web").await?;
    assert_eq!(world.lb_address("dns").await?, address, "C-29");
    let to: SocketAddr = (address, 80).into();
    first_answer(&world, to).await?;
    // Until an agent has said what it can do nobody waits for it, so the first datagram may be early.
    let patient = Duration::from_secs(30);
    eventually(
        &world.clock,
        "a datagram is answered",
        patient,
        async || {
            let answer = world.ask_from(Place::Outside, Transport::Udp, to).await;
            answer.map_err(|failure| format!("{failure:?}"))
        },
    )
    .await?;
    both_answer(&world, to, "both in vip mode").await?;
    // One leaves: the other one stays.
    world.objects.delete_service("dns").await?;
    world.service_gone("dns").await?;
    let answer = world.ask_from(Place::Outside, Transport::Tcp, to).await;
    assert!(answer.is_ok(), "C-19: {answer:?}");
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "FC-100");
    world.end().await
}

async fn both_answer(world: &PodOnA, to: SocketAddr, when: &str) -> Result<()> {
    for place in [Place::Outside, Place::PodOnA, Place::NodeB] {
        for (transport, name) in [(Transport::Tcp, "web"), (Transport::Udp, "dns")] {
            let answer = world.ask_from(place, transport, to).await;
            let (answer, _) =
                answer.map_err(|e| anyhow::anyhow!("{when}: {place:?} {transport:?}: {e:?}"))?;
            assert_eq!(
                answer.pod, name,
                "C-29: {when}: {place:?} over {transport:?}"
            );
        }
    }
    Ok(())
}
