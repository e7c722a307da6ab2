//! Flags of how many targets stay, and for how long (C-52): the same for every provider but for the tail's default.

use clap::{Args, ValueEnum, value_parser};
use onehop_core::crd::LateFlows;

use crate::plan::{Bounds, Tails};

/// Longest hold and tail that make sense, in seconds: agents guard a target for as long as both together.
const DAY: i64 = 86_400;

/// What nodes do with late flows, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Late {
    /// Send them to an endpoint on another node.
    Forward,
    /// Drop them, as kube-proxy does.
    Drop,
}

/// As they are written.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct BoundsArgs {
    /// Share of a Service's ready endpoints, in percent, below which no target is let go before others are healthy.
    #[arg(long, env = "ONEHOP_FLOOR_PERCENT", default_value_t = 100, value_parser = value_parser!(u8).range(0..=100))]
    floor_percent: u8,
    /// Longest time in seconds for which a leaving target is held while others get healthy.
    #[arg(long, env = "ONEHOP_HOLD_MAX_SECONDS", default_value_t = 600, value_parser = value_parser!(u32).range(0..=DAY))]
    hold_max_seconds: u32,
    /// Longest time in seconds for which the cloud sends new flows to a target that was taken out. Default: 0 for
    /// provider local, 180 for aws, 30 for azure.
    #[arg(long, env = "ONEHOP_TAIL_MAX_SECONDS", value_parser = value_parser!(u32).range(0..=DAY))]
    tail_max_seconds: Option<u32>,
    /// Lets a target go sooner where agents have seen how long new flows really come after a deregistration: after a
    /// quarter more than the longest time that they saw, this many seconds at least and the longest time at most.
    /// Default: always after the longest time.
    #[arg(long, env = "ONEHOP_TAIL_FLOOR_SECONDS", value_parser = value_parser!(u32).range(0..=DAY))]
    tail_floor_seconds: Option<u32>,
    /// With externalTrafficPolicy Local, what nodes do with new flows that still come after their last endpoint has left, for
    /// Services that the agent proxies.
    #[arg(long, env = "ONEHOP_LATE_FLOWS", value_enum, default_value = "forward")]
    late_flows: Late,
}

impl BoundsArgs {
    /// How far what was seen may shorten a tail.
    pub(super) const fn tails(self) -> Tails {
        Tails {
            floor_seconds: self.tail_floor_seconds,
        }
    }

    /// With the tail of the provider's cloud where none is given.
    pub(super) fn resolve(self, tail_max_seconds: u32) -> Bounds {
        Bounds {
            floor_percent: self.floor_percent,
            hold_max_seconds: self.hold_max_seconds,
            tail_max_seconds: self.tail_max_seconds.unwrap_or(tail_max_seconds),
            late_flows: match self.late_flows {
                Late::Forward => LateFlows::Forward,
                Late::Drop => LateFlows::Drop,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bounds: BoundsArgs,
    }

    fn parse(flags: &[&str]) -> Result<BoundsArgs, String> {
        let command = Command::try_parse_from([&["x"], flags].concat());
        command.map(|c| c.bounds).map_err(|e| e.to_string())
    }

    #[test]
    fn c52_bounds_are_the_providers_unless_they_are_given() {
        let usual = parse(&[]).unwrap();
        assert_eq!(usual.resolve(180), Bounds::with_tail(180), "C-52");
        assert_eq!(usual.tails(), Tails::default(), "ZD-83");
        let tails = parse(&["--tail-floor-seconds=60"]).unwrap().tails();
        assert_eq!(tails.floor_seconds, Some(60), "C-52, ZD-83");
        let given = [
            "--floor-percent=50",
            "--hold-max-seconds=60",
            "--tail-max-seconds=5",
            "--late-flows=drop",
        ];
        let given = parse(&given).unwrap().resolve(180);
        let wanted = Bounds {
            floor_percent: 50,
            hold_max_seconds: 60,
            tail_max_seconds: 5,
            late_flows: LateFlows::Drop,
        };
        assert_eq!(given, wanted, "C-52, ZD-60");
    }

    #[test]
    fn c52_a_wrong_bound_is_refused_and_what_is_allowed_is_said() {
        for (flag, value, allowed) in [
            ("--floor-percent", "101", "0..=100"),
            ("--floor-percent", "half", "invalid digit"),
            ("--hold-max-seconds", "86401", "0..=86400"),
            ("--tail-max-seconds", "-1", "--tail-max-seconds"),
            ("--tail-floor-seconds", "86401", "0..=86400"),
            ("--late-flows", "keep", "forward, drop"),
        ] {
            let said = parse(&[&format!("{flag}={value}")]).unwrap_err();
            for part in [flag, value, allowed] {
                assert!(said.contains(part), "C-52: {flag}={value}: {said}");
            }
        }
    }
}
