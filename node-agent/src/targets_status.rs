//! Writes the status of the own `NodeTargets` object: the newest wish, at most every five seconds (crd.md section 3).
//! No decision is made here.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use onehop_core::crd::{NodeTargets, NodeTargetsStatus};
use onehop_core::id::NodeName;
use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use serde_json::json;
use tokio::sync::watch;

/// Between two writes.
const EVERY: Duration = Duration::from_secs(5);
/// The status is one agent's, whole.
const MANAGER: &str = "onehop-node-agent";

/// What the task needs.
pub struct StatusWriter {
    client: Client,
    node: NodeName,
    clock: Clock,
    /// Waits after failures.
    backoff: Backoff,
}

impl StatusWriter {
    /// For the object of this node.
    pub fn new(client: Client, node: NodeName, clock: Clock, backoff: Backoff) -> Self {
        Self {
            client,
            node,
            clock,
            backoff,
        }
    }

    /// Writes until the sender is gone.
    pub async fn run(mut self, mut wishes: watch::Receiver<Option<NodeTargetsStatus>>) {
        let mut written = None;
        while wishes.changed().await.is_ok() {
            loop {
                let Some(wish) = wishes.borrow_and_update().clone() else {
                    break;
                };
                if written.as_ref() == Some(&wish) {
                    break;
                }
                match self.write(&wish).await {
                    Ok(()) => {
                        self.backoff.reset();
                        written = Some(wish);
                        self.clock.sleep(EVERY).await;
                    }
                    // The controller makes the object; it comes back with the watch.
                    Err(kube::Error::Api(status)) if status.code == 404 => break,
                    Err(error) => {
                        tracing::warn!(%error, node = %self.node, "cannot write the status of NodeTargets");
                        self.clock.sleep(self.backoff.next_delay()).await;
                    }
                }
            }
        }
    }

    async fn write(&self, status: &NodeTargetsStatus) -> Result<(), kube::Error> {
        let api: Api<NodeTargets> = Api::all(self.client.clone());
        let name = self.node.to_string();
        let body = json!({
            "apiVersion": "onehop.dev/v1alpha1",
            "kind": "NodeTargets",
            "metadata": { "name": name },
            "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        api.patch_status(&name, &params, &Patch::Apply(&body))
            .await
            .map(drop)
    }
}
