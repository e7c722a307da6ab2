//! Limits on numbers of objects (FC-93). Figures are knobs: a test sets small ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::engine::{ApiError, Engine, GroupId, LbId, LbSpec, TargetSpec};

/// Limits; none where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quotas {
    /// Load balancers.
    pub load_balancers: Option<usize>,
    /// Frontend addresses of one load balancer.
    pub addresses_per_load_balancer: Option<usize>,
    /// Listeners of one load balancer.
    pub listeners_per_load_balancer: Option<usize>,
    /// Groups.
    pub groups: Option<usize>,
    /// Registered targets of one group.
    pub targets_per_group: Option<usize>,
    /// Registered targets of all groups that one load balancer uses.
    pub targets_per_load_balancer: Option<usize>,
    /// The same for a load balancer with cross-zone on.
    pub targets_per_cross_zone_load_balancer: Option<usize>,
    /// The same per zone.
    pub targets_per_zone: Option<usize>,
}

impl Quotas {
    /// Figures of NLB as published in 2023.
    pub const fn nlb() -> Self {
        Self {
            load_balancers: Some(400),
            addresses_per_load_balancer: None,
            listeners_per_load_balancer: Some(50),
            groups: Some(3000),
            targets_per_group: Some(1000),
            targets_per_load_balancer: Some(3000),
            targets_per_cross_zone_load_balancer: Some(500),
            targets_per_zone: Some(500),
        }
    }
}

fn within(quota: &'static str, limit: Option<usize>, wanted: usize) -> Result<(), ApiError> {
    match limit {
        Some(limit) if wanted > limit => Err(ApiError::QuotaExceeded { quota, limit }),
        _ => Ok(()),
    }
}

impl Engine {
    pub(in crate::engine) fn check_lb_quota(
        &self,
        known: bool,
        spec: &LbSpec,
    ) -> Result<(), ApiError> {
        let quotas = self.faults.knobs.quotas;
        let wanted = self.balancers.len() + usize::from(!known);
        if !known {
            within("loadBalancers", quotas.load_balancers, wanted)?;
        }
        let addresses = quotas.addresses_per_load_balancer;
        within("addressesPerLoadBalancer", addresses, spec.addresses.len())
    }

    pub(in crate::engine) fn check_group_quota(&self) -> Result<(), ApiError> {
        let limit = self.faults.knobs.quotas.groups;
        within("groups", limit, self.groups.len() + 1)
    }

    /// Room for one more listener of `id`, and for the targets that `group` brings along.
    pub(in crate::engine) fn check_listener_quota(
        &self,
        id: &LbId,
        group: &GroupId,
        is_new: bool,
    ) -> Result<(), ApiError> {
        let limit = self.faults.knobs.quotas.listeners_per_load_balancer;
        let wanted = self.balancer(id)?.listeners.len() + usize::from(is_new);
        if is_new {
            within("listenersPerLoadBalancer", limit, wanted)?;
        }
        self.check_targets_of(id, group, &[])
    }

    /// Room for a batch of registrations.
    pub(in crate::engine) fn check_target_quota(
        &self,
        id: &GroupId,
        batch: &[TargetSpec],
    ) -> Result<(), ApiError> {
        let limit = self.faults.knobs.quotas.targets_per_group;
        within("targetsPerGroup", limit, self.registered(id, batch).len())?;
        let users: BTreeSet<&LbId> = self.group(id)?.users.iter().map(|(lb, _)| lb).collect();
        users
            .into_iter()
            .try_for_each(|lb| self.check_targets_of(lb, id, batch))
    }

    /// Registered targets of a group with their zones, as if `batch` were in.
    fn registered(
        &self,
        id: &GroupId,
        batch: &[TargetSpec],
    ) -> BTreeMap<SocketAddr, Option<String>> {
        let here = self.groups.get(id).into_iter().flat_map(|g| &g.targets);
        let here =
            here.filter(|(_, target)| target.life == crate::engine::target::Life::Registered);
        let here = here.map(|(at, target)| (*at, target.zone.clone()));
        let more = batch.iter().map(|spec| (spec.target, spec.zone.clone()));
        here.chain(more).collect()
    }

    fn check_targets_of(
        &self,
        lb: &LbId,
        group: &GroupId,
        batch: &[TargetSpec],
    ) -> Result<(), ApiError> {
        let balancer = self.balancer(lb)?;
        let used = balancer.listeners.values().map(|l| &l.group);
        let groups: BTreeSet<&GroupId> = used.chain([group]).collect();
        let mut total = 0;
        let mut zones: BTreeMap<String, usize> = BTreeMap::new();
        for id in groups {
            let targets = self.registered(id, if id == group { batch } else { &[] });
            total += targets.len();
            for zone in targets.into_values().flatten() {
                *zones.entry(zone).or_default() += 1;
            }
        }
        let quotas = self.faults.knobs.quotas;
        within(
            "targetsPerLoadBalancer",
            quotas.targets_per_load_balancer,
            total,
        )?;
        if balancer.spec.cross_zone {
            let limit = quotas.targets_per_cross_zone_load_balancer;
            within("targetsPerCrossZoneLoadBalancer", limit, total)?;
        }
        let fullest = zones.into_values().max().unwrap_or_default();
        within("targetsPerZone", quotas.targets_per_zone, fullest)
    }
}
