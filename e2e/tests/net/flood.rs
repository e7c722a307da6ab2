//! Many Services at once, and programs that are killed in the middle of them (I6).

use crate::{
    lab::{Want, pod_ports, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::api::{DeleteParams, ListParams};
use onehop_e2e::{
    traffic::{Endpoint, Load, Transport, ask_tcp},
    world::{Cluster, ServiceManifest, eventually, sockets_of},
};
use serde_json::{Value, json};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

const SERVICES: usize = 40;
/// Services of the flood, and endpoints of each.
const FLOOD: usize = 300;
const ENDPOINTS: usize = 100;
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

/// A Service of the flood, and a slice of it with a hundred endpoints that nobody has.
fn flooding(number: usize) -> [Value; 2] {
    let name = format!("flood-{number}");
    let address = |n: usize| format!("10.244.{}.{}", 100 + number % 100, n + 1);
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|n| json!({"addresses": [address(n)], "nodeName": "b", "conditions": {"ready": true}}))
        .collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "ports": pod_ports(), "endpoints": endpoints,
    });
    let service = selectorless(&name)
        .with("ipFamilyPolicy", json!("SingleStack"))
        .with("ipFamilies", json!(["IPv4"]));
    [service.json(), slice]
}

async fn forget(world: &PodOnA, name: &str) -> Result<()> {
    world.objects.delete_service(name).await?;
    let slices = world.objects.api::<EndpointSlice>();
    slices.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// S-120, I8: hundreds of Services and tens of thousands of endpoints come and go at once. Who is served goes on being
/// served, a change of their own reaches them meanwhile, and the node's health is answered all the time.
pub(crate) async fn s120_i8_a_flood_of_services_and_endpoints_delays_nobody_else(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let steady = selectorless("steady").with("type", json!("NodePort"));
    let exposed = world.expose(steady).await?;
    world.serve_by("steady", &["web"]).await?;
    let node = world.place(Place::NodeA).1;
    let to = SocketAddr::new(node, exposed.node_port("tcp")?);
    let healthz = SocketAddr::new(node, world.cluster.proxy.health_port());
    world
        .becomes(Place::Outside, Transport::Tcp, to, Want::From(&["web"]))
        .await?;
    let load = Load {
        to: Endpoint {
            transport: Transport::Tcp,
            address: to,
        },
        per_second: 50,
    };
    let load = load.start(world.sockets.clone(), world.clock);
    let all: Vec<Value> = (0..FLOOD).flat_map(flooding).collect();
    let deletions = (0..FLOOD).map(|number| format!("flood-{number}"));
    let deletions: Vec<String> = deletions.collect();
    for _ in 0..2 {
        let flood = try_join_all(all.iter().map(|object| world.objects.apply(object.clone())));
        let swaps = async {
            for pod in ["ask-a", "web", "ask-a", "web"] {
                world.serve_by("steady", &[pod]).await?;
                // How soon is the datapath bench's to say: here the API server is flooded, too.
                world
                    .becomes(Place::Outside, Transport::Tcp, to, Want::From(&[pod]))
                    .await?;
                assert_eq!(world.http_get(healthz, "/healthz")?.status, 200, "I8");
            }
            anyhow::Ok(())
        };
        let (made, swapped) = futures::future::join(flood, swaps).await;
        made?;
        swapped?;
        try_join_all(deletions.iter().map(|name| forget(&world, name))).await?;
    }
    let (ledger, _) = load.stop().await;
    let failed: Vec<_> = ledger.failures().collect();
    assert!(failed.is_empty(), "I8: {failed:?}");
    eventually(&world.clock, "nothing is left", WITHIN, async || {
        let left = ["a", "b"].map(|node| {
            let ruleset = world.ruleset(node).unwrap_or_default();
            // Not the pods of node a.
            ruleset.matches("10.244.1").count() - ruleset.matches("10.244.1.").count()
        });
        if left == [0, 0] {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await?;
    world.end().await
}
