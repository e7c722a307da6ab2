//! What happened to targets and pods during a span, on one time axis.

use crate::world::World;
use e2e_cloud::engine::What;
use e2e_kubelet::PodStep;
use onehop_core::time::Time;
use std::{collections::BTreeMap, time::Duration};

/// The same news within this time is one.
const SAME: Duration = Duration::from_millis(200);

/// One line of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// When.
    pub at: Time,
    /// What, in a few words.
    pub what: String,
}

/// The changes of targets' states and of pods between two times.
pub fn timeline(world: &World, from: Time, to: Time) -> Vec<TimelineEntry> {
    let mut entries: Vec<TimelineEntry> = targets(world).into_iter().chain(pods(world)).collect();
    entries.retain(|e| e.at >= from && e.at <= to);
    entries.sort_by_key(|e| e.at);
    // A target that serves TCP and UDP is in two groups, and both tell the same.
    let mut told: BTreeMap<String, Time> = BTreeMap::new();
    entries.retain(|e| {
        let before = told.insert(e.what.clone(), e.at);
        before.is_none_or(|before| e.at.since(before) > SAME)
    });
    entries
}

fn targets(world: &World) -> Vec<TimelineEntry> {
    let events = world.cloud.events_after(0, usize::MAX);
    let line = |event: &std::sync::Arc<e2e_cloud::engine::Event>| {
        let What::TargetState {
            target,
            from,
            state,
            ..
        } = &event.what
        else {
            return None;
        };
        Some(TimelineEntry {
            at: event.wall_time,
            what: format!("target {target} {from} -> {state}"),
        })
    };
    events.iter().filter_map(line).collect()
}

fn pods(world: &World) -> Vec<TimelineEntry> {
    let line = |event: e2e_kubelet::PodEvent| {
        let what = match event.step {
            PodStep::Created { address } => format!("has address {address} on node {}", event.node),
            PodStep::Ready => "is ready".into(),
            PodStep::Sigterm { .. } => "gets SIGTERM".into(),
            PodStep::Exited { code, .. } => format!("exits ({code})"),
            _ => return None,
        };
        Some(TimelineEntry {
            at: event.at,
            what: format!("pod {} {what}", event.pod.name),
        })
    };
    world
        .journal
        .events()
        .into_iter()
        .filter_map(line)
        .collect()
}
