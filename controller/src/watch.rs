//! The watches: one task per kind, feeding the index for as long as the process lives.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::watcher;
use kube::{Client, Resource};
use onehop_runtime::backoff::Policy;
use onehop_runtime::watch::{Seen, WatchMetrics, watch};
use rand::rngs::SmallRng;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::index::{Index, Touched};
use crate::plan::Provider;
use crate::reconcile::Reconciler;

/// Starts all watches. They end when the set is dropped.
pub(crate) fn start<P: Provider>(
    client: &Client,
    reconciler: &Arc<Reconciler<P>>,
    metrics: &WatchMetrics,
    rng: &mut SmallRng,
) -> JoinSet<()> {
    let mut starter = Starter {
        client,
        reconciler,
        metrics,
        rng,
        tasks: JoinSet::new(),
    };
    starter.kind(Index::on_service);
    starter.kind(Index::on_slice);
    starter.kind(Index::on_node);
    starter.kind(Index::on_pod);
    starter.kind(Index::on_pool);
    starter.kind(Index::on_namespace);
    starter.kind(Index::on_balancer);
    starter.kind(Index::on_node_targets);
    starter.kind(Index::on_deployment);
    starter.tasks
}

struct Starter<'a, P: Provider> {
    client: &'a Client,
    reconciler: &'a Arc<Reconciler<P>>,
    metrics: &'a WatchMetrics,
    rng: &'a mut SmallRng,
    tasks: JoinSet<()>,
}

impl<P: Provider> Starter<'_, P> {
    fn kind<K>(&mut self, take_in: fn(&mut Index, Seen<K>) -> Touched)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let config = watcher::Config::default();
        let backoff = Policy::WATCH.start(self.rng);
        let mut seen = watch::<K>(self.client.clone(), config, backoff, self.metrics);
        let reconciler = Arc::clone(self.reconciler);
        self.tasks.spawn(async move {
            while let Some(seen) = seen.next().await {
                reconciler.take_in(|index| take_in(index, seen));
            }
        });
    }
}
