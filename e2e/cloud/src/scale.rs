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

/// How much faster each kind of timer runs. FC-04 wants one factor for all, so a world names them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Lags, tails, probes, idle times and DNS of the cloud.
    pub cloud: u32,
    /// Grace and preStop of pods.
    pub pod_grace: u32,
    /// Cool-down of pod addresses.
    pub cool_down: u32,
    /// Conntrack time-outs that stand for timers of the cloud or the product.
    pub conntrack: u32,
    /// Bounds of the product: guard tail, hold maximum, Local window, kept groups.
    pub product: u32,
}

/// Only some timers are scaled: loss windows would vanish or grow by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cloud runs {cloud} times faster, but {}: scale all or none", .others.join(", "))]
pub struct PartlyScaled {
    cloud: u32,
    others: Vec<String>,
}

impl Speeds {
    /// One factor for all.
    pub const fn all(speed: u32) -> Self {
        Self {
            cloud: speed,
            pod_grace: speed,
            cool_down: speed,
            conntrack: speed,
            product: speed,
        }
    }

    /// The scale of a run that starts at `epoch`; refused unless one factor reaches everything.
    pub fn scale(&self, epoch: Time) -> Result<Scale, PartlyScaled> {
        let named = [
            ("pod grace", self.pod_grace),
            ("address cool-down", self.cool_down),
            ("conntrack time-outs", self.conntrack),
            ("product bounds", self.product),
        ];
        let others = named.iter().filter(|(_, speed)| *speed != self.cloud);
        let others: Vec<_> = others
            .map(|(name, speed)| format!("{name} {speed}"))
            .collect();
        if others.is_empty() {
            Ok(Scale::new(epoch, self.cloud))
        } else {
            Err(PartlyScaled {
                cloud: self.cloud,
                others,
            })
        }
    }
}
