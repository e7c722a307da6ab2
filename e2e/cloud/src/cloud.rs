//! The running cloud: the engine behind a lock, with the clock that drives it.
//!
//! API servers, drivers and tests share one [`Cloud`]. The lock is never held across an await, and
//! every change wakes whoever waits for changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use tokio::sync::watch;

use crate::engine::{Config, Engine, Event, GroupId, Operation, Reason, Seq, TargetState, What};
use crate::scale::Scale;

/// A cloud. Clones share it.
#[derive(Clone)]
pub struct Cloud {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Mutex<Engine>,
    clock: Clock,
    scale: Scale,
    // Counts turns of the engine, for those who wait for something to happen.
    turns: watch::Sender<u64>,
}

impl Cloud {
    /// A cloud whose time is that of `clock`, by the scale of `config`.
    pub fn new(config: Config, clock: Clock) -> Self {
        let scale = config.scale;
        let engine = Mutex::new(Engine::new(config, scale.cloud(clock.now())));
        let turns = watch::Sender::new(0);
        Self {
            shared: Arc::new(Shared {
                engine,
                clock,
                scale,
                turns,
            }),
        }
    }

    /// Cloud time now.
    pub fn now(&self) -> Time {
        self.shared.scale.cloud(self.shared.clock.now())
    }

    /// The clock of the wall.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Cloud time against wall time.
    pub fn scale(&self) -> Scale {
        self.shared.scale
    }

    /// Lets the engine do something now and wakes those who wait for changes.
    pub fn with<T>(&self, act: impl FnOnce(&mut Engine, Time) -> T) -> T {
        let result = {
            let mut engine = self.lock();
            // Read under the lock, so that calls reach the engine in the order of their times.
            let now = self.now();
            act(&mut engine, now)
        };
        self.shared.turns.send_modify(|turns| *turns += 1);
        result
    }

    /// Lets time pass and the driver look; wakes others only if something happened.
    pub(crate) fn pass_time<T>(&self, look: impl FnOnce(&mut Engine) -> T) -> T {
        let (result, happened) = {
            let mut engine = self.lock();
            let before = (engine.revision(), engine.log().last());
            let now = self.now();
            engine.advance(now);
            let happened = before != (engine.revision(), engine.log().last());
            (look(&mut engine), happened)
        };
        if happened {
            self.shared.turns.send_modify(|turns| *turns += 1);
        }
        result
    }

    /// Looks at the engine without letting time pass.
    pub fn look<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        look(&self.lock())
    }

    /// Ticks after each turn of the engine.
    pub fn turns(&self) -> watch::Receiver<u64> {
        self.shared.turns.subscribe()
    }

    /// Events after `seq`, at most `limit`, oldest first.
    pub fn events_after(&self, seq: Seq, limit: usize) -> Vec<Arc<Event>> {
        self.look(|engine| engine.log().after(seq).take(limit).cloned().collect())
    }

    /// Writes what another part of the world saw into the log (FC-102); returns the event's number,
    /// to be named as cause of what follows from it.
    pub fn observe(
        &self,
        source: &str,
        event: &str,
        fields: BTreeMap<String, serde_json::Value>,
        cause: Option<Seq>,
    ) -> Seq {
        let what = What::Observed {
            source: source.to_owned(),
            event: event.to_owned(),
            fields,
        };
        self.with(|engine, now| engine.observe(now, cause, what))
    }

    /// Calls of the API so far, by operation (FC-105).
    pub fn calls(&self) -> BTreeMap<Operation, u64> {
        self.look(|engine| engine.calls().clone())
    }

    /// What fails the run whatever a test asserts (FC-100).
    pub fn violations(&self) -> Vec<String> {
        self.look(Engine::violations)
    }

    /// State and reason of a target at wall time `at`, by group: what a flow to it that was chosen
    /// then met.
    pub fn target_states_at(
        &self,
        target: SocketAddr,
        at: Time,
    ) -> BTreeMap<GroupId, (TargetState, Option<Reason>)> {
        let at = self.shared.scale.cloud(at);
        self.look(|engine| engine.target_states_at(target, at))
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic elsewhere must not hide the log that tells why.
        self.shared
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
