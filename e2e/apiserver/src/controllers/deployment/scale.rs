//! How many pods each `ReplicaSet` of a Deployment is to have, written down.

use std::sync::Arc;

use serde_json::Value;

use super::super::driver::Retry;
use super::super::replica_set::TABLE as SETS;
use super::super::rollout::{self, Size, is_rolling, max_surge, replicas, status};
use super::{Pass, created, revision};
use crate::object::{self, map_mut};

impl Pass<'_> {
    /// `reconcileNewReplicaSet`.
    pub(super) fn scale_new(&mut self) -> Result<bool, Retry> {
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
    pub(super) fn scale_old(&mut self) -> Result<bool, Retry> {
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
    pub(super) fn scale_only(&mut self) -> Result<(), Retry> {
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
    pub(super) fn resize(
        &mut self,
        set: &Arc<Value>,
        size: i64,
        force: bool,
    ) -> Result<bool, Retry> {
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
}
