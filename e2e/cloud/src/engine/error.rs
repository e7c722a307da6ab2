//! Refusals of the API, each with a stable code for programs and a message for people.

use std::net::IpAddr;
use std::time::Duration;

use super::call::Operation;
use super::model::{GroupId, LbId, Tags};

/// One wrong field of a request.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Path of the field, `health.interval`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Problem {
    /// A problem of `field`.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Holder {
    /// The load balancer.
    pub id: LbId,
    /// Its name.
    pub name: String,
    /// Its tags, which tell the owner.
    pub tags: Tags,
}

/// Why a call was refused. A refused call changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request is malformed; every problem found is listed.
    #[error("{} field(s) are wrong: {}", .0.len(), list(.0))]
    Invalid(Vec<Problem>),
    /// A create came without an idempotency key.
    #[error("a create needs the header Idempotency-Key, so that it can be repeated safely")]
    KeyMissing,
    /// The idempotency key was used before with another request.
    #[error("idempotency key {key:?} was used before with another request; use a new key")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// No such object.
    #[error("no {kind} {id}")]
    NotFound {
        /// Kind of object.
        kind: &'static str,
        /// What was asked for.
        id: String,
    },
    /// Another load balancer holds the address (harness.md section 6).
    #[error("address {address} is held by load balancer {} ({})", .holder.id, .holder.name)]
    AddressInUse {
        /// The address.
        address: IpAddr,
        /// Who holds it.
        holder: Box<Holder>,
    },
    /// The cloud does not route this address.
    #[error("address {address} is not in a range that this cloud routes")]
    AddressNotRouted {
        /// The address.
        address: IpAddr,
    },
    /// The group is used by listeners (FC-95).
    #[error("group {group} is used by listeners of {}", ids(.used_by))]
    GroupInUse {
        /// The group.
        group: GroupId,
        /// Load balancers whose listeners use it.
        used_by: Vec<LbId>,
    },
    /// Too many calls (FC-91).
    #[error("{operation:?} is called too often; try again in {} ms", .retry_after.as_millis())]
    Throttled {
        /// Operation.
        operation: Operation,
        /// When a call would pass, in cloud time.
        retry_after: Duration,
    },
    /// A limit on numbers is reached (FC-93).
    #[error("quota {quota} is {limit}: remove something or ask for more")]
    QuotaExceeded {
        /// Name of the quota.
        quota: &'static str,
        /// Its limit.
        limit: usize,
    },
    /// The caller has no right to do this.
    #[error("not authorized to perform {operation:?}")]
    Forbidden {
        /// Operation.
        operation: Operation,
    },
    /// The request holds something that this cloud cannot take (FC-99).
    #[error("the request holds {text:?}, which does not exist or cannot be used")]
    BadAttribute {
        /// What.
        text: String,
    },
    /// The cloud is not available just now.
    #[error("{operation:?} is not available just now")]
    Unavailable {
        /// Operation.
        operation: Operation,
    },
    /// The cloud broke.
    #[error("{operation:?} failed inside the cloud")]
    Internal {
        /// Operation.
        operation: Operation,
    },
    /// No answer comes: the connection drops, before or after the change was made (FC-97).
    #[error("the connection dropped during {operation:?}")]
    ConnectionLost {
        /// Operation.
        operation: Operation,
    },
}

impl ApiError {
    /// The stable word for programs, metrics and logs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyReused { .. } => "idempotency_key_reused",
            Self::NotFound { .. } => "not_found",
            Self::AddressInUse { .. } => "address_in_use",
            Self::AddressNotRouted { .. } => "address_not_routed",
            Self::GroupInUse { .. } => "group_in_use",
            Self::Throttled { .. } => "throttled",
            Self::QuotaExceeded { .. } => "quota_exceeded",
            Self::Forbidden { .. } => "forbidden",
            Self::BadAttribute { .. } => "bad_attribute",
            Self::Unavailable { .. } => "unavailable",
            Self::Internal { .. } => "internal_error",
            Self::ConnectionLost { .. } => "connection_lost",
        }
    }

    /// A request with one wrong field.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![Problem::new(field, message)])
    }
}

fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems
        .iter()
        .map(|p| format!("{}: {}", p.field, p.message))
        .collect();
    lines.join("; ")
}

fn ids(lbs: &[LbId]) -> String {
    lbs.iter().map(LbId::as_str).collect::<Vec<_>>().join(", ")
}
