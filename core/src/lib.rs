//! The vocabulary and the rules that the controller and the node agent share.
//!
//! Everything here is pure: Kubernetes objects and a time go in, typed views and decisions come out.
//! Nothing in this crate does I/O, reads a clock, logs, or knows tokio. Problems with an object are
//! returned as values; the binaries decide which event, metric or log line they become.
#![deny(missing_docs)]

pub mod crd;
pub mod diff;
pub mod endpoint;
pub mod gate;
pub mod health;
pub mod id;
pub mod node;
pub mod select;
pub mod service;
pub mod target;
pub mod time;
