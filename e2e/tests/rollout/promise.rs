//! What a rollout in pod mode promises, and what nodes are told in the course of it.

use crate::support::WITHIN;
use anyhow::Result;
use e2e_kubelet::PodStep;
use kube::{Api, api::ListParams};
use onehop_core::{
    crd::{NodeTarget, NodeTargets, TargetState},
    time::Time,
};
use onehop_e2e::{
    scenario::{FailureReport, RolloutReport},
    traffic::Transport,
    world::{World, eventually},
};
use std::{collections::BTreeSet, time::Duration};

/// No connection that nobody had accepted failed: what a pod had accepted ends with it (W4).
pub(crate) fn no_new_connection_lost(report: &RolloutReport) {
    let new = |f: &&FailureReport| f.transport == Transport::Tcp && !f.was_accepted();
    let lost: Vec<&FailureReport> = report.failures.iter().filter(new).collect();
    assert!(lost.is_empty(), "new connections lost: {lost:#?}");
}

/// What nodes are told of all targets.
pub(crate) async fn told(world: &World) -> Result<Vec<NodeTarget>, String> {
    let objects: Api<NodeTargets> = Api::all(world.kube());
    let all = objects.list(&ListParams::default()).await;
    let all = all.map_err(|error| error.to_string())?;
    let installs = all.items.into_iter().flat_map(|o| o.spec.installs);
    Ok(installs.flat_map(|(_, install)| install.targets).collect())
}

/// When pods got SIGTERM or, if `exited`, when their processes ended.
pub(crate) fn ends(world: &World, exited: bool) -> Vec<Time> {
    let events = world.journal.events().into_iter();
    let ends = events.filter_map(|event| match event.step {
        PodStep::Sigterm { .. } if !exited => Some(event.at),
        PodStep::Exited { .. } if exited => Some(event.at),
        _ => None,
    });
    ends.collect()
}

/// When each failed request began, with its report.
pub(crate) fn failed_at(report: &RolloutReport) -> Vec<(Time, &FailureReport)> {
    let began = report.span.map_or_else(Time::default, |(began, _)| began);
    let at = |f: &FailureReport| began + Duration::from_millis(f.at_ms) / report.speed;
    report.failures.iter().map(|f| (at(f), f)).collect()
}

/// ZD-T01: at the end every old target is said to be released, and no guard is left.
pub(crate) async fn all_released(world: &World) -> Result<()> {
    let what = "old targets are released, and no guard is left";
    eventually(&world.clock, what, WITHIN, async || {
        let targets = told(world).await?;
        let live: BTreeSet<_> = targets
            .iter()
            .filter(|t| t.state == TargetState::Active)
            .map(|t| &t.pod_uid)
            .collect();
        let on_the_way =
            |t: &&NodeTarget| !matches!(t.state, TargetState::Active | TargetState::Released);
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
