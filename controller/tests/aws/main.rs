//! The controller with provider aws against the API server and the fake AWS, in one process and over real HTTP; no
//! packets.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod account;
mod cli;
#[path = "../shared/cluster.rs"]
mod cluster;
mod drift;
mod economy;
#[path = "../shared/gated.rs"]
mod gated;
mod interfaces;
mod left;
mod owners;
mod peer;
mod reported;
mod rights;
mod takeover;
mod waits;
mod world;
