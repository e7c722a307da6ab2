//! `./e2e/run up --nodes real`: a cluster of real nodes that stays until Ctrl-C.

use super::upstream::{NODES, config};
use crate::world::{Proxy, World};
use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Starts a cluster of real nodes, prints how to reach it, and keeps it until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "./e2e/run up")]
pub struct Args {
    /// What runs pods. Stand-ins are `./e2e/run demo --keep`.
    #[arg(long, default_value = "real", value_parser = ["real"])]
    nodes: String,
    /// kube-proxy in place of onehop's agent.
    #[arg(long)]
    kube_proxy: bool,
}

/// Runs until SIGINT or SIGTERM; everything is gone then.
pub async fn run(args: Args) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let proxy = if args.kube_proxy {
        Proxy::KubeProxy
    } else {
        Proxy::Replace
    };
    let mut world = tokio::select! {
        world = World::start(config(&NODES, proxy, |step| println!("    {step}"))) => world?,
        _ = tokio::signal::ctrl_c() => return Ok(()),
        _ = terminated.recv() => return Ok(()),
    };
    world.forget_logs();
    let (_open, kubeconfig) = world.on_loopback()?;
    println!("everything runs until Ctrl-C; in another terminal:");
    println!("    export KUBECONFIG={}", kubeconfig.display());
    println!("    kubectl get nodes,pods -A -o wide");
    println!(
        "    ip netns exec {} curl ADDRESS   # as a client outside",
        world.client.netns().name()
    );
    for node in &world.nodes {
        println!("    ip netns exec {} nft list ruleset", node.netns().name());
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    world.end_early().await
}
