//! The fake cloud: a load-balancer engine, its local REST API, probes, and LB nodes that forward real
//! packets.
//!
//! `engine` decides and knows neither clock nor socket; `rest`, `driver` and `datapath` are thin
//! layers over it. Used by the end-to-end worlds; nothing of the product depends on it.

pub mod assertions;
pub mod aws;
pub mod azure;
mod certificate;
pub mod cloud;
pub mod datapath;
pub mod driver;
pub mod engine;
pub mod rest;
pub mod scale;

pub use certificate::Certificate;
pub use cloud::Cloud;
pub use datapath::NetNode;
pub use driver::Driver;
