//! API operations on groups and their targets.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use onehop_core::time::Time;

use super::balancers::has_tags;
use super::call::Operation;
use super::log::{Seq, What};
use super::target::{Life, Target};
use super::timer::Timer;
use super::{
    ApiError, Engine, Group, GroupId, GroupSpec, GroupStatus, LbId, Tags, TargetSpec, TargetStatus,
    not_found,
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
        self.call(now, operation, "", |engine, cause| {
            if let Some(id) = engine.keys.find(key, operation, &spec)?.map(GroupId::from) {
                return Ok((engine.group_status(&id)?, id.to_string()));
            }
            engine.refuse_bad_text(&spec)?;
            engine.check_group_quota()?;
            let id = GroupId::numbered(engine.next_group);
            engine.next_group += 1;
            engine.keys.remember(key, operation, &spec, id.as_str());
            engine.groups.insert(id.clone(), Group::empty(spec));
            engine.note_tags(&id, cause);
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
            engine.check_probe_protocol(old, &spec)?;
            engine.refuse_bad_text(&spec)?;
            engine.replace_group(id, spec, cause)?;
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
            engine.drop_group(id);
            Ok(((), id.to_string()))
        })
    }

    /// One group.
    pub fn get_group(&mut self, now: Time, id: &GroupId) -> Result<GroupStatus, ApiError> {
        self.call(now, Operation::GetGroup, id.as_str(), |engine, _| {
            Ok((engine.seen_group(id)?, id.to_string()))
        })
    }

    /// Groups that carry all of these tags, by id.
    pub fn list_groups(&mut self, now: Time, tags: &Tags) -> Result<Vec<GroupStatus>, ApiError> {
        self.call(now, Operation::ListGroups, "", |engine, _| {
            let mut found = engine.seen_groups();
            found.retain(|group| has_tags(&group.spec.tags, tags));
            Ok((found, String::new()))
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
                engine.check_target_quota(id, &targets)?;
                engine.draw_fates(&targets);
                for spec in targets {
                    if engine.fate(spec.target).is_none() {
                        engine.register_one(id, spec, cause)?;
                    }
                }
                let mut answer = engine.statuses(id, &asked)?;
                engine.tell_lies(&mut answer);
                Ok((answer, id.to_string()))
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

    /// Takes targets out at once, as a cloud without a drain does: flows to them end, those that were draining too.
    pub fn cut(
        &mut self,
        now: Time,
        id: &GroupId,
        targets: &BTreeSet<SocketAddr>,
    ) -> Result<(), ApiError> {
        self.call(
            now,
            Operation::DeregisterTargets,
            id.as_str(),
            |engine, cause| {
                engine.group(id)?;
                for target in targets {
                    if let Some(known) = engine.group_mut(id)?.targets.get_mut(target) {
                        known.life = Life::Left;
                        engine.revision += 1;
                        engine.rejudge(id, *target, engine.now, Some(cause));
                        engine.forget_if_gone(id, *target);
                    }
                }
                Ok(((), id.to_string()))
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
            Ok((engine.seen_targets(id, asked)?, id.to_string()))
        })
    }

    pub(super) fn replace_group(
        &mut self,
        id: &GroupId,
        spec: GroupSpec,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let group = self.group_mut(id)?;
        if group.spec != spec {
            let retagged = group.spec.tags != spec.tags;
            group.spec = spec;
            if retagged {
                self.note_tags(id, cause);
            }
            self.reschedule_probes(id, cause);
            self.rejudge_group(id, cause);
            self.revision += 1;
        }
        Ok(())
    }

    /// Writes a group's tags into the log.
    pub(super) fn note_tags(&mut self, id: &GroupId, cause: Seq) {
        let tagged = self.groups.get(id).map(|group| What::GroupTagged {
            group: id.clone(),
            mode: group.spec.mode,
            tags: group.spec.tags.clone(),
        });
        if let Some(what) = tagged {
            self.log.push(self.now, Some(cause), what);
        }
    }

    pub(super) fn drop_group(&mut self, id: &GroupId) {
        self.groups.remove(id);
        self.keys.forget(id.as_str());
        self.revision += 1;
    }

    pub(super) fn register_one(
        &mut self,
        id: &GroupId,
        spec: TargetSpec,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let stands_in = self.zone_here(spec.zone.as_ref());
        let group = self.group_mut(id)?;
        if let Some(known) = group.targets.get_mut(&spec.target)
            && known.life == Life::Registered
        {
            if known.zone != spec.zone {
                known.zone.clone_from(&spec.zone);
                self.revision += 1;
                let what = What::TargetMoved {
                    group: id.clone(),
                    target: spec.target,
                    zone: stands_in,
                };
                self.log.push(self.now, Some(cause), what);
            }
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

    pub(super) fn deregister_one(
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

    pub(super) fn group_mut(&mut self, id: &GroupId) -> Result<&mut Group, ApiError> {
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

    pub(super) fn statuses(
        &self,
        id: &GroupId,
        of: &[SocketAddr],
    ) -> Result<Vec<TargetStatus>, ApiError> {
        let group = self.group(id)?;
        let status = |target: &SocketAddr| match group.targets.get(target) {
            Some(known) => TargetStatus {
                target: *target,
                zone: known.zone.clone(),
                state: known.state,
                reason: known.reason,
                since: Some(known.since),
            },
            None => TargetStatus::unregistered(*target),
        };
        Ok(of.iter().map(status).collect())
    }
}
