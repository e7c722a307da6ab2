//! Runs a controller: changes wake keys, keys are looked at one by one, failures are retried with growing delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use onehop_core::time::Time;
use tokio::sync::mpsc::UnboundedReceiver;

use super::desk::Desk;
use crate::error::ApiError;
use crate::server::ApiServer;
use crate::store::Change;

/// Why a look at a key is to be repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Retry {
    /// The API refused a write.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The controller cannot decide yet.
    #[error("{0}")]
    NotYet(String),
}

/// Outcome of a look: the time until the next one, if any.
pub(crate) type Outcome = Result<Option<Duration>, Retry>;

/// A level-triggered controller.
pub(crate) trait Controller: Send + 'static {
    /// Name in options and logs.
    const NAME: &'static str;
    /// Field manager of its writes.
    const MANAGER: &'static str = "kube-controller-manager";

    /// Keys that a change concerns.
    fn wake(&mut self, desk: &Desk, change: &Change) -> Vec<String>;

    /// Brings what a key stands for nearer to what it should be.
    fn reconcile(&mut self, desk: &Desk, key: &str) -> Outcome;
}

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// The queue around a controller.
pub(crate) struct Driver<C> {
    desk: Desk,
    controller: C,
    changes: UnboundedReceiver<Arc<Change>>,
    lag: Duration,
    ready: VecDeque<String>,
    queued: BTreeSet<String>,
    /// Keys that wait for a time.
    later: BTreeMap<String, Time>,
    failures: BTreeMap<String, u32>,
}

impl<C: Controller> Driver<C> {
    /// A driver that starts with every object there is.
    pub(crate) fn new(server: ApiServer, controller: C, lag: Duration) -> Self {
        let (changes, present) = {
            let mut state = server.state();
            (state.store.subscribe(), state.store.snapshot())
        };
        let desk = Desk::new(server, C::MANAGER);
        let mut driver = Self {
            desk,
            controller,
            changes,
            lag,
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            later: BTreeMap::new(),
            failures: BTreeMap::new(),
        };
        for change in &present {
            driver.take(change);
        }
        driver
    }

    pub(crate) async fn run(mut self) {
        loop {
            while let Ok(change) = self.changes.try_recv() {
                self.take(&change);
            }
            self.take_due();
            if let Some(key) = self.ready.pop_front() {
                self.queued.remove(&key);
                self.look(key);
                // Others shall see each step, as they would between processes.
                tokio::task::yield_now().await;
            } else if !self.wait().await {
                return;
            }
        }
    }

    /// Waits for a change or a due key; false once the server is gone.
    async fn wait(&mut self) -> bool {
        let clock = *self.desk.clock();
        let next = self.later.values().min().copied();
        tokio::select! {
            change = self.changes.recv() => match change {
                Some(change) => self.take(&change),
                None => return false,
            },
            () = clock.sleep_until(next.unwrap_or(clock.now())), if next.is_some() => {}
        }
        true
    }

    fn take(&mut self, change: &Change) {
        for key in self.controller.wake(&self.desk, change) {
            if self.lag.is_zero() {
                self.enqueue(key);
            } else {
                self.delay(key, self.lag);
            }
        }
    }

    fn enqueue(&mut self, key: String) {
        if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn delay(&mut self, key: String, by: Duration) {
        let time = self.desk.clock().now() + by;
        let due = self.later.entry(key).or_insert(time);
        *due = time.min(*due);
    }

    fn take_due(&mut self) {
        let now = self.desk.clock().now();
        let due: Vec<String> = self
            .later
            .iter()
            .filter(|(_, time)| **time <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.later.remove(&key);
            self.enqueue(key);
        }
    }

    fn look(&mut self, key: String) {
        match self.controller.reconcile(&self.desk, &key) {
            Ok(next) => {
                self.failures.remove(&key);
                if let Some(next) = next {
                    self.delay(key, next);
                }
            }
            Err(why) => {
                let failures = self.failures.entry(key.clone()).or_default();
                let delay = FIRST_RETRY
                    .saturating_mul(1 << (*failures).min(10))
                    .min(LONGEST_RETRY);
                *failures += 1;
                tracing::debug!(controller = C::NAME, key, %why, "will look again");
                self.delay(key, delay);
            }
        }
    }
}
