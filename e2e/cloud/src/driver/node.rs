//! Keeping one LB node programmed, and an LB node without a kernel for tests of the layers above.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::LbNode;
use crate::cloud::Cloud;
use crate::engine::{DataPathState, NodeId, Outcome, ProbeOrder, What};

/// Wait before a refused state is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// Programs the node with each new state until the sender is gone.
pub(super) async fn keep_programmed(
    cloud: Cloud,
    id: NodeId,
    node: Arc<dyn LbNode>,
    mut wanted: watch::Receiver<Option<Arc<DataPathState>>>,
    done: watch::Sender<u64>,
) {
    let mut last: Option<Arc<DataPathState>> = None;
    while wanted.changed().await.is_ok() {
        loop {
            let Some(state) = wanted.borrow_and_update().clone() else {
                break;
            };
            let revision = state.revision;
            if last.as_ref().is_some_and(|last| last.forwards_as(&state)) {
                done.send_replace(revision);
                break;
            }
            let result = node.program(Arc::clone(&state)).await;
            report(&cloud, id, revision, &result);
            if result.is_ok() {
                last = Some(state);
                done.send_replace(revision);
                break;
            }
            // What is in the kernel is not known any more.
            last = None;
            cloud.clock().sleep(RETRY).await;
        }
    }
}

fn report(cloud: &Cloud, node: NodeId, revision: u64, result: &Result<usize, String>) {
    let what = match result {
        Ok(flows_cut) => What::DataPathCommitted {
            node,
            revision,
            flows_cut: *flows_cut,
        },
        Err(error) => {
            tracing::warn!(node = node.0, revision, error, "LB node not programmed");
            What::DataPathFailed {
                node,
                revision,
                error: error.clone(),
            }
        }
    };
    cloud.with(|engine, now| engine.observe(now, None, what));
}

/// Tells whether a target is up.
type Oracle = dyn Fn(SocketAddr) -> bool + Send + Sync;

/// An LB node that forwards nothing: probes are answered by a function, programming does nothing.
/// For tests of API clients, where no packet is meant to flow.
pub struct VirtualNode {
    up: Box<Oracle>,
}

impl VirtualNode {
    /// A node that sees a target up when `up` says so of the probed address.
    pub fn new(up: impl Fn(SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        Self { up: Box::new(up) }
    }
}

impl LbNode for VirtualNode {
    fn probe(&self, order: &ProbeOrder, _: Duration) -> BoxFuture<'static, Outcome> {
        let outcome = if (self.up)(order.to) {
            Outcome::Ok
        } else {
            Outcome::Refused
        };
        std::future::ready(outcome).boxed()
    }

    fn program(&self, _: Arc<DataPathState>) -> BoxFuture<'static, Result<usize, String>> {
        std::future::ready(Ok(0)).boxed()
    }
}
