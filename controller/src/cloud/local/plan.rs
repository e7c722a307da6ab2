//! What the local cloud should have, against what it has. Pure.
//!
//! One shard is one Service. The planner only says what is missing, wrong or left over; the order comes
//! from the rules in `plan::order`. A plan may be carried out in part: the next look finds the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::crd::LoadBalancerPort;
use onehop_core::id::{InstallId, ServiceKey};
use onehop_core::time::Time;

use super::model::{Balancer, Group, GroupSpec, ListenerKey, Observed};
use super::names;
use super::step::{self, LocalStep, When};
use super::wanted::{
    balancer_of, balancer_spec, current_group, decide, group_spec, groups_of, members_of, policy,
};
use crate::plan::membership::{self, Action, Decision, State, TargetKey};
use crate::plan::{Intent, Members, Plan, arrange};

/// What the planner knows beside intent and observation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This install.
    pub install: InstallId,
    /// How long a group serves on after a listener was switched away from it (ZD-28).
    pub switch_tail: Duration,
}

/// What has to be done for one Service; with no intent everything goes.
pub fn plan(
    settings: &Settings,
    service: &ServiceKey,
    intent: Option<&Intent>,
    seen: &Observed,
    now: Time,
) -> Plan<LocalStep> {
    let mut planner = Planner {
        settings,
        seen,
        now,
        steps: Vec::new(),
    };
    match intent {
        Some(intent) => planner.keep(intent),
        None => planner.remove_all(),
    }
    arrange(std::slice::from_ref(service), planner.steps)
}

struct Planner<'a> {
    settings: &'a Settings,
    seen: &'a Observed,
    now: Time,
    steps: Vec<LocalStep>,
}

impl Planner<'_> {
    fn keep(&mut self, intent: &Intent) {
        let balancer = balancer_of(intent, self.seen);
        self.balancer(intent, balancer);
        for port in &intent.spec.ports {
            self.port(intent, port, balancer);
        }
        self.leftover_listeners(intent, balancer);
        self.leftover_groups(intent);
        let foreign = self
            .seen
            .balancers
            .iter()
            .filter(|b| balancer.is_none_or(|m| m.id != b.id));
        for other in foreign {
            self.remove_balancer(other);
        }
        for group in self.seen.groups.iter().filter(|g| g.uid != intent.uid) {
            self.steps.push(LocalStep::DeleteGroup {
                name: group.spec.name.clone(),
            });
        }
    }

    fn remove_all(&mut self) {
        for balancer in &self.seen.balancers {
            self.remove_balancer(balancer);
        }
        for group in &self.seen.groups {
            self.steps.push(LocalStep::DeleteGroup {
                name: group.spec.name.clone(),
            });
        }
    }

    fn remove_balancer(&mut self, balancer: &Balancer) {
        for (listener, group) in &balancer.listeners {
            self.steps
                .push(self.delete_listener(balancer, *listener, group));
        }
        self.steps.push(LocalStep::DeleteBalancer {
            name: balancer.spec.name.clone(),
        });
    }

    fn delete_listener(&self, balancer: &Balancer, key: ListenerKey, group: &str) -> LocalStep {
        LocalStep::DeleteListener {
            balancer: balancer.spec.name.clone(),
            listener: key,
            frees: self.seen.group(group).map(|g| g.spec.name.clone()),
        }
    }

    fn balancer(&mut self, intent: &Intent, balancer: Option<&Balancer>) {
        let wanted = balancer_spec(&self.settings.install, intent);
        match balancer {
            None => self.steps.push(LocalStep::CreateBalancer(wanted)),
            Some(b) if b.spec != wanted => self.steps.push(LocalStep::AdjustBalancer(wanted)),
            Some(_) => {}
        }
    }

    /// One port: its group, the group's targets, its listener.
    fn port(&mut self, intent: &Intent, port: &LoadBalancerPort, balancer: Option<&Balancer>) {
        let key = port.key();
        let current = current_group(intent, port, self.seen);
        let generation = if let Some(group) = current {
            group.generation
        } else {
            let newest = groups_of(intent, &key, self.seen)
                .map(|g| g.generation)
                .max();
            newest.unwrap_or(0) + 1
        };
        let wanted = group_spec(&self.settings.install, intent, port, generation);
        match current {
            None => {
                self.steps.push(LocalStep::CreateGroup(wanted.clone()));
                let members = intent.explained(&key, port.mode, []);
                let policy = policy(intent, &key, &wanted);
                let none = BTreeMap::new();
                let decision = membership::decide(&policy, &members, &none, intent.view, self.now);
                let members = intent.members(&key, port.mode);
                self.membership(&wanted.name, &decision, members);
            }
            Some(group) => {
                if group.spec != wanted {
                    self.steps.push(LocalStep::AdjustGroup(wanted.clone()));
                }
                self.group_membership(intent, group);
            }
        }
        self.listener(intent, port, balancer, (&wanted, current));
    }

    fn listener(
        &mut self,
        intent: &Intent,
        port: &LoadBalancerPort,
        balancer: Option<&Balancer>,
        (wanted, current): (&GroupSpec, Option<&Group>),
    ) {
        let key = ListenerKey {
            port: port.port,
            protocol: port.protocol,
        };
        let pointed = balancer.and_then(|b| b.listeners.get(&key));
        if pointed.is_some() && pointed == current.map(|g| &g.id) {
            return;
        }
        let old = pointed.and_then(|id| self.seen.group(id));
        if old.is_some_and(|old| !may_switch(intent, port, old, current)) {
            return;
        }
        let name = names::load_balancer(&self.settings.install, &intent.service, &intent.uid);
        let mut needs = Vec::new();
        if balancer.is_none() {
            needs.push(step::balancer(&name));
        }
        // Never point a listener at an empty group while there is something to register (AWS-601).
        if current.is_none_or(|group| group.targets.values().all(|s| !s.registered())) {
            needs.push(step::group(&wanted.name));
        }
        self.steps.push(LocalStep::PutListener {
            balancer: name,
            listener: key,
            group: wanted.name.clone(),
            needs,
            frees: old.map(|g| g.spec.name.clone()),
        });
    }

    /// Who comes and goes of a group that exists, and whose node is in another zone than the cloud was told.
    fn group_membership(&mut self, intent: &Intent, group: &Group) {
        let decision = decide(intent, group, self.seen, self.now);
        let members = members_of(intent, group, self.seen);
        self.membership(&group.spec.name, &decision, members);
        let stays = |key: &TargetKey| {
            let verdict = decision.verdicts.get(key);
            verdict.is_some_and(|v| matches!(v.action, Action::Keep | Action::Hold))
        };
        let moved = group
            .targets
            .keys()
            .filter(|key| stays(key))
            .filter_map(|key| {
                let zone = members?.zones.get(&key.address)?;
                (group.zones.get(key) != Some(zone)).then(|| (*key, Some(zone.clone())))
            });
        let targets: Vec<_> = moved.collect();
        if !targets.is_empty() {
            let group = group.spec.name.clone();
            self.steps.push(LocalStep::Register { group, targets });
        }
    }

    fn membership(&mut self, group: &str, decision: &Decision, members: Option<&Members>) {
        let zone = |key: &TargetKey| members.and_then(|m| m.zones.get(&key.address)).cloned();
        let register: Vec<_> = decision
            .with(Action::Register)
            .map(|(key, _)| (key, zone(&key)))
            .collect();
        if !register.is_empty() {
            let group = group.to_owned();
            self.steps.push(LocalStep::Register {
                group,
                targets: register,
            });
        }
        let out = [
            (Action::Release, When::AtOnce),
            (Action::Drain, When::AfterRegister),
        ];
        for (action, when) in out {
            let targets: Vec<_> = decision.with(action).collect();
            if !targets.is_empty() {
                self.steps.push(LocalStep::Deregister {
                    group: group.to_owned(),
                    targets,
                    when,
                });
            }
        }
    }

    fn leftover_listeners(&mut self, intent: &Intent, balancer: Option<&Balancer>) {
        let Some(balancer) = balancer else { return };
        for (key, group) in &balancer.listeners {
            let wanted = intent
                .spec
                .ports
                .iter()
                .any(|p| p.port == key.port && p.protocol == key.protocol);
            if !wanted {
                self.steps.push(self.delete_listener(balancer, *key, group));
            }
        }
    }

    /// Groups that no port wants as they are: replaced ones and those of ports that are gone.
    fn leftover_groups(&mut self, intent: &Intent) {
        let current: Vec<&str> = intent
            .spec
            .ports
            .iter()
            .filter_map(|port| current_group(intent, port, self.seen))
            .map(|g| g.id.as_str())
            .collect();
        for group in self.seen.groups.iter().filter(|g| g.uid == intent.uid) {
            if current.contains(&group.id.as_str()) {
                continue;
            }
            if self.seen.in_use(group) {
                // Still serves: its members go on being cared for until the switch.
                self.group_membership(intent, group);
                continue;
            }
            match group.retired {
                None => self.retire(group),
                // Written by a clock that was ahead of ours: begins anew, late and never early.
                Some(since) if since > self.now => self.retire(group),
                Some(since) if since + self.settings.switch_tail > self.now => {
                    self.group_membership(intent, group);
                }
                Some(_) => self.wind_up(group),
            }
        }
    }

    /// Notes in the group's tags since when it is out of use: survives a restart.
    fn retire(&mut self, group: &Group) {
        let mut spec = group.spec.clone();
        spec.tags
            .insert(names::RETIRED.to_owned(), self.now.to_string());
        self.steps.push(LocalStep::AdjustGroup(spec));
    }

    /// Drain before delete.
    fn wind_up(&mut self, group: &Group) {
        let registered: Vec<_> = group
            .targets
            .iter()
            .filter(|(_, state)| state.registered())
            .map(|(key, _)| (*key, membership::Reason::Withdrawn))
            .collect();
        if registered.is_empty() && group.targets.is_empty() {
            self.steps.push(LocalStep::DeleteGroup {
                name: group.spec.name.clone(),
            });
        } else if !registered.is_empty() {
            self.steps.push(LocalStep::Deregister {
                group: group.spec.name.clone(),
                targets: registered,
                when: When::AfterRegister,
            });
        }
    }
}

/// Make-before-break (ZD-28): the new group takes over once enough of it is healthy.
fn may_switch(intent: &Intent, port: &LoadBalancerPort, old: &Group, new: Option<&Group>) -> bool {
    let Some(new) = new else { return false };
    let usable = |group: &Group| group.targets.values().filter(|s| s.usable()).count();
    let members = intent.members(&new.port, port.mode);
    let desired = members.map_or(0, |m| {
        let ready = m.list.iter().filter(|m| m.state == State::Ready).count();
        m.at_most_healthy.map_or(ready, |most| ready.min(most))
    });
    let floor = policy(intent, &new.port, &new.spec).floor(desired);
    desired == 0 || usable(new) >= floor || (usable(old) == 0 && usable(new) > 0)
}

#[cfg(test)]
mod tests;
