//! An LB node's packets (FC-60 to FC-63): its namespace forwards by nftables maps and conntrack, no
//! user-space proxy (but for TLS and the PROXY protocol: `relay`). Handshakes run end to end between client and target.
//!
//! `layout` says which elements a state needs, `kernel` puts the difference there, `flows` ends, finds
//! and logs flows, `probe` opens real connections. All of it happens in the LB node's namespace only.

mod among;
mod floating;
mod flows;
mod kernel;
mod layout;
mod preface;
mod probe;
mod relay;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use e2e_fabric::{FirstPackets, FlowLog, LbNet, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use onehop_runtime::clock::Clock;

use crate::driver::{Driver, LbNode};
use crate::engine::{DataPathState, NodeId, Outcome, ProbeOrder, Protocol};
use kernel::Kernel;
use relay::Relays;

pub use flows::{Chosen, Flow};

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
}

/// An LB node with a kernel. Clones share it.
#[derive(Clone)]
pub struct NetNode {
    net: LbNet,
    clock: Clock,
    kernel: Arc<Mutex<Kernel>>,
    record: Arc<FlowLog>,
    // The same for floating frontends, whose flows are not translated.
    floating: Arc<FirstPackets>,
    probe_source: Option<IpAddr>,
}

impl NetNode {
    /// Sets the node's namespace up, without any frontend yet, and attaches it to the live cloud.
    pub fn attach(net: LbNet, router: Router, driver: &Driver) -> Result<(NodeId, Self), Error> {
        let cloud = driver.cloud();
        let profile = cloud.look(|engine| engine.profile().clone());
        let (zone, address) = (net.zone().to_owned(), net.address());
        let known_as = Arc::new(OnceLock::new());
        let told = flows::log_relayed_to(cloud.clone(), Arc::clone(&known_as));
        let relays = Relays::new(net.clone(), *cloud.clock(), told);
        if let Some(source) = profile.probe_source {
            let shared = router.begin_as(&net, source);
            shared.map_err(|source| Error::Fabric {
                node: address.into(),
                source,
            })?;
        }
        let kernel = Kernel::open(net.clone(), router, (&profile, cloud.scale()), relays)?;
        let hook = flows::log_to(cloud.clone(), Arc::clone(&known_as));
        let record = FlowLog::start_with(net.netns(), *cloud.clock(), hook);
        let record = record.map_err(|source| Error::Fabric {
            node: address.into(),
            source,
        })?;
        let kernel = Arc::new(Mutex::new(kernel));
        let hook =
            flows::log_floating_to(cloud.clone(), Arc::clone(&known_as), Arc::clone(&kernel));
        let floating = FirstPackets::start(net.netns(), *cloud.clock(), hook);
        let floating = floating.map_err(|source| Error::Fabric {
            node: address.into(),
            source,
        })?;
        let node = Self {
            net,
            clock: *cloud.clock(),
            kernel,
            record: Arc::new(record),
            floating: Arc::new(floating),
            probe_source: profile.probe_source.map(IpAddr::from),
        };
        // Nothing is forwarded, and so no flow begins, before the number is known: programming waits for the lock.
        let forwards = node.lock();
        let id = driver.attach(&zone, address.into(), Arc::new(node.clone()));
        let _ = known_as.set(id);
        drop(forwards);
        Ok((id, node))
    }

    /// What the LB node chose for the flow that this client socket began last, also when that flow has
    /// ended. Known from the moment in which the first packet left for the target.
    pub fn chosen(&self, protocol: Protocol, client: SocketAddr) -> Option<Chosen> {
        let record = self.record.last_of(protocol.number(), client);
        let translated = record.map(|record| Chosen {
            target: record.endpoint,
            source: record.source,
            at: record.at,
        });
        let kept = self.floating.last_of(protocol.number(), client);
        let kept = kept.and_then(|first| {
            let member = self.lock().member(first.mark)?;
            Some(Chosen {
                target: SocketAddr::new(member, first.destination.port()),
                source: client,
                at: first.at,
            })
        });
        [translated, kept]
            .into_iter()
            .flatten()
            .max_by_key(|chosen| chosen.at)
    }

    /// The flows that this client socket had through the LB node, newest first, those that have ended
    /// included. Only where none of them is recorded any more, the connection table is asked.
    pub fn flows_of(&self, client: SocketAddr) -> Result<Vec<Flow>, Error> {
        let recorded = self.record.all_of(client);
        if recorded.is_empty() {
            return self.lock().flows(Some(client));
        }
        Ok(recorded.iter().filter_map(Flow::recorded).collect())
    }

    /// The target that the client's newest flow chose, of whichever protocol; see [`NetNode::chosen`].
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
        let [v4, v6] = self.net.addresses();
        let own = if order.to.is_ipv4() { v4 } else { v6 };
        let ns = self.net.netns().clone();
        let source = self
            .probe_source
            .filter(|it| it.is_ipv4() == order.to.is_ipv4());
        probe::run(self.clock, ns, (own, source), order.clone(), timeout).boxed()
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
