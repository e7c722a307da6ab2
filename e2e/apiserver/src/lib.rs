//! An embedded Kubernetes API server, small and exact: storage, watches, patches, server-side apply, allocation and the
//! few controllers that scenarios need.
//!
//! Scenarios and simulations start one with [`ApiServer::start`] and talk to it through kube-rs. It must never become a
//! world of its own: what it answers is what the real server answers.

mod alloc;
mod audit;
mod bootstrap;
mod client;
mod controllers;
mod error;
mod hooks;
mod http;
mod kind;
mod kinds;
mod managed;
mod object;
mod owners;
pub mod pki;
mod schema;
mod selector;
mod server;
mod shape;
mod state;
mod store;
mod strategic;
mod tls;
mod verbs;

pub use audit::Record;
pub use client::Transport;
pub use controllers::{ControllerOptions, Controllers};
pub use onehop_runtime::clock::Clock;
pub use server::{ApiServer, Config, Identity};
pub use tls::{Serving, TlsError};
