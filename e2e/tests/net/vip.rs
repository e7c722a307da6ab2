//! Target mode `vip`: packets reach a node with the load balancer's address as destination, answers go straight back.

use crate::cells::Frontend;
use crate::support::{Place, PodOnA, Seen, Served, world_with_pod_on_a};
use anyhow::{Context, Result};
use e2e_fabric::DropReason;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use nix::sys::signal::Signal;
use onehop_core::crd::{Feature, NodeTargets};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, ServiceManifest, eventually},
};
use serde_json::json;
use std::time::Duration;

use Place::{NodeA, NodeB, Outside, PodOnA as OnA, PodOnB as OnB};
use Seen::{Client, LbChosenNode, NodeAAddress, NodeBAddress, NodeBPodInterface};

const WITHIN: Duration = Duration::from_secs(10);
/// Long enough for everything that would happen by itself.
const NOTHING_WITHIN: Duration = Duration::from_secs(2);
const PLACES: [Place; 5] = [Outside, OnA, OnB, NodeA, NodeB];

fn web() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web").vip_mode()
}

/// Whoever proxies the Service forwards (K-52, FC-29c): the agent, or kube-proxy in the table of peers, since the status
/// carries the address with ipMode VIP.
async fn cells(on: Cluster, policy: &str, row: [Seen; 5]) -> Result<(PodOnA, Served)> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = web().with("externalTrafficPolicy", json!(policy));
    let served = world.serve(manifest).await?;
    let spec = world.objects.service("web").await?.spec;
    let ports = spec.and_then(|s| s.ports).unwrap_or_default();
    assert!(
        ports.iter().all(|port| port.node_port.is_none()),
        "no NodePort anywhere"
    );
    let mut wrong = Vec::new();
    for (place, expected) in PLACES.iter().zip(row) {
        for transport in [Transport::Tcp, Transport::Udp] {
            let address = served.address(Frontend::LoadBalancer, transport);
            for _ in 0..4 {
                let seen = world.ask_from(*place, transport, address).await;
                if !expected.matches(&seen, *place, &world) {
                    wrong.push(format!("{policy} from {place:?} over {transport:?}: expected {expected:?}, got {seen:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let dropped = world
        .fabric()
        .router()
        .drop_count(DropReason::SrcCheckDrop)?;
    assert_eq!(dropped, 0, "FC-T29: {:?}", world.fabric().router().drops());
    Ok((world, served))
}

pub(crate) async fn s22_s62_fc_t29_vip_with_policy_cluster_is_masqueraded_by_the_node_that_got_the_packet(
    on: Cluster,
) -> Result<()> {
    let row = [
        LbChosenNode,
        NodeAAddress,
        NodeBPodInterface,
        NodeAAddress,
        NodeBAddress,
    ];
    let (world, _) = cells(on, "Cluster", row).await?;
    world.end().await
}

pub(crate) async fn s22_s63_fc_t29_vip_with_policy_local_keeps_the_clients_address(
    on: Cluster,
) -> Result<()> {
    let row = [Client, Client, Client, NodeAAddress, NodeBAddress];
    let (world, _) = cells(on, "Local", row).await?;
    // K-20: what agents of nodes are told of a Service with policy Local.
    let targets = node_targets(&world, "a").await?;
    let install = targets
        .spec
        .installs
        .values()
        .next()
        .context("an install")?;
    assert_eq!(install.local.len(), 2, "K-20: {install:?}");
    assert!(
        install
            .local
            .iter()
            .all(|l| l.health_check_node_port.is_some() && l.node_port.is_none())
    );
    world.end().await
}

pub(crate) async fn fc29c_k52_where_nobody_on_the_nodes_would_forward_it_the_service_is_refused_and_nothing_is_sent(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let mut manifest = web().json();
    // Neither the agent's name nor none: not kube-proxy's Service either.
    manifest["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "another"});
    world.objects.apply(manifest).await?;
    eventually(&world.clock, "it is refused", WITHIN, async || {
        let service = world.objects.service("web").await;
        let status = service
            .map_err(|e| e.to_string())?
            .status
            .unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let refused = |c: &Condition| c.reason == "TargetModeImpossible";
        match conditions.iter().find(|c| refused(c)) {
            Some(_) => Ok(()),
            None => Err(format!("{conditions:?}")),
        }
    })
    .await?;
    world.clock.sleep(NOTHING_WITHIN).await;
    // C-137: so it is with a dataplane in kube-proxy's place.
    assert_eq!(world.load_balancers(), 0, "FC-29c, K-52: nothing was made");
    assert_eq!(published(&world).await?, Vec::<String>::new(), "FC-29c");
    // Once somebody does, it is served; a node that got a packet for nobody fails the end of any world.
    world.objects.apply(web().json()).await?;
    let address = world.lb_address("web").await?;
    onehop_e2e::world::first_answer(&world, (address, 80).into()).await?;
    world.end().await
}

async fn node_targets(world: &PodOnA, node: &str) -> Result<NodeTargets> {
    let api: Api<NodeTargets> = Api::all(world.kube());
    api.get(node).await.context("get NodeTargets")
}

async fn listed(world: &PodOnA, node: &str) -> Vec<std::net::IpAddr> {
    let Ok(targets) = node_targets(world, node).await else {
        return Vec::new();
    };
    let installs = targets.spec.installs.values();
    installs
        .flat_map(|i| &i.vips)
        .map(|vip| vip.address)
        .collect()
}

async fn published(world: &PodOnA) -> Result<Vec<String>> {
    let service = world.objects.service("web").await?;
    let balancer = service.status.and_then(|s| s.load_balancer);
    let ingress = balancer.and_then(|l| l.ingress).unwrap_or_default();
    Ok(ingress.into_iter().filter_map(|i| i.ip).collect())
}

pub(crate) async fn s22_k27_zd_t41_an_address_is_listed_first_programmed_then_and_published_last(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    // The agents say that they are there, so that they are waited for.
    let first = ServiceManifest::load_balancer("first", "web").vip_mode();
    world.objects.apply(first.json()).await?;
    world.lb_address("first").await?;
    eventually(
        &world.clock,
        "both agents say what they can do",
        WITHIN,
        async || {
            for node in ["a", "b"] {
                let targets = node_targets(&world, node)
                    .await
                    .map_err(|e| e.to_string())?;
                let features = targets.status.map(|s| s.features).unwrap_or_default();
                if !features.contains(&Feature::ServiceProxy) {
                    return Err(format!("{node}: {features:?}"));
                }
            }
            Ok(())
        },
    )
    .await?;
    world.signal_agent("b", Signal::SIGSTOP)?;
    world.objects.apply(web().json()).await?;
    eventually(
        &world.clock,
        "the second address is listed for both nodes",
        WITHIN,
        async || {
            let counts = (
                listed(&world, "a").await.len(),
                listed(&world, "b").await.len(),
            );
            if counts == (2, 2) {
                Ok(())
            } else {
                Err(format!("{counts:?}"))
            }
        },
    )
    .await?;
    world.clock.sleep(NOTHING_WITHIN).await;
    assert_eq!(
        published(&world).await?,
        Vec::<String>::new(),
        "K-27, ZD-17: one agent has not programmed it"
    );
    world.signal_agent("b", Signal::SIGCONT)?;
    let address = world.lb_address("web").await?;
    for node in ["a", "b"] {
        let rules = world.ruleset(node)?;
        assert!(
            rules.contains(&address.to_string()),
            "S-22, K-27, ZD-17: programmed on {node}"
        );
    }
    onehop_e2e::world::first_answer(&world, (address, 80).into()).await?;

    // S-22: the union of both. An address that is taken out of the status is still served by what lists it.
    withdrawn_status_is_still_served(&world, address).await?;
    // ZD-T41: the status first, the nodes last.
    world.objects.delete_service("web").await?;
    eventually(
        &world.clock,
        "the address is taken from the nodes",
        WITHIN,
        async || {
            let left = [listed(&world, "a").await, listed(&world, "b").await].concat();
            if left.contains(&address) {
                return Err(format!("{left:?}"));
            }
            let published = published(&world).await.unwrap_or_default();
            assert!(published.is_empty(), "ZD-T41, K-27, ZD-17: {published:?}");
            Ok(())
        },
    )
    .await?;
    world.service_gone("web").await?;
    world.end().await
}

/// The status is emptied by hand while nobody repairs it: the controller stands still.
async fn withdrawn_status_is_still_served(world: &PodOnA, address: std::net::IpAddr) -> Result<()> {
    world.controller.signal(Signal::SIGSTOP)?;
    let empty = json!({"status": {"loadBalancer": {"ingress": null}}});
    world
        .objects
        .api::<Service>()
        .patch_status("web", &PatchParams::default(), &Patch::Merge(empty))
        .await?;
    world.clock.sleep(Duration::from_millis(500)).await;
    let asked = world
        .ask_from(Outside, Transport::Tcp, (address, 80).into())
        .await;
    assert!(asked.is_ok(), "S-22: {asked:?}");
    world.controller.signal(Signal::SIGCONT)?;
    world.lb_address("web").await.map(drop)
}
