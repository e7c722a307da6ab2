//! The target guard of `pod` mode (zero-drop.md section 5e): first packets of new flows that a load balancer sends to a
//! pod which is being deleted, or gone, go to another endpoint that serves; established flows stay.
//!
//! Pure parts: `pods` (the node's own pods), `listing` (what controllers said of targets, and what of it still holds),
//! `choice` (who else serves), `compile` (one key to elements). Edge: `uplinks` (interfaces, routes, sysctls). The state
//! feeds it, the planner commits what comes of it. The agent acts on its own evidence and waits for nobody (K-23).

mod choice;
mod compile;
mod health;
mod listing;
pub mod network;
mod pods;
pub mod uplinks;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use onehop_core::crd::{NodeInstall, ServiceRef, TargetState};
use onehop_core::endpoint::Endpoint;
use onehop_core::id::{Frontend, InstallId, IpFamily, NodeName, PodUid, PortKey, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::watch::ObjectKey;

pub use compile::Compiled;
pub use listing::Listing;
pub use pods::{PodView, Pods};

use crate::collection::Step;
use crate::table::element::{Elements, Key, SetId};

/// What the guard asks of the rest of the state.
pub trait Cluster {
    /// Name of the own node.
    fn here(&self) -> &NodeName;
    /// All endpoints of a port of a Service in one family.
    fn endpoints(&self, service: &ServiceKey, port: &PortKey, family: IpFamily) -> Vec<Endpoint>;
    /// Where the agent answers for pods, in one family; none: it does not.
    fn health_at(&self, family: IpFamily) -> Option<SocketAddr>;
    /// What is to become of the node.
    fn fate(&self) -> Fate;
}

/// What is to become of the node (ZD-78).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Stays,
    /// It will go, and forwards until then.
    Goes,
    /// It has been declared dead.
    Out,
}

/// All guards of the node, and what they follow from.
#[derive(Debug, Default)]
pub struct Guards {
    pods: Pods,
    listing: Listing,
    /// What an earlier process left in the kernel, by key: it stays until its bound unless something is known of the key.
    inherited: BTreeMap<Frontend, Elements>,
    /// Keys with a guard, with the time at which something of it ends by itself.
    guarded: BTreeMap<Frontend, Time>,
    dirty: BTreeSet<Frontend>,
    /// What ended since somebody asked.
    ended: Vec<Ended>,
    /// Guards that began since somebody asked.
    begun: usize,
}

/// Why a guard ended (ZD-50).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Controllers said that no flow arrives any more.
    Released,
    /// It was over by itself.
    Bound,
    /// The address was given to another pod.
    Reused,
    /// The target serves again.
    Serves,
}

impl End {
    /// As a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Bound => "bound",
            Self::Reused => "reused",
            Self::Serves => "serves",
        }
    }
}

/// A guard that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Address, protocol and port of the target.
    pub key: Frontend,
    /// Why.
    pub cause: End,
    /// Whose target it was, and since when the load balancer was told to let go of it, as far as it was.
    pub drained: Vec<(ServiceRef, Time)>,
}

impl Guards {
    /// One step of the watch of the node's own pods.
    pub fn pod(&mut self, step: Step<ObjectKey, PodView>) {
        let was_synced = self.pods.synced();
        let touched = self.pods.step(step);
        if !was_synced && self.pods.synced() {
            self.touch_all();
            return;
        }
        if touched.is_empty() {
            return;
        }
        let concerns = |uid: &PodUid, key: &Frontend| {
            touched
                .iter()
                .any(|pod| pod.uid == *uid || pod.addresses.contains(&key.address))
        };
        let of_pods = self.listing.keys_where(concerns);
        self.dirty.extend(of_pods);
        // One of them may be where a guard leads to.
        self.dirty.extend(self.guarded.keys().copied());
        let reused = |key: &&Frontend| self.pods.owner(key.address).is_some();
        self.dirty.extend(self.inherited.keys().filter(reused));
    }

    /// What controllers say now; without an object nothing new is said (K-21).
    pub fn targets(&mut self, installs: &BTreeMap<InstallId, NodeInstall>) {
        let touched = self.listing.update(installs);
        self.dirty.extend(touched);
    }

    /// Endpoints of a Service, or the Service itself, changed.
    pub fn service(&mut self, service: &ServiceKey) {
        let keys = self.listing.keys_of(service);
        self.dirty.extend(keys);
    }

    /// Takes over what the kernel holds: bounds that run go on to their end (ZD-37).
    pub fn inherit(&mut self, elements: &Elements) {
        self.inherited.clear();
        for (element, data) in elements {
            let guards = matches!(
                element.1,
                SetId::GuardEndpoints
                    | SetId::GuardFrom
                    | SetId::GuardAny
                    | SetId::DeadFrom
                    | SetId::DeadAny
                    | SetId::DeadKeys
                    | SetId::Targets
                    | SetId::PodHealth
                    | SetId::HealthFrom
                    | SetId::HealthAny
            );
            let (Key::Frontend(key) | Key::FrontendSlot(key, _) | Key::Range(key, _)) = element.2
            else {
                continue;
            };
            if guards {
                let held = self.inherited.entry(key).or_default();
                held.insert(*element, *data);
            }
        }
        self.touch_all();
    }

    /// Every key is to be compiled anew.
    pub fn touch_all(&mut self) {
        self.dirty.extend(self.listing.keys());
        self.dirty.extend(self.inherited.keys());
        self.dirty.extend(self.guarded.keys());
    }

    /// Marks what ends by itself at this time.
    pub fn pass(&mut self, now: Time) {
        let over = self.guarded.iter().filter(|(_, end)| **end <= now);
        self.dirty.extend(over.map(|(key, _)| *key));
        let forgotten = self.listing.forget(now);
        self.dirty.extend(forgotten);
    }

    /// When [`Guards::pass`] has something to do.
    pub fn next_end(&self) -> Option<Time> {
        let ends = self.guarded.values().copied();
        ends.chain(self.listing.next_forgotten()).min()
    }

    /// Whether this key waits to be compiled.
    pub fn waits(&self, key: &Frontend) -> bool {
        self.dirty.contains(key)
    }

    /// Whether a key waits to be compiled.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether the node's own pods are known: without them there is no evidence.
    pub fn ready(&self) -> bool {
        self.pods.synced()
    }

    /// Whether a load balancer has, or had, a target here.
    pub fn has_targets(&self) -> bool {
        self.listing.keys().next().is_some() || !self.inherited.is_empty()
    }

    /// How many targets are guarded.
    pub fn count(&self) -> usize {
        self.guarded.len()
    }

    /// What is inside the cluster, from where nothing is steered (ZD-43).
    pub fn inside(&self) -> Vec<ipnet::IpNet> {
        self.listing.inside()
    }

    /// Compiles what is dirty; from here on it counts as compiled.
    pub fn compile(&mut self, cluster: &impl Cluster, now: Time) -> Vec<Compiled> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty
            .into_iter()
            .map(|key| self.one(key, cluster, now))
            .collect()
    }

    fn one(&mut self, key: Frontend, cluster: &impl Cluster, now: Time) -> Compiled {
        let held = self.inherited.get(&key);
        let listed = self.listing.is_listed(&key);
        if !self.pods.synced() || (!listed && held.is_some()) {
            return self.keep(key, now);
        }
        let bound = held.and_then(compile::end_of);
        let before = self.guarded.get(&key).copied();
        let compiled = compile::key(key, &mut self.listing, &self.pods, cluster, (now, bound));
        self.inherited.remove(&key);
        match compiled.ends {
            Some(end) => self.guarded.insert(key, end),
            None => self.guarded.remove(&key),
        };
        match (before, compiled.ends) {
            (None, Some(_)) => self.begun += 1,
            (Some(end), None) => self.end(key, end <= now),
            _ => {}
        }
        compiled
    }

    fn end(&mut self, key: Frontend, over: bool) {
        let owner = self.pods.owner(key.address);
        let mut drained = Vec::new();
        let (mut released, mut own) = (false, false);
        for (identity, listed) in self.listing.entries_mut(&key) {
            released |= listed.target.state == TargetState::Released;
            own |= owner == Some(&identity.pod);
            drained.extend(
                listed
                    .drained
                    .map(|since| (identity.service.clone(), since)),
            );
        }
        let cause = match owner {
            Some(_) if !own => End::Reused,
            _ if released => End::Released,
            _ if over => End::Bound,
            _ => End::Serves,
        };
        self.ended.push(Ended {
            key,
            cause,
            drained,
        });
    }

    /// What ended since this was called last.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// How many guards began since this was called last.
    pub fn take_begun(&mut self) -> usize {
        std::mem::take(&mut self.begun)
    }

    /// Nothing is known of a key that an earlier process guarded: it stays as it is to its bound, unless the address
    /// is another pod's now (ZD-50, ZD-52).
    fn keep(&mut self, key: Frontend, now: Time) -> Compiled {
        let over = |elements: &Elements| compile::end_of(elements).is_none_or(|end| end <= now);
        // Before the pods are known nothing speaks against it.
        let unknown = !self.pods.synced();
        let stays = self.pods.owner(key.address).is_none()
            && self
                .inherited
                .get(&key)
                .is_some_and(|e| unknown || !over(e));
        if !stays {
            self.inherited.remove(&key);
            self.guarded.remove(&key);
            return Compiled::nothing(key);
        }
        let elements = self.inherited.get(&key).cloned().unwrap_or_default();
        let ends = compile::end_of(&elements);
        if let Some(end) = ends {
            self.guarded.insert(key, end);
        }
        Compiled {
            elements,
            ends,
            ..Compiled::nothing(key)
        }
    }
}

#[cfg(test)]
mod tests;
