//! What the demo prints: one line a step.

use super::report::{PhaseCalls, Report};
use crate::{
    scenario::{Hop, RolloutReport, TimelineEntry},
    traffic::Answer,
    world::World,
};
use onehop_core::time::Time;
use std::{collections::BTreeMap, net::SocketAddr, path::Path, time::Duration};

/// A new part.
pub(super) fn headline(what: &str) {
    println!("\n==> {what}");
}

/// One step.
pub(super) fn step(what: &str) {
    println!("    {what}");
}

/// What there is.
pub(super) fn topology(world: &World) {
    let (client, lb) = (world.client.address(), world.lb_node().address());
    println!("    client {client} -- router -- load balancer node {lb}");
    for node in &world.nodes {
        let (name, address, second) = (node.name(), node.address(), node.secondary_address());
        println!(
            "                           router -- node {name} {address} (pods {} behind {second})",
            node.pod_cidr()
        );
    }
}

/// The way of the packets.
pub(super) fn hops(world: &World, address: SocketAddr, hops: &[Hop], answers: &[Answer]) {
    let (count, client) = (answers.len(), world.client.address());
    println!(
        "    the way of {count} connections from {client} to {address}, packets counted on arrival:"
    );
    for hop in hops {
        println!("      {:<40} {:>4}", hop.at, hop.packets);
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for answer in answers {
        *seen.entry(answer.peer.ip().to_string()).or_default() += 1;
    }
    let seen: Vec<String> = seen
        .iter()
        .map(|(ip, n)| format!("{ip} ({n} times)"))
        .collect();
    println!("    client address that the pods saw: {}", seen.join(", "));
}

/// A rollout: timeline, then counts, then each failure.
pub(super) fn rollout(kind: &str, report: &RolloutReport, from: Time, entries: &[TimelineEntry]) {
    for entry in entries {
        println!(
            "      {:>7.3} s  {}",
            entry.at.since(from).as_secs_f64(),
            entry.what
        );
    }
    println!(
        "    {kind}: {} connections and {} datagrams, rollout of {:.1} s: {} failed, {} SYN sent again",
        report.connections,
        report.datagrams,
        seconds(report.rollout_ms),
        report.failed,
        report.syn_retx
    );
    for failure in &report.failures {
        let since = failure.ms_since_sigterm.map_or_else(
            || "no SIGTERM".to_owned(),
            |ms| format!("{ms} ms after its SIGTERM"),
        );
        println!(
            "      {:>7.3} s  {:?}: pod {}, {since}, target {}",
            seconds(failure.at_ms),
            failure.kind,
            failure.pod_uid,
            failure.target_state
        );
    }
}

/// What was called, phase by phase.
pub(super) fn calls(phases: &[PhaseCalls]) {
    for PhaseCalls { phase, calls } in phases {
        println!("    API calls, {phase}: {}", calls.values().sum::<u64>());
        for (call, n) in calls {
            println!("      {call:<54} {n:>4}");
        }
    }
}

/// What a person can do with a world that is kept.
pub(super) fn things_to_try(world: &World, kubeconfig: &Path, address: SocketAddr) {
    headline("everything runs until Ctrl-C; in another terminal:");
    println!("    export KUBECONFIG={}", kubeconfig.display());
    println!("    kubectl get services,pods,olb -o wide");
    println!("    kubectl rollout restart deployment/web && kubectl get olb -w");
    let client = world.client.netns().name();
    println!(
        "    ip netns exec {client} bash -c 'read line </dev/tcp/{}/{}; echo $line'",
        address.ip(),
        address.port()
    );
    let node = world.nodes.first().map_or("", |node| node.netns().name());
    println!("    ip netns exec {node} nft list ruleset");
}

/// The whole in a table.
pub(super) fn summary(report: &Report) {
    headline("summary");
    println!("    mode   pods       connections  failed  SYN again    rollout");
    for (mode, found) in &report.modes {
        for (kind, rollout) in &found.rollouts {
            println!(
                "    {mode:<6} {kind:<10} {:>11} {:>7} {:>10} {:>8.1} s",
                rollout.connections,
                rollout.failed,
                rollout.syn_retx,
                seconds(rollout.rollout_ms)
            );
        }
    }
}

fn seconds(millis: u64) -> f64 {
    Duration::from_millis(millis).as_secs_f64()
}
