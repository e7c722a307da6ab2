//! Which class chains exist and how many verdicts name each of them (S-230, S-247).

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::time::Time;

use super::parts::Part;
use super::skeleton::Held;
use crate::table::class;
use crate::table::element::{ClassKind, Data, ElementKey, Verdict};

/// A class chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(pub(super) ClassKind, pub(super) u16);

impl Class {
    pub(super) fn name(self) -> String {
        class::name(self.0, self.1)
    }

    /// The class that an element's verdict names.
    pub(super) fn named_by(data: Option<&Data>) -> Option<Self> {
        match data.and_then(Data::verdict) {
            Some(Verdict::Class(kind, count)) => Some(Self(kind, count)),
            _ => None,
        }
    }
}

/// Use of one class chain.
#[derive(Debug)]
enum Use {
    /// This many verdicts name it.
    Named(usize),
    /// None since then.
    Resting(Time),
}

/// The class chains of one table.
#[derive(Debug)]
pub(super) struct Classes {
    chains: BTreeMap<Class, Use>,
    /// Which class each committed verdict names: a removal tells only the key.
    named: BTreeMap<ElementKey, Class>,
}

impl Classes {
    /// As read back.
    pub(super) fn of(held: &Held, now: Time) -> Self {
        let chains = held
            .classes
            .iter()
            .map(|class| (*class, Use::Resting(now)))
            .collect();
        let mut classes = Self {
            chains,
            named: BTreeMap::new(),
        };
        for (key, data) in &held.elements {
            classes.name(*key, data.as_ref());
        }
        classes
    }

    pub(super) fn exists(&self, class: Class) -> bool {
        self.chains.contains_key(&class)
    }

    /// Takes note of a committed part.
    pub(super) fn committed(&mut self, part: &Part, new: &[Class], now: Time) {
        for class in new {
            self.chains.entry(*class).or_insert(Use::Resting(now));
        }
        for key in part.removed() {
            if let Some(class) = self.named.remove(key) {
                self.unname(class, now);
            }
        }
        for (key, data) in part.added() {
            self.name(*key, data.as_ref());
        }
    }

    /// Chains that nothing named for at least `rest`.
    pub(super) fn rested(&self, now: Time, rest: Duration) -> Vec<Class> {
        let due = |usage: &Use| matches!(usage, Use::Resting(since) if now.since(*since) >= rest);
        self.chains
            .iter()
            .filter(|(_, usage)| due(usage))
            .map(|(class, _)| *class)
            .collect()
    }

    pub(super) fn any_resting(&self) -> bool {
        self.chains
            .values()
            .any(|usage| matches!(usage, Use::Resting(_)))
    }

    pub(super) fn deleted(&mut self, class: Class) {
        self.chains.remove(&class);
    }

    pub(super) fn rest_again(&mut self, class: Class, now: Time) {
        self.chains.insert(class, Use::Resting(now));
    }

    fn name(&mut self, key: ElementKey, data: Option<&Data>) {
        let Some(class) = Class::named_by(data) else {
            return;
        };
        self.named.insert(key, class);
        let usage = self.chains.entry(class).or_insert(Use::Named(0));
        *usage = Use::Named(if let Use::Named(count) = usage {
            *count + 1
        } else {
            1
        });
    }

    fn unname(&mut self, class: Class, now: Time) {
        if let Some(usage) = self.chains.get_mut(&class) {
            *usage = match usage {
                Use::Named(count) if *count > 1 => Use::Named(*count - 1),
                _ => Use::Resting(now),
            };
        }
    }
}
