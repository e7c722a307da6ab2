//! One step, one call; the answer goes into the store.

use std::collections::BTreeMap;

use super::error::has_code;
use super::way::Way;
use super::{Client, check_owner};
use crate::cloud::aws::model::{Balancer, Group, Rule, SecurityGroup, TargetId};
use crate::cloud::aws::names::{self, Tags};
use crate::cloud::aws::stack::{BalancerSpec, GroupRef, GroupSpec, ListenerSpec, SecuritySpec};
use crate::cloud::aws::step::{AwsStep, BalancerChange, Change, GroupChange};
use crate::cloud::{Class, CloudError};
use crate::plan::{Effect, Step};

impl Client {
    pub(super) async fn make(&self, way: Way<'_>, step: &AwsStep) -> Result<Effect, CloudError> {
        match step {
            AwsStep::CreateSecurity(spec) => self.create_security(way, spec).await,
            AwsStep::Authorize { group, id, rules } => {
                let id = self.security_id(step, group, id.as_deref())?;
                self.authorize(way, &id, rules).await
            }
            AwsStep::Revoke { group, id, rules } => {
                let id = self.security_id(step, group, id.as_deref())?;
                self.revoke(way, &id, rules).await
            }
            AwsStep::TagSecurity { id, tags } => {
                self.ec2.tag(way, id, tags).await?;
                let now = self.clock.now();
                let more = |group: &mut SecurityGroup| group.tags.extend(tags.clone());
                self.store().security_groups.changed(id, now, more);
                Ok(Effect::Changed)
            }
            AwsStep::UntagSecurity { id, keys } => {
                let done = gone_is_done(self.ec2.untag(way, id, keys).await)?;
                let now = self.clock.now();
                let left = |group: &mut SecurityGroup| group.tags.retain(|k, _| !keys.contains(k));
                self.store().security_groups.changed(id, now, left);
                Ok(done)
            }
            AwsStep::DeleteSecurity { name } => {
                let id = self.security_id(step, name, None)?;
                let done = gone_is_done(self.ec2.delete(way, &id).await)?;
                self.store().security_groups.removed(&id, self.clock.now());
                Ok(done)
            }
            AwsStep::CreateBalancer(spec) => self.create_balancer(way, step, spec).await,
            AwsStep::AdjustBalancer { name, change } => {
                let arn = self.balancer_of(step, name)?.arn;
                self.change_balancer(way, step, &arn, change).await
            }
            AwsStep::DeleteBalancer { name, .. } => {
                let arn = self.balancer_of(step, name)?.arn;
                let done = gone_is_done(self.elb.delete_balancer(way, &arn).await)?;
                self.store().balancers.removed(&arn, self.clock.now());
                self.unuse(&arn);
                Ok(done)
            }
            AwsStep::CreateGroup(spec) => self.create_group(way, spec).await,
            AwsStep::AdjustGroup { name, change } => {
                let arn = self.group_of(step, name)?.arn;
                self.change_group(way, &arn, change).await
            }
            AwsStep::DeleteGroup { name } => {
                let arn = self.group_of(step, name)?.arn;
                let done = gone_is_done(self.elb.delete_group(way, &arn).await)?;
                self.store().groups.removed(&arn, self.clock.now());
                Ok(done)
            }
            AwsStep::Register { group, targets, .. } => {
                let arn = self.group_of(step, group)?.arn;
                self.register(way, step, &arn, targets).await
            }
            AwsStep::Deregister { group, targets, .. } => {
                let arn = self.group_of(step, group)?.arn;
                let ids: Vec<TargetId> = targets.iter().map(|(target, _)| target.clone()).collect();
                self.turn_of(step).await?;
                let done = gone_is_done(self.elb.deregister(way, &arn, &ids).await)?;
                self.store().deregistered(&arn, ids.into_iter());
                Ok(done)
            }
            listener => Box::pin(self.make_listener(way, listener)).await,
        }
    }

    async fn make_listener(&self, way: Way<'_>, step: &AwsStep) -> Result<Effect, CloudError> {
        match step {
            AwsStep::CreateListener {
                balancer,
                listener,
                group,
                ..
            } => {
                let balancer = self.balancer_of(step, balancer)?.arn;
                let group = self.group_of(step, group)?.arn;
                self.create_listener(way, &balancer, listener, &group).await
            }
            AwsStep::ModifyListener {
                balancer,
                listener,
                groups,
                ..
            } => {
                self.modify_listener(way, step, balancer, listener, groups)
                    .await
            }
            AwsStep::SetListenerAttributes {
                balancer,
                port,
                attributes,
            } => {
                let (balancer, arn) = self.listener_of(step, balancer, *port)?;
                let all = self
                    .elb
                    .set_listener_attributes(way, &arn, attributes)
                    .await?;
                let mut store = self.store();
                store.listener_attributes.insert(arn, all.clone());
                store.balancers.read(&balancer, |balancer| {
                    let listeners = balancer.listeners.iter_mut().flatten();
                    for (_, listener) in listeners.filter(|(at, _)| *at == port) {
                        listener.attributes = Some(all.clone());
                    }
                });
                Ok(Effect::Changed)
            }
            AwsStep::Certificates {
                balancer,
                port,
                change,
                certificates,
            } => {
                let (balancer, arn) = self.listener_of(step, balancer, *port)?;
                match change {
                    Change::Add => {
                        self.elb.add_certificates(way, &arn, certificates).await?;
                    }
                    Change::Remove => {
                        self.elb
                            .remove_certificates(way, &arn, certificates)
                            .await?;
                    }
                }
                self.forget_listeners(&balancer);
                Ok(Effect::Changed)
            }
            AwsStep::DeleteListener { balancer, port, .. } => {
                let (balancer, arn) = self.listener_of(step, balancer, *port)?;
                let done = gone_is_done(self.elb.delete_listener(way, &arn).await)?;
                let now = self.clock.now();
                self.store().balancers.changed(&balancer, now, |balancer| {
                    balancer.listeners.iter_mut().for_each(|all| {
                        all.remove(port);
                    });
                });
                Ok(done)
            }
            other => Err(unknown(other, "a step of another kind")),
        }
    }

    /// AWS-905: a name that is taken is looked up by its tags.
    async fn create_security(
        &self,
        way: Way<'_>,
        spec: &SecuritySpec,
    ) -> Result<Effect, CloudError> {
        let (id, effect) = match self.ec2.create(way, spec).await {
            Ok(id) => (id, Effect::Changed),
            Err(error) if error.class == Class::Conflict => {
                let all = self.ec2.security_groups(&self.throttle, &self.vpc).await?;
                let there = all
                    .into_iter()
                    .find(|group| group.name == spec.name)
                    .ok_or(error)?;
                check_owner("ec2:CreateSecurityGroup", &there.tags, &spec.tags)?;
                (there.id, Effect::AlreadySo)
            }
            Err(error) => return Err(error),
        };
        let group = SecurityGroup {
            id: id.clone(),
            name: spec.name.clone(),
            tags: spec.tags.clone(),
            rules: BTreeMap::new(),
        };
        self.store()
            .security_groups
            .made(&id, group, self.clock.now());
        Ok(effect)
    }

    /// AWS-332: a duplicate is success only for a rule of ours; rules go one by one then, so that one that
    /// somebody else has does not keep the others out.
    async fn authorize(
        &self,
        way: Way<'_>,
        id: &str,
        rules: &[Rule],
    ) -> Result<Effect, CloudError> {
        let action = "AuthorizeSecurityGroupIngress";
        let ours = names::rule_description(&self.install);
        let all = self.ec2.change_rules(way, action, id, rules, &ours).await;
        let mut foreign = Vec::new();
        match all {
            Ok(()) => {}
            Err(error) if error.class == Class::Conflict => {
                for rule in rules {
                    let one = std::slice::from_ref(rule);
                    match self.ec2.change_rules(way, action, id, one, &ours).await {
                        Ok(()) => {}
                        Err(error) if error.class == Class::Conflict => foreign.push(rule.clone()),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        if !foreign.is_empty() {
            // Whose they are is read: one of ours counts as authorised, another's covers it for now.
            let fresh = self.ec2.security_groups(&self.throttle, &self.vpc).await?;
            let mut store = self.store();
            for group in fresh.into_iter().filter(|group| group.id == id) {
                store.security_groups.made(id, group, self.clock.now());
            }
            return Ok(Effect::AlreadySo);
        }
        self.store()
            .security_groups
            .changed(id, self.clock.now(), |group| {
                group
                    .rules
                    .extend(rules.iter().map(|rule| (rule.clone(), ours.clone())));
            });
        Ok(Effect::Changed)
    }

    pub(super) async fn revoke(
        &self,
        way: Way<'_>,
        id: &str,
        rules: &[Rule],
    ) -> Result<Effect, CloudError> {
        let action = "RevokeSecurityGroupIngress";
        let ours = names::rule_description(&self.install);
        let done = gone_is_done(self.ec2.change_rules(way, action, id, rules, &ours).await)?;
        self.store()
            .security_groups
            .changed(id, self.clock.now(), |group| {
                group.rules.retain(|rule, _| !rules.contains(rule));
            });
        Ok(done)
    }

    async fn create_balancer(
        &self,
        way: Way<'_>,
        step: &AwsStep,
        spec: &BalancerSpec,
    ) -> Result<Effect, CloudError> {
        let groups = self.group_ids(step, &spec.security_groups)?;
        let mut made = match self.elb.create_balancer(way, spec, groups).await {
            Ok(made) => made,
            Err(error) => {
                if has_code(&error, "InvalidSubnet") {
                    self.store().subnets_refused(&error.answer);
                }
                return Err(self.explained_balancer(error, spec).await);
            }
        };
        made.tags = self
            .owned(
                &made.arn,
                "elasticloadbalancing:CreateLoadBalancer",
                &spec.tags,
            )
            .await?;
        made.attributes = Some(BTreeMap::new());
        made.listeners = Some(BTreeMap::new());
        let arn = made.arn.clone();
        self.store().balancers.made(&arn, made, self.clock.now());
        Ok(Effect::Changed)
    }

    /// AWS-116: tags of what a create returned.
    async fn owned(&self, arn: &str, tried: &str, wanted: &Tags) -> Result<Tags, CloudError> {
        let mut tags = self.elb.tags(&self.throttle, &[arn.to_owned()]).await?;
        let tags = tags.remove(arn).unwrap_or_default();
        check_owner(tried, &tags, wanted)?;
        Ok(tags)
    }

    async fn change_balancer(
        &self,
        way: Way<'_>,
        step: &AwsStep,
        arn: &str,
        change: &BalancerChange,
    ) -> Result<Effect, CloudError> {
        let now = self.clock.now();
        match change {
            BalancerChange::Attributes(attributes) => {
                let all = self
                    .elb
                    .set_balancer_attributes(way, arn, attributes)
                    .await?;
                self.store()
                    .balancers
                    .read(arn, |b| merge(&mut b.attributes, all));
            }
            BalancerChange::SecurityGroups(groups) => {
                let ids = self.group_ids(step, groups)?;
                self.elb.set_security_groups(way, arn, ids.clone()).await?;
                self.store()
                    .balancers
                    .changed(arn, now, |b| b.security_groups = ids);
            }
            BalancerChange::Subnets(subnets) => {
                self.elb.set_subnets(way, arn, subnets).await?;
                let ids = subnets.iter().map(|m| (m.subnet.clone(), Vec::new()));
                self.store()
                    .balancers
                    .changed(arn, now, |b| b.subnets = ids.collect());
            }
            BalancerChange::IpType(ip_type) => {
                self.elb.set_ip_type(way, arn, *ip_type).await?;
                self.store()
                    .balancers
                    .changed(arn, now, |b| b.ip_type = *ip_type);
            }
            BalancerChange::Tags(tags) => {
                let arns = [arn.to_owned()];
                self.elb.add_tags(way, &arns, tags).await?;
                self.store()
                    .balancers
                    .changed(arn, now, |b| b.tags.extend(tags.clone()));
            }
            BalancerChange::Adopt(tags) => {
                let arns = self.with_listeners(step, arn)?;
                self.elb.add_tags(way, &arns, tags).await?;
                self.store()
                    .balancers
                    .changed(arn, now, |b| b.tags.extend(tags.clone()));
            }
            BalancerChange::Disown(keys) => {
                let arns = self.with_listeners(step, arn)?;
                self.elb.remove_tags(way, &arns, keys).await?;
                let left = |b: &mut Balancer| b.tags.retain(|key, _| !keys.contains(key));
                self.store().balancers.changed(arn, now, left);
            }
            BalancerChange::Untag(keys) => {
                let arns = [arn.to_owned()];
                self.elb.remove_tags(way, &arns, keys).await?;
                let left = |b: &mut Balancer| b.tags.retain(|key, _| !keys.contains(key));
                self.store().balancers.changed(arn, now, left);
            }
        }
        Ok(Effect::Changed)
    }

    async fn create_group(&self, way: Way<'_>, spec: &GroupSpec) -> Result<Effect, CloudError> {
        let mut made = match self.elb.create_group(way, spec).await {
            Ok(made) => made,
            Err(error) => return Err(self.explained_group(error, spec).await),
        };
        made.tags = self
            .owned(
                &made.arn,
                "elasticloadbalancing:CreateTargetGroup",
                &spec.tags,
            )
            .await?;
        made.attributes = Some(BTreeMap::new());
        made.targets = Some(BTreeMap::new());
        self.store().group_made(made, self.clock.now());
        Ok(Effect::Changed)
    }

    async fn change_group(
        &self,
        way: Way<'_>,
        arn: &str,
        change: &GroupChange,
    ) -> Result<Effect, CloudError> {
        let now = self.clock.now();
        match change {
            GroupChange::Attributes(attributes) => {
                let all = self.elb.set_group_attributes(way, arn, attributes).await?;
                self.store()
                    .groups
                    .read(arn, |g| merge(&mut g.attributes, all));
            }
            GroupChange::Check(check) => {
                self.elb.modify_group(way, arn, check).await?;
                self.store()
                    .groups
                    .changed(arn, now, |g| g.check = check.clone());
            }
            GroupChange::Tags(tags) => {
                let arns = [arn.to_owned()];
                self.elb.add_tags(way, &arns, tags).await?;
                self.store()
                    .groups
                    .changed(arn, now, |g| g.tags.extend(tags.clone()));
            }
            GroupChange::Untag(keys) => {
                let arns = [arn.to_owned()];
                self.elb.remove_tags(way, &arns, keys).await?;
                let left = |g: &mut Group| g.tags.retain(|key, _| !keys.contains(key));
                self.store().groups.changed(arn, now, left);
            }
        }
        Ok(Effect::Changed)
    }

    async fn create_listener(
        &self,
        way: Way<'_>,
        balancer: &str,
        spec: &ListenerSpec,
        group: &str,
    ) -> Result<Effect, CloudError> {
        let mut made = match self.elb.create_listener(way, balancer, spec, group).await {
            Err(error) if error.class == Class::Conflict => {
                // It is there, from a call whose answer was lost: the next look reads it.
                self.forget_listeners(balancer);
                return Ok(Effect::AlreadySo);
            }
            made => made?,
        };
        made.attributes = Some(BTreeMap::new());
        let now = self.clock.now();
        let mut store = self.store();
        let arn = made.arn.clone();
        store.listener_attributes.insert(arn, BTreeMap::new());
        store.balancers.changed(balancer, now, |balancer| {
            balancer
                .listeners
                .get_or_insert_default()
                .insert(spec.port, made);
        });
        store.groups.changed(group, now, |group| {
            group.used_by = vec![balancer.to_owned()];
        });
        Ok(Effect::Changed)
    }

    async fn modify_listener(
        &self,
        way: Way<'_>,
        step: &AwsStep,
        balancer: &str,
        spec: &ListenerSpec,
        groups: &BTreeMap<String, u32>,
    ) -> Result<Effect, CloudError> {
        let (balancer, arn) = self.listener_of(step, balancer, spec.port)?;
        let mut weights = BTreeMap::new();
        for (name, weight) in groups {
            weights.insert(self.group_of(step, name)?.arn, *weight);
        }
        let made = self.elb.modify_listener(way, &arn, spec, &weights).await?;
        let now = self.clock.now();
        let mut store = self.store();
        store.balancers.changed(&balancer, now, |balancer| {
            let known = balancer
                .listeners
                .get_or_insert_default()
                .get_mut(&spec.port);
            if let Some(known) = known {
                known.protocol = made.protocol;
                known.groups = made.groups;
                known.policy = made.policy;
                known.alpn = made.alpn;
                let more = known.certificates.iter().skip(1).cloned();
                known.certificates = made.certificates.into_iter().take(1).chain(more).collect();
            }
        });
        for group in weights.keys() {
            store
                .groups
                .changed(group, now, |group| group.used_by = vec![balancer.clone()]);
        }
        Ok(Effect::Changed)
    }

    /// No group is used by a load balancer that is gone.
    fn unuse(&self, balancer: &str) {
        let now = self.clock.now();
        let mut store = self.store();
        let used = store
            .groups
            .values()
            .filter(|g| g.used_by.iter().any(|arn| arn == balancer));
        let used: Vec<_> = used.map(|group| group.arn.clone()).collect();
        for arn in used {
            store
                .groups
                .changed(&arn, now, |group| group.used_by.clear());
        }
    }

    fn forget_listeners(&self, balancer: &str) {
        self.store()
            .balancers
            .read(balancer, |balancer| balancer.listeners = None);
    }

    fn group_ids(&self, step: &AwsStep, groups: &[GroupRef]) -> Result<Vec<String>, CloudError> {
        let id = |group: &GroupRef| match group {
            GroupRef::Given(id) => Ok(id.clone()),
            GroupRef::Managed(name) | GroupRef::Backend(name) => self.security_id(step, name, None),
        };
        groups.iter().map(id).collect()
    }

    fn security_id(
        &self,
        step: &AwsStep,
        name: &str,
        id: Option<&str>,
    ) -> Result<String, CloudError> {
        if let Some(id) = id {
            return Ok(id.to_owned());
        }
        let found = self
            .store()
            .security_named(&self.install, name)
            .map(|group| group.id.clone());
        found.ok_or_else(|| unknown(step, name))
    }

    fn balancer_of(&self, step: &AwsStep, name: &str) -> Result<Balancer, CloudError> {
        let found = self.store().balancer_named(name).cloned();
        found.ok_or_else(|| unknown(step, name))
    }

    fn group_of(&self, step: &AwsStep, name: &str) -> Result<Group, CloudError> {
        let found = self.store().group_named(name).cloned();
        found.ok_or_else(|| unknown(step, name))
    }

    /// ARNs of a load balancer and of its listeners, which have to be known.
    fn with_listeners(&self, step: &AwsStep, arn: &str) -> Result<Vec<String>, CloudError> {
        let store = self.store();
        let listeners = store.balancers.get(arn).and_then(|b| b.listeners.as_ref());
        let listeners = listeners.ok_or_else(|| unknown(step, "its listeners"))?;
        let all = listeners.values().map(|listener| listener.arn.clone());
        Ok(std::iter::once(arn.to_owned()).chain(all).collect())
    }

    /// ARNs of a load balancer and of its listener on a port.
    fn listener_of(
        &self,
        step: &AwsStep,
        balancer: &str,
        port: u16,
    ) -> Result<(String, String), CloudError> {
        let balancer = self.balancer_of(step, balancer)?;
        let listener = balancer.listeners.as_ref().and_then(|all| all.get(&port));
        let listener = listener.ok_or_else(|| unknown(step, &format!("listener {port}")))?;
        Ok((balancer.arn.clone(), listener.arn.clone()))
    }
}

fn unknown(step: &AwsStep, name: &str) -> CloudError {
    CloudError::new(
        Class::NotFound,
        step.verb(),
        format!("{name} was never seen or made"),
    )
}

/// What is not there needs no removal.
pub(super) fn gone_is_done(result: Result<(), CloudError>) -> Result<Effect, CloudError> {
    match result {
        Ok(()) => Ok(Effect::Changed),
        Err(error) if error.class == Class::NotFound => Ok(Effect::AlreadySo),
        Err(error) => Err(error),
    }
}

/// An answer may hold all attributes or only those that were set.
fn merge(known: &mut Option<BTreeMap<String, String>>, answer: BTreeMap<String, String>) {
    known.get_or_insert_default().extend(answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws435_what_is_gone_already_needs_no_removal() {
        let answer = |class| Err(CloudError::new(class, "deregister", "of some kind"));
        assert_eq!(gone_is_done(Ok(())), Ok(Effect::Changed));
        assert_eq!(
            gone_is_done(answer(Class::NotFound)),
            Ok(Effect::AlreadySo),
            "AWS-435"
        );
        assert!(gone_is_done(answer(Class::Throttled)).is_err(), "AWS-435");
    }
}
