//! What the demo prints: one line a step, with the seconds since its start.

use super::report::Report;
use crate::{
    scenario::{Hop, RolloutReport, TimelineEntry},
    traffic::Answer,
    world::World,
};
use onehop_core::time::Time;
use std::{collections::BTreeMap, net::SocketAddr};

/// Prints to stdout.
#[derive(Debug)]
pub(super) struct Printer(());

/// A step of the world's start.
pub(super) fn progress(what: &str) {
    println!("    {what}");
}

impl Printer {
    /// Says what begins.
    pub(super) fn new(seed: u64) -> Self {
        println!("==> starting a cluster of network namespaces (seed {seed})");
        Self(())
    }

    /// One step.
    pub(super) fn step(&self, what: &str) {
        println!("    {what}");
    }

    /// A new part.
    pub(super) fn headline(&self, what: &str) {
        println!("\n==> {what}");
    }

    /// What there is.
    pub(super) fn topology(&self, world: &World) {
        println!(
            "    client {} -- router -- load balancer node {}",
            world.client.address(),
            world.lb_node_address()
        );
        for kubelet in &world.kubelets {
            let node = kubelet.node();
            println!(
                "                 router -- node {} {} (pods {} behind {})",
                node.name(),
                node.address(),
                node.pod_cidr(),
                node.secondary_address()
            );
        }
    }

    /// The way of the packets.
    pub(super) fn hops(
        &self,
        world: &World,
        address: SocketAddr,
        hops: &[Hop],
        answers: &[Answer],
    ) {
        println!(
            "    the way of {} connections from {} to {address}, packets counted on arrival:",
            answers.len(),
            world.client.address()
        );
        for hop in hops {
            println!("      {:<34} {:>4}", hop.at, hop.packets);
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
    pub(super) fn rollout(
        &self,
        kind: &str,
        report: &RolloutReport,
        entries: Option<(Time, Vec<TimelineEntry>)>,
    ) {
        println!(
            "\n    rollout of pods that {}:",
            if kind == "instant" {
                "exit at once on SIGTERM"
            } else {
                "accept for 5 s after SIGTERM"
            }
        );
        if let Some((from, entries)) = entries {
            for entry in entries {
                println!(
                    "      {:>7.3} s  {}",
                    entry.at.since(from).as_secs_f64(),
                    entry.what
                );
            }
        }
        println!(
            "    {} connections and {} datagrams in {:.1} s: {} failed, {} SYN sent again",
            report.connections,
            report.datagrams,
            report.rollout_ms as f64 / 1000.0 + 2.0,
            report.failed,
            report.syn_retx
        );
        for failure in &report.failures {
            let since = failure.ms_since_sigterm.map_or_else(
                || "before any SIGTERM".into(),
                |ms| format!("{ms} ms after its SIGTERM"),
            );
            println!(
                "      {:>7.3} s  {:?}: pod {}, {since}, target {}",
                failure.at_ms as f64 / 1000.0,
                failure.kind,
                failure.pod_uid,
                failure.target_state
            );
        }
    }

    /// The whole in a table.
    pub(super) fn summary(&self, report: &Report) {
        println!(
            "\n==> summary\n    {:<6} {:<10} {:>11} {:>7} {:>9} {:>10}",
            "mode", "pods", "connections", "failed", "SYN again", "rollout"
        );
        for (mode, found) in &report.modes {
            for (kind, rollout) in &found.rollouts {
                println!(
                    "    {mode:<6} {kind:<10} {:>11} {:>7} {:>9} {:>8.1} s",
                    rollout.connections,
                    rollout.failed,
                    rollout.syn_retx,
                    rollout.rollout_ms as f64 / 1000.0
                );
            }
        }
    }
}
