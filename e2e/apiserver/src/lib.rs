//! apiserver: see the module docs.
