//! node-agent

pub mod table;
