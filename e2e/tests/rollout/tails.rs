//! A cloud with manners: targets are healthy only some time after their registration, and new flows go on for some time
//! after deregistration. Pods exit at once on SIGTERM, in pod mode.

use crate::{
    promise::{all_released, no_new_connection_lost, told},
    support::{WITHIN, served_by},
};
use anyhow::Result;
use e2e_cloud::engine::{Lag, Lags, Profile};
use kube::{Api, api::ListParams};
use onehop_core::crd::{Feature, NodeTargets, TargetState};
use onehop_e2e::{
    scenario::{Rollout, RolloutReport},
    world::{OnTerm, ServiceManifest, World, WorldConfig, eventually},
};
use std::net::SocketAddr;

/// A rollout that Kubernetes ends long before the cloud has followed.
pub(crate) fn slow_cloud() -> WorldConfig {
    let profile = Profile::local();
    WorldConfig {
        profile: Some(Profile {
            lags: Lags {
                registration: Lag::secs(4),
                deregistration_tail: Lag::secs(6),
                ..profile.lags.clone()
            },
            ..profile
        }),
        ..WorldConfig::default()
    }
}

async fn instant(config: WorldConfig) -> Result<(World, SocketAddr)> {
    let service = ServiceManifest::load_balancer("web", "web").pod_mode();
    served_by(config, service, OnTerm::Exit).await
}

/// Rolls out and waits until the cloud has followed; whether a target was held meanwhile.
pub(crate) async fn roll_out(world: &World, address: SocketAddr) -> Result<(RolloutReport, bool)> {
    let mut held = false;
    let report = Rollout { world, address }
        .during(async || {
            world.objects.restart("web").await?;
            let what = "all old targets are released";
            // The rollout, and a minute until what only drains is looked at again.
            eventually(&world.clock, what, WITHIN * 2, async || {
                let targets = told(world).await?;
                let count = |state| targets.iter().filter(|t| t.state == state).count();
                held |= count(TargetState::Held) > 0;
                let (active, released) = (count(TargetState::Active), count(TargetState::Released));
                // Four pods, TCP and UDP, old and new.
                let done = active == 8 && released >= 8 && active + released == targets.len();
                done.then_some(()).ok_or_else(|| {
                    format!("{active} active, {released} released of {}", targets.len())
                })
            })
            .await
        })
        .await?;
    Ok((report, held))
}

#[tokio::test(flavor = "multi_thread")]
async fn w1_w2_w3_w20_a_slow_cloud_loses_no_new_connection() -> Result<()> {
    let (world, address) = instant(slow_cloud()).await?;
    let (report, held) = roll_out(&world, address).await?;
    // ZD-22: old targets whose pods are gone stay until the new ones are healthy, and the guard answers for them.
    assert!(held, "no target was ever held");
    // I11: pods that exit at once, on a cloud that sends to them for its whole tail: the guard covers what still comes.
    no_new_connection_lost(&report);
    all_released(&world).await?;
    world.end().await
}

/// FC-104: the same without the guard loses, else the cloud is too kind. The flag that forbids to loosen the
/// reverse-path filter takes it away, and the node says so (ZD-T35, ZD-47).
#[tokio::test(flavor = "multi_thread")]
async fn fc104_zd_t35_without_the_guard_the_same_rollout_loses_connections() -> Result<()> {
    let (world, address) = instant(WorldConfig {
        agent_flags: vec!["--keep-rp-filter"],
        keep_logs: false,
        ..slow_cloud()
    })
    .await?;
    let objects: Api<NodeTargets> = Api::all(world.kube());
    let what = "both agents say that they do not guard, and why";
    eventually(&world.clock, what, WITHIN, async || {
        let all = objects.list(&ListParams::default()).await;
        let all = all.map_err(|error| error.to_string())?;
        let said = all.items.iter().filter_map(|o| o.status.as_ref());
        let says = |s: &&onehop_core::crd::NodeTargetsStatus| {
            let why = s.problems.iter().any(|p| p.contains("rp_filter"));
            s.synced && why && !s.features.contains(&Feature::Guard)
        };
        (said.filter(says).count() == 2)
            .then_some(())
            .ok_or_else(|| format!("{:?}", all.items))
    })
    .await?;
    let (report, _) = roll_out(&world, address).await?;
    assert!(report.failed > 0, "the cloud is too kind: nothing was lost");
    Ok(())
}
