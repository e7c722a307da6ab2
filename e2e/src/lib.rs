//! e2e: see the module docs.
