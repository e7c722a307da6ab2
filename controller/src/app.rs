//! The controller as a whole, over any provider: watches, reconciler, events. Both the binary and the
//! simulation run this; everything from outside (API server, cloud, clock, seed) is handed in.

use kube::Client;
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Publisher, Reporter};
use onehop_runtime::metrics::Metrics;
use onehop_runtime::watch::WatchMetrics;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lease::Fence;
use crate::metrics::Measures;
use crate::plan::Provider;
use crate::reconcile::{Parts, Reconciler, Settings};

/// The controller.
pub struct App<P> {
    /// The cloud.
    pub provider: P,
    /// The API server.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// Seed of all randomness.
    pub seed: u64,
    /// How it behaves.
    pub settings: Settings,
    /// Where its metrics go.
    pub metrics: Metrics,
}

/// Whether the controller is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Filling caches and listing the cloud: nothing is written yet.
    #[default]
    Starting,
    /// Reconciling.
    Working,
}

impl<P: Provider> App<P> {
    /// Runs until `stop`. `phase` tells how far it has come.
    pub async fn run(self, stop: CancellationToken, phase: watch::Sender<Phase>) {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let fence = Fence::until(stop.clone());
        let reporter = Reporter {
            component: "onehop-controller".to_owned(),
            instance: self.settings.claim.install.to_string(),
        };
        let (events, writer) =
            Publisher::new(self.client.clone(), self.clock, reporter, &self.metrics);
        let writer = tokio::spawn(writer);
        let watch_metrics = WatchMetrics::new(&self.metrics);
        let parts = Parts {
            provider: self.provider,
            client: self.client.clone(),
            clock: self.clock,
            fence,
            events,
            measures: Measures::new(&self.metrics),
            rng: SmallRng::from_rng(&mut rng),
        };
        let reconciler = Reconciler::new(parts, self.settings);
        let watches = crate::watch::start(&self.client, &reconciler, &watch_metrics, &mut rng);
        reconciler
            .run(&stop, || {
                tracing::info!("caches are full and the cloud was listed: reconciling");
                phase.send_replace(Phase::Working);
            })
            .await;
        drop(watches);
        writer.abort();
    }
}
