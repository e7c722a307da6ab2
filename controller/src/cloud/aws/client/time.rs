//! The time that calls are signed with: our clock's, put right by the service's own where that differs.
//!
//! AWS takes no call whose signature is minutes old or ahead. Our clock goes on evenly from what the machine's said when
//! this process started, which may have been wrong, and which does not count the time that the machine slept.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_elasticloadbalancingv2::primitives::{DateTime, DateTimeFormat};
use aws_smithy_async::time::TimeSource;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;

/// Differences up to this are the way's: an answer is dated in whole seconds, and late.
const SLACK_MS: u64 = 60_000;

/// Tells the time of the service.
#[derive(Debug)]
pub struct ServiceTime {
    clock: Clock,
    /// Milliseconds by which the service's clock is ahead of ours.
    ahead: AtomicI64,
}

impl ServiceTime {
    /// Our clock's time, until the service says otherwise.
    pub(super) const fn new(clock: Clock) -> Self {
        Self {
            clock,
            ahead: AtomicI64::new(0),
        }
    }

    /// The time.
    pub(super) fn now(&self) -> SystemTime {
        system(self.clock.now().as_millis() + self.ahead.load(Ordering::Relaxed))
    }

    /// Takes in a call that was refused, by the date of its answer: its words for a wrong time
    /// differ, its time does not.
    pub(super) fn refused(&self, date: Option<&str>) {
        let Some(date) = date.and_then(read) else {
            return;
        };
        let ahead = date.as_millis() - self.clock.now().as_millis();
        let known = self.ahead.load(Ordering::Relaxed);
        if ahead.abs_diff(known) > SLACK_MS {
            tracing::warn!(
                seconds = ahead / 1000,
                "AWS has another time: calls are signed by it"
            );
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }
}

fn system(ms: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// A date as HTTP writes them.
fn read(text: &str) -> Option<Time> {
    let date = DateTime::from_str(text, DateTimeFormat::HttpDate).ok()?;
    Some(Time::from_millis(date.to_millis().ok()?))
}

/// Our clock for the SDK, which puts its signatures right by itself.
#[derive(Debug)]
pub(super) struct OurTime(pub(super) Clock);

impl TimeSource for OurTime {
    fn now(&self) -> SystemTime {
        system(self.0.now().as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn aws905_a_refusal_teaches_the_services_time_and_small_differences_are_the_ways() {
        let noon = "Tue, 01 Dec 2026 12:00:00 GMT";
        let at = read(noon).unwrap();
        let told = |clock: Time, date: Option<&str>| {
            let time = ServiceTime::new(Clock::fixed(clock));
            time.refused(date);
            let ms = time.now().duration_since(UNIX_EPOCH).unwrap().as_millis();
            Time::from_millis(ms.try_into().unwrap())
        };
        let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
        for off in [at - hour, at + hour] {
            assert_eq!(told(off, Some(noon)), at, "AWS-905");
            assert_eq!(told(off, None), off);
            assert_eq!(told(off, Some("today")), off);
        }
        assert_eq!(told(at - second, Some(noon)), at - second);
        // The machine slept, or its clock was put right: what was learnt is learnt anew.
        let time = ServiceTime::new(Clock::fixed(at - hour));
        time.refused(Some(noon));
        time.refused(Some("Tue, 01 Dec 2026 11:00:00 GMT"));
        let there = time.now().duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(
            i64::try_from(there.as_millis()).unwrap(),
            (at - hour).as_millis(),
            "AWS-905"
        );
    }
}
