//! Deployment: makes a `ReplicaSet` per template and moves pods from the old ones to the new one.
//!
//! The order of steps is that of the real controller: scale the new set up, else scale old ones down, else clean up;
//! the status is written after each.

use std::sync::Arc;

use serde_json::{Value, json};

use super::desk::{Desk, controller_ref, controller_reference, is_controlled_by};
use super::driver::{Controller, Outcome, Retry};
use super::pods::is_over;
use super::replica_set::TABLE as SETS;
use super::rollout::{self, Size, is_rolling, max_surge, replicas, status};
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

    fn wake(&self, desk: &Desk, change: &Change) -> Vec<String> {
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

/// Hash of a template, in the letters of the real controller.
fn template_hash(template: &Value, collisions: i64) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = format!("{template}{collisions}");
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.to_string()
        .bytes()
        .map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()]))
        .collect()
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

    /// Makes the new set, or brings its annotations up to date (`getNewReplicaSet`).
    fn ensure_new(&mut self) -> Result<(), Retry> {
        let revision = self.old.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
        match self.new.clone() {
            Some(new) => self.refresh_new(&new, revision),
            None => self.create_new(revision),
        }
    }

    fn refresh_new(&mut self, new: &Value, next: i64) -> Result<(), Retry> {
        let mut wanted = new.clone();
        copy_annotations(&self.deployment, &mut wanted);
        let own = revision(new);
        if own < next {
            annotate(&mut wanted, REVISION, &next.to_string());
            if own > 0 {
                let history = "deployment.kubernetes.io/revision-history";
                let before = str_at(new, &["metadata", "annotations", history]);
                let all = if before.is_empty() {
                    own.to_string()
                } else {
                    format!("{before},{own}")
                };
                annotate(&mut wanted, history, &all);
            }
        }
        object::carry(
            map_mut(&mut wanted, &["spec"]),
            &self.deployment["spec"],
            "minReadySeconds",
        );
        if wanted != *new {
            self.new = Some(self.desk.update(SETS, wanted)?);
        }
        let name = object::name(new).to_owned();
        self.set_revision(own.max(next))?;
        self.note_progress(
            "FoundNewReplicaSet",
            &format!("Found new replica set {name:?}"),
            false,
        )
    }

    fn create_new(&mut self, revision: i64) -> Result<(), Retry> {
        let set = self.draft_new(revision);
        let size = replicas(&set);
        let made = self
            .desk
            .create(SETS, object::namespace(&self.deployment), set);
        let made = match made {
            Err(error) if error.reason == "AlreadyExists" => {
                // Another template has the same hash: count it and try with another name.
                let collisions =
                    int_at(&self.deployment, &["status", "collisionCount"]).unwrap_or(0) + 1;
                let mut deployment = self.deployment.clone();
                deployment["status"]["collisionCount"] = collisions.into();
                self.desk.update_status(TABLE, deployment)?;
                return Err(error.into());
            }
            other => other?,
        };
        let name = object::name(&made).to_owned();
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            self.desk
                .event(&self.deployment, "Normal", "ScalingReplicaSet", &message);
        }
        self.new = Some(made);
        self.set_revision(revision)?;
        self.note_progress(
            "NewReplicaSetCreated",
            &format!("Created new replica set {name:?}"),
            true,
        )
    }

    fn draft_new(&self, revision: i64) -> Value {
        let deployment = &self.deployment;
        let template = template(deployment);
        let collisions = int_at(deployment, &["status", "collisionCount"]).unwrap_or(0);
        let hash = template_hash(&template, collisions);
        let mut spec = json!({"template": template, "selector": deployment["spec"]["selector"]});
        map_mut(&mut spec, &["template", "metadata", "labels"])
            .insert(HASH.into(), hash.clone().into());
        map_mut(&mut spec, &["selector", "matchLabels"]).insert(HASH.into(), hash.clone().into());
        object::carry(
            map_mut(&mut spec, &[]),
            &deployment["spec"],
            "minReadySeconds",
        );
        spec["replicas"] = rollout::new_size(deployment, 0, self.total()).into();
        let mut set = json!({
            "metadata": {
                "name": format!("{}-{hash}", object::name(deployment)),
                "labels": spec["template"]["metadata"]["labels"],
                "ownerReferences": [controller_reference(deployment)],
            },
            "spec": spec,
        });
        copy_annotations(deployment, &mut set);
        annotate(&mut set, REVISION, &revision.to_string());
        self.annotate_sizes(&mut set);
        set
    }

    fn annotate_sizes(&self, set: &mut Value) {
        let wanted = replicas(&self.deployment);
        annotate(set, DESIRED, &wanted.to_string());
        annotate(
            set,
            MAX,
            &(wanted + max_surge(&self.deployment)).to_string(),
        );
    }

    /// The revision of the Deployment is that of its new set.
    fn set_revision(&mut self, revision: i64) -> Result<(), Retry> {
        let revision = revision.to_string();
        if str_at(&self.deployment, &["metadata", "annotations", REVISION]) == revision {
            return Ok(());
        }
        let mut deployment = self.deployment.clone();
        annotate(&mut deployment, REVISION, &revision);
        self.deployment = Value::clone(&*self.desk.update_status(TABLE, deployment)?);
        Ok(())
    }

    fn note_progress(&mut self, reason: &str, message: &str, always: bool) -> Result<(), Retry> {
        let mut deployment = self.deployment.clone();
        let now = self.desk.stamp();
        if rollout_status::note_progress(&mut deployment, reason, message, &now, always) {
            self.deployment = Value::clone(&*self.desk.update_status(TABLE, deployment)?);
        }
        Ok(())
    }

    /// `reconcileNewReplicaSet`.
    fn scale_new(&mut self) -> Result<bool, Retry> {
        let Some(new) = self.new.clone() else {
            return Ok(false);
        };
        let (size, wanted) = (replicas(&new), replicas(&self.deployment));
        let target = if size > wanted {
            wanted
        } else {
            rollout::new_size(&self.deployment, size, self.total())
        };
        self.resize(&new, target, false)
    }

    /// `reconcileOldReplicaSets`.
    fn scale_old(&mut self) -> Result<bool, Retry> {
        let Some(new) = self.new.clone() else {
            return Ok(false);
        };
        let size = |set: &Value| Size {
            replicas: replicas(set),
            available: status(set, "availableReplicas"),
        };
        let active: Vec<Arc<Value>> = self
            .old
            .iter()
            .filter(|set| replicas(set) > 0)
            .cloned()
            .collect();
        let sizes: Vec<Size> = active.iter().map(|set| size(set)).collect();
        let mut scaled = false;
        for (set, target) in
            active
                .iter()
                .zip(rollout::old_sizes(&self.deployment, &sizes, size(&new)))
        {
            scaled |= self.resize(set, target, false)?;
        }
        Ok(scaled)
    }

    /// Scaling and pausing outside a rollout (`sync`).
    fn scale_only(&mut self) -> Result<(), Retry> {
        let wanted = replicas(&self.deployment);
        if let Some(new) = self.new.clone() {
            self.set_revision(revision(&new))?;
        }
        let active: Vec<Arc<Value>> = self
            .sets()
            .filter(|set| replicas(set) > 0)
            .cloned()
            .collect();
        match active.as_slice() {
            [only] => drop(self.resize(&only.clone(), wanted, true)?),
            [] => {
                let latest = self.new.clone().or_else(|| self.old.last().cloned());
                if let Some(latest) = latest {
                    self.resize(&latest, wanted, true)?;
                }
            }
            _ if self.is_saturated() => {
                for set in self.old.clone().iter().filter(|set| replicas(set) > 0) {
                    self.resize(set, 0, false)?;
                }
            }
            _ if is_rolling(&self.deployment) => self.scale_in_proportion(active)?,
            _ => {}
        }
        if self.is_paused() {
            self.clean_up()?;
        }
        self.write_status()
    }

    fn is_saturated(&self) -> bool {
        let wanted = replicas(&self.deployment);
        self.new.as_ref().is_some_and(|new| {
            replicas(new) == wanted && status(new, "availableReplicas") == wanted
        })
    }

    fn scale_in_proportion(&mut self, mut active: Vec<Arc<Value>>) -> Result<(), Retry> {
        let wanted = replicas(&self.deployment);
        let allowed = if wanted > 0 {
            wanted + max_surge(&self.deployment)
        } else {
            0
        };
        let to_add = allowed - active.iter().map(|set| replicas(set)).sum::<i64>();
        // The largest first; among equals the newest grows and the oldest shrinks first.
        active.sort_by_key(|set| created(set));
        if to_add > 0 {
            active.reverse();
        }
        active.sort_by_key(|set| std::cmp::Reverse(replicas(set)));
        let mut added = 0;
        let mut sizes = Vec::new();
        for set in &active {
            let share = rollout::proportion(set, &self.deployment, to_add, added);
            added += share;
            sizes.push(replicas(set) + share);
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        for (set, size) in active.iter().zip(sizes) {
            self.resize(set, size, true)?;
        }
        Ok(())
    }

    /// Gives a set a size; true if that changed anything. `force` also refreshes its annotations.
    fn resize(&mut self, set: &Arc<Value>, size: i64, force: bool) -> Result<bool, Retry> {
        let before = replicas(set);
        if before == size && !force {
            return Ok(false);
        }
        let mut resized = Value::clone(set);
        map_mut(&mut resized, &["spec"]).insert("replicas".into(), size.into());
        self.annotate_sizes(&mut resized);
        let resized = if resized == **set {
            set.clone()
        } else {
            self.desk.update(SETS, resized)?
        };
        let name = object::name(set);
        for slot in self.old.iter_mut().chain(&mut self.new) {
            if object::name(slot) == name {
                *slot = resized.clone();
            }
        }
        if before == size {
            return Ok(false);
        }
        let way = if before < size { "up" } else { "down" };
        let message = format!("Scaled {way} replica set {name} from {before} to {size}");
        self.desk
            .event(&self.deployment, "Normal", "ScalingReplicaSet", &message);
        Ok(true)
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

/// A Deployment's own annotations go to its set, the controller's and kubectl's do not.
fn copy_annotations(deployment: &Value, set: &mut Value) {
    let skipped = [
        LAST_APPLIED,
        REVISION,
        DESIRED,
        MAX,
        "deployment.kubernetes.io/revision-history",
    ];
    for (key, value) in at(deployment, &["metadata", "annotations"])
        .as_object()
        .into_iter()
        .flatten()
    {
        if !skipped.contains(&key.as_str()) {
            annotate(set, key, value.as_str().unwrap_or_default());
        }
    }
}
