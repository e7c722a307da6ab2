//! What makes a cloud live: time passes for the engine by a real clock, probes go out, and each LB
//! node is programmed whenever the engine's state changed.
//!
//! One task drives, one per LB node programs (the newest state wins, a refused one is tried again).
//! No decision is made here.

mod node;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cloud::Cloud;
use crate::engine::{DataPathState, Engine, NodeId, Outcome, ProbeOrder};

pub use node::VirtualNode;

/// An LB node as the driver sees it: something that probes and can be programmed.
pub trait LbNode: Send + Sync + 'static {
    /// Carries out one probe. Ends by itself after the time-out, which is wall time.
    fn probe(
        &self,
        order: &ProbeOrder,
        timeout: std::time::Duration,
    ) -> BoxFuture<'static, Outcome>;

    /// Makes the node forward as `state` says; returns how many flows were ended for it. An error
    /// leaves the node as it was or in between; the call is repeated.
    fn program(&self, state: Arc<DataPathState>) -> BoxFuture<'static, Result<usize, String>>;
}

/// One attached LB node.
struct Attached {
    node: Arc<dyn LbNode>,
    wanted: watch::Sender<Option<Arc<DataPathState>>>,
    // Engine revision that the node forwards by.
    done: watch::Receiver<u64>,
}

type Nodes = Arc<Mutex<BTreeMap<NodeId, Attached>>>;

/// The tasks of a live cloud. Dropping it stops them; the engine and its log stay.
#[must_use = "the cloud stands still when its driver is dropped"]
pub struct Driver {
    cloud: Cloud,
    nodes: Nodes,
    stop: CancellationToken,
    _stops: DropGuard,
}

impl Driver {
    /// Starts to drive `cloud`. Needs a tokio runtime.
    pub fn start(cloud: Cloud) -> Self {
        let stop = CancellationToken::new();
        let nodes = Nodes::default();
        let drive = drive(cloud.clone(), Arc::clone(&nodes), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(drive));
        Self {
            cloud,
            nodes,
            _stops: stop.clone().drop_guard(),
            stop,
        }
    }

    /// The cloud that it drives.
    pub fn cloud(&self) -> &Cloud {
        &self.cloud
    }

    /// Adds an LB node in `zone`; `address` is where its probes come from.
    pub fn attach(&self, zone: &str, address: IpAddr, node: Arc<dyn LbNode>) -> NodeId {
        let (wanted, to_do) = watch::channel(None);
        let (report, done) = watch::channel(0);
        let attached = Attached {
            node: Arc::clone(&node),
            wanted,
            done,
        };
        // Known here before the engine names it in a probe.
        let mut nodes = lock(&self.nodes);
        let id = self
            .cloud
            .with(|engine, now| engine.add_node(zone, address, now));
        nodes.insert(id, attached);
        drop(nodes);
        let task = node::keep_programmed(self.cloud.clone(), id, node, to_do, report);
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(task));
        id
    }

    /// Waits until every LB node forwards by the state that the engine has now, or a newer one.
    pub async fn settled(&self) {
        let revision = self.cloud.with(|engine, now| {
            engine.advance(now);
            engine.revision()
        });
        let waits: Vec<_> = lock(&self.nodes)
            .values()
            .map(|node| node.done.clone())
            .collect();
        for mut done in waits {
            // An error means that the node's task has stopped: nothing will come any more.
            let _ = done.wait_for(|reached| *reached >= revision).await;
        }
    }
}

/// What one turn of the engine asks for.
struct Turn {
    probes: Vec<ProbeOrder>,
    paths: Vec<(NodeId, DataPathState)>,
    next: Option<onehop_core::time::Time>,
}

async fn drive(cloud: Cloud, nodes: Nodes, stop: CancellationToken) {
    let mut turns = cloud.turns();
    let mut programmed = 0;
    loop {
        turns.borrow_and_update();
        let ids: Vec<_> = lock(&nodes).keys().copied().collect();
        let turn = cloud.pass_time(|engine| take_turn(engine, &ids, &mut programmed));
        for order in turn.probes {
            if let Some(attached) = lock(&nodes).get(&order.node) {
                tokio::spawn(stop.clone().run_until_cancelled_owned(probe(
                    &cloud,
                    &attached.node,
                    order,
                )));
            }
        }
        for (id, path) in turn.paths {
            if let Some(attached) = lock(&nodes).get(&id) {
                attached.wanted.send_replace(Some(Arc::new(path)));
            }
        }
        let wake = async {
            match turn.next {
                Some(next) => cloud.clock().sleep_until(cloud.scale().wall(next)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = turns.changed() => if changed.is_err() { return },
            () = wake => {}
        }
    }
}

fn take_turn(engine: &mut Engine, nodes: &[NodeId], programmed: &mut u64) -> Turn {
    let probes = engine.take_probes();
    let revision = engine.revision();
    let mut paths = Vec::new();
    if revision != *programmed {
        paths.extend(nodes.iter().map(|node| (*node, engine.data_path(*node))));
        *programmed = revision;
    }
    Turn {
        probes,
        paths,
        next: engine.next_event(),
    }
}

/// Starts one probe; the future brings its outcome back.
fn probe(
    cloud: &Cloud,
    node: &Arc<dyn LbNode>,
    order: ProbeOrder,
) -> impl Future<Output = ()> + Send + use<> {
    let probe = node.probe(&order, cloud.scale().wall_duration(order.timeout));
    let cloud = cloud.clone();
    async move {
        let outcome = probe.await;
        cloud.with(|engine, now| engine.probe_result(now, order.id, outcome));
    }
}

fn lock(nodes: &Nodes) -> MutexGuard<'_, BTreeMap<NodeId, Attached>> {
    nodes.lock().unwrap_or_else(PoisonError::into_inner)
}
