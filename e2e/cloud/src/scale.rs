//! Cloud time against wall time (FC-03, FC-04): the cloud may run faster by a whole factor.
//!
//! The engine thinks in cloud time only; whoever drives it converts at the border.

use std::time::Duration;

use onehop_core::time::Time;

/// The relation of the two times: they meet at `epoch`, from there the cloud runs `speed` times faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    epoch: Time,
    speed: u32,
}

impl Scale {
    /// A cloud that runs `speed` times faster than the wall from `epoch` on; 0 counts as 1.
    pub const fn new(epoch: Time, speed: u32) -> Self {
        Self {
            epoch,
            speed: if speed == 0 { 1 } else { speed },
        }
    }

    /// The factor.
    pub const fn speed(&self) -> u32 {
        self.speed
    }

    /// Cloud time at this wall time.
    pub fn cloud(&self, wall: Time) -> Time {
        self.epoch + wall.since(self.epoch) * self.speed
    }

    /// Wall time at this cloud time, rounded up to what a time can hold: who sleeps until then does
    /// not wake too early.
    pub fn wall(&self, cloud: Time) -> Time {
        let wall = cloud.since(self.epoch) / self.speed;
        self.epoch + (wall + Duration::from_nanos(999_999))
    }

    /// How long a cloud duration takes at the wall.
    pub fn wall_duration(&self, cloud: Duration) -> Duration {
        cloud / self.speed
    }
}
