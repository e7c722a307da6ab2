//! What an administrator may choose where Kubernetes leaves open what is right.

use clap::ValueEnum;

/// What is left to the administrator. The defaults are kube-proxy's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choices {
    /// For new connections where a Local policy finds no endpoint on this node (S-54).
    pub local_empty: LocalEmpty,
    /// For a family without a source range while the other one has some (S-73).
    pub unlisted_family: UnlistedFamily,
}

/// What becomes of a connection to a Local list that is empty while there are endpoints on other nodes (S-54).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LocalEmpty {
    /// Nothing comes back: the load balancer is to notice by its health check, or the pod restarts (S-51).
    #[default]
    Drop,
    /// It is refused at once, as other proxies do.
    Reject,
}

/// Whom a load balancer address lets in whose family has no source range while the other one has some (S-73).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum UnlistedFamily {
    /// Everybody, with a warning.
    #[default]
    Open,
    /// Nobody.
    Closed,
}
