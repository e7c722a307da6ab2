//! The network of one test world: a VPC router, nodes with two interfaces and a CNI stand-in, clients, LB nodes and
//! pods, each a network namespace joined to the router by a veth pair (fake-cloud.md section 8, harness.md 2 and 3).
//!
//! Worlds, the kubelet stand-in and the fake cloud call it. It never touches the host's network namespace: links are
//! made inside the namespaces, sockets are opened on threads that joined them.
//!
//! ```text
//!  client 203.0.113.x ──┐                  ┌── eth0 10.0.1.1x ─┐
//!  client 10.0.3.x ─────┤   VPC router     │                   node ── veth ── pod 10.244.n.x
//!  LB node 10.0.9.1x ───┴── one port each ─┴── eth1 10.0.2.1x ─┘ │
//!                                                              mgmt0 172.30.0.1x ── bridge 172.30.0.1
//! ```

mod admission;
mod cgroups;
mod client;
mod counters;
mod drops;
mod fabric;
mod first;
mod floating;
mod flows;
mod ip;
mod lb;
mod netns;
mod node;
mod ownership;
mod process;
mod relay;
mod router;
mod settle;
mod tables;
mod tag;
mod twin;

pub use admission::Admit;
pub use client::ClientNet;
pub use counters::{Count, Hook, HopCounters, HopMatch};
pub use drops::{Drop, DropReason, GROUP as NFLOG_GROUP};
pub use fabric::{Fabric, FabricConfig};
pub use first::{FirstHook, FirstPacket, FirstPackets};
pub use flows::{FlowEvent, FlowHook, FlowLog, FlowRecord};
pub use lb::LbNet;
pub use netns::Netns;
pub use node::{NodeNet, PodNet};
pub use ownership::{AddressEvent, AfterCooldown};
pub use process::Child;
pub use router::Router;
pub use tag::{Leftovers, WorldTag, clean};
pub use twin::{both, twin};

/// What can go wrong while the network is built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call or file of the kernel's refused; usually: not root, or a namespace that is gone.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// `ip` answered with an error.
    #[error("ip in {namespace}: {stderr}\nbatch was:\n{batch}")]
    Ip {
        /// Namespace in which it ran.
        namespace: String,
        /// The lines it was given.
        batch: String,
        /// What it said.
        stderr: String,
    },
    /// nftables or conntrack refused.
    #[error("nftables in {namespace}: {message}")]
    Nft {
        /// Namespace in which it ran.
        namespace: String,
        /// What was tried and what came back.
        message: String,
    },
    /// The request makes no sense in this world.
    #[error("{0}")]
    Invalid(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
