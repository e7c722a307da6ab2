//! The controller: watches Services and their endpoints, plans, and makes the cloud so.
//!
//! Decisions are pure (`snapshot`, `plan`, `cloud/*/plan.rs`), I/O is at the edge (`watch`,
//! `cloud/*/client`, `reconcile`). The binary wires it to the world; the simulation wires the same
//! [`App`](app::App) to an in-process API server and virtual time.

pub mod cloud;
pub mod lease;
pub mod plan;
