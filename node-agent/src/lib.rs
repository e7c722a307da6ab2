//! The node agent: turns Services, EndpointSlices and the own Node into nftables state of one node,
//! and answers health questions about it (specification: node-datapath).
//!
//! Pure parts: `state` (what the watches said), `compile` (one Service to elements), `planner`
//! (what changed to one batch), `guard` (who takes flows of a pod that ends), `window` (who takes late ones
//! of policy Local). Edges: `watch`, `writer` (kernel), `health`, `flows` (connection
//! tracking). `app` ties them together, `run` wires threads and channels.

pub mod app;
pub mod args;
pub mod claims;
pub mod collection;
pub mod commit;
pub mod compile;
pub mod dump;
pub mod flows;
pub mod front;
pub mod guard;
pub mod handover;
pub mod health;
pub mod http;
pub mod ledger;
pub mod metrics;
pub mod node;
pub mod node_file;
pub mod notify;
pub mod peer;
pub mod peer_watch;
pub mod planner;
mod preface;
pub mod questions;
pub mod ready;
pub mod run;
pub mod startup;
pub mod state;
pub mod succession;
pub mod sys;
pub mod table;
pub mod tails;
pub mod targets;
pub mod targets_status;
pub mod watch;
pub mod window;
pub mod writer;
