//! FC-103 (5): what replaces a target is registered before the target is deregistered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;

use super::PodSpan;
use crate::engine::{Event, GroupId, TargetState, What};

/// Targets that were deregistered while a pod was ready for longer than `notice` and had never been registered in that
/// group: the one that replaces it. A group that no listener uses is given up as a whole: its targets go, and nothing
/// replaces them. For groups whose targets are pods; `end` is the Service's deletion.
pub fn deregistered_first(
    events: &[Arc<Event>],
    groups: &BTreeSet<GroupId>,
    pods: &[PodSpan],
    notice: Duration,
    end: Time,
) -> Vec<(SocketAddr, IpAddr, Time)> {
    let mut walk = Walk::default();
    let mut found = Vec::new();
    for event in events.iter().filter(|event| event.wall_time < end) {
        let Some((group, target)) = walk.take(&event.what) else {
            continue;
        };
        let at = event.wall_time;
        let waits = |pod: &&PodSpan| {
            pod.ready + notice <= at
                && pod.covers(pod.ready, at)
                && pod.address != target.ip()
                && !walk.knows(group, pod.address)
        };
        if groups.contains(group) && walk.is_used(group) {
            found.extend(pods.iter().find(waits).map(|pod| (target, pod.address, at)));
        }
    }
    found
}

#[derive(Default)]
struct Walk {
    // Groups by the listeners that use them.
    used: BTreeMap<String, GroupId>,
    known: BTreeSet<(GroupId, IpAddr)>,
}

impl Walk {
    /// Follows one event; the group and target that it deregisters.
    fn take<'a>(&mut self, what: &'a What) -> Option<(&'a GroupId, SocketAddr)> {
        match what {
            What::ListenerSet {
                lb,
                listener,
                group,
            } => {
                let listener = format!("{lb}/{listener}");
                match group {
                    Some(group) => self.used.insert(listener, group.clone()),
                    None => self.used.remove(&listener),
                };
                None
            }
            What::TargetState {
                group,
                target,
                state,
                ..
            } => {
                self.known.insert((group.clone(), target.ip()));
                (*state == TargetState::Draining).then_some((group, *target))
            }
            _ => None,
        }
    }

    fn is_used(&self, group: &GroupId) -> bool {
        self.used.values().any(|used| used == group)
    }

    fn knows(&self, group: &GroupId, address: IpAddr) -> bool {
        self.known.contains(&(group.clone(), address))
    }
}
