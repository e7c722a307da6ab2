//! Endpoint selection: the golden table and the properties of the datapath specification, section 18.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod properties;
mod support;
mod table;
