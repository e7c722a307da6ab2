//! The API of the server, seen through kube-rs and raw HTTP.

mod basics;
mod kubelet;
mod rollout;
mod support;
mod tls;
