//! The way of a packet: counted in each namespace it passes, and what the server at its end saw.

use crate::{
    traffic::{Answer, ask_tcp},
    world::World,
};
use anyhow::{Context, Result};
use e2e_fabric::{Hook, HopCounters, HopMatch};
use serde::Serialize;
use std::net::SocketAddr;

/// A place that packets of a flow passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// Where: `lb`, `node a eth0 in`, `pod web-…`.
    pub at: String,
    /// Packets of the traced connections counted there.
    pub packets: u64,
}

/// How many connections are traced: enough for every target to be chosen.
const CONNECTIONS: usize = 12;

/// Asks over new connections and tells which places their packets passed, in order, and what the servers saw.
pub async fn trace(world: &World, address: SocketAddr) -> Result<(Vec<Hop>, Vec<Answer>)> {
    let tcp = HopMatch {
        protocol: Some(6),
        source: Some(world.client.address().into()),
        ..HopMatch::default()
    };
    let lb = HopCounters::start(
        world.lb_node().netns(),
        &[(
            "in",
            Hook::In("eth0".into()),
            HopMatch {
                destination: Some(address.ip()),
                ..tcp.clone()
            },
        )],
    )?;
    let mut nodes = Vec::new();
    for node in &world.nodes {
        let hops = [
            ("eth0", Hook::In("eth0".into()), tcp.clone()),
            ("eth1", Hook::In("eth1".into()), tcp.clone()),
        ];
        nodes.push((
            node.name().to_owned(),
            HopCounters::start(node.netns(), &hops)?,
        ));
    }
    let sockets = &world.sockets;
    let mut answers = Vec::new();
    for _ in 0..CONNECTIONS {
        let (answer, _) = ask_tcp(sockets, address)
            .await
            .map_err(|f| anyhow::anyhow!("{:?}: {}", f.kind, f.detail))?;
        answers.push(answer);
    }
    let mut hops = vec![Hop {
        at: "load balancer".into(),
        packets: lb.read()?.first().context("no counter")?.packets,
    }];
    for (name, counters) in &nodes {
        for count in counters.read()? {
            let interface = if count.hop == "eth0" {
                "node address, eth0"
            } else {
                "pod address, eth1"
            };
            hops.push(Hop {
                at: format!("node {name} ({interface})"),
                packets: count.packets,
            });
        }
    }
    for pod in pods_of(&answers) {
        let packets = answers.iter().filter(|a| a.pod == pod).count() as u64;
        hops.push(Hop {
            at: format!("pod {pod} (connections)"),
            packets,
        });
    }
    hops.retain(|h| h.packets > 0);
    Ok((hops, answers))
}

fn pods_of(answers: &[Answer]) -> Vec<String> {
    let mut pods: Vec<String> = answers.iter().map(|a| a.pod.clone()).collect();
    pods.sort();
    pods.dedup();
    pods
}
