//! Security groups, load balancer, groups: make what is missing, change what differs.

use super::{Planner, missing_tags};
use crate::cloud::aws::attributes;
use crate::cloud::aws::model::{Balancer, Group, Rule, SecurityGroup, Tagged};
use crate::cloud::aws::names;
use crate::cloud::aws::stack::{BalancerSpec, GroupRef, GroupSpec, Mapping, SecuritySpec, Stack};
use crate::cloud::aws::step::{AwsStep, BalancerChange, GroupChange};
use crate::cloud::aws::wanted;
use crate::plan::Intent;

impl Planner<'_> {
    /// AWS-300, AWS-320: authorise first, revoke after.
    pub(super) fn security(&mut self, intent: &Intent, stack: &Stack) {
        if let Some(spec) = &stack.managed {
            let there = wanted::managed_group(self.seen);
            if let Some(group) = there.filter(|g| g.uid().is_some_and(|uid| uid != intent.uid)) {
                let uid = intent.uid.to_string();
                self.steps.push(AwsStep::TagSecurity {
                    id: group.id.clone(),
                    tags: names::Tags::from([(names::SERVICE_UID.to_owned(), uid)]),
                });
            }
            let name = there.map_or(spec.name.clone(), |group| group.name.clone());
            if there.is_none() {
                self.steps.push(AwsStep::CreateSecurity(spec.clone()));
            }
            self.rules(&name, None, there, spec);
        }
        if let (Some(spec), None) = (&stack.backend, &self.seen.backend) {
            self.steps.push(AwsStep::CreateSecurity(spec.clone()));
        }
    }

    fn rules(
        &mut self,
        name: &str,
        id: Option<String>,
        there: Option<&SecurityGroup>,
        spec: &SecuritySpec,
    ) {
        let has = |rule: &Rule| there.is_some_and(|group| group.rules.contains_key(rule));
        let missing: Vec<_> = spec
            .rules
            .iter()
            .filter(|rule| !has(rule))
            .cloned()
            .collect();
        let group = name.to_owned();
        if !missing.is_empty() {
            let (group, id) = (group.clone(), id.clone());
            self.steps.push(AwsStep::Authorize {
                group,
                id,
                rules: missing,
            });
        }
        // Only what has exactly our description is ever taken away (AWS-331).
        let ours = names::rule_description(&self.settings.install);
        let surplus: Vec<_> = there
            .iter()
            .flat_map(|group| &group.rules)
            .filter(|(rule, description)| **description == ours && !spec.rules.contains(rule))
            .map(|(rule, _)| rule.clone())
            .collect();
        if !surplus.is_empty() {
            self.steps.push(AwsStep::Revoke {
                group,
                id,
                rules: surplus,
            });
        }
    }

    /// Rules on targets: authorised on each group that targets carry (AWS-310, AWS-311). What no Service needs any more is
    /// taken away by the book of all Services' rules, not here (AWS-321).
    pub(super) fn target_rules(&mut self, stack: &Stack) {
        let wanted = wanted::target_rules(self.settings, stack, self.seen);
        for on in &self.seen.node_groups {
            // A rule of somebody else with the same reach does as well, and could not be doubled (AWS-332).
            let missing = wanted.iter().filter(|rule| !on.rules.contains_key(rule));
            let missing: Vec<Rule> = missing.cloned().collect();
            if !missing.is_empty() {
                self.steps.push(AwsStep::Authorize {
                    group: on.name.clone(),
                    id: Some(on.id.clone()),
                    rules: missing,
                });
            }
        }
    }

    /// The load balancer; gives its name.
    pub(super) fn balancer(
        &mut self,
        intent: &Intent,
        stack: &Stack,
        balancer: Option<&Balancer>,
    ) -> String {
        let Some(balancer) = balancer else {
            let spec = self.new_balancer(intent, &stack.balancer);
            let name = spec.name.clone();
            self.steps.push(AwsStep::CreateBalancer(spec));
            return name;
        };
        let name = balancer.name.clone();
        for change in self.balancer_changes(balancer, &stack.balancer) {
            let name = name.clone();
            self.steps.push(AwsStep::AdjustBalancer { name, change });
        }
        name
    }

    /// AWS-107, AWS-630, AWS-631: a later generation beside those that are there.
    fn new_balancer(&self, intent: &Intent, spec: &BalancerSpec) -> BalancerSpec {
        let there = wanted::balancers(intent, self.seen);
        let Some(newest) = there.first() else {
            return spec.clone();
        };
        let generation = newest.generation() + 1;
        let namer = self.namer(intent);
        let computed = namer.balancer(spec.scheme, 1);
        let taken = |name: &str| there.iter().any(|b| b.name == name);
        let name = if !taken(&spec.name) {
            spec.name.clone()
        } else if taken(&computed) {
            namer.balancer(spec.scheme, generation)
        } else {
            computed
        };
        let mut new = BalancerSpec {
            name,
            generation,
            ..spec.clone()
        };
        new.tags
            .extend(namer.tracking_tags(names::LOAD_BALANCER, generation));
        new
    }

    /// AWS-602: tags, security groups, subnets, family, attributes.
    fn balancer_changes(&self, there: &Balancer, spec: &BalancerSpec) -> Vec<BalancerChange> {
        let mut changes = Vec::new();
        let wanted = attributes::wanted(
            &attributes::BALANCER,
            &spec.attributes,
            there.attributes.as_ref(),
            &there.tags,
        );
        let mut tags = spec.tags.clone();
        tags.extend(wanted.tags);
        let mut missing = missing_tags(&tags, &there.tags);
        // Which of several it is, is its own.
        missing.remove(names::GENERATION);
        if !missing.is_empty() {
            changes.push(BalancerChange::Tags(missing));
        }
        if !wanted.untag.is_empty() {
            changes.push(BalancerChange::Untag(wanted.untag));
        }
        if let Some(groups) = self.security_change(there, spec) {
            changes.push(BalancerChange::SecurityGroups(groups));
        }
        let ids = |subnets: &[Mapping]| -> std::collections::BTreeSet<String> {
            subnets.iter().map(|m| m.subnet.clone()).collect()
        };
        if ids(&spec.subnets) != there.subnets.keys().cloned().collect() {
            let subnets = wanted::subnets_now(there, &spec.subnets, self.seen);
            changes.extend(subnets.map(BalancerChange::Subnets));
        }
        if there.ip_type != spec.ip_type {
            changes.push(BalancerChange::IpType(spec.ip_type));
        }
        if !wanted.set.is_empty() {
            changes.push(BalancerChange::Attributes(wanted.set));
        }
        changes
    }

    /// AWS-302: groups are changed only where there are some; a group that is not there yet is waited for.
    fn security_change(&self, there: &Balancer, spec: &BalancerSpec) -> Option<Vec<GroupRef>> {
        if there.security_groups.is_empty() || spec.security_groups.is_empty() {
            return None;
        }
        let id = |group: &GroupRef| match group {
            GroupRef::Given(id) => Some(id.clone()),
            GroupRef::Backend(_) => Some(self.seen.backend.as_ref()?.id.clone()),
            GroupRef::Managed(name) => {
                let mut all = self.seen.security_groups.iter();
                Some(all.find(|group| group.name == *name)?.id.clone())
            }
        };
        let wanted: Option<std::collections::BTreeSet<String>> =
            spec.security_groups.iter().map(id).collect();
        let have = there.security_groups.iter().cloned().collect();
        wanted.filter(|wanted| *wanted != have)?;
        Some(spec.security_groups.clone())
    }

    /// A group and its members; gives its name.
    pub(super) fn group(
        &mut self,
        intent: &Intent,
        spec: &GroupSpec,
        group: Option<&Group>,
    ) -> String {
        let Some(group) = group else {
            let new = self.new_group(intent, spec);
            let name = new.name.clone();
            self.first_members(intent, &new, &name);
            self.steps.push(AwsStep::CreateGroup(new));
            return name;
        };
        for change in group_changes(group, spec) {
            let name = group.name.clone();
            self.steps.push(AwsStep::AdjustGroup { name, change });
        }
        self.members(intent, group);
        group.name.clone()
    }

    fn new_group(&self, intent: &Intent, spec: &GroupSpec) -> GroupSpec {
        let there: Vec<_> = wanted::groups_of(spec.service_port, self.seen).collect();
        let newest = there.iter().map(|group| group.generation()).max();
        let generation = newest.map_or(1, |newest| newest + 1);
        let namer = self.namer(intent);
        // Generation 1 of a recipe adds nothing, so that its names are kept wherever they are free.
        let taken = there.iter().any(|group| group.name == spec.name);
        let mut new = spec.clone();
        if taken {
            new.name = namer.group(&spec.hash, generation);
        }
        new.generation = generation;
        let resource = namer.group_resource(spec.service_port);
        new.tags.extend(namer.tracking_tags(&resource, generation));
        let owned: Vec<_> = spec.attributes.keys().cloned().collect();
        new.tags.extend(attributes::owned_tag(&owned));
        new
    }
}

/// AWS-091, AWS-607.
fn group_changes(group: &Group, spec: &GroupSpec) -> Vec<GroupChange> {
    let mut changes = Vec::new();
    let wanted = attributes::wanted(
        &attributes::GROUP,
        &spec.attributes,
        group.attributes.as_ref(),
        &group.tags,
    );
    let mut tags = spec.tags.clone();
    tags.extend(wanted.tags);
    let mut missing = missing_tags(&tags, &group.tags);
    missing.remove(names::GENERATION);
    if !missing.is_empty() {
        changes.push(GroupChange::Tags(missing));
    }
    if !wanted.untag.is_empty() {
        changes.push(GroupChange::Untag(wanted.untag));
    }
    if group.check != spec.check {
        changes.push(GroupChange::Check(spec.check.clone()));
    }
    if !wanted.set.is_empty() {
        changes.push(GroupChange::Attributes(wanted.set));
    }
    changes
}
