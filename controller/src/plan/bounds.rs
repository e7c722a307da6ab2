//! How many targets of a Service stay, and for how long: what an install says for all of its Services (C-52).

use onehop_core::crd::{LateFlows, Membership, MembershipPolicy};

/// Bounds of every Service's membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Share of the ready endpoints, in percent, below which no target is let go (ZD-22).
    pub floor_percent: u8,
    /// Longest time for which a leaving target is held, in seconds.
    pub hold_max_seconds: u32,
    /// Longest time for which the cloud sends new flows to a target that was taken out, in seconds.
    pub tail_max_seconds: u32,
    /// What nodes do with new flows of such a time, where their policy is Local and no endpoint is left (ZD-60).
    pub late_flows: LateFlows,
}

impl Bounds {
    /// The defaults, for a cloud with this tail.
    pub const fn with_tail(tail_max_seconds: u32) -> Self {
        Self {
            floor_percent: 100,
            hold_max_seconds: 600,
            tail_max_seconds,
            late_flows: LateFlows::Forward,
        }
    }

    /// A Service's membership by this policy.
    pub fn membership(self, policy: MembershipPolicy) -> Membership {
        Membership {
            policy,
            floor_percent: self.floor_percent.into(),
            hold_max_seconds: self.hold_max_seconds,
            tail_max_seconds: self.tail_max_seconds,
            late_flows: self.late_flows,
        }
    }
}
