//! What is remembered of a shard between two passes. All of it can be lost without harm: after a
//! restart it is found again in the cloud and in the objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{LoadBalancerSpec, TakeOver};
use onehop_core::id::{NodeName, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::backoff::Backoff;

use crate::events::Said;
use crate::plan::membership::View;
use crate::plan::standing::Standing;
use crate::plan::{Intent, Provider};
use crate::snapshot::Remembered;

/// Memory of one shard.
pub(super) struct Memory<P: Provider> {
    /// The last look.
    pub(super) seen: Option<P::Observed>,
    /// When everything was looked at last; none when something of the shape was left to do then.
    pub(super) settled_at: Option<Time>,
    /// What its Services wanted then.
    pub(super) wanted: BTreeMap<ServiceKey, (LoadBalancerSpec, Vec<IpAddr>)>,
    /// What is remembered of each Service.
    pub(super) services: BTreeMap<ServiceKey, OfService>,
    /// Since when a mass removal waits (K-33).
    pub(super) mass_since: Option<Time>,
    /// Whether the endpoint list was confirmed since.
    pub(super) view: View,
    /// Writes to the API server that failed.
    pub(super) writes: WriteTrouble,
}

/// Failed writes since the last pass without one.
#[derive(Debug, Default)]
pub(super) struct WriteTrouble {
    /// How many.
    pub(super) failures: u32,
    /// What spaces the next tries.
    pub(super) backoff: Option<Backoff>,
}

/// Memory of one Service.
#[derive(Debug, Default)]
pub(super) struct OfService {
    /// The pod behind each address.
    pub(super) remembered: Remembered,
    /// Addresses whose pods concern it.
    pub(super) interest: BTreeSet<IpAddr>,
    /// When counts were written last (K-10).
    pub(super) counts_at: Option<Time>,
    /// Since when an address waits for agents (K-27).
    pub(super) withheld_since: Option<Time>,
    /// How far a take-over of it has come, while it is not ours.
    pub(super) take_over: Option<TakeOver>,
    /// Nodes without an endpoint of it, since when, where that keeps them from being targets (AWS-404).
    pub(super) without_endpoints: BTreeMap<NodeName, Time>,
    /// How its targets stood at the last look.
    pub(super) standing: Standing,
    /// What was said about it.
    pub(super) said: Said,
}

impl<P: Provider> Default for Memory<P> {
    fn default() -> Self {
        Self {
            seen: None,
            settled_at: None,
            wanted: BTreeMap::new(),
            services: BTreeMap::new(),
            mass_since: None,
            view: View::Watched,
            writes: WriteTrouble::default(),
        }
    }
}

impl<P: Provider> Memory<P> {
    /// The intents of Services that no other program has: agents are told of no others' targets.
    pub(super) fn ours(&self, intents: &[Intent]) -> Vec<Intent> {
        let theirs = |i: &Intent| {
            self.services
                .get(&i.service)
                .is_some_and(|s| s.take_over.is_some())
        };
        intents.iter().filter(|i| !theirs(i)).cloned().collect()
    }

    /// Whether nothing is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_none() && self.services.is_empty()
    }
}
