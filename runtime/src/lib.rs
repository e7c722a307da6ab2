//! What both binaries need around the pure rules: clock, back-off, Kubernetes client and watches,
//! events, logs, metrics and small HTTP servers.
//!
//! Time, randomness and transport come in from outside (design.md section 7), so that the same code
//! runs against a real cluster and in a simulation. Nothing here decides anything about Services.
#![deny(missing_docs)]

pub mod backoff;
pub mod client;
pub mod clock;
pub mod events;
pub mod http;
pub mod log;
pub mod metrics;
pub mod scrape;
pub mod watch;
