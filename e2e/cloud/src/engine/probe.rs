//! Probes and verdicts: each LB node judges each target by its own probes (FC-36).
//!
//! The engine says when to probe what; whoever drives it probes and brings the outcome back.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use onehop_core::time::Time;
use serde::Serialize;

use super::model::{GroupId, HealthCheck, NodeId, ProbeProtocol};

/// Number of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub(super) u64);

/// A probe that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOrder {
    /// To be given back with the outcome.
    pub id: ProbeId,
    /// LB node that probes.
    pub node: NodeId,
    /// Group on whose behalf.
    pub group: GroupId,
    /// Where to connect to: target address and probe port.
    pub to: SocketAddr,
    /// Kind of probe.
    pub protocol: ProbeProtocol,
    /// Whether a header of the PROXY protocol comes first (FC-32).
    pub proxy_protocol: bool,
    /// Path of an HTTP probe.
    pub path: String,
    /// HTTP status codes that are good.
    pub http_up: RangeInclusive<u16>,
    /// Cloud time until an unanswered probe has failed.
    pub timeout: Duration,
}

/// How a probe went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A good answer.
    Ok,
    /// Connection refused or reset.
    Refused,
    /// No answer in time.
    Timeout,
    /// An HTTP answer with a bad status code.
    Status(u16),
    /// Anything else.
    Error(String),
}

impl Outcome {
    /// Whether it counts for the target.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }
}

/// What one LB node thinks of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Not enough probes yet.
    Unknown,
    /// Up.
    Healthy,
    /// Down.
    Unhealthy,
}

/// One LB node's view of one target.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) verdict: Verdict,
    /// Whether any probe has come back since registration.
    pub(super) probed: bool,
    /// Until when the node goes on choosing a target that should get nothing (FC-43, FC-44).
    pub(super) tail: Option<Time>,
    /// When the next probe starts; none while one is under way, and in unprobed groups.
    pub(super) next_probe: Option<Time>,
    pub(super) under_way: Option<(ProbeId, Time)>,
    last_ok: bool,
    streak: u32,
}

impl View {
    /// A view of a target that was just registered.
    pub(super) fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            probed: false,
            tail: None,
            next_probe: None,
            under_way: None,
            last_ok: false,
            streak: 0,
        }
    }

    /// Counts one outcome; the new verdict if it changed.
    pub(super) fn record(&mut self, ok: bool, check: &HealthCheck) -> Option<Verdict> {
        self.streak = if self.probed && self.last_ok == ok {
            self.streak.saturating_add(1)
        } else {
            1
        };
        self.probed = true;
        self.last_ok = ok;
        let (needed, verdict) = if ok {
            (check.healthy, Verdict::Healthy)
        } else {
            (check.unhealthy, Verdict::Unhealthy)
        };
        if self.streak < needed || self.verdict == verdict {
            return None;
        }
        self.verdict = verdict;
        Some(verdict)
    }
}
