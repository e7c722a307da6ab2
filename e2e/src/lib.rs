//! The harness: worlds in which the real programs run against a fake cloud, an API server (embedded or real) and a
//! kubelet stand-in, with real packets between network namespaces. Used by the tests in `tests/`, by the demo and by benches.
//!
//! Never touches the host's own network namespace.
// A harness reports to people on stdout, and a broken world should stop its test at once.
#![allow(clippy::print_stdout)]

pub mod bench;
pub mod chart;
pub mod controlplane;
pub mod demo;
pub mod nodes;
pub mod scenario;
pub mod traffic;
pub mod world;
