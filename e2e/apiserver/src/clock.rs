//! The server's clock.

use std::time::Duration;

use onehop_core::time::Time;
use tokio::time::Instant;

/// A fixed epoch plus tokio's time.
#[derive(Debug, Clone)]
pub struct Clock {
    epoch: Time,
    start: Instant,
}

impl Clock {
    /// A clock that shows `epoch` now.
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

    /// Sleeps until a time.
    pub async fn sleep_until(&self, time: Time) {
        tokio::time::sleep_until(self.start + time.since(self.epoch)).await;
    }

    /// Sleeps.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
