//! The `ReplicaSet` of a Deployment's present template: made once, its annotations kept up to date.

use serde_json::{Value, json};

use super::super::desk::controller_reference;
use super::super::driver::Retry;
use super::super::replica_set::TABLE as SETS;
use super::super::rollout::{self, max_surge, replicas};
use super::super::rollout_status;
use super::{
    DESIRED, HASH, LAST_APPLIED, MAX, Pass, REVISION, TABLE, annotate, revision, template,
};
use crate::object::{self, at, int_at, map_mut, str_at};

impl Pass<'_> {
    /// Makes the new set, or brings its annotations up to date (`getNewReplicaSet`).
    pub(super) fn ensure_new(&mut self) -> Result<(), Retry> {
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

    pub(super) fn annotate_sizes(&self, set: &mut Value) {
        let wanted = replicas(&self.deployment);
        annotate(set, DESIRED, &wanted.to_string());
        annotate(
            set,
            MAX,
            &(wanted + max_surge(&self.deployment)).to_string(),
        );
    }

    /// The revision of the Deployment is that of its new set.
    pub(super) fn set_revision(&mut self, revision: i64) -> Result<(), Retry> {
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
