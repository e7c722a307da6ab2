//! cloud: see the module docs.
