//! The controller as a whole, over any provider: watches, reconciler, events. Both the binary and the
//! simulation run this; everything from outside (API server, cloud, clock, seed) is handed in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use onehop_core::id::InstallId;
use onehop_runtime::clock::Clock;
use onehop_runtime::events::{Occurrence, Publisher, Reporter, Severity};
use onehop_runtime::metrics::Metrics;
use onehop_runtime::watch::WatchMetrics;
use prometheus_client::metrics::gauge::Gauge;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http;
use crate::lease::claims::Claims;
use crate::lease::elector::{Elector, Parts as ElectorParts};
use crate::lease::{Election, Fence, Lost, Position};
use crate::metrics::Measures;
use crate::plan::Provider;
use crate::reconcile::{Parts, Progress, Reconciler, Settings};
use crate::webhook::{Around, Webhook};

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
    /// The election; without one it writes from the start.
    pub election: Option<Election>,
    /// The webhook on new pods; without one they are made as they are.
    pub webhook: Option<Webhook>,
}

/// Whether the controller is at work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Filling caches, or listing the cloud: nothing is written yet.
    #[default]
    Starting,
    /// It has waited for the first list of these kinds for longer than that takes where they are served.
    Listing {
        /// Which.
        kinds: Vec<&'static str>,
    },
    /// Its caches are full; another replica writes.
    Standby {
        /// Which.
        leader: String,
    },
    /// Another install claims what this one claims: nothing is written (C-121).
    Refused {
        /// Which, and what.
        why: String,
    },
    /// Reconciling.
    Working,
}

/// Longest time for one mutating call where there is no election to bound it.
const CALL_LIMIT: Duration = Duration::from_secs(15);

impl App<()> {
    /// The same over a provider.
    pub fn over<P>(self, provider: P) -> App<P> {
        App {
            provider,
            client: self.client,
            clock: self.clock,
            seed: self.seed,
            settings: self.settings,
            metrics: self.metrics,
            election: self.election,
            webhook: self.webhook,
        }
    }
}

impl<P: Provider> App<P> {
    /// Runs until `stop`, or until leadership is lost. `phase` tells how far it has come.
    pub async fn run(
        self,
        stop: CancellationToken,
        phase: watch::Sender<Phase>,
    ) -> Result<(), Lost> {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let limit = self.election.as_ref().map(|e| e.timing.call_limit());
        let limit = limit.unwrap_or(CALL_LIMIT);
        let fence = Fence::new(self.clock, limit, stop.child_token());
        let watch_metrics = WatchMetrics::new(&self.metrics);
        let measures = Measures::new(&self.metrics);
        let own = SmallRng::from_rng(&mut rng);
        let leader = &measures.leader;
        let (elector, position) = self.elect(&fence, leader, &watch_metrics, own, stop);
        let client = fence.client(self.client.clone());
        let (events, writer) = Publisher::new(
            client.clone(),
            self.clock,
            reporter(&self.settings.claim.install),
            &self.metrics,
        );
        let writer = tokio::spawn(writer);
        let refusals = Refusals::new(&self);
        let install = self.election.as_ref().map(about_lease);
        let parts = Parts {
            provider: self.provider,
            client,
            clock: self.clock,
            fence: fence.clone(),
            events,
            measures,
            rng: SmallRng::from_rng(&mut rng),
            install,
        };
        let around = (parts.client.clone(), parts.measures.clone());
        let install_id = self.settings.claim.install.clone();
        let reconciler = Reconciler::new(parts, self.settings);
        let decider = Arc::clone(&reconciler);
        let webhook = self.webhook.map(|webhook| {
            webhook.start(Around {
                client: around.0,
                fence: fence.clone(),
                clock: self.clock,
                install: install_id,
                measures: around.1,
                rng: SmallRng::from_rng(&mut rng),
                decide: Arc::new(move |namespace, labels, ask| {
                    decider.injection(namespace, labels, ask)
                }),
            })
        });
        let watches = crate::watch::start(&self.client, &reconciler, &watch_metrics, &mut rng);
        reconciler
            .run(
                fence.lowered(),
                elected(position, refusals, &phase),
                |come| {
                    phase.send_replace(said(come));
                },
            )
            .await;
        drop((watches, webhook));
        writer.abort();
        ended(elector).await
    }

    /// Starts the election, if there is one.
    fn elect(
        &self,
        fence: &Fence,
        leader: &Gauge,
        watch_metrics: &WatchMetrics,
        mut rng: SmallRng,
        stop: CancellationToken,
    ) -> (JoinSet<Result<(), Lost>>, watch::Receiver<Position>) {
        let mut task = JoinSet::new();
        let (sender, position) = watch::channel(Position::default());
        let Some(election) = self.election.clone() else {
            fence.raise();
            leader.set(1);
            sender.send_replace(Position::Leading);
            return (task, position);
        };
        // Replicas and installs that were given one seed must still not keep pace.
        let mut hasher = DefaultHasher::new();
        election.identity.hash(&mut hasher);
        let parts = ElectorParts {
            client: self.client.clone(),
            clock: self.clock,
            fence: fence.clone(),
            claims: Claims::from(&self.settings.claim),
            install: self.settings.claim.install.clone(),
            leader: leader.clone(),
            rng: SmallRng::seed_from_u64(hasher.finish() ^ rng.random::<u64>()),
        };
        task.spawn(Elector::new(election, parts).run(stop, watch_metrics.clone(), sender));
        (task, position)
    }
}

/// What is said of how far the reconciler has come.
fn said(come: Progress) -> Phase {
    match come {
        Progress::Listing(kinds) => {
            let phase = Phase::Listing { kinds };
            tracing::warn!("{}", http::standing(&phase).1);
            phase
        }
        Progress::Working => {
            tracing::info!("caches are full and the cloud was listed: reconciling");
            Phase::Working
        }
    }
}

fn reporter(install: &InstallId) -> Reporter {
    Reporter {
        component: "onehop-controller".to_owned(),
        instance: install.to_string(),
    }
}

/// Waits until we lead, and says meanwhile why we do not.
async fn elected(
    mut position: watch::Receiver<Position>,
    refusals: Refusals,
    phase: &watch::Sender<Phase>,
) {
    loop {
        let now = position.borrow_and_update().clone();
        match now {
            Position::Leading => return,
            Position::Unknown => {}
            Position::Standby { leader } => {
                phase.send_replace(Phase::Standby { leader });
            }
            Position::Refused { why } => {
                refusals.tell(&why);
                phase.send_replace(Phase::Refused { why });
            }
        }
        if position.changed().await.is_err() {
            // The elector has ended without us leading: so does the whole.
            return std::future::pending().await;
        }
    }
}

/// How the election ended: it releases the Lease once the last call has ended.
async fn ended(mut elector: JoinSet<Result<(), Lost>>) -> Result<(), Lost> {
    match elector.join_next().await {
        Some(Ok(result)) => result,
        // None: there was no election. A task that panicked has said so; the process ends either way.
        Some(Err(_)) | None => Ok(()),
    }
}

/// The Lease, which stands for the install in events.
fn about_lease(election: &Election) -> ObjectReference {
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        namespace: Some(election.namespace.clone()),
        name: Some(election.name.clone()),
        ..ObjectReference::default()
    }
}

/// Tells of refused claims, by events on our Lease. Not behind the fence, which is down meanwhile.
struct Refusals {
    events: Publisher,
    about: ObjectReference,
    _writer: JoinSet<()>,
}

impl Refusals {
    fn new<P>(app: &App<P>) -> Self {
        let reporter = reporter(&app.settings.claim.install);
        let nowhere = Metrics::default();
        let (events, writer) = Publisher::new(app.client.clone(), app.clock, reporter, &nowhere);
        let mut task = JoinSet::new();
        task.spawn(writer);
        Self {
            events,
            about: app.election.as_ref().map(about_lease).unwrap_or_default(),
            _writer: task,
        }
    }

    fn tell(&self, why: &str) {
        tracing::error!(
            why,
            "claims overlap: nothing is written until they no longer do"
        );
        self.events.publish(Occurrence {
            about: self.about.clone(),
            severity: Severity::Warning,
            reason: "ClaimsOverlap",
            message: format!("Not started: {why}"),
        });
    }
}
