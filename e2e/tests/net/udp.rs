//! UDP flows and connection tracking: a flow whose endpoint is gone moves, a valid one is never cut.

use crate::{
    lab::{UdpFlow, Want, selectorless},
    support::{Place, PodOnA, world_with_pod_on_a},
};
use anyhow::Result;
use onehop_e2e::{traffic::Transport, world::Cluster};
use serde_json::json;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const NODE_PORT: u16 = 32_053;

fn dns() -> onehop_e2e::world::ServiceManifest {
    selectorless("dns").with("type", json!("NodePort")).with(
        "ports",
        json!([
            {"name": "tcp", "port": 80, "protocol": "TCP", "nodePort": NODE_PORT},
            {"name": "udp", "port": 80, "protocol": "UDP", "nodePort": NODE_PORT},
        ]),
    )
}

/// One flow through a node port from outside and one through the ClusterIP from a pod on the other node.
fn flows(world: &PodOnA, cluster: SocketAddr) -> Result<[UdpFlow; 2]> {
    let node = SocketAddr::new(world.place(Place::NodeA).1, NODE_PORT);
    Ok([
        world.flow(Place::Outside, node)?,
        world.flow(Place::PodOnB, cluster)?,
    ])
}

pub(crate) async fn s91_s92_s93_udp_flows_follow_their_service(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    // S-93: the flows begin before there are rules for them.
    let node = SocketAddr::new(world.place(Place::NodeA).1, NODE_PORT);
    let early = world.flow(Place::Outside, node)?;
    early.until_not(&world, "ConnectionRefused").await?;
    let cluster = world.expose(dns()).await?.cluster(80);
    let [outside, inside] = flows(&world, cluster)?;
    inside.until_not(&world, "ConnectionRefused").await?;
    world.serve_by("dns", &["web"]).await?;
    for flow in [&early, &outside, &inside] {
        flow.until(&world, "web").await?;
    }
    // S-91: the endpoint is replaced while the senders go on from the same ports.
    world.serve_by("dns", &["ask-b"]).await?;
    for flow in [&early, &outside, &inside] {
        flow.until(&world, "ask-b").await?;
    }
    // S-92: no endpoint at all, then another one.
    world.serve_by("dns", &[]).await?;
    for flow in [&outside, &inside] {
        flow.until_not(&world, "ConnectionRefused").await?;
    }
    world.serve_by("dns", &["web"]).await?;
    for flow in [&outside, &inside] {
        flow.until(&world, "web").await?;
    }
    // S-92: the Service is deleted. The pod still answers whoever is led there; nobody may be.
    world.objects.delete_service("dns").await?;
    outside.until_not(&world, "ConnectionRefused").await?;
    inside.until_not(&world, "silence").await?;
    world.end().await
}

pub(crate) async fn s47_s91_s94_s95_a_valid_flow_is_never_cut(on: Cluster) -> Result<()> {
    let world = world_with_pod_on_a(on).await?;
    let cluster = world.expose(dns()).await?.cluster(80);
    world.serve_by("dns", &["web", "ask-b"]).await?;
    let node = SocketAddr::new(world.place(Place::NodeA).1, NODE_PORT);
    world
        .becomes(
            Place::Outside,
            Transport::Udp,
            node,
            Want::From(&["web", "ask-b"]),
        )
        .await?;
    // A flow that is masqueraded gets a random port: one that was cut and begun again shows another one.
    let flow = world.flow(Place::Outside, node)?;
    let first = flow.ask().await.map_err(anyhow::Error::msg)?;
    let chosen = first.pod.clone();
    // S-95: somebody outside has a server on the number of the node port; a pod of the node talks to it.
    let (server, to) = elsewhere(&world)?;
    let foreign = world.flow(Place::PodOnA, to)?;
    assert!(foreign.ask().await.is_err(), "that server never answers");
    let entry = entries(&world, to)?;

    // S-91: the other endpoint goes, and comes; the chosen one terminates but serves; a policy changes.
    world.serve_by("dns", &[&chosen]).await?;
    world.served_by(Place::PodOnB, cluster, &[&chosen]).await?;
    world.serve_by("dns", &["web", "ask-b"]).await?;
    world
        .served_by(Place::PodOnB, cluster, &["web", "ask-b"])
        .await?;
    let mut terminating = Vec::new();
    for pod in ["web", "ask-b"] {
        let mut endpoint = world.endpoint(pod).await?;
        if pod == chosen {
            endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        }
        terminating.push(endpoint);
    }
    let other = if chosen == "web" { "ask-b" } else { "web" };
    world
        .slice("dns", "dns", terminating, crate::lab::pod_ports())
        .await?;
    world.served_by(Place::PodOnB, cluster, &[other]).await?;
    assert_eq!(same(&flow).await?, (chosen.clone(), first.peer), "S-91");
    // S-94: a restart with nothing changed.
    world.serve_by("dns", &["web", "ask-b"]).await?;
    world
        .served_by(Place::PodOnB, cluster, &["web", "ask-b"])
        .await?;
    world.kill_agent("a")?;
    world.agent_restarted("a", crate::lab::WITHIN).await?;
    assert_eq!(same(&flow).await?, (chosen.clone(), first.peer), "S-94");
    // S-95: neither was the flow of the unrelated server touched.
    assert_eq!(entries(&world, to)?, entry, "S-95");
    server.store(true, Ordering::Release);
    world.end().await
}

async fn same(flow: &UdpFlow) -> Result<(String, SocketAddr)> {
    let answer = flow.ask().await.map_err(anyhow::Error::msg)?;
    Ok((answer.pod, answer.peer))
}

/// A UDP server on the client outside that echoes, on the number of the node port.
fn elsewhere(world: &PodOnA) -> Result<(Arc<AtomicBool>, SocketAddr)> {
    let (netns, address) = world.place(Place::Outside);
    let to = SocketAddr::new(address, NODE_PORT);
    let socket = netns.udp_socket(to)?;
    socket.set_read_timeout(Some(std::time::Duration::from_millis(200)))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while !stopped.load(Ordering::Acquire) {
            if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], peer);
            }
        }
    });
    Ok((stop, to))
}

/// The connection table's entries of node a towards an address and port, by id.
fn entries(world: &PodOnA, to: SocketAddr) -> Result<Vec<String>> {
    let family = if to.is_ipv4() { "ipv4" } else { "ipv6" };
    let (address, port) = (to.ip().to_string(), to.port().to_string());
    let args = [
        "-L", "-o", "id", "-f", family, "-p", "udp", "-d", &address, "--dport", &port,
    ];
    let table = world.on_node("a", "conntrack", &args)?;
    let id = |line: &str| {
        let (_, id) = line.rsplit_once("id=")?;
        Some(id.trim().to_owned())
    };
    let ids: Vec<String> = table.lines().filter_map(id).collect();
    anyhow::ensure!(!ids.is_empty(), "no entry towards {to}: {table}");
    Ok(ids)
}

/// The Service's target port changes under a flow: the new number is what the pod listens on.
pub(crate) async fn s91_a_flow_follows_a_changed_target_port(on: Cluster) -> Result<()> {
    /// Nobody listens there.
    const WRONG: u16 = 8_999;
    let world = world_with_pod_on_a(on).await?;
    let cluster = world.expose(dns()).await?.cluster(80);
    let ports = |number: u16| json!([{"name": "udp", "protocol": "UDP", "port": number}]);
    let endpoints = vec![world.endpoint("web").await?];
    world
        .slice("dns", "dns", endpoints.clone(), ports(WRONG))
        .await?;
    let [outside, inside] = flows(&world, cluster)?;
    for flow in [&outside, &inside] {
        // The pod's own refusal.
        flow.until_not(&world, "ConnectionRefused").await?;
    }
    world
        .slice("dns", "dns", endpoints, ports(onehop_e2e::world::POD_PORT))
        .await?;
    for flow in [&outside, &inside] {
        flow.until(&world, "web").await?;
    }
    world.end().await
}
