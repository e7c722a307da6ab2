//! The webhook on new pods, for namespaces that ask for it (AWS-500, ZD-90, ZD-91): adds readiness gates, and pauses before
//! SIGTERM. Nothing else depends on it (ZD-94, C-76): its configuration ignores failures, and where it is away pods are
//! made as they are.
//!
//! `admit` is pure: a pod in, a patch out. `certificates` is the pure part of what it is served with, `keeper` writes and
//! reads that, `server` is the port.

mod admit;
mod certificates;
mod keeper;
mod server;

use std::sync::Arc;

use kube::Client;
use onehop_core::id::InstallId;
use onehop_runtime::clock::Clock;
use rand::rngs::SmallRng;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use admit::{Ask, Injection, patch};
pub use certificates::{Former, MakeError, Next, Pair, State, Times};
pub use keeper::Keeper;
pub use server::{Decide, Server, ShowError, Shown};

use crate::lease::Fence;
use crate::metrics::Measures;

/// The webhook, before it is served.
#[derive(Debug)]
pub struct Webhook {
    /// Where it listens.
    pub listener: TcpListener,
    /// Namespace of its Service and its Secret.
    pub namespace: String,
    /// Name of its Service, of the Secret with its certificates, and of its configuration.
    pub name: String,
    /// How long certificates last.
    pub times: Times,
}

/// What it is run with.
pub struct Around {
    /// The API server, behind the fence.
    pub client: Client,
    /// The right to write.
    pub fence: Fence,
    /// The time.
    pub clock: Clock,
    /// Whose writes they are.
    pub install: InstallId,
    /// Metrics.
    pub measures: Measures,
    /// For spacing.
    pub rng: SmallRng,
    /// What a new pod is to have.
    pub decide: Arc<Decide>,
}

impl Webhook {
    /// Serves it and keeps its certificates, until the answer is dropped.
    #[must_use]
    pub fn start(self, around: Around) -> JoinSet<()> {
        let shown = Shown::default();
        let server = Server {
            listener: self.listener,
            clock: around.clock,
            shown: shown.clone(),
            decide: around.decide,
            measures: around.measures.clone(),
        };
        let keeper = Keeper {
            client: around.client,
            fence: around.fence,
            clock: around.clock,
            namespace: self.namespace,
            name: self.name,
            times: self.times,
            install: around.install,
            measures: around.measures,
            rng: around.rng,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            if let Err(error) = server.run().await {
                tracing::error!(%error, "the webhook cannot be served");
            }
        });
        tasks.spawn(keeper.run(shown));
        tasks
    }
}
