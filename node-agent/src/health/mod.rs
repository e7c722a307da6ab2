//! What the agent answers about itself and its Services over HTTP (sections 9 and 10).

pub mod board;
pub mod doors;
pub mod pods;
pub mod ports;
pub mod proxy;
pub mod wanted;
