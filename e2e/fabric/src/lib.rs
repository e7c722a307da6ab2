//! fabric: see the module docs.
