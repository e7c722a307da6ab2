//! Flows of one LB node: its connection table is the flow table of FC-62, so a flow ends when its entry
//! is deleted. The fabric's record of flows knows longer than the table which target a client's
//! connection chose, and writes starts and ends into the cloud's log (FC-102).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use e2e_fabric::{FirstHook, FlowEvent, FlowHook, FlowRecord};
use onehop_core::time::Time;
use onehop_nft::DumpError;
use onehop_nft::conntrack::{self, Conntrack, Filter};

use super::kernel::Kernel;
use super::relay::Told;
use crate::cloud::Cloud;
use crate::engine::{DataPathState, Frontend, FrontendPath, NodeId, Protocol, What};

/// A flow through the LB node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it comes from.
    pub client: SocketAddr,
    /// Where the client sent it.
    pub frontend: Frontend,
    /// The target that its first packet chose.
    pub target: SocketAddr,
}

impl Flow {
    /// A connection that was translated towards a target; none for anything else, such as a probe.
    fn of(found: &conntrack::Flow) -> Option<Self> {
        if found.status & conntrack::STATUS_DNAT == 0 {
            return None;
        }
        let (original, reply) = (&found.original, &found.reply);
        Some(Self {
            client: SocketAddr::new(original.src, original.src_port),
            frontend: frontend(
                original.protocol,
                SocketAddr::new(original.dst, original.dst_port),
            )?,
            target: SocketAddr::new(reply.src, reply.src_port),
        })
    }

    /// As the fabric recorded it.
    pub(super) fn recorded(record: &FlowRecord) -> Option<Self> {
        Some(Self {
            client: record.client,
            frontend: frontend(record.protocol, record.destination)?,
            target: record.endpoint,
        })
    }
}

fn frontend(protocol: u8, destination: SocketAddr) -> Option<Frontend> {
    let protocol = [Protocol::Tcp, Protocol::Udp]
        .into_iter()
        .find(|known| known.number() == protocol)?;
    Some(Frontend {
        address: destination.ip(),
        protocol,
        port: destination.port(),
    })
}

/// What the LB node chose for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The target.
    pub target: SocketAddr,
    /// The source that the target sees: the client's own where it is preserved.
    pub source: SocketAddr,
    /// When, by the clock of the wall.
    pub at: Time,
}

/// Writes the flows of a node into the log of `cloud`. `node` is known before the first flow.
pub(super) fn log_to(cloud: Cloud, node: Arc<OnceLock<NodeId>>) -> FlowHook {
    Arc::new(move |event| {
        if let Some(what) = node.get().and_then(|node| line(*node, &event)) {
            cloud.with(|engine, now| engine.observe(now, None, what));
        }
    })
}

/// As [`log_to`], for floating frontends. Their ends are not seen: members answer clients directly.
pub(super) fn log_floating_to(
    cloud: Cloud,
    node: Arc<OnceLock<NodeId>>,
    kernel: Arc<Mutex<Kernel>>,
) -> FirstHook {
    Arc::new(move |first| {
        let line = || {
            let kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
            Some(What::FlowStarted {
                node: *node.get()?,
                client: first.client,
                frontend: frontend(first.protocol, first.destination)?,
                target: SocketAddr::new(kernel.member(first.mark)?, first.destination.port()),
            })
        };
        // The kernel's lock is free again when the cloud's is taken.
        if let Some(what) = line() {
            cloud.with(|engine, now| engine.observe(now, None, what));
        }
    })
}

/// As [`log_to`], for flows that a program carries.
pub(super) fn log_relayed_to(cloud: Cloud, node: Arc<OnceLock<NodeId>>) -> Told {
    Arc::new(move |client, frontend, target| {
        let Some(node) = node.get().copied() else {
            return;
        };
        let what = What::FlowRelayed {
            node,
            client,
            frontend,
            target,
        };
        cloud.with(|engine, now| engine.observe(now, None, what));
    })
}

fn line(node: NodeId, event: &FlowEvent) -> Option<What> {
    let (FlowEvent::Started(record) | FlowEvent::Ended(record)) = event;
    let Flow {
        client,
        frontend,
        target,
    } = Flow::recorded(record)?;
    Some(match event {
        FlowEvent::Started(_) => What::FlowStarted {
            node,
            client,
            frontend,
            target,
        },
        FlowEvent::Ended(_) => What::FlowEnded {
            node,
            client,
            frontend,
            target,
        },
    })
}

/// Targets whose flows go on, by frontend: of flows with a translated destination, and of those that keep it.
type Kept = BTreeMap<Frontend, [BTreeSet<SocketAddr>; 2]>;

fn kept(path: &FrontendPath) -> [&BTreeSet<SocketAddr>; 2] {
    [&path.established, &path.established_floating]
}

/// The connection table of a namespace, and which flows the programmed state keeps.
pub(super) struct FlowTable {
    conntrack: Conntrack,
    kept: Kept,
}

impl FlowTable {
    /// Opens the table of the calling thread's namespace.
    pub(super) fn open() -> std::io::Result<Self> {
        let conntrack = Conntrack::open()?;
        Ok(Self {
            conntrack,
            kept: Kept::new(),
        })
    }

    /// Whether `state` keeps every flow that the remembered state kept: then there is nothing to end.
    pub(super) fn covers(&self, state: &DataPathState) -> bool {
        self.kept.iter().all(|(frontend, targets)| {
            let path = state.frontends.get(frontend);
            path.map_or(targets.iter().all(BTreeSet::is_empty), |path| {
                let mut both = targets.iter().zip(kept(path));
                both.all(|(old, new)| old.is_subset(new))
            })
        })
    }

    /// Ends every translated flow that `state` does not keep; those.
    pub(super) fn keep_only(&mut self, state: &DataPathState) -> Result<Vec<Flow>, DumpError> {
        let kept = |flow: &Flow| {
            let path = state.frontends.get(&flow.frontend);
            path.is_some_and(|path| path.established.contains(&flow.target))
        };
        let mut cut = Vec::new();
        self.conntrack.delete_where(&Filter::default(), |found| {
            let ended = Flow::of(found).filter(|flow| !kept(flow));
            cut.extend(ended);
            ended.is_some()
        })?;
        Ok(cut)
    }

    /// Notes what has been programmed.
    pub(super) fn remember(&mut self, state: &DataPathState) {
        let paths = state.frontends.iter();
        self.kept = paths
            .map(|(frontend, path)| (*frontend, kept(path).map(Clone::clone)))
            .collect();
    }

    /// The flows of one client address and port, or all.
    pub(super) fn list(&mut self, client: Option<SocketAddr>) -> Result<Vec<Flow>, DumpError> {
        let filter = Filter {
            original_src: client.map(|client| client.ip()),
            ..Filter::default()
        };
        let found = self.conntrack.list(&filter)?;
        let flows = found.iter().filter_map(Flow::of);
        Ok(flows
            .filter(|flow| client.is_none_or(|client| client == flow.client))
            .collect())
    }
}
