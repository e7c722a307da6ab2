//! The controllers of a cluster that scenarios need, event driven and in process.
//!
//! They read and write the store directly, each write in a controller's name, and follow kube-controller-manager and
//! kube-scheduler step by step where a scenario can see the difference.

mod deployment;
mod desk;
mod driver;
mod garbage;
mod namespace;
mod node;
mod pods;
mod replica_set;
mod rollout;
mod rollout_status;
mod scheduler;
mod slice_plan;
mod slices;

use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::server::ApiServer;

/// Which controllers run, and how slow they are.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// Controllers that are left out, by name (`scheduler`, `deployment`, …).
    pub without: Vec<String>,
    /// Delay between a change and the look at it, for the controllers named.
    pub lag: Vec<(String, Duration)>,
    /// A node whose Lease is older than this is taken for dead.
    pub node_grace: Duration,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            without: Vec::new(),
            lag: Vec::new(),
            node_grace: Duration::from_secs(50),
        }
    }
}

/// Running controllers; dropping the guard ends them.
#[must_use]
#[derive(Debug)]
pub struct Controllers {
    _stop: DropGuard,
}

impl ApiServer {
    /// Starts the built-in controllers.
    pub fn run_controllers(&self, options: &ControllerOptions) -> Controllers {
        let stop = CancellationToken::new();
        let start = Start {
            server: self,
            options,
            stop: &stop,
        };
        start.one(scheduler::Scheduler);
        start.one(deployment::Deployments);
        start.one(replica_set::ReplicaSets);
        start.one(slices::Slices::default());
        start.one(garbage::Garbage);
        start.one(namespace::Namespaces);
        start.one(node::Nodes {
            grace: options.node_grace,
            missing: std::collections::BTreeMap::new(),
        });
        Controllers {
            _stop: stop.drop_guard(),
        }
    }
}

struct Start<'a> {
    server: &'a ApiServer,
    options: &'a ControllerOptions,
    stop: &'a CancellationToken,
}

impl Start<'_> {
    fn one<C: driver::Controller>(&self, controller: C) {
        if self.options.without.iter().any(|name| name == C::NAME) {
            return;
        }
        let lag = self
            .options
            .lag
            .iter()
            .find(|(name, _)| name == C::NAME)
            .map_or(Duration::ZERO, |(_, lag)| *lag);
        let driver = driver::Driver::new(self.server.clone(), controller, lag);
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! { () = stop.cancelled() => {} () = driver.run() => {} }
        });
    }
}
