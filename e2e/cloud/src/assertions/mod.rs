//! What must hold in the log of every scenario (FC-103): pure functions over the cloud's events and
//! what the caller knows about pods. Each returns what broke the rule; empty is good.
//!
//! All times are wall time, since pods know no other. The rules about owners of addresses and about
//! the source check are not here: the engine and the fabric find those themselves.

mod health;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onehop_core::time::Time;

use crate::engine::{Event, GroupId, Inventory, Mode, Operation, Seq, Tags, TargetState, What};

pub use health::{Gap, zero_healthy};
pub use order::deregistered_first;

/// One pod of a Service, as its kubelet saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpan {
    /// Its address.
    pub address: IpAddr,
    /// The zone that it is in, where that is known.
    pub zone: Option<String>,
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

/// A group as the log knows it, also when it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGroup {
    /// Identity.
    pub id: GroupId,
    /// What its targets are.
    pub mode: Mode,
    /// The tags that it had last.
    pub tags: Tags,
}

/// Every group that ever carried all of `tags`.
pub fn groups_with(events: &[Arc<Event>], tags: &Tags) -> Vec<KnownGroup> {
    let mut found: BTreeMap<GroupId, KnownGroup> = BTreeMap::new();
    for event in events {
        let What::GroupTagged {
            group,
            mode,
            tags: carries,
        } = &event.what
        else {
            continue;
        };
        let all = tags
            .iter()
            .all(|(key, value)| carries.get(key) == Some(value));
        if all {
            let known = KnownGroup {
                id: group.clone(),
                mode: *mode,
                tags: carries.clone(),
            };
            found.insert(group.clone(), known);
        }
    }
    found.into_values().collect()
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
