//! What must hold in the log of every scenario (FC-103): pure functions over the cloud's events and
//! what the caller knows about pods. Each returns what broke the rule; empty is good.
//!
//! All times are wall time, since pods know no other. The rules about owners of addresses and about
//! the source check are not here: the engine and the fabric find those themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;

use crate::engine::{Event, GroupId, Inventory, Operation, Seq, Tags, TargetState, What};

/// One pod of a Service, as its kubelet saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpan {
    /// Its address.
    pub address: IpAddr,
    /// Since when it is ready.
    pub ready: Time,
    /// Until when: it turned unready, was deleted, or ended. None if it is ready still.
    pub until: Option<Time>,
}

impl PodSpan {
    fn covers(&self, from: Time, to: Time) -> bool {
        self.ready <= from && self.until.is_none_or(|until| until >= to)
    }
}

/// A time without a healthy target although a pod was ready all the while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its begin.
    pub from: Time,
    /// Its end; the end of what was looked at if it never ended.
    pub to: Time,
    /// A pod that was ready.
    pub ready: IpAddr,
}

type States = BTreeMap<(GroupId, SocketAddr), TargetState>;

fn changes(
    events: &[Arc<Event>],
) -> impl Iterator<Item = (&Event, &GroupId, SocketAddr, TargetState)> {
    events.iter().filter_map(|event| match &event.what {
        What::TargetState {
            group,
            target,
            state,
            ..
        } => Some((&**event, group, *target, *state)),
        _ => None,
    })
}

/// FC-103 (1): once one of a Service's `groups` has had a healthy target, never none while a pod is
/// ready, up to `end` (the Service's deletion, or now). A pod that turned ready within the gap is no
/// reason to complain: registering takes its time.
pub fn zero_healthy(
    events: &[Arc<Event>],
    groups: &BTreeSet<GroupId>,
    pods: &[PodSpan],
    end: Time,
) -> Vec<Gap> {
    let mut healthy: BTreeSet<(GroupId, SocketAddr)> = BTreeSet::new();
    let mut empty_since = None;
    let mut gaps = Vec::new();
    let of_service = changes(events)
        .filter(|(event, group, ..)| groups.contains(*group) && event.wall_time <= end);
    for (event, group, target, state) in of_service {
        let key = (group.clone(), target);
        let had = !healthy.is_empty();
        if state == TargetState::Healthy {
            healthy.insert(key);
            gaps.extend(empty_since.take().map(|from| (from, event.wall_time)));
        } else {
            healthy.remove(&key);
            if had && healthy.is_empty() {
                empty_since = Some(event.wall_time);
            }
        }
    }
    gaps.extend(empty_since.map(|from| (from, end)));
    let reported = gaps.into_iter().filter_map(|(from, to)| {
        let pod = pods.iter().find(|pod| pod.covers(from, to))?;
        let ready = pod.address;
        (to > from).then_some(Gap { from, to, ready })
    });
    reported.collect()
}

/// FC-103 (3): pods that were given an address while a target with it was not `unused` yet.
pub fn reused_early(
    events: &[Arc<Event>],
    created: &[(IpAddr, Time)],
) -> Vec<(SocketAddr, TargetState, Time)> {
    let mut found = Vec::new();
    for (address, at) in created {
        let mut states = States::new();
        let before = changes(events)
            .filter(|(event, _, target, _)| event.wall_time < *at && target.ip() == *address);
        for (_, group, target, state) in before {
            states.insert((group.clone(), target), state);
        }
        let busy = states
            .into_iter()
            .filter(|(_, state)| *state != TargetState::Unused);
        found.extend(busy.map(|((_, target), state)| (target, state, *at)));
    }
    found
}

/// FC-103 (5): targets that were deregistered while a pod was ready for longer than `notice` and not
/// registered in that group. For groups whose targets are pods; `end` is the Service's deletion.
pub fn deregistered_first(
    events: &[Arc<Event>],
    groups: &BTreeSet<GroupId>,
    pods: &[PodSpan],
    notice: Duration,
    end: Time,
) -> Vec<(SocketAddr, IpAddr, Time)> {
    let mut states = States::new();
    let mut found = Vec::new();
    for (event, group, target, state) in changes(events) {
        if !groups.contains(group) || event.wall_time >= end {
            continue;
        }
        states.insert((group.clone(), target), state);
        if state != TargetState::Draining {
            continue;
        }
        let at = event.wall_time;
        let registered = |address: IpAddr| {
            states.iter().any(|((of, target), state)| {
                let in_use = !matches!(state, TargetState::Draining | TargetState::Unused);
                of == group && target.ip() == address && in_use
            })
        };
        let waits = |pod: &&PodSpan| {
            pod.ready + notice <= at
                && pod.covers(pod.ready, at)
                && pod.address != target.ip()
                && !registered(pod.address)
        };
        found.extend(pods.iter().find(waits).map(|pod| (target, pod.address, at)));
    }
    found
}

/// FC-103 (6): writes to the cloud after `since`. Empty over one resync in which nothing changed is
/// the fixed point.
pub fn writes_after(events: &[Arc<Event>], since: Seq) -> Vec<(Operation, String)> {
    let later = events.iter().filter(|event| event.seq > since);
    let write = later.filter_map(|event| match &event.what {
        What::ApiCall { operation, subject } if operation.is_write() => {
            Some((*operation, subject.clone()))
        }
        _ => None,
    });
    write.collect()
}

/// FC-103 (7): ids of objects that carry all of our `install` tags and whose value of the tag
/// `owner` is none of `owners`.
pub fn without_owner(
    inventory: &Inventory,
    install: &Tags,
    owner: &str,
    owners: &BTreeSet<String>,
) -> Vec<String> {
    let lost = |tags: &Tags| {
        let ours = install
            .iter()
            .all(|(key, value)| tags.get(key) == Some(value));
        ours && tags.get(owner).is_none_or(|name| !owners.contains(name))
    };
    let lbs = inventory.load_balancers.iter();
    let lbs = lbs
        .filter(|lb| lost(&lb.spec.tags))
        .map(|lb| lb.id.to_string());
    let groups = inventory.groups.iter().map(|(group, _)| group);
    let groups = groups.filter(|group| lost(&group.spec.tags));
    lbs.chain(groups.map(|group| group.id.to_string()))
        .collect()
}
