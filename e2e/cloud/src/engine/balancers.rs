//! API operations on load balancers.

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::time::Time;

use super::call::Operation;
use super::log::{Seq, What};
use super::timer::Timer;
use super::{
    ApiError, Balancer, Engine, GroupId, LbId, LbSpec, LbState, LbStatus, Problem, Tags, not_found,
};

impl Engine {
    /// Makes a load balancer, or finds the one that this idempotency key has made.
    pub fn create_lb(&mut self, now: Time, key: &str, spec: LbSpec) -> Result<LbStatus, ApiError> {
        let operation = Operation::CreateLoadBalancer;
        self.call(now, operation, "", |engine, cause| {
            if let Some(id) = engine.keys.find(key, operation, &spec)?.map(LbId::from) {
                return Ok((engine.lb_status(&id)?, id.to_string()));
            }
            engine.refuse_bad_text(&spec)?;
            engine.check_zones(&spec)?;
            engine.check_lb_quota(false, &spec)?;
            engine.check_addresses(None, &spec, cause)?;
            let id = LbId::numbered(engine.next_lb);
            engine.next_lb += 1;
            engine.keys.remember(key, operation, &spec, id.as_str());
            engine.insert_lb(&id, spec, cause);
            Ok((engine.lb_status(&id)?, id.to_string()))
        })
    }

    /// Replaces what a user asked of a load balancer. Listeners stay.
    pub fn update_lb(&mut self, now: Time, id: &LbId, spec: LbSpec) -> Result<LbStatus, ApiError> {
        self.call(
            now,
            Operation::UpdateLoadBalancer,
            id.as_str(),
            |engine, cause| {
                engine.refuse_bad_text(&spec)?;
                engine.check_zones(&spec)?;
                engine.check_ipv6(&engine.balancer(id)?.spec, &spec)?;
                engine.check_floating(&spec, &engine.groups_of(id))?;
                engine.check_lb_quota(true, &spec)?;
                engine.replace_lb(id, spec, cause)?;
                Ok((engine.lb_status(id)?, id.to_string()))
            },
        )
    }

    /// Removes a load balancer with its listeners. Their flows end.
    pub fn delete_lb(&mut self, now: Time, id: &LbId) -> Result<(), ApiError> {
        self.call(
            now,
            Operation::DeleteLoadBalancer,
            id.as_str(),
            |engine, cause| {
                engine.drop_lb(id, cause)?;
                Ok(((), id.to_string()))
            },
        )
    }

    /// One load balancer.
    pub fn get_lb(&mut self, now: Time, id: &LbId) -> Result<LbStatus, ApiError> {
        self.call(now, Operation::GetLoadBalancer, id.as_str(), |engine, _| {
            Ok((engine.seen_lb(id)?, id.to_string()))
        })
    }

    /// Load balancers that carry all of these tags, by id.
    pub fn list_lbs(&mut self, now: Time, tags: &Tags) -> Result<Vec<LbStatus>, ApiError> {
        self.call(now, Operation::ListLoadBalancers, "", |engine, _| {
            let mut found = engine.seen_lbs();
            found.retain(|lb| has_tags(&lb.spec.tags, tags));
            Ok((found, String::new()))
        })
    }

    pub(super) fn replace_lb(
        &mut self,
        id: &LbId,
        spec: LbSpec,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let old = self.balancer(id)?.spec.clone();
        self.check_addresses(Some(id), &spec, cause)?;
        if old != spec {
            self.move_addresses(id, &old.addresses, &spec.addresses, cause);
            if old.cross_zone != spec.cross_zone {
                self.note_cross_zone(id, spec.cross_zone, cause);
            }
            let groups = self.groups_of(id);
            self.balancer_mut(id)?.spec = spec;
            for group in &groups {
                self.refresh_views(group, cause);
            }
            self.revision += 1;
        }
        Ok(())
    }

    pub(super) fn drop_lb(&mut self, id: &LbId, cause: Seq) -> Result<(), ApiError> {
        let listeners: Vec<_> = self.balancer(id)?.listeners.keys().copied().collect();
        for listener in listeners {
            self.remove_listener(id, listener, cause);
        }
        if let Some(balancer) = self.balancers.remove(id) {
            self.move_addresses(id, &balancer.spec.addresses, &[], cause);
        }
        self.keys.forget(id.as_str());
        self.revision += 1;
        Ok(())
    }

    fn insert_lb(&mut self, id: &LbId, spec: LbSpec, cause: Seq) {
        let ready_at = self.now + self.profile.lags.provisioning.draw(&mut self.rng);
        self.move_addresses(id, &[], &spec.addresses, cause);
        self.note_cross_zone(id, spec.cross_zone, cause);
        let balancer = Balancer {
            spec,
            state: LbState::Provisioning,
            ready_at,
            listeners: BTreeMap::new(),
            profile: None,
        };
        self.balancers.insert(id.clone(), balancer);
        self.set_lb_state(id, LbState::Provisioning, self.now, Some(cause));
        if ready_at <= self.now {
            self.set_lb_state(id, LbState::Active, self.now, Some(cause));
        } else {
            self.agenda
                .enter(ready_at, Timer::Provisioned(id.clone()), Some(cause));
        }
    }

    pub(super) fn set_lb_state(&mut self, id: &LbId, state: LbState, at: Time, cause: Option<Seq>) {
        if let Some(balancer) = self.balancers.get_mut(id) {
            balancer.state = state;
            self.log.push(
                at,
                cause,
                What::LoadBalancerState {
                    lb: id.clone(),
                    state,
                },
            );
            self.revision += 1;
        }
    }

    fn note_cross_zone(&mut self, id: &LbId, on: bool, cause: Seq) {
        let lb = id.clone();
        self.log
            .push(self.now, Some(cause), What::CrossZone { lb, on });
    }

    /// Refuses zones in which the cloud has no LB node: nothing would ever be served there.
    fn check_zones(&self, spec: &LbSpec) -> Result<(), ApiError> {
        let known: BTreeSet<&str> = self.nodes.values().map(|node| node.zone.as_str()).collect();
        let zones = spec.zones.iter().enumerate();
        let unknown = zones.filter(|(_, zone)| !known.contains(zone.as_str()));
        let problem = |(at, zone): (usize, &String)| {
            let known = known.iter().copied().collect::<Vec<_>>().join(", ");
            let field = format!("zones[{at}]");
            Problem::new(field, format!("{zone:?} is no zone of this cloud: {known}"))
        };
        let problems: Vec<_> = unknown.map(problem).collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ApiError::Invalid(problems))
        }
    }

    /// The zone of a target, as the data path takes it: one in which no LB node stands is as good as none. Nodes may
    /// have zones that the cloud knows nothing of, and nobody would ever be near them.
    pub(super) fn zone_here(&self, told: Option<&String>) -> Option<String> {
        let here = |zone: &&String| self.nodes.values().any(|node| node.zone == **zone);
        told.filter(here).cloned()
    }

    fn groups_of(&self, id: &LbId) -> BTreeSet<GroupId> {
        let listeners = self
            .balancers
            .get(id)
            .into_iter()
            .flat_map(|lb| lb.listeners.values());
        listeners.map(|listener| listener.group.clone()).collect()
    }

    pub(super) fn balancer(&self, id: &LbId) -> Result<&Balancer, ApiError> {
        self.balancers
            .get(id)
            .ok_or_else(|| not_found("load balancer", id))
    }

    pub(super) fn balancer_mut(&mut self, id: &LbId) -> Result<&mut Balancer, ApiError> {
        self.balancers
            .get_mut(id)
            .ok_or_else(|| not_found("load balancer", id))
    }

    pub(super) fn lb_status(&self, id: &LbId) -> Result<LbStatus, ApiError> {
        let balancer = self.balancer(id)?;
        let groups = balancer
            .listeners
            .iter()
            .map(|(key, found)| (*key, found.group.clone()));
        Ok(LbStatus {
            id: id.clone(),
            spec: balancer.spec.clone(),
            state: balancer.state,
            listeners: groups.collect(),
        })
    }
}

/// Whether `have` carries each of `want`.
pub(super) fn has_tags(have: &Tags, want: &Tags) -> bool {
    want.iter().all(|(key, value)| have.get(key) == Some(value))
}
