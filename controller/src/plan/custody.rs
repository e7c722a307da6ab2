//! Whose load balancer a claimed Service has: ours, or still (or again) another program's (AWS-129, AWS-130). Values only;
//! providers decide, `reconcile` carries out.

use onehop_core::crd::TakeOver;
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
