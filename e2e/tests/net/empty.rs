//! Empty endpoint lists: refused where there is no endpoint at all, dropped where a Local policy finds none here.

use crate::{
    cells::Frontend,
    lab::{Want, selectorless},
    support::{Place, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use onehop_e2e::{
    traffic::{FailureKind, LongFlow, Transport},
    world::{Cluster, Proxy, ServiceManifest, eventually},
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

/// Everything in the range of Services that is nobody's: beside a kube-proxy it is not ours to close; as the only proxy a
/// packet to it ends on the node, instead of going round in the network.
pub(crate) async fn s26_s128_addresses_that_no_service_has(on: Cluster) -> Result<()> {
    let unallocated = on.family.of([10, 96, 200, 200].into());
    let unallocated = match unallocated {
        std::net::IpAddr::V4(_) => unallocated,
        // The range is written by its own digits, not by those of IPv4.
        std::net::IpAddr::V6(_) => "fd00:10:96::c8c8".parse()?,
    };
    for (proxy, leaves) in [(Proxy::Beside, true), (Proxy::Replace, false)] {
        let world = world_with_pod_on_a(on.with_proxy(proxy)).await?;
        let manifest = ServiceManifest::cluster_ip("web", "web");
        let spec = world.objects.apply(manifest.json()).await?;
        let cluster: std::net::IpAddr = spec.data["spec"]["clusterIP"]
            .as_str()
            .context("a ClusterIP")?
            .parse()?;
        for place in [Place::PodOnA, Place::NodeB] {
            eventually(&world.clock, "the Service answers", WITHIN, async || {
                let got = world
                    .ask_from(place, Transport::Tcp, (cluster, 80).into())
                    .await;
                got.map(drop).map_err(|f| format!("{f:?}"))
            })
            .await?;
            let got = world
                .ask_from(place, Transport::Tcp, (unallocated, 80).into())
                .await;
            assert!(
                matches!(&got, Err(f) if f.kind == FailureKind::TimeoutConnect),
                "S-26 {proxy:?} from {place:?}: {got:?}"
            );
        }
        let seen = world.fabric().router().drops();
        let left = seen.iter().any(|drop| drop.destination == unallocated);
        assert_eq!(left, leaves, "S-26 {proxy:?}: {seen:?}");
        world.end().await?;
    }
    Ok(())
}

/// An undefined port over every protocol, from pods and from nodes; a Service that has no endpoint left is refused as a
/// whole, and its flows that are there go on (S-50).
pub(crate) async fn s25_s48_s50_refusals_concern_new_flows_only(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let exposed = world.expose(selectorless("once")).await?;
    world.serve_by("once", &["web"]).await?;
    let to = exposed.cluster(80);
    let web = Want::From(&["web"]);
    for place in [Place::PodOnA, Place::PodOnB, Place::NodeA, Place::NodeB] {
        world.becomes(place, Transport::Tcp, to, web).await?;
        let undefined = exposed.cluster(81);
        world
            .gets(place, Transport::Tcp, undefined, Want::Refused)
            .await?;
        if let Place::PodOnA | Place::PodOnB = place {
            // A node's own datagram is refused before it leaves, which its socket cannot tell from a drop.
            world
                .gets(place, Transport::Udp, undefined, Want::Refused)
                .await?;
        }
    }
    let every = Duration::from_millis(100);
    let long = LongFlow::open(&world.sockets_of(Place::PodOnB), to, every, world.clock).await;
    let long = long.map_err(|f| anyhow::anyhow!("{f:?}"))?;
    world.serve_by("once", &[]).await?;
    for place in [Place::PodOnA, Place::NodeB] {
        world
            .becomes(place, Transport::Tcp, to, Want::Refused)
            .await?;
    }
    world
        .gets(Place::PodOnA, Transport::Udp, to, Want::Refused)
        .await?;
    let end = long.end().await.context("the flow's end")?;
    assert!(end.cut.is_none(), "S-50: {end:?}");
    world.end().await
}

/// Endpoints on the nodes' own network: policy Local tells them apart by node as any other (S-08, S-49).
pub(crate) async fn s08_s49_internal_policy_local_with_pods_of_the_host_network(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let mut server = onehop_e2e::world::pod("host", "host", "a", onehop_e2e::world::OnTerm::Exit);
    server["spec"]["hostNetwork"] = json!(true);
    world.objects.create(server).await?;
    world
        .objects
        .pod_ready("default", "host", crate::support::READY_WITHIN)
        .await?;
    let manifest =
        ServiceManifest::cluster_ip("host", "host").with("internalTrafficPolicy", json!("Local"));
    let to = world.expose(manifest).await?.cluster(80);
    let host = Want::From(&["host"]);
    for (place, want) in [
        (Place::PodOnA, host),
        (Place::NodeA, host),
        (Place::PodOnB, Want::Silence),
        (Place::NodeB, Want::Silence),
    ] {
        world.becomes(place, Transport::Tcp, to, want).await?;
    }
    // Policy Cluster from everywhere.
    let open =
        ServiceManifest::cluster_ip("host", "host").with("internalTrafficPolicy", json!("Cluster"));
    world.objects.apply(open.json()).await?;
    for place in [Place::PodOnB, Place::NodeB, Place::PodOnA, Place::NodeA] {
        world.becomes(place, Transport::Tcp, to, host).await?;
    }
    world.end().await
}

/// A pod that failed is no endpoint, though its object is still there.
pub(crate) async fn s48_pods_that_failed_are_refused(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let mut pod = onehop_e2e::world::pod("dies", "dies", "a", onehop_e2e::world::OnTerm::Exit);
    pod["spec"]["restartPolicy"] = json!("Never");
    world.objects.create(pod).await?;
    world
        .objects
        .pod_ready("default", "dies", crate::support::READY_WITHIN)
        .await?;
    let to = world
        .expose(ServiceManifest::cluster_ip("dies", "dies"))
        .await?
        .cluster(80);
    let dies = Want::From(&["dies"]);
    for place in [Place::PodOnB, Place::NodeA] {
        world.becomes(place, Transport::Tcp, to, dies).await?;
    }
    let pids = world.kubelet("a")?.pids("default", "dies");
    let pid = i32::try_from(*pids.values().next().context("it runs")?)?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    // First said, then refused: before, it would be the pod itself that refuses.
    let pods = world.objects.api::<k8s_openapi::api::core::v1::Pod>();
    let failed = "the kubelet says that the pod failed";
    onehop_e2e::world::eventually(
        &world.clock,
        failed,
        crate::support::READY_WITHIN,
        async || {
            let pod = pods.get("dies").await.map_err(|e| e.to_string())?;
            let phase = pod.status.and_then(|s| s.phase);
            if phase.as_deref() == Some("Failed") {
                Ok(())
            } else {
                Err(format!("{phase:?}"))
            }
        },
    )
    .await?;
    for place in [Place::PodOnB, Place::NodeA] {
        world
            .becomes(place, Transport::Tcp, to, Want::Refused)
            .await?;
    }
    world.end().await
}
