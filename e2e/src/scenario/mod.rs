//! Scenarios shared by the demo, the tests and the benches: each is written once, against a [`crate::world::World`].

mod cause;
mod requests;
mod rollout;
mod timeline;
mod trace;

pub use cause::{FailureReport, explain};
pub use requests::{Request, record};
pub use rollout::{Rollout, RolloutReport};
pub use timeline::{TimelineEntry, timeline};
pub use trace::{Hop, trace};
