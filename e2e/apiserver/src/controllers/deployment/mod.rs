//! Deployment: makes a `ReplicaSet` per template and moves pods from the old ones to the new one.
//!
//! The order of steps is that of the real controller: scale the new set up, else scale old ones down, else clean up;
//! the status is written after each.

mod new_set;
mod scale;

use std::sync::Arc;

use serde_json::Value;

use super::desk::{Desk, controller_ref, controller_reference, is_controlled_by};
use super::driver::{Controller, Outcome, Retry};
use super::pods::is_over;
use super::replica_set::TABLE as SETS;
use super::rollout::{is_rolling, replicas, status};
use super::rollout_status;
use crate::error::Result;
use crate::object::{self, at, int_at, is_deleting, list_at, map_mut, meta_mut, str_at};
use crate::selector::Selector;
use crate::store::Change;
use crate::verbs::delete::DeleteOptions;

/// Table of Deployments.
pub(crate) const TABLE: &str = "deployments.apps";

const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
const HASH: &str = "pod-template-hash";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The controller.
pub(crate) struct Deployments;

impl Controller for Deployments {
    const NAME: &'static str = "deployment";

    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String> {
        let owner = |object: &Value, kind: &str| {
            let owner = controller_ref(object).filter(|owner| owner["kind"] == kind)?;
            Some(object::key(
                object::namespace(object),
                owner["name"].as_str()?,
            ))
        };
        match change.table.as_ref() {
            TABLE => vec![change.key.clone()],
            SETS => owner(change.object(), "Deployment").into_iter().collect(),
            // Recreate waits for the end of the last old pod.
            "pods" if change.new.is_none() => {
                let set = owner(change.object(), "ReplicaSet").and_then(|key| desk.get(SETS, &key));
                set.and_then(|set| owner(&set, "Deployment"))
                    .into_iter()
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome {
        let Some(deployment) = desk.get(TABLE, key) else {
            return Ok(None);
        };
        let sets = claim(desk, &deployment)?;
        let mut pass = Pass::new(desk, &deployment, sets);
        if is_deleting(&deployment) {
            pass.write_status()?;
        } else if pass.is_paused() || pass.was_scaled() {
            pass.scale_only()?;
        } else if is_rolling(&deployment) {
            pass.roll()?;
        } else {
            pass.recreate()?;
        }
        Ok(rollout_status::next_look(
            &pass.deployment,
            desk.clock().now(),
        ))
    }
}

/// Sets of a Deployment; matching orphans are adopted.
fn claim(desk: &Desk, deployment: &Value) -> Result<Vec<Arc<Value>>> {
    let selector = Selector::of_label_selector(at(deployment, &["spec", "selector"]));
    let mut claimed = Vec::new();
    for set in desk.list(SETS, object::namespace(deployment)) {
        if is_controlled_by(&set, object::uid(deployment)) {
            claimed.push(set);
        } else if controller_ref(&set).is_none()
            && selector.matches(&set)
            && !is_deleting(&set)
            && !is_deleting(deployment)
        {
            let mut set = Value::clone(&set);
            let mut owners = list_at(&set, &["metadata", "ownerReferences"]).to_vec();
            owners.push(controller_reference(deployment));
            meta_mut(&mut set).insert("ownerReferences".into(), owners.into());
            claimed.push(desk.update(SETS, set)?);
        }
    }
    claimed.sort_by_key(|set| created(set));
    Ok(claimed)
}

fn created(object: &Value) -> (String, String) {
    (
        str_at(object, &["metadata", "creationTimestamp"]).to_owned(),
        object::name(object).to_owned(),
    )
}

/// The template without the label that tells sets apart.
fn template(object: &Value) -> Value {
    let mut template = at(object, &["spec", "template"]).clone();
    map_mut(&mut template, &["metadata", "labels"]).remove(HASH);
    template
}

/// One look at a Deployment.
struct Pass<'a> {
    desk: &'a Desk,
    deployment: Value,
    /// The set of the present template.
    new: Option<Arc<Value>>,
    /// All others, oldest first.
    old: Vec<Arc<Value>>,
}

impl<'a> Pass<'a> {
    fn new(desk: &'a Desk, deployment: &Value, mut sets: Vec<Arc<Value>>) -> Self {
        let wanted = template(deployment);
        let found = sets.iter().position(|set| template(set) == wanted);
        let new = found.map(|at| sets.remove(at));
        Self {
            desk,
            deployment: deployment.clone(),
            new,
            old: sets,
        }
    }

    fn is_paused(&self) -> bool {
        self.deployment["spec"]["paused"] == true
    }

    /// True if an active set was made for another number of replicas.
    fn was_scaled(&self) -> bool {
        let wanted = replicas(&self.deployment);
        let desired = |set: &Value| {
            str_at(set, &["metadata", "annotations", DESIRED])
                .parse::<i64>()
                .ok()
        };
        self.sets()
            .any(|set| replicas(set) > 0 && desired(set).is_some_and(|desired| desired != wanted))
    }

    fn sets(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.old.iter().chain(&self.new)
    }

    fn total(&self) -> i64 {
        self.sets().map(|set| replicas(set)).sum()
    }

    /// Rolling update (`rolloutRolling`).
    fn roll(&mut self) -> Result<(), Retry> {
        self.ensure_new()?;
        let changed = self.scale_new()? || self.scale_old()?;
        if !changed && rollout_status::is_complete(&self.deployment) {
            self.clean_up()?;
        }
        self.write_status()
    }

    /// Recreate: nothing new before everything old is gone (`rolloutRecreate`).
    fn recreate(&mut self) -> Result<(), Retry> {
        let mut scaled = false;
        for set in self.old.clone() {
            scaled |= self.resize(&set, 0, false)?;
        }
        if scaled || self.old_pods_run() {
            return self.write_status();
        }
        self.ensure_new()?;
        if let Some(new) = self.new.clone() {
            self.resize(&new, replicas(&self.deployment), false)?;
        }
        if rollout_status::is_complete(&self.deployment) {
            self.clean_up()?;
        }
        self.write_status()
    }

    fn old_pods_run(&self) -> bool {
        let pods = self.desk.list("pods", object::namespace(&self.deployment));
        pods.iter().any(|pod| {
            !is_over(pod)
                && self
                    .old
                    .iter()
                    .any(|set| is_controlled_by(pod, object::uid(set)))
        })
    }

    /// Deletes the oldest empty sets beyond the history limit.
    fn clean_up(&mut self) -> Result<(), Retry> {
        let limit = int_at(&self.deployment, &["spec", "revisionHistoryLimit"]).unwrap_or(10);
        let mut sets: Vec<Arc<Value>> = self
            .old
            .iter()
            .filter(|set| !is_deleting(set))
            .cloned()
            .collect();
        let excess = sets
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        sets.sort_by_key(|set| revision(set));
        for set in sets.into_iter().take(excess) {
            let seen = int_at(&set, &["status", "observedGeneration"])
                >= int_at(&set, &["metadata", "generation"]);
            if replicas(&set) == 0 && status(&set, "replicas") == 0 && seen {
                self.desk.delete(SETS, &set, DeleteOptions::default())?;
            }
        }
        Ok(())
    }

    fn write_status(&mut self) -> Result<(), Retry> {
        let sets: Vec<Arc<Value>> = self.sets().cloned().collect();
        let new = self.new.clone();
        let now = self.desk.clock().now();
        let status = rollout_status::of(
            &self.deployment,
            &sets,
            new.as_deref(),
            now,
            self.is_paused(),
        );
        if status == self.deployment["status"] {
            return Ok(());
        }
        let mut deployment = self.deployment.clone();
        deployment["status"] = status;
        self.deployment = Value::clone(&*self.desk.update_status(TABLE, deployment)?);
        Ok(())
    }
}

fn revision(set: &Value) -> i64 {
    str_at(set, &["metadata", "annotations", REVISION])
        .parse()
        .unwrap_or(0)
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    map_mut(object, &["metadata", "annotations"]).insert(key.into(), value.into());
}
