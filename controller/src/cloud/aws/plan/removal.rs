//! What is left over: replaced groups and load balancers on their way out, listeners that nobody wants, and
//! everything of a Service that is gone (AWS-622, AWS-630, AWS-645).

use std::collections::BTreeSet;

use super::Planner;
use crate::cloud::aws::model::{Balancer, Group, Listener, SecurityGroup, Tagged};
use crate::cloud::aws::names::{self, Tags};
use crate::cloud::aws::stack::Stack;
use crate::cloud::aws::step::{AwsStep, BalancerChange, GroupChange, When};
use crate::cloud::aws::wanted;
use crate::plan::Intent;
use crate::plan::membership::{Guard, Reason};

const PROTECTION: &str = "deletion_protection.enabled";

impl Planner<'_> {
    pub(super) fn leftovers(
        &mut self,
        intent: &Intent,
        stack: &Stack,
        balancer: Option<&Balancer>,
    ) {
        let seen = self.seen;
        let ports: BTreeSet<u16> = stack.listeners.iter().map(|(l, _)| l.port).collect();
        // Unknown listeners on a load balancer of ours go (AWS-603).
        for listener in listeners(balancer).filter(|l| !ports.contains(&l.port)) {
            if let Some(balancer) = balancer {
                self.delete_listener(balancer, listener);
            }
        }
        for other in seen
            .balancers
            .iter()
            .filter(|b| balancer.is_none_or(|m| m.arn != b.arn))
        {
            self.replaced_balancer(intent, stack, balancer, other);
        }
        let current: BTreeSet<&str> = stack
            .listeners
            .iter()
            .filter_map(|(_, spec)| wanted::current_group(intent, spec, balancer, seen))
            .map(|group| group.arn.as_str())
            .collect();
        for group in seen
            .groups
            .iter()
            .filter(|g| !current.contains(g.arn.as_str()))
        {
            let twin = stack.listeners.iter().any(|(_, spec)| {
                let current = wanted::current_group(intent, spec, balancer, seen);
                let alike = |c: &Group| wanted::are_alike(c, group, intent);
                wanted::is_for(group, spec) && current.is_some_and(alike)
            });
            // Nothing tells which of them is the newer one (AWS-115).
            if !twin {
                self.replaced_group(intent, group);
            }
        }
        let wanted = stack.managed.as_ref().and(wanted::managed_group(seen));
        let used = |group: &&SecurityGroup| {
            let mut balancers = seen.balancers.iter();
            balancers.any(|b| b.security_groups.contains(&group.id))
        };
        let left = seen.security_groups.iter();
        let left = left.filter(|group| wanted.is_none_or(|w| w.id != group.id) && !used(group));
        for group in left {
            let name = group.name.clone();
            self.steps.push(AwsStep::DeleteSecurity { name });
        }
    }

    /// A load balancer that another one replaces serves on until the other is ready, and then for as long
    /// as clients may know its name.
    fn replaced_balancer(
        &mut self,
        intent: &Intent,
        stack: &Stack,
        new: Option<&Balancer>,
        old: &Balancer,
    ) {
        let alike =
            |new: &Balancer| new.scheme == old.scheme && wanted::are_alike(new, old, intent);
        if new.is_some_and(alike) {
            return;
        }
        match old.retired() {
            Some(since) if since + self.settings.dns_grace <= self.now => self.delete_balancer(old),
            Some(_) => {}
            None => {
                let ready = new.is_some_and(|new| {
                    super::super::outcome::is_ready(intent, stack, new, self.seen)
                });
                if ready {
                    let tags = Tags::from([(names::RETIRED.to_owned(), self.now.to_string())]);
                    self.steps.push(AwsStep::AdjustBalancer {
                        name: old.name.clone(),
                        change: BalancerChange::Tags(tags),
                    });
                }
            }
        }
    }

    fn replaced_group(&mut self, intent: &Intent, group: &Group) {
        if self.seen.in_use(group) {
            // Still serves: its members go on being cared for until the switch.
            self.members(intent, group);
            return;
        }
        match group.retired() {
            None => {
                // Noted on the group itself, so that the tail survives a restart.
                let tags = Tags::from([(names::RETIRED.to_owned(), self.now.to_string())]);
                self.steps.push(AwsStep::AdjustGroup {
                    name: group.name.clone(),
                    change: GroupChange::Tags(tags),
                });
            }
            Some(since) if since + self.settings.switch_tail > self.now => {
                self.members(intent, group);
            }
            // A listener still names it, without weight: it goes once the listener has another one, or none.
            Some(_) if self.seen.is_attached(group) => {}
            Some(_) => self.wind_up(group),
        }
    }

    /// Drain before delete.
    fn wind_up(&mut self, group: &Group) {
        // What was never read is not known to be empty.
        let Some(targets) = &group.targets else {
            return;
        };
        let registered: Vec<_> = group
            .registered()
            .map(|(target, _)| (target.clone(), Reason::Withdrawn))
            .collect();
        if targets.is_empty() {
            self.steps.push(AwsStep::DeleteGroup {
                name: group.name.clone(),
            });
        } else {
            // They serve on, and no listener sends them anything new: nothing is less urgent.
            let (when, guard) = (When::AfterRegister, Guard::Present);
            self.deregister(&group.name, registered, when, guard);
        }
    }

    pub(super) fn remove_all(&mut self) {
        let seen = self.seen;
        for balancer in &seen.balancers {
            self.delete_balancer(balancer);
        }
        for group in &seen.groups {
            self.steps.push(AwsStep::DeleteGroup {
                name: group.name.clone(),
            });
        }
        for group in &seen.security_groups {
            self.steps.push(AwsStep::DeleteSecurity {
                name: group.name.clone(),
            });
        }
    }

    /// AWS-645; AWS-634: protection that we set and nobody asks for any more is taken off first.
    fn delete_balancer(&mut self, balancer: &Balancer) {
        let protected = balancer
            .attributes
            .as_ref()
            .and_then(|all| all.get(PROTECTION));
        if protected.is_some_and(|value| value == "true") {
            let ours = balancer.tags.get(crate::cloud::aws::attributes::OWNED);
            if ours.is_some_and(|keys| keys.split(' ').any(|key| key == PROTECTION)) {
                let off = [(PROTECTION.to_owned(), "false".to_owned())].into();
                self.steps.push(AwsStep::AdjustBalancer {
                    name: balancer.name.clone(),
                    change: BalancerChange::Attributes(off),
                });
            }
            // The next plan, made on what was seen after it, deletes.
            return;
        }
        for listener in listeners(Some(balancer)) {
            self.delete_listener(balancer, listener);
        }
        let groups = self.seen.security_groups.iter();
        let frees = groups.filter(|g| balancer.security_groups.contains(&g.id));
        self.steps.push(AwsStep::DeleteBalancer {
            name: balancer.name.clone(),
            frees: frees.map(|group| group.name.clone()).collect(),
        });
    }

    fn delete_listener(&mut self, balancer: &Balancer, listener: &Listener) {
        let groups = listener.groups.keys();
        let frees = groups.filter_map(|arn| Some(self.seen.group(arn)?.name.clone()));
        self.steps.push(AwsStep::DeleteListener {
            balancer: balancer.name.clone(),
            port: listener.port,
            frees: frees.collect(),
        });
    }
}

fn listeners(balancer: Option<&Balancer>) -> impl Iterator<Item = &Listener> {
    balancer
        .into_iter()
        .flat_map(|b| b.listeners.iter().flatten())
        .map(|(_, listener)| listener)
}
