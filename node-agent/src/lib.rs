//! node-agent

pub mod commit;
pub mod table;
