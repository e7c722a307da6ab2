//! A rollout while nobody controls: the controller comes back after a minute, or after the agents' guards are over.

use crate::{
    promise::{ends, failed_at, no_new_connection_lost},
    support::{
        SPEED, WITHIN, nlb, rollout_reached_the_cloud, served_by, targets_are_the_new_pods,
        web_of_nlb,
    },
};
use anyhow::{Context, Result};
use e2e_cloud::engine::Lag;
use nix::sys::signal::Signal;
use onehop_e2e::{
    scenario::Rollout,
    traffic::Transport,
    world::{OnTerm, WorldConfig},
};
use std::time::Duration;

/// ZD-T09: killed in the middle of a rollout and back after a minute. The world's end says that nothing was deregistered
/// before what replaces it was registered (FC-103 (5)).
#[tokio::test(flavor = "multi_thread")]
async fn zd_t09_a_controller_that_comes_back_after_a_minute_of_a_rollout_loses_nothing()
-> Result<()> {
    const AWAY: Duration = Duration::from_mins(1);
    let (world, address) = served_by(nlb(Lag::secs(40)), web_of_nlb(), OnTerm::Exit).await?;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.objects.restart("web").await?;
        rollout_reached_the_cloud(&world).await?;
        // Dead to the world at once; its supervisor would start the next one too early.
        world.controller.signal(Signal::SIGSTOP)?;
        world.clock.sleep(AWAY / SPEED).await;
        world.controller.kill()?;
        world.objects.rolled_out("web", WITHIN).await?;
        targets_are_the_new_pods(&world).await
    })
    .await?;
    no_new_connection_lost(&report);
    world.end().await
}

/// ZD-T10, ZD-51, ZD-53: all pods are replaced while nobody controls. Guards carry the load balancer, which fails open,
/// to their bound and no further.
#[tokio::test(flavor = "multi_thread")]
async fn zd_t10_zd51_without_a_controller_guards_carry_a_rollout_to_their_bound_and_no_further()
-> Result<()> {
    const HOLD: Duration = Duration::from_secs(50);
    const TAIL: Duration = Duration::from_mins(3);
    const PAST: Duration = Duration::from_mins(1);
    let config = WorldConfig {
        hold: HOLD,
        // What is lost past the bound is what this is about.
        keep_logs: false,
        ..nlb(Lag::secs(20))
    };
    let (world, address) = served_by(config, web_of_nlb(), OnTerm::Exit).await?;
    let bound = (HOLD + TAIL) / SPEED;
    let report = Rollout {
        world: &world,
        address,
    }
    .during(async || {
        world.controller.signal(Signal::SIGSTOP)?;
        world.objects.restart("web").await?;
        world.objects.rolled_out("web", WITHIN).await?;
        let last = ends(&world, false).into_iter().max().context("an end")?;
        world.clock.sleep_until(last + bound + PAST / SPEED).await;
        world.controller.signal(Signal::SIGCONT)?;
        targets_are_the_new_pods(&world).await
    })
    .await?;
    let first = ends(&world, false).into_iter().min().context("an end")?;
    let failed = failed_at(&report).into_iter();
    let failed = failed.filter(|(_, f)| f.transport == Transport::Tcp && !f.was_accepted());
    let failed: Vec<_> = failed.collect();
    let early = failed.iter().filter(|(at, _)| *at < first + bound);
    let early: Vec<_> = early.collect();
    assert!(early.is_empty(), "ZD-T10: before {bound:?}: {early:#?}");
    // ZD-110: else the guards had no bound.
    assert!(!failed.is_empty(), "ZD-51: the guards went on");
    Ok(())
}
