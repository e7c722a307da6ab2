//! Plans: what a provider wants done in the cloud, as data.
//!
//! A provider's pure planner lists steps in any order; [`arrange`] groups them into lanes and orders
//! them by the rules of [`order`]. The executor in `reconcile` runs groups, lane by lane. Nothing here
//! does I/O or knows a cloud.

pub mod advice;
mod bounds;
pub mod custody;
pub mod gates;
mod intent;
mod listed;
pub mod membership;
mod order;
pub mod pod_health;
mod provider;
pub mod standing;
mod told;

pub use bounds::{Bounds, Tails};
pub use intent::{Departed, Intent, Machine, Members, PortMembers};
pub use listed::Listed;
pub use order::arrange;
pub use provider::{
    Depth, Effect, Existing, Found, Giver, HostName, Look, Market, MissingRight, Named, Notice,
    Numbers, Outcome, Placed, PortCount, Programmed, Provider, Refusal, Resolution, first_family,
};
pub use told::{deregistered, registered};

use std::fmt;

use onehop_core::id::ServiceKey;
use serde::Serialize;

/// The lanes of a shard. Each runs on its own: *members* never waits for *shape*, deletes never wait
/// for creates (I8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Lane {
    /// Register, deregister, drain, admin state: the fast lane.
    Members,
    /// Load balancers, listeners, groups, attributes, tags.
    Shape,
    /// What is no longer wanted.
    Delete,
}

impl Lane {
    /// All lanes, the fast one first.
    pub const ALL: [Self; 3] = [Self::Members, Self::Shape, Self::Delete];

    /// A static word, for logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::Shape => "shape",
            Self::Delete => "delete",
        }
    }
}

/// One cloud object a step is about, by a name that is the same in every plan (kind/name); or a part of it that changes
/// and fails alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Resource {
    name: String,
    part: Option<Part>,
}

/// A part of an object, and its turn among the object's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
struct Part {
    turn: u8,
    word: &'static str,
}

impl Resource {
    /// A resource of this kind and name.
    pub fn new(kind: &str, name: impl fmt::Display) -> Self {
        Self {
            name: format!("{kind}/{name}"),
            part: None,
        }
    }

    /// A part of it. Parts of one object are changed one after the other, by their turns, and none waits for the success
    /// of another one.
    #[must_use]
    pub fn part(self, turn: u8, word: &'static str) -> Self {
        Self {
            part: Some(Part { turn, word }),
            ..self
        }
    }

    /// The object, without the part.
    fn whole(self) -> Self {
        Self { part: None, ..self }
    }

    /// The text `kind/name`.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.part {
            Some(part) => write!(f, "/{}", part.word),
            None => Ok(()),
        }
    }
}

/// What a step does to its resource; the order rules speak of nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Act {
    /// Makes the resource.
    Create,
    /// Changes it in place.
    Adjust,
    /// Adds targets to it.
    Fill,
    /// Makes traffic use what the step uses (a listener that points at a group).
    Publish,
    /// Takes targets away whose pod or node is gone: waits for nothing.
    Drop,
    /// Takes targets away which still serve: waits until their replacements were accepted.
    Empty,
    /// Removes it.
    Delete,
}

impl Act {
    /// How plans name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Adjust => "adjust",
            Self::Fill => "register on",
            Self::Publish => "point",
            Self::Drop => "drop from",
            Self::Empty => "drain from",
            Self::Delete => "delete",
        }
    }
}

/// What the order rules need to know of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The lane the step runs in.
    pub lane: Lane,
    /// What it does.
    pub act: Act,
    /// To which resource.
    pub on: Resource,
    /// Which other resources must be there for it.
    pub uses: Vec<Resource>,
    /// Which resources stop being used once it is done.
    pub frees: Vec<Resource>,
}

/// One idempotent cloud call.
pub trait Step: Clone + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What the order rules need to know.
    fn facts(&self) -> Facts;
    /// Whether it gives a load balancer targets, which their nodes are told of before (ZD-12).
    fn registers(&self) -> bool {
        self.facts().act == Act::Fill
    }
    /// A static word, for metric labels.
    fn verb(&self) -> &'static str;
    /// The event that a success is worth: reason and message. The message holds no names of single
    /// targets, so that repeats are seen as such.
    fn event(&self) -> Option<(&'static str, String)>;
}

/// Name of a group within its plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct GroupId(String);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Steps that run one after the other. A failure stops the rest of the group and the groups after it.
#[derive(Clone, Debug)]
pub struct Group<S> {
    /// Its name.
    pub id: GroupId,
    /// Its lane.
    pub lane: Lane,
    /// The object it works on; groups with one subject run one after the other, in the plan's order.
    pub subject: Resource,
    /// The Services it is for.
    pub services: Vec<ServiceKey>,
    /// Groups that must have succeeded before.
    pub after: Vec<GroupId>,
    /// Its steps, in order.
    pub steps: Vec<S>,
}

/// Everything a shard needs done now.
#[derive(Clone, Debug)]
pub struct Plan<S> {
    /// In an order that respects `after`.
    pub groups: Vec<Group<S>>,
}

impl<S> Default for Plan<S> {
    fn default() -> Self {
        Self { groups: Vec::new() }
    }
}

impl<S: Clone> Plan<S> {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The groups of one lane that may run now: those waiting for a group of another lane are left
    /// for the next plan, which is made from a fresh look once that lane has finished.
    pub fn runnable(&self, lane: Lane) -> Vec<Group<S>> {
        let mut chosen: Vec<Group<S>> = Vec::new();
        for group in self.groups.iter().filter(|g| g.lane == lane) {
            if group
                .after
                .iter()
                .all(|id| chosen.iter().any(|g| &g.id == id))
            {
                chosen.push(group.clone());
            }
        }
        chosen
    }

    /// All steps, in plan order.
    pub fn steps(&self) -> impl Iterator<Item = &S> {
        self.groups.iter().flat_map(|g| &g.steps)
    }
}

impl<S: fmt::Display> fmt::Display for Plan<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.groups {
            write!(f, "{} [{}]", group.id, group.lane.as_str())?;
            for (i, id) in group.after.iter().enumerate() {
                f.write_str(if i == 0 { " after " } else { ", " })?;
                write!(f, "{id}")?;
            }
            writeln!(f)?;
            for step in &group.steps {
                writeln!(f, "  {step}")?;
            }
        }
        Ok(())
    }
}
