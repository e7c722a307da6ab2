//! Which chains made on demand exist, and how many elements and chains need each of them (S-230, S-247).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::time::Time;

use super::parts::Part;
use super::skeleton::Held;
use crate::table::affinity::Sticky;
use crate::table::class;
use crate::table::demand::OnDemand;
use crate::table::element::{Data, ElementKey};

/// Use of one chain.
#[derive(Debug)]
enum Use {
    /// So many elements and chains need it.
    Named(usize),
    /// None since then.
    Resting(Time),
}

/// The chains of one table that are made on demand.
#[derive(Debug)]
pub(super) struct Chains {
    chains: BTreeMap<OnDemand, Use>,
    /// Which chain each committed element needs: a removal tells only the key.
    named: BTreeMap<ElementKey, OnDemand>,
}

impl Chains {
    /// As read back.
    pub(super) fn of(held: &Held, now: Time) -> Self {
        let mut chains = Self {
            chains: BTreeMap::new(),
            named: BTreeMap::new(),
        };
        chains.made(held.chains.iter().copied(), now);
        for (key, data) in &held.elements {
            chains.name(*key, data.as_ref());
        }
        chains
    }

    pub(super) fn exists(&self, chain: OnDemand) -> bool {
        self.chains.contains_key(&chain)
    }

    /// Whether some chain uses this affinity map, which then exists.
    pub(super) fn uses_map(&self, map: Sticky) -> bool {
        self.chains.keys().any(|chain| chain.map() == Some(map))
    }

    /// Takes note of a committed part.
    pub(super) fn committed(&mut self, part: &Part, new: &BTreeSet<OnDemand>, now: Time) {
        self.made(new.iter().copied(), now);
        for key in part.removed() {
            if let Some(chain) = self.named.remove(key) {
                self.unname(chain, now);
            }
        }
        for (key, data) in part.added() {
            self.name(*key, data.as_ref());
        }
    }

    /// Chains that nothing named for at least `rest` and that are not kept in store.
    pub(super) fn rested(&self, now: Time, rest: Duration) -> Vec<OnDemand> {
        let due = |usage: &Use| matches!(usage, Use::Resting(since) if now.since(*since) >= rest);
        self.chains
            .iter()
            .filter(|(chain, usage)| !in_store(**chain) && due(usage))
            .map(|(chain, _)| *chain)
            .collect()
    }

    pub(super) fn any_resting(&self) -> bool {
        self.chains
            .iter()
            .any(|(chain, usage)| !in_store(*chain) && matches!(usage, Use::Resting(_)))
    }

    pub(super) fn deleted(&mut self, chain: OnDemand, now: Time) {
        self.chains.remove(&chain);
        for needed in chain.needs() {
            self.unname(needed, now);
        }
    }

    pub(super) fn rest_again(&mut self, chain: OnDemand, now: Time) {
        self.chains.insert(chain, Use::Resting(now));
    }

    fn made(&mut self, chains: impl Iterator<Item = OnDemand>, now: Time) {
        for chain in chains {
            if self.exists(chain) {
                continue;
            }
            self.chains.insert(chain, Use::Resting(now));
            // Those came before it.
            for needed in chain.needs() {
                self.count(needed);
            }
        }
    }

    fn name(&mut self, key: ElementKey, data: Option<&Data>) {
        if let Some(chain) = OnDemand::named_by(key.1, data) {
            self.named.insert(key, chain);
            self.count(chain);
        }
    }

    fn count(&mut self, chain: OnDemand) {
        let usage = self.chains.entry(chain).or_insert(Use::Named(0));
        *usage = Use::Named(match usage {
            Use::Named(count) => *count + 1,
            Use::Resting(_) => 1,
        });
    }

    fn unname(&mut self, chain: OnDemand, now: Time) {
        if let Some(usage) = self.chains.get_mut(&chain) {
            *usage = match usage {
                Use::Named(count) if *count > 1 => Use::Named(*count - 1),
                _ => Use::Resting(now),
            };
        }
    }
}

/// Whether a chain is there from the start and stays.
fn in_store(chain: OnDemand) -> bool {
    matches!(chain, OnDemand::Class(kind, count) if class::is_in_store(kind, count))
}
