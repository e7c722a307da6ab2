//! Session affinity: one choice per client and Service port, whatever the frontend.

use crate::{
    lab::{Exposed, WITHIN, Want, pod_ports, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{Engine, TargetState};
use onehop_e2e::{
    traffic::Transport,
    world::{Cluster, ServiceManifest, World, eventually},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

const ALL: [&str; 3] = ["web", "ask-a", "ask-b"];
/// As many requests as make three random choices that agree by chance unlikely (1 in 6,561).
const TIMES: usize = 9;

fn sticky(seconds: u32) -> ServiceManifest {
    selectorless("sticky")
        .with("type", json!("NodePort"))
        .with("sessionAffinity", json!("ClientIP"))
        .with(
            "sessionAffinityConfig",
            json!({"clientIP": {"timeoutSeconds": seconds}}),
        )
}

async fn served(world: &PodOnA, manifest: ServiceManifest) -> Result<Exposed> {
    let exposed = world.expose(manifest).await?;
    world.serve_by("sticky", &ALL).await?;
    let to = exposed.cluster(80);
    for place in [Place::PodOnA, Place::NodeA, Place::NodeB] {
        world
            .becomes(place, Transport::Tcp, to, Want::From(&ALL))
            .await?;
    }
    Ok(exposed)
}

async fn one(world: &PodOnA, place: Place, to: SocketAddr) -> Result<String> {
    let pods = world.answering(place, to, TIMES).await?;
    ensure!(pods.len() == 1, "{to} from {place:?}: {pods:?}");
    pods.into_iter().next().context("an answer")
}

pub(crate) async fn s80_a_client_sticks_over_all_frontends_of_a_service_port(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let external: IpAddr = on.family.of([198, 51, 100, 200].into());
    let manifest = sticky(10_800).with("externalIPs", json!([external.to_string()]));
    let exposed = served(&world, manifest).await?;
    let node_port = exposed.node_port("tcp")?;
    let node_a = world.place(Place::NodeA).1;
    let chosen = one(&world, Place::PodOnA, exposed.cluster(80)).await?;
    for to in [
        SocketAddr::new(node_a, node_port),
        SocketAddr::new(external, 80),
    ] {
        assert_eq!(one(&world, Place::PodOnA, to).await?, chosen, "S-80: {to}");
    }
    // The other port of the Service makes a choice of its own and keeps it, too.
    let mut pods = BTreeSet::new();
    for _ in 0..TIMES {
        let got = world
            .ask_from(Place::PodOnA, Transport::Udp, exposed.cluster(80))
            .await;
        pods.insert(got.map_err(|f| anyhow::anyhow!("{f:?}"))?.0.pod);
    }
    assert_eq!(pods.len(), 1, "S-80: {pods:?}");
    // A client outside sticks to what it got, through the node port.
    one(&world, Place::Outside, (node_a, node_port).into()).await?;
    world.end().await
}

pub(crate) async fn s81_a_client_chooses_again_after_the_timeout_and_each_connection_prolongs_it(
    on: Cluster,
) -> Result<()> {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let world = world_with_pod_on_a(on).await?;
    let exposed = served(&world, sticky(4)).await?;
    let to = exposed.cluster(80);
    // Asked faster than the timeout for longer than it, the choice holds. A pause that this machine made too long
    // says nothing: then it is asked anew.
    eventually(
        &world.clock,
        "S-81: each connection prolongs",
        WITHIN,
        async || {
            let begun = world.clock.now();
            let (mut last, mut pods) = (begun, BTreeSet::new());
            while world.clock.now().since(begun) < TIMEOUT * 2 {
                let seen = world.answering(Place::PodOnA, to, 1).await;
                pods.extend(seen.map_err(|e| e.to_string())?);
                let now = world.clock.now();
                if now.since(last) > TIMEOUT / 2 {
                    return Err("this machine was too slow to tell".to_owned());
                }
                last = now;
                world.clock.sleep(TIMEOUT / 8).await;
            }
            // Not waited for: a choice that did not hold is a failure.
            assert_eq!(pods.len(), 1, "S-81: {pods:?}");
            Ok(())
        },
    )
    .await?;
    // Longer than the timeout apart, the choice is random: nine that agree are one in 6,561.
    let mut pods = BTreeSet::new();
    for _ in 0..TIMES {
        pods.extend(world.answering(Place::PodOnA, to, 1).await?);
        if pods.len() > 1 {
            break;
        }
        world
            .clock
            .sleep(TIMEOUT + Duration::from_millis(500))
            .await;
    }
    assert!(pods.len() > 1, "S-81: {pods:?} only");
    world.end().await
}

pub(crate) async fn s82_a_client_moves_when_its_endpoint_is_not_usable(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let exposed = served(&world, sticky(10_800)).await?;
    let to = exposed.cluster(80);
    let chosen = one(&world, Place::PodOnA, to).await?;
    let rest: Vec<&str> = ALL.into_iter().filter(|pod| *pod != chosen).collect();
    let mut endpoints: Vec<Value> = Vec::new();
    for pod in ALL {
        let mut endpoint = world.endpoint(pod).await?;
        endpoint["conditions"]["ready"] = json!(pod != chosen);
        endpoints.push(endpoint);
    }
    // It connects all the time, so that its record never runs out by itself.
    world
        .slice("sticky", "sticky", endpoints, pod_ports())
        .await?;
    let moved = Want::From(&rest);
    world
        .becomes(Place::PodOnA, Transport::Tcp, to, moved)
        .await?;
    let second = one(&world, Place::PodOnA, to).await?;
    // Ready again, it does not get the client back: its record was purged.
    world.serve_by("sticky", &ALL).await?;
    world
        .becomes(Place::NodeB, Transport::Tcp, to, Want::From(&ALL))
        .await?;
    assert_eq!(one(&world, Place::PodOnA, to).await?, second, "S-82");

    // Live off and on again.
    let off = selectorless("sticky")
        .with("type", json!("NodePort"))
        .with("sessionAffinity", json!("None"));
    world.objects.apply(off.json()).await?;
    eventually(
        &world.clock,
        "S-82: no affinity any more",
        WITHIN,
        async || {
            let pods = world.answering(Place::PodOnA, to, TIMES).await;
            match pods.map(|pods| pods.len()) {
                Ok(count) if count > 1 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await?;
    world.objects.apply(sticky(10_800).json()).await?;
    eventually(&world.clock, "S-82: affinity again", WITHIN, async || {
        let chosen = one(&world, Place::PodOnA, to).await;
        chosen.map(drop).map_err(|e| e.to_string())
    })
    .await?;
    world.end().await
}

pub(crate) async fn s83_affinity_is_kept_over_a_restart_of_the_agent(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let exposed = served(&world, sticky(10_800)).await?;
    let to = exposed.cluster(80);
    let mut chosen = Vec::new();
    for place in [Place::PodOnA, Place::NodeA] {
        chosen.push((place, one(&world, place, to).await?));
    }
    world.kill_agent("a")?;
    world.agent_restarted("a", WITHIN).await?;
    for (place, pod) in chosen {
        assert_eq!(one(&world, place, to).await?, pod, "S-83 from {place:?}");
    }
    world.end().await
}

pub(crate) async fn s84_with_policy_local_a_client_sticks_inside_the_local_list(
    on: Cluster,
) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let manifest = sticky(10_800).with("externalTrafficPolicy", json!("Local"));
    let exposed = served(&world, manifest).await?;
    let to = SocketAddr::new(world.place(Place::NodeA).1, exposed.node_port("tcp")?);
    let (answer, own) = world
        .answer_of(Place::Outside, Transport::Tcp, to, &["web", "ask-a"])
        .await?;
    assert_eq!(answer.peer.ip(), own.ip(), "S-84: the client's own address");
    assert_eq!(one(&world, Place::Outside, to).await?, answer.pod, "S-84");
    world.end().await
}

/// The Service of upstream's tests of affinity behind a load balancer, with this policy.
fn behind_a_load_balancer(policy: &str, affinity: &str) -> ServiceManifest {
    ServiceManifest::load_balancer("sticky", "nobody")
        .with("selector", json!(null))
        .with("externalTrafficPolicy", json!(policy))
        .with("sessionAffinity", json!(affinity))
}

/// A choice is kept as long as the targets stay as they are: from here on they do.
async fn both_nodes_take_flows(world: &World) -> Result<()> {
    let what = "both nodes are healthy";
    eventually(&world.clock, what, WITHIN, async || {
        let inventory = world.cloud.look(Engine::inventory);
        let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        let states: Vec<_> = targets.map(|t| (t.target, t.state)).collect();
        // A group for each port, with both nodes.
        let nodes: BTreeSet<IpAddr> = states.iter().map(|(at, _)| at.ip()).collect();
        let healthy = |(_, state): &(_, TargetState)| *state == TargetState::Healthy;
        if nodes.len() == 2 && states.iter().all(healthy) {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    })
    .await?;
    world.cloud_settled().await;
    Ok(())
}

/// A client comes back through the load balancer, with affinity from the start, without it, and with it again. Pods are on
/// both nodes: the load balancer has to keep the client on one of them, and that node on a pod.
async fn affinity_of_a_load_balancer(on: Cluster, policy: &str) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    world.serve_by("sticky", &ALL).await?;
    let served = world
        .serve(behind_a_load_balancer(policy, "ClientIP"))
        .await?;
    let lb = served.lb();
    both_nodes_take_flows(&world).await?;
    let chosen = one(&world, Place::Outside, lb).await?;
    assert!(ALL.contains(&chosen.as_str()), "S-80, S-84: {chosen}");
    let none = behind_a_load_balancer(policy, "None");
    world.objects.apply(none.json()).await?;
    let wanted: BTreeSet<String> = ALL.iter().map(|&pod| pod.to_owned()).collect();
    eventually(&world.clock, "S-82: every pod", WITHIN, async || {
        let pods = world.answering(Place::Outside, lb, 3 * TIMES).await;
        match pods {
            Ok(pods) if pods == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let again = behind_a_load_balancer(policy, "ClientIP");
    world.objects.apply(again.json()).await?;
    let chosen = eventually(&world.clock, "S-82: one pod", WITHIN, async || {
        let chosen = one(&world, Place::Outside, lb).await;
        chosen.map_err(|e| e.to_string())
    })
    .await?;
    // And it goes on so.
    assert_eq!(one(&world, Place::Outside, lb).await?, chosen, "S-82");
    world.end().await
}

pub(crate) async fn s80_s82_a_client_of_a_load_balancer_sticks_with_policy_cluster(
    on: Cluster,
) -> Result<()> {
    affinity_of_a_load_balancer(on, "Cluster").await
}

pub(crate) async fn s82_s84_a_client_of_a_load_balancer_sticks_with_policy_local(
    on: Cluster,
) -> Result<()> {
    affinity_of_a_load_balancer(on, "Local").await
}
