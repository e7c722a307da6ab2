//! API operations on listeners: which group the new flows of a port go to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use onehop_core::time::Time;

use super::call::Operation;
use super::log::{Seq, What};
use super::timer::Timer;
use super::{ApiError, Engine, GroupId, GroupSpec, LbId, LbSpec, Listener, ListenerKey, not_found};
use crate::certificate::Certificate;

impl Engine {
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
                engine.check_floating(&engine.balancer(id)?.spec, [group])?;
                engine.check_listener_quota(id, group, old.is_none())?;
                if old.is_none() {
                    engine.check_listener(id, key, cause)?;
                }
                if old.as_ref() != Some(group) {
                    engine.note_listener(id, key, Some(group), cause);
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

    /// Members of a group of mode `vip` answer clients themselves: where they see the LB node's address instead, no
    /// answer would find its way (FC-29b).
    pub(super) fn check_floating<'a>(
        &self,
        lb: &LbSpec,
        groups: impl IntoIterator<Item = &'a GroupId>,
    ) -> Result<(), ApiError> {
        let of = |id: &&GroupId| self.groups.get(*id).map(|group| &group.spec);
        let preserves = |spec: &GroupSpec| spec.preserve_client_ip.unwrap_or(lb.preserve_client_ip);
        let mut groups = groups.into_iter();
        let bad =
            groups.find(|id| of(id).is_some_and(|spec| spec.mode.floats() && !preserves(spec)));
        match bad {
            None => Ok(()),
            Some(id) => {
                let message = format!(
                    "must be true for group {id} of mode vip: its targets answer clients directly"
                );
                Err(ApiError::invalid("preserveClientIP", message))
            }
        }
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
                let group = engine.seen_lb(id)?.listeners.remove(&key);
                Ok((
                    group.ok_or_else(|| not_found("listener", &subject))?,
                    subject,
                ))
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

    /// Names the groups that a listener has beside the one that it sends to: their targets are probed.
    pub fn set_standby(
        &mut self,
        now: Time,
        id: &LbId,
        key: ListenerKey,
        mut groups: BTreeSet<GroupId>,
    ) -> Result<(), ApiError> {
        self.advance(now);
        for group in &groups {
            self.group(group)?;
        }
        let found = self.balancer_mut(id)?.listeners.get_mut(&key);
        let listener = found.ok_or_else(|| not_found("listener", &format!("{id}/{key}")))?;
        let main = listener.group.clone();
        groups.remove(&main);
        let old = std::mem::replace(&mut listener.standby, groups.clone());
        let cause = self.log.last();
        for group in old.difference(&groups).filter(|group| **group != main) {
            self.set_user(group, id, key, false);
            self.refresh_views(group, cause);
        }
        for group in groups.difference(&old) {
            self.set_user(group, id, key, true);
            self.refresh_views(group, cause);
        }
        self.revision += 1;
        Ok(())
    }

    /// Lets a listener end TLS with this certificate, or not at all. No call of its own: part of the one that makes or
    /// changes the listener.
    pub fn set_tls(
        &mut self,
        now: Time,
        id: &LbId,
        key: ListenerKey,
        certificate: Option<Arc<Certificate>>,
    ) -> Result<(), ApiError> {
        self.advance(now);
        let found = self.balancer_mut(id)?.listeners.get_mut(&key);
        let listener = found.ok_or_else(|| not_found("listener", &format!("{id}/{key}")))?;
        if listener.tls != certificate {
            listener.tls = certificate;
            self.revision += 1;
        }
        Ok(())
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
            standby: BTreeSet::new(),
            former: BTreeSet::new(),
            behind: BTreeMap::new(),
            tls: None,
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

    pub(super) fn remove_listener(&mut self, id: &LbId, key: ListenerKey, cause: Seq) {
        let removed = self
            .balancers
            .get_mut(id)
            .and_then(|lb| lb.listeners.remove(&key));
        if let Some(listener) = removed {
            self.note_listener(id, key, None, cause);
            for group in listener.standby.iter().chain([&listener.group]) {
                self.set_user(group, id, key, false);
                self.refresh_views(group, cause);
            }
            self.revision += 1;
        }
    }

    fn note_listener(&mut self, id: &LbId, key: ListenerKey, group: Option<&GroupId>, cause: Seq) {
        let what = What::ListenerSet {
            lb: id.clone(),
            listener: key.to_string(),
            group: group.cloned(),
        };
        self.log.push(self.now, Some(cause), what);
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
}
