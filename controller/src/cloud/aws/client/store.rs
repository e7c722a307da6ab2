//! What is known of AWS: filled by one listing, kept up by the answers of our own calls, so that a change
//! costs its writes and no read, and a look at a Service at rest costs nothing (AWS-700 to AWS-704). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::time::Time;

use crate::cloud::aws::interfaces::{Carried, Interface, Interfaces};
use crate::cloud::aws::model::{
    Attributes, Balancer, Group, HealthState, Network, Observed, PeerStack, RefusedTarget,
    SecurityGroup, Tagged, TargetHealth, TargetId,
};
use crate::cloud::aws::names;
use crate::cloud::aws::rules::There;

/// A listing may not show what we wrote for so long (FC-90): until then our own answer counts.
const LAG: Duration = Duration::from_mins(1);

/// Between two reads of an object's attributes (AWS-704).
const ATTRIBUTES: Duration = Duration::from_hours(1);

/// One kind of object, by id.
#[derive(Debug)]
pub struct Shelf<T> {
    all: BTreeMap<String, T>,
    /// When we changed, made or removed an object last.
    wrote: BTreeMap<String, Time>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            wrote: BTreeMap::new(),
        }
    }
}

impl<T: Clone> Shelf<T> {
    /// One object.
    pub fn get(&self, id: &str) -> Option<&T> {
        self.all.get(id)
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.all.values()
    }

    /// Takes in a read of one object.
    pub fn read(&mut self, id: &str, change: impl FnOnce(&mut T)) {
        self.all.entry(id.to_owned()).and_modify(change);
    }

    /// Takes in what we made.
    pub fn made(&mut self, id: &str, object: T, now: Time) {
        self.all.insert(id.to_owned(), object);
        self.wrote.insert(id.to_owned(), now);
    }

    /// Takes in what we changed.
    pub fn changed(&mut self, id: &str, now: Time, change: impl FnOnce(&mut T)) {
        self.read(id, change);
        self.wrote.insert(id.to_owned(), now);
    }

    /// Takes in that we removed it.
    pub fn removed(&mut self, id: &str, now: Time) {
        self.all.remove(id);
        self.wrote.insert(id.to_owned(), now);
    }

    /// Forgets one that is not there any more, whoever removed it.
    pub fn gone(&mut self, id: &str) {
        self.all.remove(id);
    }

    /// Takes in a listing that began at `began`. What we wrote shortly before or since stays as we know it.
    fn listed(&mut self, listing: BTreeMap<String, T>, began: Time, keep: impl Fn(&T, &mut T)) {
        self.wrote.retain(|_, at| *at + LAG > began);
        let mut next = BTreeMap::new();
        for (id, mut object) in listing {
            if self.wrote.contains_key(&id) {
                continue;
            }
            if let Some(old) = self.all.get(&id) {
                keep(old, &mut object);
            }
            next.insert(id, object);
        }
        for (id, object) in std::mem::take(&mut self.all) {
            if self.wrote.contains_key(&id) {
                next.insert(id, object);
            }
        }
        self.all = next;
    }
}

/// Everything that a listing finds.
#[derive(Debug, Default)]
pub struct Listing {
    /// Load balancers of this install and of the peer, by ARN.
    pub balancers: BTreeMap<String, Balancer>,
    /// Groups of this install and of the peer, by ARN.
    pub groups: BTreeMap<String, Group>,
    /// All security groups of the VPC.
    pub security_groups: Vec<SecurityGroup>,
    /// The network.
    pub network: Network,
    /// Interfaces of the VPC; none without an answer.
    pub interfaces: Option<Vec<Interface>>,
}

/// Whether targets are due for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// They are not.
    No,
    /// They were never read, or somebody may have changed them.
    Unread,
    /// One of them is about to change.
    Moving,
    /// They are at rest, and what others do is found by reading them.
    Resting,
}

/// The store.
#[derive(Debug, Default)]
pub struct Store {
    /// When the last listing began.
    pub listed_at: Option<Time>,
    /// Load balancers, by ARN.
    pub balancers: Shelf<Balancer>,
    /// Groups, by ARN.
    pub groups: Shelf<Group>,
    /// Security groups, by id.
    pub security_groups: Shelf<SecurityGroup>,
    network: Arc<Network>,
    /// Interfaces of targets.
    interfaces: Interfaces,
    /// Since when nothing has needed our shared group.
    idle_since: Option<Time>,
    /// Attributes of listeners as our own calls left them, by ARN: listeners are read anew without.
    pub listener_attributes: BTreeMap<String, Attributes>,
    /// When an object's attributes are to be read next.
    attributes_at: BTreeMap<String, Time>,
}

impl Store {
    /// A load balancer was refused for its subnets: those that the answer names have no room until the next listing says
    /// otherwise; where it names none, that comes at once (AWS-206).
    pub fn subnets_refused(&mut self, answer: &str) {
        let mut named = false;
        let network = Arc::make_mut(&mut self.network);
        for subnet in network.subnets.values_mut() {
            if answer.contains(subnet.id.as_str()) {
                named = true;
                subnet.free = 0;
            }
        }
        if !named {
            self.listed_at = None;
        }
    }

    /// Takes in a listing.
    pub fn listed(&mut self, listing: Listing, began: Time) {
        self.balancers.listed(listing.balancers, began, |old, new| {
            // Listeners are read anew, attributes by their own clock.
            new.attributes.clone_from(&old.attributes);
        });
        self.groups.listed(listing.groups, began, |old, new| {
            new.attributes.clone_from(&old.attributes);
            new.targets.clone_from(&old.targets);
            new.read_at = old.read_at;
            new.refused.clone_from(&old.refused);
        });
        self.security_read(listing.security_groups, began);
        self.network = Arc::new(listing.network);
        self.interfaces.look_again();
        self.interfaces_read(listing.interfaces, began);
        self.listed_at = Some(began);
    }

    /// Takes in a read of all security groups that began at `began`.
    pub fn security_read(&mut self, all: Vec<SecurityGroup>, began: Time) {
        let by_id = all.into_iter().map(|group| (group.id.clone(), group));
        self.security_groups
            .listed(by_id.collect(), began, |_, _| {});
    }

    /// Takes in a read of all interfaces that began at `began`; without an answer what was known stays.
    pub fn interfaces_read(&mut self, all: Option<Vec<Interface>>, began: Time) {
        self.interfaces.read(all, began);
        self.interfaces.not_found(targets(self.groups.values()));
    }

    /// Whether interfaces of a Service's targets are to be read: some are not known, and may be by now.
    pub fn interfaces_due(&self, install: &InstallId, service: &ServiceKey, now: Time) -> bool {
        let groups = self.groups.values();
        let groups = groups.filter(|group| is_of(*group, install, service));
        self.interfaces.is_due(targets(groups), now)
    }

    /// What is known of a Service. `cluster` is its name with further tags of its machines' security groups.
    pub fn observed(
        &self,
        install: &InstallId,
        cluster: (&str, &names::Tags),
        service: &ServiceKey,
    ) -> Observed {
        let security = self.security_groups.values();
        let of_service = |group: &&SecurityGroup| is_of(*group, install, service);
        let backend = security
            .clone()
            .find(|group| is_ours(*group, install) && group.resource() == names::BACKEND_GROUP);
        let groups: Vec<Group> = self
            .groups
            .values()
            .filter(|g| is_of(*g, install, service))
            .cloned()
            .collect();
        let ids: Vec<&str> = targets(groups.iter()).collect();
        let (node_groups, chosen_groups) = self.carried(cluster, &ids);
        Observed {
            balancers: self
                .balancers
                .values()
                .filter(|b| is_of(*b, install, service))
                .cloned()
                .collect(),
            groups,
            security_groups: security.filter(of_service).cloned().collect(),
            backend: backend.cloned(),
            network: Arc::clone(&self.network),
            node_groups,
            chosen_groups,
            peer: self.peer_stack(cluster.0, service),
        }
    }

    /// The security groups that targets carry, and which of them were chosen among several. As long as the interface of any
    /// target is not known, the one with the cluster's tag is among them (AWS-310, AWS-311).
    fn carried(
        &self,
        (cluster, more): (&str, &names::Tags),
        targets: &[&str],
    ) -> (Vec<SecurityGroup>, Vec<Carried>) {
        let tag = format!("{}{cluster}", names::CLUSTER_TAG);
        let group = |id: &str| self.security_groups.get(id);
        let is_tagged = |group: &SecurityGroup| {
            let has = |(key, value): (&String, &String)| group.tags.get(key) == Some(value);
            group.tags.contains_key(&tag) && more.iter().all(has)
        };
        let tagged = |id: &str| group(id).is_some_and(is_tagged);
        let carried = self.interfaces.carried(targets.iter().copied(), tagged);
        let mut ids: BTreeSet<&str> = carried.iter().map(|one| one.group.as_str()).collect();
        if targets.is_empty() || targets.iter().any(|id| self.interfaces.of(id).is_none()) {
            // The first by id, so the same one each time.
            let tagged = self.security_groups.values().filter(|g| is_tagged(g));
            ids.extend(tagged.map(|group| group.id.as_str()).min());
        }
        let all = ids.into_iter().filter_map(group).cloned().collect();
        let chosen = carried.into_iter().filter(|one| !one.among.is_empty());
        (all, chosen.collect())
    }

    /// What the peer has made for a Service.
    fn peer_stack(&self, cluster: &str, service: &ServiceKey) -> PeerStack {
        let stack = service.to_string();
        let of_peer = |object: &dyn Tagged| object.peer_stack(cluster) == Some(stack.as_str());
        let shared = |group: &&SecurityGroup| {
            let is = |key: &str, value: &str| group.tags.get(key).is_some_and(|v| v == value);
            is(names::PEER_CLUSTER, cluster) && is(names::PEER_SHARED, names::PEER_BACKEND_GROUP)
        };
        PeerStack {
            balancers: self
                .balancers
                .values()
                .filter(|b| of_peer(*b))
                .cloned()
                .collect(),
            groups: self
                .groups
                .values()
                .filter(|g| of_peer(*g))
                .cloned()
                .collect(),
            security_groups: self
                .security_groups
                .values()
                .filter(|g| of_peer(*g))
                .cloned()
                .collect(),
            backend: self
                .security_groups
                .values()
                .find(shared)
                .map(|g| g.id.clone()),
        }
    }

    /// Somebody else may have changed the targets of a Service's groups: the next look reads them.
    pub fn distrust_targets(&mut self, service: &ServiceKey) {
        let of = |group: &&Group| group.service().as_ref() == Some(service);
        let arns: Vec<String> = self
            .groups
            .values()
            .filter(of)
            .map(|group| group.arn.clone())
            .collect();
        for arn in arns {
            self.groups.read(&arn, |group| group.read_at = None);
        }
    }

    /// What there is of an install, for the book of rules on targets. A load balancer of another program that has our
    /// group was given back: its Service is none of ours, and its rules stay (AWS-130).
    pub fn there(&self, install: &InstallId) -> There<'_> {
        let ours = |object: &dyn Tagged| is_ours(object, install);
        let backend = self.backend(install).map(|group| &group.id);
        let given_back = |b: &&Balancer| backend.is_some_and(|id| b.security_groups.contains(id));
        let balancers = self.balancers.values();
        let balancers = balancers.filter(|b| ours(*b) || given_back(b));
        let groups: Vec<&Group> = self.groups.values().filter(|g| ours(*g)).collect();
        let services = groups.iter().filter_map(|group| group.service());
        let unknown = ServiceKey::new("", "");
        let services = services.chain(balancers.map(|b| b.service().unwrap_or(unknown.clone())));
        There {
            services: services.collect(),
            security_groups: self
                .security_groups
                .values()
                .filter(|g| !ours(*g))
                .collect(),
            groups,
        }
    }

    fn backend(&self, install: &InstallId) -> Option<&SecurityGroup> {
        let mut all = self.security_groups.values();
        all.find(|group| is_ours(*group, install) && group.resource() == names::BACKEND_GROUP)
    }

    /// Our shared group, once nothing has needed it for a while (AWS-330).
    pub fn idle_backend(
        &mut self,
        install: &InstallId,
        description: &str,
        now: Time,
    ) -> Option<String> {
        let there = self.there(install);
        let rules = |group: &&SecurityGroup| group.rules.values().any(|told| told == description);
        let needed = !there.services.is_empty() || there.security_groups.iter().any(rules);
        let id = self.backend(install)?.id.clone();
        if needed {
            self.idle_since = None;
            return None;
        }
        let since = *self.idle_since.get_or_insert(now);
        (since + LAG <= now).then_some(id)
    }

    /// The load balancer of this name.
    pub fn balancer_named(&self, name: &str) -> Option<&Balancer> {
        self.balancers
            .values()
            .find(|balancer| balancer.name == name)
    }

    /// The group of this name.
    pub fn group_named(&self, name: &str) -> Option<&Group> {
        self.groups.values().find(|group| group.name == name)
    }

    /// The security group of this install of this name.
    pub fn security_named(&self, install: &InstallId, name: &str) -> Option<&SecurityGroup> {
        let mut all = self.security_groups.values();
        all.find(|group| group.name == name && is_ours(*group, install))
    }

    /// Whether a group's targets are due for a read: soon where one is about to change, else slowly.
    pub fn targets_due(group: &Group, poll: Duration, resync: Duration, now: Time) -> Due {
        let (Some(targets), Some(at)) = (&group.targets, group.read_at) else {
            return Due::Unread;
        };
        let moves = targets
            .values()
            .any(|health| crate::cloud::aws::outcome::moves(health.state));
        let (every, due) = if moves {
            (poll, Due::Moving)
        } else {
            (resync, Due::Resting)
        };
        if at + every <= now { due } else { Due::No }
    }

    /// Names of the groups of a Service.
    pub fn groups_of(&self, service: &ServiceKey) -> BTreeSet<String> {
        let of = |group: &&Group| group.service().as_ref() == Some(service);
        let groups = self.groups.values().filter(of);
        groups.map(|group| group.name.clone()).collect()
    }

    /// Whether an object's attributes are due for the hourly read (AWS-704), and puts the next one off: objects that
    /// were found together are read one by one over half an hour.
    pub fn attributes_due(&mut self, arn: &str, now: Time) -> bool {
        let mut hasher = DefaultHasher::new();
        arn.hash(&mut hasher);
        let share = u32::try_from(hasher.finish() % 1000).unwrap_or_default();
        let first = now + ATTRIBUTES / 2 + ATTRIBUTES / 2 * share / 1000;
        let due = self.attributes_at.entry(arn.to_owned()).or_insert(first);
        if *due > now {
            return false;
        }
        *due = now + ATTRIBUTES;
        true
    }

    /// Takes in a read of a group's targets.
    pub fn targets_read(
        &mut self,
        arn: &str,
        targets: BTreeMap<TargetId, TargetHealth>,
        now: Time,
    ) {
        self.groups.read(arn, |group| {
            group.targets = Some(targets);
            group.read_at = Some(now);
        });
    }

    /// We made a group: it has no targets, which needs no read.
    pub fn group_made(&mut self, mut group: Group, now: Time) {
        let arn = group.arn.clone();
        group.read_at = Some(now);
        self.groups.made(&arn, group, now);
    }

    /// Targets were registered.
    pub fn registered(&mut self, arn: &str, targets: impl Iterator<Item = TargetId>) {
        self.set_targets(
            arn,
            targets,
            HealthState::Initial,
            "Elb.RegistrationInProgress",
        );
    }

    /// Targets were refused; what is known of them is kept for as long as the group is.
    pub fn refused(
        &mut self,
        arn: &str,
        targets: impl Iterator<Item = TargetId>,
        refused: &RefusedTarget,
    ) {
        self.groups.read(arn, |group| {
            group
                .refused
                .extend(targets.map(|target| (target, refused.clone())));
        });
    }

    /// Targets were deregistered.
    pub fn deregistered(&mut self, arn: &str, targets: impl Iterator<Item = TargetId>) {
        self.set_targets(
            arn,
            targets,
            HealthState::Draining,
            "Target.DeregistrationInProgress",
        );
    }

    fn set_targets(
        &mut self,
        arn: &str,
        targets: impl Iterator<Item = TargetId>,
        state: HealthState,
        reason: &str,
    ) {
        self.groups.read(arn, |group| {
            let known = group.targets.get_or_insert_default();
            for target in targets {
                group.refused.remove(&target);
                let reason = reason.to_owned();
                known.insert(target, TargetHealth { state, reason });
            }
        });
    }
}

/// Whether an object is of this install.
pub fn is_ours(object: &dyn Tagged, install: &InstallId) -> bool {
    object
        .tags()
        .get(names::INSTALL)
        .is_some_and(|id| id == install.as_str())
}

/// Ids of all targets of these groups.
fn targets<'a>(groups: impl Iterator<Item = &'a Group>) -> impl Iterator<Item = &'a str> {
    let targets = groups.flat_map(|group| group.targets.iter().flatten());
    targets.map(|(target, _)| target.id.as_str())
}

fn is_of(object: &dyn Tagged, install: &InstallId, service: &ServiceKey) -> bool {
    is_ours(object, install) && object.service().as_ref() == Some(service)
}

#[cfg(test)]
mod tests;
