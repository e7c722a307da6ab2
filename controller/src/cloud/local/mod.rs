//! Provider `local`: the fake cloud's REST API (harness.md section 6), or whatever speaks it.

pub mod address;
pub mod annotations;
pub mod model;
pub mod names;
pub mod plan;
pub mod step;
