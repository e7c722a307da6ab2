//! What the node's network looks like, and changes of it, as values.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::table::element::Family;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    /// Kind of a virtual one, such as `bridge`.
    pub(super) kind: Option<String>,
    pub(super) loopback: bool,
    pub(super) addresses: Vec<IpAddr>,
}

/// A unicast route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) family: Family,
    pub(super) table: u32,
    /// None: the default route.
    pub(super) to: Option<IpNet>,
    pub(super) via: Option<IpAddr>,
    /// Interface index.
    pub(super) out: u32,
    /// Preferred source.
    pub(super) source: Option<IpAddr>,
}

/// A policy rule that looks at a mark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MarkRule {
    pub(super) family: Family,
    pub(super) priority: u32,
    pub(super) mark: u32,
    pub(super) mask: u32,
    pub(super) table: u32,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) links: Vec<Link>,
    pub(super) routes: Vec<Route>,
    pub(super) rules: Vec<MarkRule>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    DeleteRule(MarkRule),
    DeleteRoute(Route),
    AddRoute(Route),
    AddRule(MarkRule),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            Some(to) => write!(f, "{to}")?,
            None => write!(f, "default")?,
        }
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        write!(f, " by interface {} in table {}", self.out, self.table)
    }
}

impl fmt::Display for MarkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} fwmark {:#x}/{:#x} lookup {}",
            self.family, self.mark, self.mask, self.table
        )
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeleteRule(rule) => write!(f, "cannot delete the policy rule {rule}"),
            Self::DeleteRoute(route) => write!(f, "cannot delete the route {route}"),
            Self::AddRoute(route) => write!(f, "cannot add the route {route}"),
            Self::AddRule(rule) => write!(f, "cannot add the policy rule {rule}"),
        }
    }
}
