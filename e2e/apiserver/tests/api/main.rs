//! The API of the server, seen through kube-rs and raw HTTP.

mod apply;
mod basics;
mod custom;
mod deletion;
mod http;
mod kubelet;
mod rollout;
mod services;
mod slices;
mod support;
mod tls;
mod watch;
