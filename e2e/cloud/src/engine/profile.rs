//! How a cloud behaves, as data: numbers and policy switches (FC-02).
//!
//! A profile is never a fork of the code. The engine reads it; tests override single fields per load
//! balancer. All durations are unscaled cloud time (FC-04, FC-07).

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

/// A delay that the engine draws when it needs one (FC-06).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "LagSeconds", into = "LagSeconds")]
pub enum Lag {
    /// Always the same.
    Fixed(Duration),
    /// Anything between the two, both included, in whole milliseconds.
    Uniform(Duration, Duration),
    /// One of a list of measured values. An empty list means no delay.
    Measured(Vec<Duration>),
}

impl Lag {
    /// No delay at all.
    pub const NONE: Self = Self::Fixed(Duration::ZERO);

    /// A fixed delay in whole seconds.
    pub const fn secs(seconds: u64) -> Self {
        Self::Fixed(Duration::from_secs(seconds))
    }

    /// Draws one value. A fixed lag draws nothing from `rng`.
    pub fn draw(&self, rng: &mut SmallRng) -> Duration {
        match self {
            Self::Fixed(value) => *value,
            Self::Uniform(low, high) => {
                let (low, high) = (millis(*low), millis(*high));
                Duration::from_millis(rng.random_range(low..=high.max(low)))
            }
            Self::Measured(values) if values.is_empty() => Duration::ZERO,
            Self::Measured(values) => values[rng.random_range(0..values.len())],
        }
    }
}

impl Default for Lag {
    fn default() -> Self {
        Self::NONE
    }
}

/// A [`Lag`] as people write it: a number of seconds, two in a range, or a list.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum LagSeconds {
    Fixed(f64),
    Measured(Vec<f64>),
    Uniform { from: f64, to: f64 },
}

impl TryFrom<LagSeconds> for Lag {
    type Error = std::time::TryFromFloatSecsError;

    fn try_from(seconds: LagSeconds) -> Result<Self, Self::Error> {
        let duration = Duration::try_from_secs_f64;
        Ok(match seconds {
            LagSeconds::Fixed(value) => Self::Fixed(duration(value)?),
            LagSeconds::Measured(values) => {
                Self::Measured(values.into_iter().map(duration).collect::<Result<_, _>>()?)
            }
            LagSeconds::Uniform { from, to } => Self::Uniform(duration(from)?, duration(to)?),
        })
    }
}

impl From<Lag> for LagSeconds {
    fn from(lag: Lag) -> Self {
        match lag {
            Lag::Fixed(value) => Self::Fixed(value.as_secs_f64()),
            Lag::Uniform(from, to) => Self::Uniform {
                from: from.as_secs_f64(),
                to: to.as_secs_f64(),
            },
            Lag::Measured(values) => {
                Self::Measured(values.iter().map(Duration::as_secs_f64).collect())
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What happens to new flows when no target of a group is usable (FC-21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllDown {
    /// New flows are dropped without a word.
    Stop,
    /// Every registered target gets new flows.
    FailOpen,
}

/// What happens to the flows that a target already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// They go on.
    Keep,
    /// They end.
    Cut,
}

/// What a client hears when it goes on sending on a TCP flow that the load balancer no longer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LostFlow {
    /// A reset.
    Reset,
    /// Nothing.
    Drop,
}

/// A target that is its own client, where client addresses are preserved (FC-30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hairpin {
    /// It sees the LB node, and gets its answer.
    LbNode,
    /// It would see itself: its own network stack drops that.
    Itself,
}

/// Delays of one profile (FC-40 to FC-48).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lags {
    /// Accepted registration to the earliest moment that the target can be healthy (FC-40).
    pub registration: Lag,
    /// How long each LB node goes on choosing a deregistered target for new flows (FC-43).
    pub deregistration_tail: Lag,
    /// How long each LB node goes on choosing a target after its verdict `unhealthy` (FC-44).
    pub unhealthy_tail: Lag,
    /// How long each LB node goes on using the old group after a listener was switched (FC-45).
    pub group_switch_tail: Lag,
    /// Offset of each LB node's probe schedule (FC-36).
    pub verdict_skew: Lag,
    /// From creation of a load balancer until it serves (FC-47).
    pub provisioning: Lag,
}

impl Lags {
    /// NLB on a good day (FC-40 to FC-45).
    pub fn nlb_fast() -> Self {
        let uniform = |from, to| Lag::Uniform(Duration::from_secs(from), Duration::from_secs(to));
        Self {
            registration: uniform(20, 60),
            ..Self::nlb_realistic()
        }
    }

    /// Azure: members live some time after their PUT is complete (FC-40, FC-48).
    pub fn azure() -> Self {
        let local = Profile::local().lags;
        Self {
            registration: Lag::Uniform(Duration::from_secs(5), Duration::from_secs(15)),
            ..local
        }
    }

    /// NLB as users report it (FC-41, FC-43 to FC-45).
    pub fn nlb_realistic() -> Self {
        let uniform = |from, to| Lag::Uniform(Duration::from_secs(from), Duration::from_secs(to));
        Self {
            registration: uniform(60, 180),
            deregistration_tail: Lag::secs(120),
            unhealthy_tail: uniform(30, 40),
            group_switch_tail: Lag::secs(75),
            verdict_skew: uniform(0, 30),
            provisioning: uniform(60, 180),
        }
    }
}

/// Probe settings used where a group names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDefaults {
    /// Start of one probe to start of the next.
    pub interval: Duration,
    /// After this an unanswered probe has failed.
    pub timeout: Duration,
    /// Good probes in a row for the verdict `healthy`.
    pub healthy: u32,
    /// Bad probes in a row for the verdict `unhealthy`.
    pub unhealthy: u32,
    /// HTTP status codes that are a good answer.
    pub http_up: RangeInclusive<u16>,
}

/// One cloud's behaviour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name for logs and reports.
    pub name: &'static str,
    /// Delays.
    pub lags: Lags,
    /// New flows when nothing is usable.
    pub all_down: AllDown,
    /// Flows of a target that turned unhealthy (FC-23).
    pub unhealthy_flows: Established,
    /// The same for UDP.
    pub unhealthy_udp_flows: Established,
    /// Flows of a target whose drain time is over (FC-24).
    pub drained_flows: Established,
    /// Probability in thousandths with which a target in `initial` takes part in a choice among usable ones (FC-42).
    pub trickle_per_mille: u16,
    /// Answer to packets of a flow that has ended.
    pub lost_flow: LostFlow,
    /// What a target sees that reaches itself through the load balancer (FC-30).
    pub hairpin: Hairpin,
    /// How long a TCP flow may be silent before the load balancer forgets it (FC-28).
    pub idle_tcp: Duration,
    /// The same for UDP.
    pub idle_udp: Duration,
    /// Drain time of a group that names none.
    pub drain: Duration,
    /// Probe settings of a group that names none.
    pub probe: ProbeDefaults,
    /// Where probes of IPv4 targets come from, if not from each LB node's own address (FC-29, FC-38).
    pub probe_source: Option<Ipv4Addr>,
    /// Client-address preservation of a load balancer that does not say (FC-29).
    pub preserve_client_ip: bool,
    /// Cross-zone choice of a load balancer that does not say (FC-31).
    pub cross_zone: bool,
    /// Whether targets of a group that no listener uses are probed. Where they are not, they are
    /// `unused` with reason `Target.NotInUse`.
    pub probe_unused_groups: bool,
}

impl Profile {
    /// The profile `nlb` (FC-20 to FC-37) with lags that tests can wait for: nothing of registration, tails or
    /// provisioning takes time. [`Lags::nlb_fast`] and [`Lags::nlb_realistic`] are the presets of FC-40.
    pub fn nlb() -> Self {
        Self {
            name: "nlb",
            all_down: AllDown::FailOpen,
            unhealthy_flows: Established::Cut,
            drained_flows: Established::Keep,
            lost_flow: LostFlow::Reset,
            hairpin: Hairpin::Itself,
            drain: Duration::from_mins(5),
            probe: ProbeDefaults {
                interval: Duration::from_secs(30),
                timeout: Duration::from_secs(10),
                healthy: 5,
                unhealthy: 2,
                http_up: 200..=399,
            },
            cross_zone: false,
            probe_unused_groups: false,
            ..Self::local()
        }
    }

    /// The profile `azure` (FC-20 to FC-39) with lags that tests can wait for: [`Lags::azure`] is that of FC-40 and FC-48.
    pub fn azure() -> Self {
        Self {
            name: "azure",
            all_down: AllDown::Stop,
            unhealthy_flows: Established::Keep,
            unhealthy_udp_flows: Established::Cut,
            drained_flows: Established::Cut,
            lost_flow: LostFlow::Reset,
            hairpin: Hairpin::Itself,
            idle_tcp: Duration::from_mins(4),
            idle_udp: Duration::from_mins(4),
            probe: ProbeDefaults {
                interval: Duration::from_secs(15),
                timeout: Duration::from_secs(30),
                healthy: 1,
                unhealthy: 1,
                http_up: 200..=200,
            },
            // Those of IPv6 come from an address of the link, which no router forwards.
            probe_source: Some(Ipv4Addr::new(168, 63, 129, 16)),
            probe_unused_groups: false,
            ..Self::local()
        }
    }

    /// The profile `local` (FC-34b, FC-39b): no lag, no tails, no fail-open; established flows of a
    /// draining target are kept for 10 s and then end.
    pub fn local() -> Self {
        Self {
            name: "local",
            lags: Lags {
                registration: Lag::NONE,
                deregistration_tail: Lag::NONE,
                unhealthy_tail: Lag::NONE,
                group_switch_tail: Lag::NONE,
                verdict_skew: Lag::NONE,
                provisioning: Lag::NONE,
            },
            all_down: AllDown::Stop,
            unhealthy_flows: Established::Keep,
            unhealthy_udp_flows: Established::Keep,
            drained_flows: Established::Cut,
            trickle_per_mille: 0,
            lost_flow: LostFlow::Reset,
            hairpin: Hairpin::LbNode,
            idle_tcp: Duration::from_secs(350),
            idle_udp: Duration::from_mins(2),
            drain: Duration::from_secs(10),
            probe: ProbeDefaults {
                interval: Duration::from_secs(2),
                timeout: Duration::from_secs(1),
                healthy: 1,
                unhealthy: 2,
                http_up: 200..=399,
            },
            probe_source: None,
            preserve_client_ip: true,
            cross_zone: true,
            probe_unused_groups: true,
        }
    }
}
