//! The answers that health ports give, and the rules about when they may change.
//!
//! Written by the app as state changes and commits succeed, read by the health servers on their own
//! thread. An answer is lowered the moment the state says so and raised only after the commit that
//! makes it true (S-107, I3): raising needs the endpoints that the committed plan was made from.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onehop_core::health::{HealthAnswer, Hold, LocalReady, ProxyHealth};
use onehop_core::id::{Frontend, ServiceKey};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;

use super::pods::{Answers, HealthPath, PodAnswer, PodAnswers};

/// Without a sync for this long while one is due, the proxy is not healthy: 2 x syncPeriod (S-110).
pub const SYNC_TIMEOUT: Duration = Duration::from_mins(1);

/// Answer of `/livez` and `/healthz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyAnswer {
    /// Every queued update was committed in time.
    pub live: bool,
    /// Something was committed since start (S-112).
    pub programmed: bool,
    /// The Node may take new load balancer traffic (S-111).
    pub node_eligible: bool,
    /// Last time at which everything was in the kernel; now, if it is.
    pub last_updated: Option<Time>,
    /// Now.
    pub now: Time,
}

#[derive(Debug)]
struct Inner {
    ports: HashMap<ServiceKey, LocalReady>,
    /// Services for which the node is to look healthy without an endpoint (ZD-64).
    held: HashSet<ServiceKey>,
    pods: PodAnswers,
    queued_since: Option<Time>,
    last_updated: Option<Time>,
    node_eligible: bool,
    /// A living kube-proxy keeps this agent from programming.
    refused: bool,
}

/// Shared by the app and the health servers.
#[derive(Debug)]
pub struct Board {
    clock: Clock,
    inner: Mutex<Inner>,
}

impl Board {
    /// Nothing is known yet: health ports answer 503.
    pub fn new(clock: Clock) -> Self {
        let inner = Inner {
            ports: HashMap::new(),
            held: HashSet::new(),
            pods: PodAnswers::default(),
            queued_since: None,
            last_updated: None,
            // Before the first Node event: eligible (S-111).
            node_eligible: true,
            refused: false,
        };
        Self {
            clock,
            inner: Mutex::new(inner),
        }
    }

    /// A Service has these local ready endpoints now: never raises.
    pub fn lower(&self, service: &ServiceKey, now: &LocalReady) {
        let mut inner = self.lock();
        let answer = inner.ports.entry(service.clone()).or_default();
        *answer = answer.common(now);
    }

    /// The rules made for `committed` endpoints are in the kernel, while by now these are ready.
    pub fn raise(&self, service: &ServiceKey, committed: &LocalReady, now: &LocalReady) {
        let common = committed.common(now);
        self.lock().ports.insert(service.clone(), common);
    }

    /// Whether the node is to look healthy for a Service without an endpoint, late flows being forwarded (ZD-64).
    pub fn hold(&self, service: &ServiceKey, held: bool) {
        let mut inner = self.lock();
        if held {
            inner.held.insert(service.clone());
        } else {
            inner.held.remove(service);
        }
    }

    /// The Service has no health port any more.
    pub fn forget(&self, service: &ServiceKey) {
        let mut inner = self.lock();
        inner.ports.remove(service);
        inner.held.remove(service);
    }

    /// What is to be answered for a target: never raises.
    pub fn lower_pods(&self, key: &Frontend, now: &Answers) {
        self.lock().pods.lower(key, now);
    }

    /// What was compiled for a target is in the kernel, and nothing newer is known of it.
    pub fn raise_pods(&self, key: &Frontend, answers: Answers) {
        self.lock().pods.raise(key, answers);
    }

    /// Gives the answers for pods that an earlier process kept.
    pub fn adopt_pods(&self, kept: &[PodAnswer]) {
        self.lock().pods.adopt(kept);
    }

    /// All pods are known.
    pub fn forget_kept_pods(&self) {
        self.lock().pods.forget_kept();
    }

    /// All answers for pods.
    pub fn pods(&self) -> Vec<PodAnswer> {
        self.lock().pods.all()
    }

    /// Whether the target at this address counts as healthy (ZD-31).
    pub fn pod(&self, address: IpAddr, path: &HealthPath) -> bool {
        let now = self.clock.now();
        let inner = self.lock();
        let in_step = inner.live(now) && inner.last_updated.is_some() && !inner.refused;
        in_step && inner.pods.healthy(address, path)
    }

    /// An update waits to be committed; whether it is the first one that does.
    pub fn queued(&self) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        let first = inner.queued_since.is_none();
        inner.queued_since.get_or_insert(now);
        first
    }

    /// Everything that was queued is in the kernel.
    pub fn in_sync(&self) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.queued_since = None;
        inner.last_updated = Some(now);
    }

    /// Whether a living kube-proxy keeps the agent from programming: then it answers for nothing (S-125).
    pub fn set_refused(&self, refused: bool) {
        self.lock().refused = refused;
    }

    /// Whether the Node may take new load balancer traffic (S-111).
    pub fn set_node_eligible(&self, eligible: bool) {
        self.lock().node_eligible = eligible;
    }

    /// Answer of the health port of a Service. A listener that outlives its Service finds no
    /// count, which answers 503 (S-106).
    pub fn port(&self, service: &ServiceKey) -> HealthAnswer {
        let now = self.clock.now();
        let inner = self.lock();
        let healthy = inner.live(now) && inner.last_updated.is_some() && !inner.refused;
        HealthAnswer {
            service: service.clone(),
            local_endpoints: inner.ports.get(service).map_or(0, LocalReady::count),
            proxy: if healthy {
                ProxyHealth::Healthy
            } else {
                ProxyHealth::Unhealthy
            },
            hold: if inner.held.contains(service) {
                Hold::Held
            } else {
                Hold::None
            },
        }
    }

    /// Answer of `/livez` and `/healthz`.
    pub fn proxy(&self) -> ProxyAnswer {
        let now = self.clock.now();
        let inner = self.lock();
        let live = inner.live(now);
        // An idle proxy is up to date by definition (S-112, upstream's readers rely on it).
        let last_updated = if live { Some(now) } else { inner.last_updated };
        ProxyAnswer {
            live,
            programmed: inner.last_updated.is_some() && !inner.refused,
            node_eligible: inner.node_eligible,
            last_updated,
            now,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every write is one assignment, so a poisoned lock holds nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn live(&self, now: Time) -> bool {
        self.queued_since
            .is_none_or(|since| now.since(since) <= SYNC_TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn ready(lasts: &[u8]) -> LocalReady {
        let address = |last: &u8| IpAddr::from([10, 244, 0, *last]);
        lasts.iter().map(address).collect()
    }

    fn board() -> (Board, ServiceKey) {
        let board = Board::new(Clock::fixed(Time::EPOCH));
        (board, ServiceKey::new("default", "lb"))
    }

    #[tokio::test(start_paused = true)]
    async fn s110_a_late_sync_is_not_live_and_turns_health_ports_to_503() {
        let (board, lb) = board();
        board.in_sync();
        board.raise(&lb, &ready(&[1]), &ready(&[1]));
        board.queued();
        tokio::time::advance(SYNC_TIMEOUT).await;
        assert!(board.proxy().live);
        assert_eq!(board.port(&lb).status(), 200);
        board.queued();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(
            !board.proxy().live,
            "the first of the queued updates counts"
        );
        assert_eq!(board.port(&lb).status(), 503);
        board.in_sync();
        assert!(board.proxy().live);
        assert_eq!(board.port(&lb).status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn s112_idle_is_healthy_for_ever_and_nothing_before_the_first_commit() {
        let (board, lb) = board();
        assert!(board.proxy().live && !board.proxy().programmed);
        board.raise(&lb, &ready(&[1]), &ready(&[1]));
        assert_eq!(board.port(&lb).status(), 503, "nothing is committed");
        board.in_sync();
        tokio::time::advance(100 * SYNC_TIMEOUT).await;
        let answer = board.proxy();
        assert!(answer.live && answer.programmed);
        assert_eq!(answer.last_updated, Some(answer.now));
    }

    #[tokio::test(start_paused = true)]
    async fn s106_a_forgotten_service_answers_503() {
        let (board, lb) = board();
        board.in_sync();
        board.raise(&lb, &ready(&[1, 2]), &ready(&[1]));
        assert_eq!(
            (board.port(&lb).status(), board.port(&lb).local_endpoints),
            (200, 1)
        );
        board.forget(&lb);
        assert_eq!(board.port(&lb).status(), 503);
    }
}
