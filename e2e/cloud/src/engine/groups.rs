//! API operations on groups and their targets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use onehop_core::time::Time;

use super::balancers::has_tags;
use super::call::Operation;
use super::log::Seq;
use super::target::{Life, Target};
use super::timer::Timer;
use super::{
    ApiError, Engine, Group, GroupId, GroupSpec, GroupStatus, LbId, Reason, Tags, TargetSpec,
    TargetState, TargetStatus, not_found,
};

impl Engine {
    /// Makes a group, or finds the one that this idempotency key has made.
    pub fn create_group(
        &mut self,
        now: Time,
        key: &str,
        spec: GroupSpec,
    ) -> Result<GroupStatus, ApiError> {
        let operation = Operation::CreateGroup;
        self.call(now, operation, "", |engine, _| {
            if let Some(id) = engine.keys.find(key, operation, &spec)?.map(GroupId::from) {
                return Ok((engine.group_status(&id)?, id.to_string()));
            }
            let id = GroupId::numbered(engine.next_group);
            engine.next_group += 1;
            engine.keys.remember(key, operation, &spec, id.as_str());
            let group = Group {
                spec,
                targets: BTreeMap::new(),
                users: BTreeSet::new(),
            };
            engine.groups.insert(id.clone(), group);
            Ok((engine.group_status(&id)?, id.to_string()))
        })
    }

    /// Changes a group in place. Protocol and mode are fixed once it is made.
    pub fn update_group(
        &mut self,
        now: Time,
        id: &GroupId,
        spec: GroupSpec,
    ) -> Result<GroupStatus, ApiError> {
        self.call(now, Operation::UpdateGroup, id.as_str(), |engine, cause| {
            let old = &engine.group(id)?.spec;
            if old.protocol != spec.protocol || old.mode != spec.mode {
                let message = "protocol and mode are fixed: make another group and switch to it";
                return Err(ApiError::invalid("protocol", message));
            }
            if *old != spec {
                engine.group_mut(id)?.spec = spec;
                engine.reschedule_probes(id, cause);
                engine.rejudge_group(id, cause);
                engine.revision += 1;
            }
            Ok((engine.group_status(id)?, id.to_string()))
        })
    }

    /// Removes a group that no listener uses. Flows that still go to its targets end.
    pub fn delete_group(&mut self, now: Time, id: &GroupId) -> Result<(), ApiError> {
        self.call(now, Operation::DeleteGroup, id.as_str(), |engine, _| {
            let used_by = engine.group_status(id)?.used_by;
            if !used_by.is_empty() {
                let used_by = used_by.into_iter().collect();
                return Err(ApiError::GroupInUse {
                    group: id.clone(),
                    used_by,
                });
            }
            engine.groups.remove(id);
            engine.keys.forget(id.as_str());
            engine.revision += 1;
            Ok(((), id.to_string()))
        })
    }

    /// One group.
    pub fn get_group(&mut self, now: Time, id: &GroupId) -> Result<GroupStatus, ApiError> {
        self.call(now, Operation::GetGroup, id.as_str(), |engine, _| {
            Ok((engine.group_status(id)?, id.to_string()))
        })
    }

    /// Groups that carry all of these tags, by id.
    pub fn list_groups(&mut self, now: Time, tags: &Tags) -> Result<Vec<GroupStatus>, ApiError> {
        self.call(now, Operation::ListGroups, "", |engine, _| {
            let found = engine
                .groups
                .iter()
                .filter(|(_, group)| has_tags(&group.spec.tags, tags));
            let ids: Vec<GroupId> = found.map(|(id, _)| id.clone()).collect();
            let all: Result<_, _> = ids.iter().map(|id| engine.group_status(id)).collect();
            Ok((all?, String::new()))
        })
    }

    /// Registers targets. One that is registered stays as it is; one that drains starts anew.
    pub fn register(
        &mut self,
        now: Time,
        id: &GroupId,
        targets: Vec<TargetSpec>,
    ) -> Result<Vec<TargetStatus>, ApiError> {
        self.call(
            now,
            Operation::RegisterTargets,
            id.as_str(),
            |engine, cause| {
                engine.group(id)?;
                let asked: Vec<_> = targets.iter().map(|spec| spec.target).collect();
                for spec in targets {
                    engine.register_one(id, spec, cause)?;
                }
                Ok((engine.statuses(id, &asked)?, id.to_string()))
            },
        )
    }

    /// Deregisters targets: no new flows from here on (but for the profile's tail), established ones
    /// stay for the drain time. Targets that are not registered are left as they are.
    pub fn deregister(
        &mut self,
        now: Time,
        id: &GroupId,
        targets: &[SocketAddr],
    ) -> Result<Vec<TargetStatus>, ApiError> {
        self.call(
            now,
            Operation::DeregisterTargets,
            id.as_str(),
            |engine, cause| {
                engine.group(id)?;
                for target in targets {
                    engine.deregister_one(id, *target, cause)?;
                }
                Ok((engine.statuses(id, targets)?, id.to_string()))
            },
        )
    }

    /// The targets of a group that are registered or draining, or exactly those asked for: then also
    /// what is `unused` (FC-T03).
    pub fn targets(
        &mut self,
        now: Time,
        id: &GroupId,
        asked: &[SocketAddr],
    ) -> Result<Vec<TargetStatus>, ApiError> {
        self.call(now, Operation::GetTargets, id.as_str(), |engine, _| {
            let found = if asked.is_empty() {
                engine.listed(id)?
            } else {
                engine.statuses(id, asked)?
            };
            Ok((found, id.to_string()))
        })
    }

    fn register_one(&mut self, id: &GroupId, spec: TargetSpec, cause: Seq) -> Result<(), ApiError> {
        let group = self.group_mut(id)?;
        if let Some(known) = group.targets.get_mut(&spec.target)
            && known.life == Life::Registered
        {
            known.zone = spec.zone;
            self.revision += 1;
            return Ok(());
        }
        let lag = self.profile_of(id).lags.registration.clone();
        let effective_at = self.now + lag.draw(&mut self.rng);
        let target = Target::registered(spec.zone, effective_at, self.now);
        self.group_mut(id)?.targets.insert(spec.target, target);
        let timer = Timer::Registered(id.clone(), spec.target);
        self.agenda.enter(effective_at, timer, Some(cause));
        // The first report is `initial` even where the registration takes effect at once.
        self.rejudge(id, spec.target, self.now, Some(cause));
        self.refresh_views(id, cause);
        self.revision += 1;
        Ok(())
    }

    fn deregister_one(
        &mut self,
        id: &GroupId,
        target: SocketAddr,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let around = self.surroundings(id);
        let group = self.group_mut(id)?;
        let drain = group.spec.drain;
        let Some(known) = group.targets.get_mut(&target) else {
            return Ok(());
        };
        if known.life != Life::Registered {
            return Ok(());
        }
        let chosen_by: Vec<_> = known.views.keys().copied().collect();
        let chosen_by: Vec<_> = chosen_by
            .into_iter()
            .filter(|node| known.takes_new_flows(*node, around))
            .collect();
        let until = self.now + drain;
        if let Some(known) = self.group_mut(id)?.targets.get_mut(&target) {
            known.life = Life::Draining { until };
        }
        let tail = self.profile_of(id).lags.deregistration_tail.clone();
        for node in chosen_by {
            let end = self.now + tail.draw(&mut self.rng);
            self.start_tail(id, target, node, end, Some(cause));
        }
        self.agenda
            .enter(until, Timer::Drained(id.clone(), target), Some(cause));
        self.rejudge(id, target, self.now, Some(cause));
        self.revision += 1;
        Ok(())
    }

    pub(super) fn group(&self, id: &GroupId) -> Result<&Group, ApiError> {
        self.groups.get(id).ok_or_else(|| not_found("group", id))
    }

    fn group_mut(&mut self, id: &GroupId) -> Result<&mut Group, ApiError> {
        self.groups
            .get_mut(id)
            .ok_or_else(|| not_found("group", id))
    }

    /// The targets of a group that are registered or draining.
    pub(super) fn listed(&self, id: &GroupId) -> Result<Vec<TargetStatus>, ApiError> {
        let here = self.group(id)?.targets.iter();
        let listed: Vec<_> = here
            .filter(|(_, found)| found.life != Life::Left)
            .map(|(at, _)| *at)
            .collect();
        self.statuses(id, &listed)
    }

    pub(super) fn group_status(&self, id: &GroupId) -> Result<GroupStatus, ApiError> {
        let group = self.group(id)?;
        let used_by: BTreeSet<LbId> = group.users.iter().map(|(lb, _)| lb.clone()).collect();
        Ok(GroupStatus {
            id: id.clone(),
            spec: group.spec.clone(),
            used_by,
        })
    }

    fn statuses(&self, id: &GroupId, of: &[SocketAddr]) -> Result<Vec<TargetStatus>, ApiError> {
        let group = self.group(id)?;
        let status = |target: &SocketAddr| match group.targets.get(target) {
            Some(known) => TargetStatus {
                target: *target,
                zone: known.zone.clone(),
                state: known.state,
                reason: known.reason,
                since: Some(known.since),
            },
            None => TargetStatus {
                target: *target,
                zone: None,
                state: TargetState::Unused,
                reason: Some(Reason::NotRegistered),
                since: None,
            },
        };
        Ok(of.iter().map(status).collect())
    }
}
