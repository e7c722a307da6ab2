//! Pods that exit at once on SIGTERM, as most servers do, in pod mode: no new connection is lost. What such a pod had
//! accepted ends with it, and each of these is explained.

use crate::support::{WITHIN, served};
use anyhow::Result;
use kube::{Api, api::ListParams};
use onehop_core::crd::{NodeTargets, TargetState};
use onehop_e2e::{
    scenario::{FailureReport, Rollout},
    traffic::Transport,
    world::{OnTerm, ServiceManifest, World, eventually},
};
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn zd_t04_pods_that_exit_at_once_lose_no_new_connection_in_pod_mode() -> Result<()> {
    let (world, address) = served(
        ServiceManifest::load_balancer("web", "web").pod_mode(),
        OnTerm::Exit,
    )
    .await?;
    // ZD-03, ZD-40: plain pods, without gates, hooks or a change of any kind.
    let rollout = Rollout {
        world: &world,
        address,
    };
    let report = rollout.restart("web").await?;
    for failure in &report.failures {
        assert!(
            !failure.pod_uid.contains("unknown"),
            "no pod known for {failure:?}"
        );
        assert!(
            !failure.target_state.contains("unknown"),
            "no target state known for {failure:?}"
        );
        assert!(
            failure.ms_since_sigterm.is_some(),
            "a loss without a SIGTERM: {failure:?}"
        );
    }
    // ZD-T04, ZD-104: the time between exit and guard costs a client one more SYN, and no connection.
    let lost: Vec<&FailureReport> = report
        .failures
        .iter()
        .filter(|f| f.transport == Transport::Tcp && !f.was_accepted())
        .collect();
    assert!(lost.is_empty(), "new connections lost: {lost:#?}");
    // ZD-T24: a datagram cannot be sent again by anybody but the client, but one sent a second later is answered.
    let late = |f: &&FailureReport| f.ms_since_sigterm.is_some_and(|ms| ms >= 1_000);
    let late: Vec<&FailureReport> = report.failures.iter().filter(late).collect();
    assert!(late.is_empty(), "lost long after the exit: {late:#?}");
    assert!(
        report.kept_rate >= 0.95,
        "the load kept only {:.2} of its rate",
        report.kept_rate
    );
    all_released(&world).await?;
    world.end().await
}

/// ZD-T01: at the end every old target is said to be released, and no guard is left.
async fn all_released(world: &World) -> Result<()> {
    let objects: Api<NodeTargets> = Api::all(world.kube());
    let what = "old targets are released, and no guard is left";
    eventually(&world.clock, what, WITHIN, async || {
        let all = objects.list(&ListParams::default()).await;
        let all = all.map_err(|error| error.to_string())?;
        let installs = all.items.iter().flat_map(|o| o.spec.installs.values());
        let targets: Vec<_> = installs.flat_map(|install| &install.targets).collect();
        let live: BTreeSet<_> = targets
            .iter()
            .filter(|t| t.state == TargetState::Active)
            .map(|t| &t.pod_uid)
            .collect();
        let on_the_way = |t: &&&onehop_core::crd::NodeTarget| {
            !matches!(t.state, TargetState::Active | TargetState::Released)
        };
        let left: Vec<_> = targets.iter().filter(on_the_way).collect();
        if live.len() != 4 || !left.is_empty() {
            return Err(format!("{} live, on their way: {left:?}", live.len()));
        }
        for node in ["a", "b"] {
            let rules = world.ruleset(node).map_err(|error| error.to_string())?;
            if rules.contains("goto gl") || rules.contains("goto gr") {
                return Err(format!("node {node} still guards"));
            }
        }
        Ok(())
    })
    .await
}
