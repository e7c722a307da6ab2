//! Whose load balancer a claimed Service has: ours, or still (or again) another program's (AWS-129, AWS-130, AZ-014). Values only;
//! providers decide, `reconcile` carries out.

use std::collections::BTreeSet;

use onehop_core::crd::TakeOver;
use onehop_core::id::ServiceKey;
use onehop_core::time::Time;

use super::Plan;

/// Whose it is.
#[derive(Clone, Debug)]
pub enum Custody<S> {
    /// Ours: it is acted on as usual.
    Ours,
    /// Another program's: nothing is written to it but what this says.
    Theirs(Box<Handover<S>>),
}

/// What is to be done about a load balancer that another program has.
#[derive(Clone, Debug)]
pub struct Handover<S> {
    /// What people are told.
    pub report: TakeOver,
    /// What is to be done now.
    pub act: Act<S>,
    /// When to look again although nothing has happened.
    pub again: Option<Time>,
}

/// One part of a take-over, or of the way back. Each can be repeated, and be the last before a crash.
#[derive(Clone, Debug)]
pub enum Act<S> {
    /// Nothing.
    Look,
    /// These calls.
    Cloud(Plan<S>),
    /// The other program's bindings go without its noticing, and its finalizer gives way to ours.
    Take,
    /// Our finalizer gives way to the other program's.
    Give,
    /// These calls, once the other program has bindings of its own again.
    OnceBound(Plan<S>),
}

/// What people have asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Nothing: it is kept.
    Keep,
    /// That it be given back.
    GiveBack,
}

/// Whether the peer acts on Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerServices {
    /// It may.
    MayAct,
    /// It was said not to.
    Off,
}

/// Services chosen by people: `*`, `<namespace>` or `<namespace>/<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(BTreeSet<String>);

impl Selection {
    /// Reads entries; the answer is the first that is none.
    pub fn read(entries: &[String]) -> Result<Self, String> {
        let word = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        };
        let good = |entry: &str| match entry.split_once('/') {
            Some((namespace, name)) => word(namespace) && word(name),
            None => entry == "*" || word(entry),
        };
        match entries.iter().find(|entry| !good(entry)) {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(Self(entries.iter().cloned().collect())),
        }
    }

    /// Whether a Service is chosen.
    pub fn has(&self, service: &ServiceKey) -> bool {
        let names = ["*", &service.namespace, &service.to_string()];
        names.iter().any(|name| self.0.contains(*name))
    }
}
