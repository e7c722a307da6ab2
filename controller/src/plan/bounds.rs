//! How many targets of a Service stay, and for how long: what an install says for all of its Services (C-52).

use std::time::Duration;

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

/// How long a target is said to drain once its deregistration was accepted (ZD-51), where that may be less than the longest
/// time since agents have seen how long flows really come (ZD-83).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tails {
    /// No less than this, in seconds; none: always the longest time that the Service's membership allows.
    pub floor_seconds: Option<u32>,
}

impl Tails {
    /// The tail of a Service, when agents have seen flows for so many seconds at most. A quarter more than that, so that one
    /// which grows is still seen to grow.
    pub fn of(self, membership: &Membership, seen_seconds: Option<u32>) -> Duration {
        let most = membership.tail_max_seconds;
        let seconds = match (self.floor_seconds, seen_seconds) {
            (Some(floor), Some(seen)) => seen.saturating_add(seen.div_ceil(4)).max(floor).min(most),
            _ => most,
        };
        Duration::from_secs(seconds.into())
    }

    /// Whether flows were seen for nearly as long as a tail may be: later ones are perhaps nobody's (ZD-04). Without a tail
    /// the cloud's own word says when the last one was.
    pub fn at_limit(membership: &Membership, seen_seconds: Option<u32>) -> bool {
        let most = membership.tail_max_seconds;
        seen_seconds.is_some_and(|seen| most > 0 && u64::from(seen) * 10 >= u64::from(most) * 9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(most: u32) -> Membership {
        Bounds::with_tail(most).membership(MembershipPolicy::ZeroDrop)
    }

    #[test]
    fn zd83_a_tail_is_what_was_seen_within_the_limits_and_the_longest_where_nothing_was() {
        let of = |floor_seconds, seen| {
            let tails = Tails { floor_seconds };
            tails.of(&membership(180), seen).as_secs()
        };
        assert_eq!(of(None, Some(10)), 180, "ZD-51: unless it is asked for");
        assert_eq!(of(Some(60), None), 180, "ZD-83: nothing was seen yet");
        assert_eq!(of(Some(60), Some(0)), 60, "ZD-83: the floor");
        assert_eq!(of(Some(60), Some(80)), 100, "ZD-83: and a quarter more");
        assert_eq!(of(Some(60), Some(170)), 180, "ZD-83: the limit");
        assert_eq!(of(Some(300), Some(10)), 180, "ZD-83: the limit wins");
        // One that grows is followed up to the limit, since flows are seen until the tail is over.
        let mut seen = 50;
        for _ in 0..8 {
            seen = u32::try_from(of(Some(60), Some(seen))).unwrap();
        }
        assert_eq!(seen, 180, "ZD-83");
    }

    #[test]
    fn zd04_zd83_a_tail_as_long_as_it_may_be_is_said_to_be() {
        let at_limit = |seen| Tails::at_limit(&membership(180), seen);
        assert!(!at_limit(None) && !at_limit(Some(161)), "ZD-83");
        assert!(at_limit(Some(162)) && at_limit(Some(180)), "ZD-04");
        assert!(!Tails::at_limit(&membership(0), Some(9)), "no tail at all");
    }
}
