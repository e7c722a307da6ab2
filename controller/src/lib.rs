//! The controller: watches Services and their endpoints, plans, and makes the cloud so.
//!
//! Decisions are pure (`snapshot`, `plan`, `cloud/*/plan.rs`), I/O is at the edge (`watch`,
//! `cloud/*/client`, `writes`). The binary wires it to the world; the simulation wires the same
//! [`App`](app::App) to an in-process API server and virtual time.

pub mod app;
pub mod args;
pub mod cli;
pub mod cloud;
pub mod events;
pub mod http;
pub mod index;
pub mod lease;
pub mod metrics;
pub mod node_targets;
pub mod plan;
pub mod policy;
pub mod presence;
pub mod reconcile;
pub mod snapshot;
pub mod status;
pub mod uninstall;
mod watch;
pub mod webhook;
pub mod writes;
