//! core: see the module docs.
