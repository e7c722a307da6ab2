//! Two Services on one address of the load balancer (C-29): packets of each protocol reach the pods of its own.

use crate::support::{Place, world_with_pod_on_a};
use anyhow::Result;
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, OnTerm, POD_PORT, ServiceManifest, first_answer, pod},
};
use serde_json::json;
use std::net::SocketAddr;

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
