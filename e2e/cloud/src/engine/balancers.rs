//! API operations on load balancers and listeners, and the ownership of frontend addresses (FC-100).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::time::Time;

use super::call::Operation;
use super::log::{Seq, What};
use super::timer::Timer;
use super::{
    ApiError, Balancer, Engine, GroupId, Holder, LbId, LbSpec, LbState, LbStatus, Listener,
    ListenerKey, Tags, not_found,
};

impl Engine {
    /// Makes a load balancer, or finds the one that this idempotency key has made.
    pub fn create_lb(&mut self, now: Time, key: &str, spec: LbSpec) -> Result<LbStatus, ApiError> {
        let operation = Operation::CreateLoadBalancer;
        self.call(now, operation, "", |engine, cause| {
            if let Some(id) = engine.keys.find(key, operation, &spec)?.map(LbId::from) {
                return Ok((engine.lb_status(&id)?, id.to_string()));
            }
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
                let old = engine.balancer(id)?.spec.clone();
                engine.check_addresses(Some(id), &spec, cause)?;
                if old != spec {
                    engine.move_addresses(id, &old.addresses, &spec.addresses, cause);
                    let groups = engine.groups_of(id);
                    engine.balancer_mut(id)?.spec = spec;
                    groups
                        .iter()
                        .for_each(|group| engine.refresh_views(group, cause));
                    engine.revision += 1;
                }
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
                let listeners: Vec<_> = engine.balancer(id)?.listeners.keys().copied().collect();
                for listener in listeners {
                    engine.remove_listener(id, listener, cause);
                }
                if let Some(balancer) = engine.balancers.remove(id) {
                    engine.move_addresses(id, &balancer.spec.addresses, &[], cause);
                }
                engine.keys.forget(id.as_str());
                engine.revision += 1;
                Ok(((), id.to_string()))
            },
        )
    }

    /// One load balancer.
    pub fn get_lb(&mut self, now: Time, id: &LbId) -> Result<LbStatus, ApiError> {
        self.call(now, Operation::GetLoadBalancer, id.as_str(), |engine, _| {
            Ok((engine.lb_status(id)?, id.to_string()))
        })
    }

    /// Load balancers that carry all of these tags, by id.
    pub fn list_lbs(&mut self, now: Time, tags: &Tags) -> Result<Vec<LbStatus>, ApiError> {
        self.call(now, Operation::ListLoadBalancers, "", |engine, _| {
            let carries = |balancer: &Balancer| has_tags(&balancer.spec.tags, tags);
            let found = engine
                .balancers
                .iter()
                .filter(|(_, balancer)| carries(balancer));
            let ids: Vec<LbId> = found.map(|(id, _)| id.clone()).collect();
            let all: Result<_, _> = ids.iter().map(|id| engine.lb_status(id)).collect();
            Ok((all?, String::new()))
        })
    }

    /// Makes a listener or points it at another group. Established flows stay where they are.
    pub fn put_listener(
        &mut self,
        now: Time,
        id: &LbId,
        key: ListenerKey,
        group: &GroupId,
    ) -> Result<GroupId, ApiError> {
        let subject = format!("{id}/{key}");
        self.call(
            now,
            Operation::PutListener,
            &subject.clone(),
            |engine, cause| {
                let old = engine
                    .balancer(id)?
                    .listeners
                    .get(&key)
                    .map(|found| found.group.clone());
                let protocol = engine.group(group)?.spec.protocol;
                if protocol != key.protocol {
                    let message =
                        format!("is a {protocol} group, the listener is {}", key.protocol);
                    return Err(ApiError::invalid("group", message));
                }
                match old {
                    Some(old) if old == *group => {}
                    Some(old) => engine.switch_listener(id, key, &old, group, cause)?,
                    None => engine.add_listener(id, key, group, cause)?,
                }
                Ok((group.clone(), subject))
            },
        )
    }

    /// The group of a listener.
    pub fn get_listener(
        &mut self,
        now: Time,
        id: &LbId,
        key: ListenerKey,
    ) -> Result<GroupId, ApiError> {
        let subject = format!("{id}/{key}");
        self.call(
            now,
            Operation::GetListener,
            &subject.clone(),
            |engine, _| {
                let listener = engine.balancer(id)?.listeners.get(&key);
                let listener = listener.ok_or_else(|| not_found("listener", &subject))?;
                Ok((listener.group.clone(), subject))
            },
        )
    }

    /// Removes a listener. Its flows end.
    pub fn delete_listener(
        &mut self,
        now: Time,
        id: &LbId,
        key: ListenerKey,
    ) -> Result<(), ApiError> {
        let subject = format!("{id}/{key}");
        self.call(
            now,
            Operation::DeleteListener,
            &subject.clone(),
            |engine, cause| {
                if !engine.balancer(id)?.listeners.contains_key(&key) {
                    return Err(not_found("listener", &subject));
                }
                engine.remove_listener(id, key, cause);
                Ok(((), subject))
            },
        )
    }

    fn insert_lb(&mut self, id: &LbId, spec: LbSpec, cause: Seq) {
        let ready_at = self.now + self.profile.lags.provisioning.draw(&mut self.rng);
        self.move_addresses(id, &[], &spec.addresses, cause);
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

    fn add_listener(
        &mut self,
        id: &LbId,
        key: ListenerKey,
        group: &GroupId,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let listener = Listener {
            group: group.clone(),
            former: BTreeSet::new(),
            behind: BTreeMap::new(),
        };
        self.balancer_mut(id)?.listeners.insert(key, listener);
        self.set_user(group, id, key, true);
        self.refresh_views(group, cause);
        self.revision += 1;
        Ok(())
    }

    fn switch_listener(
        &mut self,
        id: &LbId,
        key: ListenerKey,
        old: &GroupId,
        new: &GroupId,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let nodes = self.nodes_of(&self.balancer(id)?.spec);
        let tail = self.balancer(id)?.profile.as_ref().unwrap_or(&self.profile);
        let tail = tail.lags.group_switch_tail.clone();
        let now = self.now;
        let ends: Vec<_> = nodes
            .iter()
            .map(|node| (*node, now + tail.draw(&mut self.rng)))
            .collect();
        if let Some(listener) = self.balancer_mut(id)?.listeners.get_mut(&key) {
            listener.group = new.clone();
            listener.former.insert(old.clone());
            listener.former.remove(new);
            listener.behind = ends
                .iter()
                .filter(|(_, until)| *until > now)
                .map(|(node, until)| (*node, (old.clone(), *until)))
                .collect();
        }
        for (node, until) in ends.into_iter().filter(|(_, until)| *until > now) {
            self.agenda
                .enter(until, Timer::Switched(id.clone(), key, node), Some(cause));
        }
        self.set_user(old, id, key, false);
        self.set_user(new, id, key, true);
        self.refresh_views(old, cause);
        self.refresh_views(new, cause);
        self.revision += 1;
        Ok(())
    }

    fn remove_listener(&mut self, id: &LbId, key: ListenerKey, cause: Seq) {
        let removed = self
            .balancers
            .get_mut(id)
            .and_then(|lb| lb.listeners.remove(&key));
        if let Some(listener) = removed {
            self.set_user(&listener.group, id, key, false);
            self.refresh_views(&listener.group, cause);
            self.revision += 1;
        }
    }

    fn set_user(&mut self, group: &GroupId, id: &LbId, key: ListenerKey, uses: bool) {
        if let Some(group) = self.groups.get_mut(group) {
            if uses {
                group.users.insert((id.clone(), key));
            } else {
                group.users.remove(&(id.clone(), key));
            }
        }
    }

    /// Refuses addresses that are not routed or that another load balancer holds; the latter fails
    /// the run, since no two owners should ever be given one address (FC-100).
    fn check_addresses(
        &mut self,
        claimant: Option<&LbId>,
        spec: &LbSpec,
        cause: Seq,
    ) -> Result<(), ApiError> {
        for address in &spec.addresses {
            let routed = |ranges: &[ipnet::IpNet]| ranges.iter().any(|r| r.contains(address));
            if !self.ranges.is_empty() && !routed(&self.ranges) {
                return Err(ApiError::AddressNotRouted { address: *address });
            }
            let Some(owner) = self
                .owners
                .get(address)
                .filter(|owner| Some(*owner) != claimant)
            else {
                continue;
            };
            let held = &self.balancer(owner)?.spec;
            let holder = Holder {
                id: owner.clone(),
                name: held.name.clone(),
                tags: held.tags.clone(),
            };
            self.note_conflict(*address, &holder, claimant, &spec.name, cause);
            return Err(ApiError::AddressInUse {
                address: *address,
                holder: Box::new(holder),
            });
        }
        Ok(())
    }

    fn note_conflict(
        &mut self,
        address: IpAddr,
        holder: &Holder,
        claimant: Option<&LbId>,
        claimant_name: &str,
        cause: Seq,
    ) {
        let claimant = claimant.map_or_else(String::new, ToString::to_string);
        self.log.violation(format!(
            "address {address} of {} ({}) was asked for by {claimant_name} {claimant}",
            holder.id, holder.name
        ));
        let what = What::AddressConflict {
            address,
            holder: [holder.id.to_string(), holder.name.clone()],
            claimant: [claimant, claimant_name.to_owned()],
        };
        self.log.push(self.now, Some(cause), what);
    }

    fn move_addresses(&mut self, id: &LbId, old: &[IpAddr], new: &[IpAddr], cause: Seq) {
        for address in old.iter().filter(|address| !new.contains(address)) {
            self.owners.remove(address);
            let what = What::AddressReleased {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
        for address in new.iter().filter(|address| !old.contains(address)) {
            self.owners.insert(*address, id.clone());
            let what = What::AddressAssigned {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
    }

    fn groups_of(&self, id: &LbId) -> BTreeSet<GroupId> {
        let listeners = self
            .balancers
            .get(id)
            .into_iter()
            .flat_map(|lb| lb.listeners.values());
        listeners.map(|listener| listener.group.clone()).collect()
    }

    fn balancer(&self, id: &LbId) -> Result<&Balancer, ApiError> {
        self.balancers
            .get(id)
            .ok_or_else(|| not_found("load balancer", id))
    }

    fn balancer_mut(&mut self, id: &LbId) -> Result<&mut Balancer, ApiError> {
        self.balancers
            .get_mut(id)
            .ok_or_else(|| not_found("load balancer", id))
    }

    fn lb_status(&self, id: &LbId) -> Result<LbStatus, ApiError> {
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
