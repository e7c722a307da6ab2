//! What controllers said of the targets on this node, and what of it still holds.
//!
//! An entry ends only by `released`: one that vanishes without it, with its install or with the whole object, has said
//! nothing, and what was known of it stays for as long as a guard may last (K-21, ZD-52).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipnet::IpNet;
use onehop_core::crd::{ClusterFacts, NodeInstall, NodeTarget, ServiceRef, TargetState};
use onehop_core::id::{Frontend, InstallId, PodUid, PortKey, ServiceKey};
use onehop_core::time::Time;

/// Which target of which Service of which install; the key adds address, protocol and port (K-21).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) install: InstallId,
    pub(super) service: ServiceRef,
    pub(super) port: PortKey,
    pub(super) pod: PodUid,
}

/// A listed target.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) target: NodeTarget,
    /// Longest time that a guard may last (ZD-51).
    pub(super) bound: Duration,
    /// Whether the ranges of pods and nodes are known, so that outside can be told from inside.
    pub(super) outside_known: bool,
    /// Whether the object names it.
    named: Named,
    /// When its guard ends at the latest, from the first evidence on.
    pub(super) until: Option<Time>,
    /// When its deregistration was told.
    pub(super) drained: Option<Time>,
    /// Its endpoint was seen, so that its absence says something.
    pub(super) seen: bool,
}

/// Whether the object names a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    /// No more, which was noticed at this time, if the time was told since.
    No(Option<Time>),
}

/// Everything that was said.
#[derive(Debug, Default)]
pub struct Listing {
    keys: BTreeMap<Frontend, BTreeMap<Identity, Listed>>,
    facts: BTreeMap<InstallId, ClusterFacts>,
}

impl Listing {
    /// Takes a newer object; the keys of which something else is said.
    pub fn update(&mut self, installs: &BTreeMap<InstallId, NodeInstall>) -> BTreeSet<Frontend> {
        let mut touched = BTreeSet::new();
        let mut named: BTreeSet<(Frontend, Identity)> = BTreeSet::new();
        for (install, entry) in installs {
            self.facts.insert(install.clone(), entry.cluster.clone());
            for target in &entry.targets {
                // A state that we do not know counts like a lost entry.
                if target.state == TargetState::Unknown {
                    continue;
                }
                let (key, identity) = (key(target), identity(install, target));
                if self.set(key, &identity, target, &entry.cluster) {
                    touched.insert(key);
                }
                named.insert((key, identity));
            }
        }
        for (key, entries) in &mut self.keys {
            let before = entries.len();
            entries.retain(|identity, listed| {
                let lost = !named.contains(&(*key, identity.clone()));
                if lost && listed.named == Named::Yes {
                    listed.named = Named::No(None);
                }
                !(lost && listed.target.state == TargetState::Released)
            });
            if entries.len() != before {
                touched.insert(*key);
            }
        }
        self.keys.retain(|_, entries| !entries.is_empty());
        touched
    }

    /// Notes what is said of one target; whether that is something else than before.
    fn set(
        &mut self,
        key: Frontend,
        identity: &Identity,
        target: &NodeTarget,
        facts: &ClusterFacts,
    ) -> bool {
        let bound = Duration::from_secs(
            u64::from(facts.hold_max_seconds) + u64::from(facts.tail_max_seconds),
        );
        let outside_known = !facts.pod_cidrs.is_empty() && !facts.node_cidrs.is_empty();
        let entries = self.keys.entry(key).or_default();
        let Some(known) = entries.get_mut(identity) else {
            let listed = Listed {
                target: target.clone(),
                bound,
                outside_known,
                named: Named::Yes,
                until: None,
                drained: drained(target, None),
                seen: false,
            };
            entries.insert(identity.clone(), listed);
            return true;
        };
        let same = known.target == *target && known.outside_known == outside_known;
        known.drained = drained(target, known.drained);
        known.target = target.clone();
        (known.bound, known.outside_known) = (bound, outside_known);
        known.named = Named::Yes;
        !same
    }

    /// Forgets entries that nothing names any more, once no guard of theirs may be left; their keys.
    pub fn forget(&mut self, now: Time) -> BTreeSet<Frontend> {
        let mut touched = BTreeSet::new();
        for (key, entries) in &mut self.keys {
            for listed in entries.values_mut() {
                if listed.named == Named::No(None) {
                    listed.named = Named::No(Some(now));
                }
            }
            let before = entries.len();
            entries.retain(|_, listed| listed.forgotten_at().is_none_or(|at| at > now));
            if entries.len() != before {
                touched.insert(*key);
            }
        }
        self.keys.retain(|_, entries| !entries.is_empty());
        touched
    }

    /// When the next entry is forgotten.
    pub fn next_forgotten(&self) -> Option<Time> {
        let entries = self.keys.values().flat_map(BTreeMap::values);
        entries.filter_map(Listed::forgotten_at).min()
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = Frontend> {
        self.keys.keys().copied()
    }

    /// Whether anything is known of a key.
    pub fn is_listed(&self, key: &Frontend) -> bool {
        self.keys.contains_key(key)
    }

    /// Keys of a Service.
    pub fn keys_of(&self, service: &ServiceKey) -> BTreeSet<Frontend> {
        let of = |identity: &Identity| {
            identity.service.name == service.name && identity.service.namespace == service.namespace
        };
        let keys = self.keys.iter();
        keys.filter(|(_, entries)| entries.keys().any(of))
            .map(|(key, _)| *key)
            .collect()
    }

    /// Keys that have an entry for which this holds.
    pub fn keys_where(&self, which: impl Fn(&PodUid, &Frontend) -> bool) -> BTreeSet<Frontend> {
        let keys = self.keys.iter();
        keys.filter(|(key, entries)| entries.keys().any(|i| which(&i.pod, key)))
            .map(|(key, _)| *key)
            .collect()
    }

    /// The entries of a key.
    pub(super) fn entries_mut(
        &mut self,
        key: &Frontend,
    ) -> impl Iterator<Item = (&Identity, &mut Listed)> {
        self.keys.get_mut(key).into_iter().flatten()
    }

    /// Ranges of pods and nodes of all installs.
    pub fn inside(&self) -> Vec<IpNet> {
        let facts = self.facts.values();
        facts
            .flat_map(|facts| facts.pod_cidrs.iter().chain(&facts.node_cidrs))
            .map(|cidr| cidr.net())
            .collect()
    }
}

impl Listed {
    fn forgotten_at(&self) -> Option<Time> {
        let Named::No(Some(since)) = self.named else {
            return None;
        };
        let unlisted = since + self.bound;
        Some(self.until.map_or(unlisted, |until| until.max(unlisted)))
    }
}

/// When its deregistration was told, if it was, also after it was released.
fn drained(target: &NodeTarget, before: Option<Time>) -> Option<Time> {
    match target.state {
        TargetState::Draining => Some(target.since),
        TargetState::Released => before,
        TargetState::Active | TargetState::Held | TargetState::Unknown => None,
    }
}

fn key(target: &NodeTarget) -> Frontend {
    Frontend {
        address: target.address,
        protocol: target.protocol,
        port: target.target_port,
    }
}

fn identity(install: &InstallId, target: &NodeTarget) -> Identity {
    Identity {
        install: install.clone(),
        service: target.service.clone(),
        port: PortKey::new(target.port_name.clone(), target.protocol),
        pod: target.pod_uid.clone(),
    }
}
