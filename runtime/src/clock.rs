//! The clock: a fixed epoch plus tokio's time, so that tests which pause tokio move both.
//!
//! The only place that reads the system's time (once, at start) or sleeps. Everything else is handed
//! a [`Clock`], and pure code is handed a [`Time`].

use std::future::Future;
use std::time::{Duration, SystemTime};

use onehop_core::time::Time;
use tokio::time::Instant;

/// Tells the time and sleeps. Clones tell the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Time,
    start: Instant,
}

/// The time given to a future ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {0:?}")]
pub struct TimedOut(pub Duration);

impl Clock {
    /// A clock that starts at the system's time. For mains only: whatever the system's clock does
    /// later, this one goes on evenly.
    pub fn system() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self::fixed(Time::EPOCH + since_1970.unwrap_or_default())
    }

    /// A clock that starts at `epoch`.
    pub fn fixed(epoch: Time) -> Self {
        Self {
            epoch,
            start: Instant::now(),
        }
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.epoch + self.start.elapsed()
    }

    /// Waits for the duration.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Waits until the time; returns at once if it is past.
    pub async fn sleep_until(&self, time: Time) {
        tokio::time::sleep_until(self.start + time.since(self.epoch)).await;
    }

    /// Runs the future, for no longer than the duration.
    pub async fn within<F: Future>(
        &self,
        limit: Duration,
        future: F,
    ) -> Result<F::Output, TimedOut> {
        tokio::time::timeout(limit, future)
            .await
            .map_err(|_| TimedOut(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn sleeping_moves_the_time_by_exactly_that_much() {
        let clock = Clock::fixed(Time::from_millis(1_000));
        clock.sleep(Duration::from_secs(2)).await;
        assert_eq!(clock.now(), Time::from_millis(3_000));
        clock.sleep_until(Time::from_millis(7_500)).await;
        assert_eq!(clock.now(), Time::from_millis(7_500));
        clock.sleep_until(Time::EPOCH).await;
        assert_eq!(clock.now(), Time::from_millis(7_500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_takes_too_long_is_given_up() {
        let clock = Clock::fixed(Time::EPOCH);
        let limit = Duration::from_secs(1);
        assert_eq!(
            clock.within(limit, std::future::pending::<()>()).await,
            Err(TimedOut(limit))
        );
        assert_eq!(clock.within(limit, async { 7 }).await, Ok(7));
    }
}
