//! runtime: see the module docs.
