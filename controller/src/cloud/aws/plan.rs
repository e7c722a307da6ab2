//! What AWS should have, against what it has. Pure.
//!
//! One shard is one Service. The planner only says what is missing, wrong or left over; the order comes
//! from the rules in `plan::order`. A plan may be carried out in part: the next look finds the rest.

mod listeners;
mod members;
mod removal;
mod shape;

use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use super::model::{Balancer, Group, Observed};
use super::names::{Namer, Tags};
use super::settings::Settings;
use super::stack::Stack;
use super::step::AwsStep;
use super::wanted;
use crate::plan::{Intent, Plan, arrange};

/// What has to be done for one Service; with no intent everything goes.
pub fn plan(
    settings: &Settings,
    service: &ServiceKey,
    intent: Option<&Intent>,
    seen: &Observed,
    now: Time,
) -> Plan<AwsStep> {
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
    steps: Vec<AwsStep>,
}

/// One listener's part of a stack, with what is there of it.
struct Seat<'a> {
    /// The load balancer, if it is there.
    balancer: Option<&'a Balancer>,
    /// Its name, also before it is there.
    name: &'a str,
    /// The group, if it is there.
    group: Option<&'a Group>,
    /// Its name, also before it is there.
    group_name: String,
}

impl<'a> Planner<'a> {
    fn keep(&mut self, intent: &Intent) {
        if let Ok(stack) = wanted::stack(self.settings, intent, self.seen) {
            self.have(intent, &stack);
            return;
        }
        // What stands in the way of the shape never stops members (AWS-012, AWS-600).
        let own = |g: &&'a Group| super::model::Tagged::uid(*g).as_ref() == Some(&intent.uid);
        for group in self.seen.groups.iter().filter(own) {
            self.members(intent, group);
        }
    }

    fn have(&mut self, intent: &Intent, stack: &Stack) {
        let seen = self.seen;
        self.security(intent, stack);
        self.target_rules(stack);
        let balancer = wanted::balancer_of(intent, stack.balancer.scheme, seen);
        let name = self.balancer(intent, stack, balancer);
        for (listener, spec) in &stack.listeners {
            let group = wanted::current_group(intent, spec, balancer, seen);
            let group_name = self.group(intent, spec, group);
            let seat = Seat {
                balancer,
                name: &name,
                group,
                group_name,
            };
            self.listener(intent, listener, &seat);
        }
        self.leftovers(intent, stack, balancer);
    }

    fn namer<'b>(&'b self, intent: &'b Intent) -> Namer<'b> {
        Namer {
            settings: self.settings,
            flavour: Settings::flavour(intent.spec.class.as_deref()),
            service: &intent.service,
            uid: &intent.uid,
        }
    }
}

/// Tags of `wanted` that `have` lacks or has otherwise.
pub(super) fn missing_tags(wanted: &Tags, have: &Tags) -> Tags {
    let differs = |(key, value): &(&String, &String)| have.get(*key) != Some(*value);
    let missing = wanted.iter().filter(differs);
    missing
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests;
