//! Our two nftables tables: vocabulary of elements, layout of section 12, encoding.
//! Called by compile (vocabulary) and commit (all of it).

pub mod affinity;
pub mod class;
pub mod counts;
pub mod demand;
pub mod element;
pub mod guard;
pub mod hooks;
pub mod layout;
pub mod set;
