//! Errors of cloud calls, classed: the class decides retry, back-off and event.

use std::net::IpAddr;
use std::time::Duration;

use onehop_core::id::InstallId;

use crate::lease::Unanswered;

/// What kind of failure it was. The word is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The request is wrong and stays wrong until an object changes.
    WrongInput,
    /// Too many calls.
    Throttled,
    /// Somebody else holds what was asked for, or changed it meanwhile.
    Conflict,
    /// Still used by something that goes later.
    InUse,
    /// What the call is about is not there.
    NotFound,
    /// A limit of the account.
    Quota,
    /// May work next time: time-out, connection, 5xx.
    Transient,
    /// This process may not write (any more).
    Fenced,
    /// Not made: while it waited for its turn, a later plan has come that carries more.
    Superseded,
}

impl Class {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WrongInput => "wrong-input",
            Self::Throttled => "throttled",
            Self::Conflict => "conflict",
            Self::InUse => "in-use",
            Self::NotFound => "not-found",
            Self::Quota => "quota",
            Self::Transient => "transient",
            Self::Fenced => "fenced",
            Self::Superseded => "superseded",
        }
    }
}

/// A failed call: what was tried, on what, what came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tried}: {answer}")]
pub struct CloudError {
    /// Its class.
    pub class: Class,
    /// The call, as `create group web-http`.
    pub tried: String,
    /// What came back, and what to do about it where that is known.
    pub answer: String,
    /// When the cloud asks not to come back before.
    pub retry_after: Option<Duration>,
    /// The address that it failed for, where somebody else has it in the cloud.
    pub taken: Option<Box<Taken>>,
}

/// An address that somebody else has in the cloud, of whom no object of ours told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The address.
    pub address: IpAddr,
    /// Who has it, for messages.
    pub by: String,
    /// Of which install, if of any.
    pub install: Option<InstallId>,
}

impl CloudError {
    /// An error without a wish for when to come back.
    pub fn new(class: Class, tried: impl Into<String>, answer: impl Into<String>) -> Self {
        Self {
            class,
            tried: tried.into(),
            answer: answer.into(),
            retry_after: None,
            taken: None,
        }
    }

    /// A call without an answer: it was not made, or given up.
    pub fn unanswered(tried: impl Into<String>, unanswered: Unanswered) -> Self {
        let class = match unanswered {
            Unanswered::Fenced(_) => Class::Fenced,
            Unanswered::TimedOut(_) => Class::Transient,
        };
        Self::new(class, tried, unanswered.to_string())
    }
}
