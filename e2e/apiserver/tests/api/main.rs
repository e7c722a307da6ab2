//! The API of the server, seen through kube-rs and raw HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that cannot do its part fails the test that called it"
)]

mod apply;
mod basics;
mod custom;
mod deletion;
mod http;
mod kubelet;
mod nodes;
mod rollout;
mod services;
mod slices;
mod support;
mod tls;
mod watch;
