//! Token buckets in front of the APIs, one for each family of calls, shared by all shards (AWS-711). A
//! refusal for pace halves the rate; it recovers slowly (AWS-712).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;

/// Families of calls that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Reads of ELB.
    Describe,
    /// Register and deregister.
    Members,
    /// Other writes of ELB.
    Change,
    /// EC2.
    Ec2,
}

/// Rate a second and burst of each family (AWS-711).
const LIMITS: [(Family, f64, f64); 4] = [
    (Family::Describe, 8.0, 30.0),
    (Family::Members, 4.0, 20.0),
    (Family::Change, 3.0, 20.0),
    (Family::Ec2, 10.0, 50.0),
];
/// Least share of the rate that is left after many refusals.
const LEAST: f64 = 1.0 / 16.0;
/// Time in which a halved rate doubles again.
const RECOVERY: f64 = 30.0;

/// The buckets.
#[derive(Debug)]
pub struct Throttle {
    clock: Clock,
    buckets: [Mutex<Bucket>; 4],
}

/// One bucket. Pure but for its state.
#[derive(Clone, Debug)]
struct Bucket {
    rate: f64,
    burst: f64,
    /// Share of the rate that is used, 1 when nothing was refused lately.
    share: f64,
    level: f64,
    at: Time,
}

impl Bucket {
    const fn full(rate: f64, burst: f64, at: Time) -> Self {
        Self {
            rate,
            burst,
            share: 1.0,
            level: burst,
            at,
        }
    }

    /// Takes a token, or says how long to wait for one.
    fn take(&mut self, now: Time) -> Option<Duration> {
        let passed = now.since(self.at).as_secs_f64();
        self.at = now;
        self.share = (self.share * 2_f64.powf(passed / RECOVERY)).min(1.0);
        let rate = self.rate * self.share;
        self.level = (self.level + passed * rate).min(self.burst);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return None;
        }
        Some(Duration::from_secs_f64((1.0 - self.level) / rate))
    }

    fn refused(&mut self) {
        self.share = (self.share / 2.0).max(LEAST);
        self.level = self.level.min(0.0);
    }
}

impl Throttle {
    /// Full buckets.
    pub fn new(clock: Clock) -> Self {
        let now = clock.now();
        let bucket = |(_, rate, burst)| Mutex::new(Bucket::full(rate, burst, now));
        Self {
            clock,
            buckets: LIMITS.map(bucket),
        }
    }

    /// Waits for a token.
    pub async fn pass(&self, family: Family) {
        loop {
            let wait = self.with(family, |bucket| bucket.take(self.clock.now()));
            let Some(wait) = wait else { return };
            self.clock.sleep(wait).await;
        }
    }

    /// The service has refused a call for its pace.
    pub fn refused(&self, family: Family) {
        self.with(family, Bucket::refused);
    }

    fn with<T>(&self, family: Family, act: impl FnOnce(&mut Bucket) -> T) -> T {
        let bucket = &self.buckets[family as usize];
        act(&mut bucket.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn aws711_the_burst_passes_and_then_the_rate() {
        let mut bucket = Bucket::full(4.0, 20.0, at(0));
        let passed = (0..30).filter(|_| bucket.take(at(0)).is_none()).count();
        assert_eq!(passed, 20);
        let wait = bucket.take(at(0)).unwrap();
        assert_eq!(wait, Duration::from_millis(250));
        assert_eq!(bucket.take(at(250)), None);
    }

    #[test]
    fn aws712_a_refusal_halves_the_rate_which_recovers_slowly() {
        let mut bucket = Bucket::full(4.0, 1.0, at(0));
        bucket.refused();
        assert_eq!(bucket.take(at(0)), Some(Duration::from_millis(500)));
        for _ in 0..20 {
            bucket.refused();
        }
        assert_eq!(bucket.take(at(0)), Some(Duration::from_secs(4)), "a floor");
        bucket.take(at(600_000));
        assert!((bucket.share - 1.0).abs() < 1e-9);
    }
}
