//! Services with an address of each family: two proxies that know nothing of each other.

use crate::{
    lab::{Want, selectorless},
    support::{Place, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, Family, ServiceManifest, address_pool, eventually},
};
use serde_json::json;
use std::net::{IpAddr, SocketAddr};

/// The families, the one of the run first.
fn families(on: Cluster) -> [Family; 2] {
    match on.family {
        Family::V4 => [Family::V4, Family::V6],
        Family::V6 => [Family::V6, Family::V4],
    }
}

fn dual(manifest: ServiceManifest, on: Cluster) -> ServiceManifest {
    let families = families(on).map(Family::word);
    manifest
        .with("ipFamilyPolicy", json!("RequireDualStack"))
        .with("ipFamilies", json!(families))
}

fn dual_with_node_ports(manifest: ServiceManifest, on: Cluster) -> ServiceManifest {
    dual(manifest, on).with("type", json!("NodePort"))
}

pub(crate) async fn s10_both_families_of_a_service_serve_and_keep_addresses(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let exposed = world
        .expose(dual_with_node_ports(
            ServiceManifest::cluster_ip("dual", "web"),
            on,
        ))
        .await?;
    let spec = world
        .objects
        .service("dual")
        .await?
        .spec
        .context("a spec")?;
    let addresses: Vec<IpAddr> = spec
        .cluster_ips
        .unwrap_or_default()
        .iter()
        .filter_map(|ip| ip.parse().ok())
        .collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    let node_port = exposed.node_port("tcp")?;
    for (family, cluster) in families(on).into_iter().zip(addresses) {
        let node = family.of(world.kubelet("b")?.node().address());
        let (_, pod) = world.pod_place("ask-b").await?;
        for transport in [Transport::Tcp, Transport::Udp] {
            let to = SocketAddr::new(cluster, 80);
            let (answer, _) = world
                .answer_of(Place::PodOnB, transport, to, &["web"])
                .await?;
            let seen = answer.peer.ip();
            assert_eq!(seen, family.of(pod), "S-10, S-60 over {transport:?}");
        }
        world
            .becomes(
                Place::Outside,
                Transport::Tcp,
                (node, node_port).into(),
                Want::From(&["web"]),
            )
            .await?;
    }
    world.end().await
}

pub(crate) async fn s10_a_family_without_endpoints_is_refused_while_the_other_serves(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world
        .expose(dual_with_node_ports(selectorless("half"), on))
        .await?;
    // The helper's slices are of the run's family: the other one has none.
    world.serve_by("half", &["web"]).await?;
    let spec = world
        .objects
        .service("half")
        .await?
        .spec
        .context("a spec")?;
    let [own, other] = spec.cluster_ips.as_deref().unwrap_or_default() else {
        anyhow::bail!("not two addresses: {:?}", spec.cluster_ips);
    };
    let (own, other): (IpAddr, IpAddr) = (own.parse()?, other.parse()?);
    for place in [Place::PodOnA, Place::NodeB] {
        world
            .becomes(
                place,
                Transport::Tcp,
                (own, 80).into(),
                Want::From(&["web"]),
            )
            .await?;
        world
            .becomes(place, Transport::Tcp, (other, 80).into(), Want::Refused)
            .await?;
    }
    world.end().await
}

/// One load balancer with an address of each family, in each target mode: every address reaches a pod, which sees a client
/// of that family.
pub(crate) async fn s10_c31_a_load_balancer_of_both_families_reaches_targets_of_both(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let [_, other] = families(on);
    let pool = address_pool("other-family", &other.pool());
    world.objects.create(pool).await?;
    let service = |name| dual(ServiceManifest::load_balancer(name, "web"), on);
    let modes = [
        service("by-node"),
        service("by-vip").vip_mode(),
        service("by-pod").pod_mode(),
    ];
    for manifest in modes {
        let service = world.objects.apply(manifest.json()).await?;
        let name = service.metadata.name.context("a name")?;
        let what = format!("{name} gets two addresses");
        let addresses = eventually(&world.clock, &what, crate::lab::WITHIN, async || {
            let service = world.objects.service(&name).await;
            let status = service.map_err(|e| e.to_string())?.status;
            let ingress = status.and_then(|s| s.load_balancer?.ingress);
            let ips = ingress.into_iter().flatten().filter_map(|i| i.ip);
            let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.parse().ok()).collect();
            let has = |v4: bool| ips.iter().any(|ip| ip.is_ipv4() == v4);
            if ips.len() == 2 && has(true) && has(false) {
                Ok(ips)
            } else {
                Err(format!("{ips:?}"))
            }
        })
        .await?;
        for address in addresses {
            world.published(&name, address).await?;
            for transport in [Transport::Tcp, Transport::Udp] {
                let to = SocketAddr::new(address, 80);
                let (answer, _) = world
                    .answer_of(Place::Outside, transport, to, &["web"])
                    .await?;
                let seen = answer.peer.is_ipv4();
                assert_eq!(seen, address.is_ipv4(), "S-10: {name} {to}");
            }
        }
    }
    world.end().await
}
