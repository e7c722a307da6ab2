//! Cells of the loss matrix that fit the time of tests; `./e2e/run bench zero-drop` runs all of them.

use anyhow::{Context, Result, ensure};
use onehop_e2e::bench::{matrix, measure};

async fn promise_holds(name: &str) -> Result<()> {
    let found = matrix().into_iter().find(|cell| cell.name() == name);
    let report = measure(&found.context("no such cell")?, 1).await?;
    if let Some(broken) = report.broken() {
        anyhow::bail!(broken);
    }
    // A load that does not keep its rate hides losses.
    ensure!(report.kept_rate > 0.9, "{} of the load", report.kept_rate);
    Ok(())
}

/// L-38, L-56: lags and tails as users report them, ten times faster than the wall.
#[tokio::test(flavor = "multi_thread")]
async fn w1_w2_w3_w20_zd_t04_a_rollout_behind_a_network_load_balancer_loses_nothing() -> Result<()>
{
    promise_holds("rollout-pod-nlb-exit").await
}

#[tokio::test(flavor = "multi_thread")]
async fn w5_zd71_a_drained_node_loses_nothing() -> Result<()> {
    promise_holds("drain-pod-local-exit").await
}

#[tokio::test(flavor = "multi_thread")]
async fn w10_pods_that_a_scale_down_ends_lose_nothing() -> Result<()> {
    promise_holds("scale-down-pod-local-exit").await
}

#[tokio::test(flavor = "multi_thread")]
async fn w14_w15_kills_and_throttling_at_random_moments_of_rollouts_lose_nothing() -> Result<()> {
    promise_holds("chaos-pod-local-exit").await
}
