//! Pools as the choice sees them: which Services they serve, in which order, which of them overlap, and
//! how each stands (C-20, C-21, C-28). Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use onehop_core::crd::{AddressPool, AddressPoolSpec, AddressPoolStatus, AddressRange};
use onehop_core::id::IpFamily;
use onehop_core::time::Time;

use super::AddressBook;

/// Labels.
pub type Labels = BTreeMap<String, String>;

/// What selectors look at.
#[derive(Clone, Copy, Debug)]
pub struct Customer<'a> {
    /// Namespace of the Service.
    pub namespace: &'a str,
    /// Labels of that namespace.
    pub namespace_labels: &'a Labels,
    /// Labels of the Service.
    pub labels: &'a Labels,
}

/// Whether a pool gives new addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Open,
    /// It overlaps this older one (C-28).
    Conflict(String),
    /// Its deletion was asked for (C-27).
    Terminating,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// What it says.
    pub spec: AddressPoolSpec,
    /// Whether it gives new addresses.
    pub standing: Standing,
    /// Ranges that could be read, merged, lowest first.
    ranges: Vec<AddressRange>,
    namespace_selectors: Vec<Selector>,
    service_selectors: Vec<Selector>,
    /// What of it cannot be read, for its status.
    problems: Vec<String>,
    created: Time,
}

impl Pool {
    /// The pool of an object. What cannot be read of it is left out, and named in its status.
    pub fn read(object: &AddressPool) -> Self {
        let (ranges, unread) = object.spec.ranges();
        let mut problems: Vec<String> = unread.iter().map(|p| format!("addresses: {p}")).collect();
        let meta = &object.metadata;
        let allocation = object.spec.service_allocation.as_ref();
        let mut read = |field: &str, list: Option<&Vec<LabelSelector>>| -> Vec<Selector> {
            let mut selectors = Vec::new();
            for selector in list.into_iter().flatten() {
                // One that cannot be read selects nothing; the others of the list still do.
                match Selector::try_from(selector.clone()) {
                    Ok(selector) => selectors.push(selector),
                    Err(why) => problems.push(format!("serviceAllocation.{field}: {why}")),
                }
            }
            selectors
        };
        let namespace_selectors = read(
            "namespaceSelectors",
            allocation.map(|a| &a.namespace_selectors),
        );
        let service_selectors = read("serviceSelectors", allocation.map(|a| &a.service_selectors));
        Self {
            name: meta.name.clone().unwrap_or_default(),
            standing: match meta.deletion_timestamp {
                Some(_) => Standing::Terminating,
                None => Standing::Open,
            },
            ranges: AddressRange::merge(ranges),
            namespace_selectors,
            service_selectors,
            problems,
            created: meta
                .creation_timestamp
                .as_ref()
                .map(Time::from)
                .unwrap_or_default(),
            spec: object.spec.clone(),
        }
    }

    /// Whether it has addresses of this family.
    pub fn has(&self, family: IpFamily) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// Whether the address lies in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Whether it may give this address.
    pub fn offers(&self, address: IpAddr) -> bool {
        self.contains(address) && self.spec.may_give(address)
    }

    /// Whether it is for this Service: of one of the namespaces, by name or by label, if any are given,
    /// and by one of the Service selectors, if any are given.
    pub fn serves(&self, customer: Customer<'_>) -> bool {
        let Some(allocation) = &self.spec.service_allocation else {
            return true;
        };
        let any_namespace =
            allocation.namespaces.is_empty() && allocation.namespace_selectors.is_empty();
        let matches = |list: &[Selector], labels| list.iter().any(|s| s.matches(labels));
        let namespace = any_namespace
            || allocation
                .namespaces
                .iter()
                .any(|name| name == customer.namespace)
            || matches(&self.namespace_selectors, customer.namespace_labels);
        let service = allocation.service_selectors.is_empty()
            || matches(&self.service_selectors, customer.labels);
        namespace && service
    }

    /// Lower goes first; 0 and unset come last (C-20).
    pub(super) fn rank(&self) -> (u32, &str) {
        let allocation = self.spec.service_allocation.as_ref();
        let priority = allocation.and_then(|a| a.priority).filter(|p| *p != 0);
        (priority.unwrap_or(u32::MAX), &self.name)
    }

    /// The lowest address that nobody uses.
    pub(super) fn lowest_free(&self, family: IpFamily, book: &AddressBook) -> Option<IpAddr> {
        // Bounded by the number of addresses in use: the first gap ends the search.
        let ranges = self.ranges.iter().filter(|range| range.family() == family);
        ranges
            .flat_map(|range| range.iter())
            .find(|address| self.spec.may_give(*address) && book.is_free(*address))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let with = |range: &AddressRange| other.ranges.iter().any(|r| r.overlaps(*range));
        self.ranges.iter().any(with)
    }

    fn size(&self) -> u128 {
        let sizes = self.ranges.iter().map(|range| {
            if self.spec.avoid_buggy_ips {
                range.size() - range.edges()
            } else {
                range.size()
            }
        });
        sizes.fold(0, u128::saturating_add)
    }
}

/// All pools, best first.
#[derive(Clone, Debug, Default)]
pub struct Pools(Vec<Pool>);

impl Pools {
    /// The pools of these objects, in whatever order they come. Of two that overlap the newer one is in
    /// conflict, by name if they are of one age; what overlaps only one in conflict is not.
    pub fn read<'a>(objects: impl IntoIterator<Item = &'a AddressPool>) -> Self {
        let mut pools: Vec<Pool> = objects.into_iter().map(Pool::read).collect();
        pools.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        for newer in 1..pools.len() {
            let (elders, rest) = pools.split_at_mut(newer);
            let Some(pool) = rest.first_mut().filter(|p| p.standing == Standing::Open) else {
                continue;
            };
            let in_force = |elder: &&Pool| !matches!(elder.standing, Standing::Conflict(_));
            let other = elders
                .iter()
                .filter(in_force)
                .find(|elder| elder.overlaps(pool));
            if let Some(other) = other {
                pool.standing = Standing::Conflict(other.name.clone());
            }
        }
        pools.sort_by(|a, b| a.rank().cmp(&b.rank()));
        Self(pools)
    }

    /// Each pool, best first.
    pub fn iter(&self) -> impl Iterator<Item = &Pool> {
        self.0.iter()
    }

    /// One pool.
    pub fn named(&self, name: &str) -> Option<&Pool> {
        self.iter().find(|pool| pool.name == name)
    }

    /// The pool that has an address: one in force before one in conflict.
    pub fn of(&self, address: IpAddr) -> Option<&Pool> {
        let has = self.iter().filter(|pool| pool.contains(address));
        has.min_by_key(|pool| matches!(pool.standing, Standing::Conflict(_)))
    }

    /// By family: how many addresses there are, and how many of them are in use. An address of two pools that overlap
    /// counts once.
    pub fn in_use(&self, book: &AddressBook) -> BTreeMap<IpFamily, (i64, i64)> {
        let ranges: Vec<_> = self.iter().flat_map(|p| p.ranges.iter().copied()).collect();
        let all = AddressRange::merge(ranges);
        let of = |family: IpFamily| {
            let size = all.iter().filter(|range| range.family() == family);
            let size = size.map(|range| range.size()).fold(0, u128::saturating_add);
            let used = book.addresses().filter(|a| IpFamily::of(*a) == family);
            let used = used.filter(|a| all.iter().any(|range| range.contains(*a)));
            (family, (count(size), count(used.count() as u128)))
        };
        [IpFamily::V4, IpFamily::V6].map(of).into()
    }

    /// How each pool stands.
    pub fn statuses(&self, book: &AddressBook) -> BTreeMap<String, AddressPoolStatus> {
        let mut assigned: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
        for address in book.addresses() {
            if let Some(pool) = self.of(address) {
                assigned.entry(&pool.name).or_default().insert(address);
            }
        }
        let status = |pool: &Pool| {
            let used = assigned.get(pool.name.as_str());
            let given = book.given_by(&pool.name).into_iter();
            let taken = used
                .into_iter()
                .flatten()
                .filter(|a| pool.offers(**a))
                .count();
            AddressPoolStatus {
                assigned: count(used.map_or(0, BTreeSet::len) as u128),
                available: match pool.standing {
                    Standing::Open => count(pool.size().saturating_sub(taken as u128)),
                    Standing::Conflict(_) | Standing::Terminating => 0,
                },
                conflict: match &pool.standing {
                    Standing::Conflict(other) => Some(other.clone()),
                    Standing::Open | Standing::Terminating => None,
                },
                problems: pool.problems.clone(),
                orphaned: given
                    .filter(|a| self.of(*a).is_none())
                    .map(|a| a.to_string())
                    .collect(),
            }
        };
        self.iter()
            .map(|pool| (pool.name.clone(), status(pool)))
            .collect()
    }
}

fn count(number: u128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
