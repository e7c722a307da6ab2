//! Back-off with jitter from a seed: for watches (kube takes it as its own) and for retries.
//!
//! kube's default one draws its jitter from the system, which no test could repeat.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::runtime::utils::Backoff as KubeBackoff;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The bounds of a back-off. Delays double from `first` to `most`; jitter adds up to once as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The first delay, without jitter.
    pub first: Duration,
    /// The longest delay, without jitter.
    pub most: Duration,
}

impl Policy {
    /// For watches: soon again after a hiccup, no herd after an outage.
    pub const WATCH: Self = Self {
        first: Duration::from_millis(100),
        most: Duration::from_secs(15),
    };
    /// For retries of single calls.
    pub const RETRY: Self = Self {
        first: Duration::from_millis(200),
        most: Duration::from_secs(15),
    };
    /// For what a limit of the cloud has refused: room is made by people, or by what goes (AWS-760). With jitter half a minute
    /// to five minutes.
    pub const QUOTA: Self = Self {
        first: Duration::from_secs(30),
        most: Duration::from_secs(150),
    };
    /// For a port that somebody else still holds (S-105).
    pub const BIND: Self = Self {
        first: Duration::from_secs(1),
        most: Duration::from_secs(30),
    };

    /// A back-off with these bounds which takes its jitter from `rng`.
    pub fn start(self, rng: &mut SmallRng) -> Backoff {
        let mut rng = SmallRng::seed_from_u64(rng.random());
        Backoff {
            policy: self,
            delays: self.delays(&mut rng),
            rng,
        }
    }

    fn delays(self, rng: &mut SmallRng) -> ExponentialBackoff {
        ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(self.most)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(rng.random())
            .build()
    }
}

/// An endless series of delays. Start over with [`Backoff::reset`] after a success.
#[derive(Debug)]
pub struct Backoff {
    policy: Policy,
    delays: ExponentialBackoff,
    rng: SmallRng,
}

impl Backoff {
    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        // The series has no end (`without_max_times`); should it have one, the longest delay follows.
        self.delays.next().unwrap_or(self.policy.most)
    }

    /// Starts over with the first delay.
    pub fn reset(&mut self) {
        self.delays = self.policy.delays(&mut self.rng);
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.next_delay())
    }
}

impl KubeBackoff for Backoff {
    fn reset(&mut self) {
        Self::reset(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(seed: u64) -> Vec<Duration> {
        Policy::WATCH
            .start(&mut SmallRng::seed_from_u64(seed))
            .take(12)
            .collect()
    }

    #[test]
    fn the_seed_decides_the_series() {
        assert_eq!(series(1), series(1));
        assert_ne!(series(1), series(2));
    }

    #[test]
    fn delays_grow_from_the_first_to_at_most_twice_the_longest() {
        let delays = series(3);
        assert!(delays[0] >= Policy::WATCH.first && delays[0] <= 2 * Policy::WATCH.first);
        assert!(delays[11] >= Policy::WATCH.most && delays[11] <= 2 * Policy::WATCH.most);
    }

    #[test]
    fn ai08_aws511_no_retry_waits_for_longer_than_half_a_minute() {
        for seed in 0..20 {
            let delays = Policy::RETRY.start(&mut SmallRng::seed_from_u64(seed));
            let longest = delays.take(12).max();
            assert!(
                longest <= Some(Duration::from_secs(30)),
                "AWS-511: {longest:?}"
            );
        }
    }

    #[test]
    fn a_reset_starts_over_with_other_jitter() {
        let mut backoff = Policy::RETRY.start(&mut SmallRng::seed_from_u64(4));
        let before: Vec<_> = backoff.by_ref().take(5).collect();
        backoff.reset();
        let after: Vec<_> = backoff.take(5).collect();
        assert!(after[0] <= 2 * Policy::RETRY.first);
        assert_ne!(before, after);
    }
}
