//! An LB node's packets (FC-60 to FC-63): its namespace forwards by nftables maps and conntrack, no
//! user-space proxy. Handshakes run end to end between client and target.
//!
//! `layout` says which elements a state needs, `kernel` puts the difference there, `flows` ends and
//! finds flows, `probe` opens real connections. All of it happens in the LB node's namespace only.

mod flows;
mod kernel;
mod layout;
mod probe;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use e2e_fabric::{LbNet, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use onehop_runtime::clock::Clock;

use crate::driver::{Driver, LbNode};
use crate::engine::{DataPathState, NodeId, Outcome, ProbeOrder};
use kernel::Kernel;

pub use flows::Flow;

/// Why the kernel does not do what the engine says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The namespace, its settings or the router.
    #[error("LB node {node}: {source}")]
    Fabric {
        /// Which.
        node: IpAddr,
        /// What the fabric says.
        source: e2e_fabric::Error,
    },
    /// A netlink socket cannot be opened: usually not root.
    #[error("LB node {node}: open netlink: {source}")]
    Open {
        /// Which.
        node: IpAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The rule set was refused.
    #[error("LB node {node}: commit rules: {source}")]
    Commit {
        /// Which.
        node: IpAddr,
        /// What the kernel says.
        source: onehop_nft::CommitError,
    },
    /// The connection table cannot be read or written.
    #[error("LB node {node}: connection table: {source}")]
    Conntrack {
        /// Which.
        node: IpAddr,
        /// What the kernel says.
        source: onehop_nft::DumpError,
    },
    /// An address of a family that the data path does not know yet.
    #[error("LB node {node}: {address} is no IPv4 address")]
    Family {
        /// Which.
        node: IpAddr,
        /// The address.
        address: IpAddr,
    },
}

/// An LB node with a kernel. Clones share it.
#[derive(Clone)]
pub struct NetNode {
    net: LbNet,
    clock: Clock,
    kernel: Arc<Mutex<Kernel>>,
}

impl NetNode {
    /// Sets the node's namespace up, without any frontend yet, and attaches it to the live cloud.
    pub fn attach(net: LbNet, router: Router, driver: &Driver) -> Result<(NodeId, Self), Error> {
        let cloud = driver.cloud();
        let profile = cloud.look(|engine| engine.profile().clone());
        let (zone, address) = (net.zone().to_owned(), net.address());
        let kernel = Kernel::open(net.clone(), router, &profile, cloud.scale())?;
        let node = Self {
            net,
            clock: *cloud.clock(),
            kernel: Arc::new(Mutex::new(kernel)),
        };
        let id = driver.attach(&zone, address.into(), Arc::new(node.clone()));
        Ok((id, node))
    }

    /// The flows that this client socket has through the LB node now, the target of each included.
    /// One that ended a while ago is forgotten.
    pub fn flows_of(&self, client: SocketAddr) -> Result<Vec<Flow>, Error> {
        self.lock().flows(Some(client))
    }

    /// The target that the client's flow chose, if it has one flow here.
    pub fn flow_target(&self, client: SocketAddr) -> Result<Option<SocketAddr>, Error> {
        Ok(self.flows_of(client)?.first().map(|flow| flow.target))
    }

    /// All flows through the LB node now (FC-67).
    pub fn flows(&self) -> Result<Vec<Flow>, Error> {
        self.lock().flows(None)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LbNode for NetNode {
    fn probe(&self, order: &ProbeOrder, timeout: Duration) -> BoxFuture<'static, Outcome> {
        let (ns, own) = (self.net.netns().clone(), self.net.address().into());
        probe::run(self.clock, ns, own, order.clone(), timeout).boxed()
    }

    fn program(&self, state: Arc<DataPathState>) -> BoxFuture<'static, Result<usize, String>> {
        let node = self.clone();
        let done = tokio::task::spawn_blocking(move || node.lock().program(&state));
        async move {
            match done.await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }
        .boxed()
    }
}
