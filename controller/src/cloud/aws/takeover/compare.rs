//! What the peer has, against what we would make of the same Service.

use std::collections::{BTreeMap, BTreeSet};

use super::Situation;
use crate::cloud::aws::model::{Balancer, Observed, Tagged};
use crate::cloud::aws::names::{self, Tags};
use crate::cloud::aws::plan;
use crate::cloud::aws::stack::GroupRef;
use crate::cloud::aws::step::{AwsStep, BalancerChange, GroupChange};

/// The outcome.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// What would change the data path.
    pub(super) differences: Vec<String>,
    /// Our security group and our rules on targets.
    pub(super) ours: Vec<AwsStep>,
    /// Tags of objects, by name.
    pub(super) tags: BTreeMap<String, Tags>,
}

/// Compares: a plan for the view in which everything is ours, without what belongs to every take-over. Members are not
/// compared: the policy cares for them afterwards, and registers before it deregisters.
pub(super) fn compare(of: Situation<'_>, view: &Observed) -> Compared {
    let plan = plan::plan(
        of.settings,
        &of.intent.service,
        Some(of.intent),
        view,
        of.now,
    );
    let mut compared = Compared::default();
    for step in plan.steps() {
        let difference = match step {
            AwsStep::Register { .. } | AwsStep::Deregister { .. } => false,
            AwsStep::CreateSecurity(spec) => {
                let shared = spec
                    .tags
                    .get(names::RESOURCE)
                    .is_some_and(|r| r == names::BACKEND_GROUP);
                if shared {
                    compared.ours.push(step.clone());
                }
                !shared
            }
            AwsStep::Authorize { id: Some(_), .. } => {
                compared.ours.push(step.clone());
                false
            }
            AwsStep::AdjustBalancer { name, change } => match change {
                BalancerChange::Tags(tags) => compared.note(name, tags),
                BalancerChange::SecurityGroups(groups) => {
                    let balancer = view.balancers.iter().find(|b| b.name == *name);
                    balancer.is_none_or(|b| !only_the_shared_differ(of, view, b, groups))
                }
                _ => true,
            },
            AwsStep::AdjustGroup {
                name,
                change: GroupChange::Tags(tags),
            } => compared.note(name, tags),
            _ => true,
        };
        if difference {
            compared.differences.push(step.to_string());
        }
    }
    compared
}

impl Compared {
    /// Tags of ours; whether they say that the object is to be replaced.
    fn note(&mut self, name: &str, tags: &Tags) -> bool {
        if tags.contains_key(names::RETIRED) {
            return true;
        }
        self.tags
            .entry(name.to_owned())
            .or_default()
            .extend(tags.clone());
        false
    }
}

/// Whether two lists of security groups differ in the two programs' shared ones only (AWS-129).
fn only_the_shared_differ(
    of: Situation<'_>,
    view: &Observed,
    there: &Balancer,
    wanted: &[GroupRef],
) -> bool {
    let shared = [
        super::our_backend(of.settings, view),
        view.peer.backend.clone(),
    ];
    let shared: BTreeSet<String> = shared.into_iter().flatten().collect();
    let id = |group: &GroupRef| match group {
        GroupRef::Given(id) => Some(id.clone()),
        GroupRef::Backend(_) => None,
        GroupRef::Managed(_) => {
            let managed = view.security_groups.iter();
            let mut managed = managed.filter(|group| group.resource() == names::MANAGED_GROUP);
            managed.next().map(|group| group.id.clone())
        }
    };
    let wanted: BTreeSet<String> = wanted.iter().filter_map(id).collect();
    let have: BTreeSet<String> = there.security_groups.iter().cloned().collect();
    wanted.difference(&shared).eq(have.difference(&shared))
}
