//! Endpoint selection: the golden table and the properties of the datapath specification, section 18.

mod properties;
mod support;
mod table;
