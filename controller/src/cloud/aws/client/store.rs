//! What is known of AWS: filled by one listing, kept up by the answers of our own calls, so that a change
//! costs its writes and no read, and a look at a Service at rest costs nothing (AWS-700 to AWS-704). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::time::Time;

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
    /// All security groups of the VPC, by id.
    pub security_groups: BTreeMap<String, SecurityGroup>,
    /// The network.
    pub network: Network,
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
        self.security_groups
            .listed(listing.security_groups, began, |_, _| {});
        self.network = Arc::new(listing.network);
        self.listed_at = Some(began);
    }

    /// What is known of a Service.
    pub fn observed(&self, install: &InstallId, cluster: &str, service: &ServiceKey) -> Observed {
        let security = self.security_groups.values();
        let of_service = |group: &&SecurityGroup| is_of(*group, install, service);
        let backend = security
            .clone()
            .find(|group| is_ours(*group, install) && group.resource() == names::BACKEND_GROUP);
        let tag = format!("kubernetes.io/cluster/{cluster}");
        let mut nodes: Vec<_> = security
            .clone()
            .filter(|g| g.tags.contains_key(&tag))
            .cloned()
            .collect();
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        Observed {
            balancers: self
                .balancers
                .values()
                .filter(|b| is_of(*b, install, service))
                .cloned()
                .collect(),
            groups: self
                .groups
                .values()
                .filter(|g| is_of(*g, install, service))
                .cloned()
                .collect(),
            security_groups: security.filter(of_service).cloned().collect(),
            backend: backend.cloned(),
            network: Arc::clone(&self.network),
            node_groups: nodes,
            peer: self.peer_stack(cluster, service),
        }
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

fn is_of(object: &dyn Tagged, install: &InstallId, service: &ServiceKey) -> bool {
    is_ours(object, install) && object.service().as_ref() == Some(service)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::aws::model::Subnet;

    #[test]
    fn aws704_attributes_are_read_about_once_an_hour_and_not_all_at_a_time() {
        let mut store = Store::default();
        let arns: Vec<String> = (0..100).map(|n| format!("arn:{n}")).collect();
        let start = Time::from_millis(0);
        let mut reads: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        let mut most = 0;
        for minute in 0..180 {
            let now = start + Duration::from_mins(minute);
            let due: Vec<_> = arns
                .iter()
                .filter(|arn| store.attributes_due(arn, now))
                .collect();
            most = most.max(due.len());
            for arn in due {
                reads.entry(arn).or_default().push(now.as_millis());
            }
        }
        assert_eq!(reads.len(), 100, "AWS-704");
        assert!(most <= 20, "AWS-704: {most} in one minute");
        let hour = i64::try_from(ATTRIBUTES.as_millis()).unwrap();
        let apart = reads.values().flat_map(|at| at.windows(2));
        let apart: Vec<i64> = apart.map(|two| two[1] - two[0]).collect();
        assert!(apart.len() >= 100, "AWS-704: {}", apart.len());
        assert!(apart.iter().all(|ms| *ms == hour), "AWS-704");
    }

    #[test]
    fn aws206_a_subnet_that_was_refused_has_no_room_until_the_next_listing() {
        let subnet = |id: &str| {
            let subnet = Subnet {
                id: id.to_owned(),
                zone: "a".to_owned(),
                cidr: None,
                ipv6: Vec::new(),
                free: 100,
                tags: BTreeMap::new(),
                public: None,
            };
            (id.to_owned(), subnet)
        };
        let mut store = Store::default();
        let listing = || Listing {
            network: Network {
                subnets: ["subnet-1", "subnet-2"].map(subnet).into(),
                ..Network::default()
            },
            ..Listing::default()
        };
        let now = Time::from_millis(0);
        store.listed(listing(), now);
        store.subnets_refused("InvalidSubnet: Not enough IP space available in subnet-2");
        let free = |store: &Store, id: &str| store.network.subnets[id].free;
        assert_eq!(
            (free(&store, "subnet-1"), free(&store, "subnet-2")),
            (100, 0),
            "AWS-206"
        );
        assert!(store.listed_at.is_some());
        store.listed(listing(), now);
        assert_eq!(free(&store, "subnet-2"), 100, "AWS-714: a cache is dropped");
        store.subnets_refused("InvalidSubnet: no free addresses");
        assert_eq!(
            store.listed_at, None,
            "AWS-206: which one is found by looking"
        );
    }
}
