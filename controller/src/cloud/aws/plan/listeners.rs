//! Listeners: made when their group has members, switched make-before-break (AWS-601, AWS-603, AWS-620).

use std::collections::{BTreeMap, BTreeSet};

use super::{Planner, Seat};
use crate::cloud::aws::attributes;
use crate::cloud::aws::model::{Group, Listener};
use crate::cloud::aws::names::Tags;
use crate::cloud::aws::stack::ListenerSpec;
use crate::cloud::aws::step::{self, AwsStep, Change};
use crate::cloud::aws::wanted;
use crate::plan::{Intent, Resource};

/// Weight of the group that takes the traffic.
const ALL: u32 = 1;
/// Weight of a group that is attached only so that it is checked (AWS-621).
const NONE: u32 = 0;

impl Planner<'_> {
    pub(super) fn listener(&mut self, intent: &Intent, spec: &ListenerSpec, seat: &Seat<'_>) {
        let there = match seat.balancer {
            // Its listeners were never read: nothing is known to be missing.
            Some(balancer) => match &balancer.listeners {
                Some(listeners) => listeners.get(&spec.port),
                None => return,
            },
            None => None,
        };
        match there {
            None => self.steps.push(AwsStep::CreateListener {
                balancer: seat.name.to_owned(),
                listener: spec.clone(),
                group: seat.group_name.clone(),
                needs: needs(seat),
            }),
            Some(there) => {
                self.point(intent, spec, seat, there);
                self.certificates(spec, seat, there);
                // Which keys are ours is noted for load balancers and groups; a listener resets the one
                // key that there is.
                let tags = Tags::from([(
                    attributes::OWNED.to_owned(),
                    attributes::LISTENER[0].0.to_owned(),
                )]);
                let have = there.attributes.as_ref();
                let wanted =
                    attributes::wanted(&attributes::LISTENER, &spec.attributes, have, &tags);
                if !wanted.set.is_empty() && spec.policy.is_none() {
                    self.steps.push(AwsStep::SetListenerAttributes {
                        balancer: seat.name.to_owned(),
                        port: spec.port,
                        attributes: wanted.set,
                    });
                }
            }
        }
    }

    /// Where the listener sends, and as what it listens.
    fn point(&mut self, intent: &Intent, spec: &ListenerSpec, seat: &Seat<'_>, there: &Listener) {
        let as_wanted = there.protocol == spec.protocol
            && there.policy == spec.policy
            && there.alpn.clone().unwrap_or("None".to_owned())
                == spec.alpn.clone().unwrap_or("None".to_owned())
            && there.certificates.first() == spec.certificates.first();
        let serving: Vec<&Group> = there
            .groups
            .iter()
            .filter(|(_, weight)| **weight > 0)
            .filter_map(|(arn, _)| self.seen.group(arn))
            .collect();
        let current = seat.group.map(|group| group.arn.as_str());
        let only = there.groups.len() == 1;
        let pointed = current.is_some_and(|arn| there.groups.contains_key(arn) && only);
        if pointed && as_wanted {
            return;
        }
        let mut groups = BTreeMap::from([(seat.group_name.clone(), ALL)]);
        let mut frees = BTreeSet::new();
        let old = serving
            .iter()
            .find(|group| Some(group.arn.as_str()) != current);
        if let Some(old) = old {
            if may_switch(intent, old, seat.group) {
                frees.insert(old.name.clone());
            } else {
                // Not yet: keep the old one, and have the new one checked meanwhile.
                let Some(new) = seat.group else { return };
                let filled = new.registered().next().is_some();
                let fits = step::may_attach(there.protocol, new.protocol);
                if !fits && filled {
                    // AWS-621: they cannot stand side by side, so the switch is one call.
                    frees.insert(old.name.clone());
                } else if !filled || there.groups.contains_key(&new.arn) {
                    return;
                } else {
                    groups = BTreeMap::from([(old.name.clone(), ALL), (new.name.clone(), NONE)]);
                    let as_is = ListenerSpec {
                        protocol: there.protocol,
                        policy: there.policy.clone(),
                        alpn: there.alpn.clone(),
                        certificates: there.certificates.clone(),
                        ..spec.clone()
                    };
                    self.modify(seat, as_is, groups, frees);
                    return;
                }
            }
        }
        self.modify(seat, spec.clone(), groups, frees);
    }

    fn modify(
        &mut self,
        seat: &Seat<'_>,
        listener: ListenerSpec,
        groups: BTreeMap<String, u32>,
        frees: BTreeSet<String>,
    ) {
        self.steps.push(AwsStep::ModifyListener {
            balancer: seat.name.to_owned(),
            listener,
            groups,
            needs: needs(seat),
            frees,
        });
    }

    /// AWS-064: certificates beside the default one.
    fn certificates(&mut self, spec: &ListenerSpec, seat: &Seat<'_>, there: &Listener) {
        let wanted: BTreeSet<&String> = spec.certificates.iter().skip(1).collect();
        let have: BTreeSet<&String> = there.certificates.iter().skip(1).collect();
        let changes = [
            (
                Change::Add,
                wanted
                    .difference(&have)
                    .map(|c| (*c).clone())
                    .collect::<Vec<_>>(),
            ),
            (
                Change::Remove,
                have.difference(&wanted).map(|c| (*c).clone()).collect(),
            ),
        ];
        for (change, certificates) in changes.into_iter().filter(|(_, c)| !c.is_empty()) {
            self.steps.push(AwsStep::Certificates {
                balancer: seat.name.to_owned(),
                port: spec.port,
                change,
                certificates,
            });
        }
    }
}

/// AWS-620: the new group takes over once enough of it is healthy.
fn may_switch(intent: &Intent, old: &Group, new: Option<&Group>) -> bool {
    let Some(new) = new else { return false };
    let floor = wanted::floor(intent, new);
    let (usable, was) = (wanted::usable(new), wanted::usable(old));
    floor == 0 || usable >= floor || (was == 0 && usable > 0)
}

/// A listener needs its load balancer, and a group with members where there are any (AWS-601).
fn needs(seat: &Seat<'_>) -> Vec<Resource> {
    let mut needs = Vec::new();
    if seat.balancer.is_none() {
        needs.push(step::balancer(seat.name));
    }
    if seat
        .group
        .is_none_or(|group| group.registered().next().is_none())
    {
        needs.push(step::group(&seat.group_name));
    }
    needs
}
