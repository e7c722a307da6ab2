//! The API of the server, seen through kube-rs and raw HTTP.

mod apply;
mod basics;
mod deletion;
mod kubelet;
mod rollout;
mod support;
mod tls;
mod watch;
