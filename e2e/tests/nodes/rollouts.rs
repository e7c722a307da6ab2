//! What loses no connection on stand-ins loses none on real kubelets: a rollout, fewer pods, a node that is drained.

use anyhow::{Context, Result, ensure};
use onehop_e2e::{
    scenario::{Rollout, RolloutReport},
    world::{
        Cluster, OnTerm, Programs, Proxy, ServiceManifest, World, WorldConfig, deployment,
        first_answer,
    },
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};
use tokio::process::Command;

/// Pods accept so long after SIGTERM: with policy Local the load balancer has to notice by its health check that a node
/// has no ready pod left.
const SERVES: OnTerm = OnTerm::ServeSeconds(12);
/// How long any change may take.
const WITHIN: Duration = Duration::from_mins(2);
/// Name of the variable that says how many seeds are tried, each in a world of its own.
const SEEDS: &str = "ONEHOP_SEEDS";

fn local() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web").with("externalTrafficPolicy", json!("Local"))
}

#[tokio::test(flavor = "multi_thread")]
async fn s47_real_nodes_lose_nothing_in_node_mode_with_policy_local() -> Result<()> {
    loses_nothing(local()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn s400_real_nodes_lose_nothing_in_pod_mode() -> Result<()> {
    loses_nothing(local().pod_mode()).await
}

/// Rolls out, scales down and drains, with as many seeds as are asked for.
async fn loses_nothing(service: ServiceManifest) -> Result<()> {
    let seeds = std::env::var(SEEDS).map_or(Ok(1), |text| text.parse::<u64>());
    for seed in 1..=seeds.with_context(|| format!("{SEEDS} is a number"))? {
        loses_nothing_with(seed, service.clone())
            .await
            .with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

async fn loses_nothing_with(seed: u64, service: ServiceManifest) -> Result<()> {
    let config = WorldConfig {
        nodes: vec!["a", "b", "c"],
        seed,
        cluster: Cluster::of_real_nodes(Proxy::Replace),
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    world.objects.apply(deployment("web", 5, SERVES)).await?;
    world.objects.apply(service.json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    world.objects.rolled_out("web", WITHIN).await?;
    first_answer(&world, address).await?;
    let load = Rollout {
        world: &world,
        address,
    };
    nothing_lost("rollout", &load.restart("web").await?)?;
    let fewer = load.during(async || {
        world.objects.apply(deployment("web", 3, SERVES)).await?;
        world.objects.rolled_out("web", WITHIN).await
    });
    nothing_lost("scale-down", &fewer.await?)?;
    // A node that has a pod: one of them answers.
    let answers = first_answer(&world, address).await?;
    let drained = load.during(async || {
        drain(&world, &answers.node).await?;
        world.objects.rolled_out("web", WITHIN).await
    });
    nothing_lost("drain", &drained.await?)?;
    world.end().await
}

fn nothing_lost(what: &str, report: &RolloutReport) -> Result<()> {
    eprintln!(
        "{what}: {} connections and {} datagrams in {} ms, {} failed, {} SYN again, longest gap {} ms",
        report.connections,
        report.datagrams,
        report.rollout_ms,
        report.failed,
        report.syn_retx,
        report.longest_gap_ms
    );
    ensure!(report.failed == 0, "{what}: {:#?}", report.failures);
    ensure!(
        report.kept_rate >= 0.95,
        "{what}: the load kept only {:.2} of its rate",
        report.kept_rate
    );
    Ok(())
}

/// As an administrator does it.
async fn drain(world: &World, node: &str) -> Result<()> {
    let (_open, kubeconfig) = world.on_loopback()?;
    let said = Command::new(Programs::of_the_control_plane()?.path("kubectl")?)
        .env("KUBECONFIG", kubeconfig)
        .args([
            "drain",
            node,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=110s",
        ])
        .output()
        .await
        .context("run kubectl drain")?;
    ensure!(
        said.status.success(),
        "kubectl drain: {}",
        String::from_utf8_lossy(&said.stderr)
    );
    Ok(())
}
