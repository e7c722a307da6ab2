//! Scenarios shared by the demo, the tests and the benches: each is written once, against a [`crate::world::World`].

mod cause;
mod rollout;
mod timeline;
mod trace;

pub use cause::{FailureReport, explain};
pub use rollout::{Rollout, RolloutReport};
pub use timeline::{TimelineEntry, timeline};
pub use trace::{Hop, trace};
