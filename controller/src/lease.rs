//! Leader election: of several replicas, one writes.
//!
//! All replicas keep their caches full; the one that holds the Lease writes. [`evaluate`] decides,
//! from what was seen of the Lease and when by our own clock; [`elector`] reads and writes it;
//! [`fence`] is what the election is for; [`claims`] keeps two installs from owning the same Services.
//!
//! Why never two at once: the fence is up until the *start* of the last good renewal plus the renew
//! deadline, a call through it lasts less than lease duration minus renew deadline, and a rival waits
//! the lease duration from when it *saw* that renewal. So the last call has ended before the rival's
//! first, whatever the clocks say, as long as they run at the same speed.

pub mod claims;
pub mod elector;
pub mod evaluate;
pub mod fence;
mod peers;

pub use elector::{Election, Lost, Position};
pub use evaluate::Timing;
pub use fence::{Fence, Fenced, Unanswered};
