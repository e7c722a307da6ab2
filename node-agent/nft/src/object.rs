//! Objects that hold rules and elements: tables and chains; sets are in [`crate::set`].
//! Plain descriptions; [`crate::Batch`] turns them into messages, read-back returns them.

/// Family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 and IPv6 in one table.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// ARP.
    Arp = 3,
    /// One device.
    Netdev = 5,
    /// Bridge.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

impl Family {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [
            Self::Inet,
            Self::Ip,
            Self::Arp,
            Self::Netdev,
            Self::Bridge,
            Self::Ip6,
        ]
        .into_iter()
        .find(|family| *family as u8 == number)
    }
}

/// A table by family and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Family.
    pub family: Family,
    /// Name.
    pub name: String,
}

impl Table {
    /// Names a table.
    pub fn new(family: Family, name: &str) -> Self {
        Self {
            family,
            name: name.to_owned(),
        }
    }

    /// `ip <name>`.
    pub fn ip(name: &str) -> Self {
        Self::new(Family::Ip, name)
    }

    /// `ip6 <name>`.
    pub fn ip6(name: &str) -> Self {
        Self::new(Family::Ip6, name)
    }
}

/// Table flag: bound to the socket that made it (kernel 5.12).
pub const TABLE_OWNER: u32 = 2;
/// Table flag: stays when its owner's socket closes, for the next owner to take over (kernel 6.9, S-267).
pub const TABLE_PERSIST: u32 = 4;

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainType {
    /// Filtering.
    Filter,
    /// Address translation; sees the first packet of a connection.
    Nat,
    /// As filter, in output, and the packet is routed again when its mark changed.
    Route,
}

impl ChainType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
        }
    }
}

/// Hook of a base chain in ip, ip6 and inet tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting = 0,
    /// To this host.
    Input = 1,
    /// Through this host.
    Forward = 2,
    /// From this host.
    Output = 3,
    /// After routing.
    Postrouting = 4,
}

impl Hook {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [
            Self::Prerouting,
            Self::Input,
            Self::Forward,
            Self::Output,
            Self::Postrouting,
        ]
        .into_iter()
        .find(|hook| *hook as u32 == number)
    }
}

/// What a base chain does at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Drop.
    Drop = 0,
    /// Accept.
    Accept = 1,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Type.
    pub kind: ChainType,
    /// Hook.
    pub hook: Hook,
    /// Priority; lower runs earlier.
    pub priority: i32,
    /// Policy.
    pub policy: Policy,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// `None`: a regular chain.
    pub base: Option<Base>,
}

impl Chain {
    /// A regular chain.
    pub fn regular(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            base: None,
        }
    }

    /// A base chain with policy accept.
    pub fn base(name: &str, kind: ChainType, hook: Hook, priority: i32) -> Self {
        Self {
            name: name.to_owned(),
            base: Some(Base {
                kind,
                hook,
                priority,
                policy: Policy::Accept,
            }),
        }
    }

    /// The same with another policy (base chains only).
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        if let Some(base) = &mut self.base {
            base.policy = policy;
        }
        self
    }
}
