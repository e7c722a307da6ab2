//! node-agent
