//! An open-loop load: requests start at a fixed rate whatever became of earlier ones, each on a fresh socket.

use super::{
    Answer, Failure, SocketSource, Transport,
    probe::{Endpoint, ask},
};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// What a load sends, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Where to.
    pub to: Endpoint,
    /// Requests begun per second.
    pub per_second: u32,
}

/// One request of a load and what became of it.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What it travelled on.
    pub transport: Transport,
    /// When it began.
    pub begun: Time,
    /// When it ended.
    pub ended: Time,
    /// The answer and the client's own address, or why there is none.
    pub outcome: Result<(Answer, SocketAddr), Failure>,
}

/// Everything that a load sent.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// In order of their end.
    pub attempts: Vec<Attempt>,
    /// When the first and the last request began.
    pub span: Option<(Time, Time)>,
}

impl Ledger {
    /// The attempts that failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Attempt, &Failure)> {
        self.attempts
            .iter()
            .filter_map(|a| Some((a, a.outcome.as_ref().err()?)))
    }

    /// The answers that arrived.
    pub fn answers(&self) -> impl Iterator<Item = &Answer> {
        self.attempts
            .iter()
            .filter_map(|a| Some(&a.outcome.as_ref().ok()?.0))
    }

    /// Longest time between two answers.
    pub fn longest_gap(&self) -> Duration {
        let answered = self.attempts.iter().filter(|a| a.outcome.is_ok());
        let mut times: Vec<Time> = answered.map(|a| a.ended).collect();
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1].since(pair[0]));
        gaps.max().unwrap_or_default()
    }

    /// Requests begun, as a share of what the rate and the time ask for. A load that cannot keep its rate hides losses.
    pub fn kept_rate(&self, per_second: u32) -> f64 {
        let Some((first, last)) = self.span else {
            return 0.0;
        };
        let due = last.since(first).as_secs_f64() * f64::from(per_second);
        let begun = u32::try_from(self.attempts.len()).unwrap_or(u32::MAX);
        if due < 1.0 {
            1.0
        } else {
            f64::from(begun) / due
        }
    }
}

/// A load that runs until it is stopped.
#[derive(Debug)]
#[must_use = "a load that is not stopped keeps sending until its world ends"]
pub struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<Ledger>,
    failures: mpsc::UnboundedReceiver<Attempt>,
}

impl Load {
    /// Starts to send.
    pub fn start(self, sockets: SocketSource, clock: Clock) -> Running {
        let (stop, stopped) = watch::channel(false);
        let (failed, failures) = mpsc::unbounded_channel();
        let task = tokio::spawn(send(self, sockets, clock, stopped, failed));
        Running {
            stop,
            task,
            failures,
        }
    }
}

impl Running {
    /// The next failed attempt as soon as it is known, while its flow is the newest of its address.
    pub async fn next_failure(&mut self) -> Option<Attempt> {
        self.failures.recv().await
    }

    /// Stops to begin requests and waits for those under way: the ledger, and those of its failures that
    /// [`Running::next_failure`] has not told.
    pub async fn stop(mut self) -> (Ledger, Vec<Attempt>) {
        // The task ends by itself only when told to; a failed send means that it is gone already.
        let _ = self.stop.send(true);
        let ledger = self.task.await.unwrap_or_default();
        let untold = std::iter::from_fn(|| self.failures.try_recv().ok()).collect();
        (ledger, untold)
    }
}

async fn send(
    load: Load,
    sockets: SocketSource,
    clock: Clock,
    mut stopped: watch::Receiver<bool>,
    failed: mpsc::UnboundedSender<Attempt>,
) -> Ledger {
    let (done, mut results) = mpsc::unbounded_channel();
    let gap = Duration::from_secs(1) / load.per_second;
    let first = clock.now();
    let mut last = first;
    let mut number = 0;
    let failed = Arc::new(failed);
    while !*stopped.borrow() {
        last = clock.now();
        tokio::spawn(one(
            load.to,
            sockets.clone(),
            clock,
            done.clone(),
            failed.clone(),
        ));
        number += 1;
        tokio::select! {
            () = clock.sleep_until(first + gap * number) => {}
            _ = stopped.changed() => {}
        }
    }
    drop(done);
    let mut attempts = Vec::new();
    while let Some(attempt) = results.recv().await {
        attempts.push(attempt);
    }
    Ledger {
        attempts,
        span: Some((first, last)),
    }
}

async fn one(
    to: Endpoint,
    sockets: SocketSource,
    clock: Clock,
    done: mpsc::UnboundedSender<Attempt>,
    failed: Arc<mpsc::UnboundedSender<Attempt>>,
) {
    let begun = clock.now();
    let outcome = ask(&sockets, to).await;
    let attempt = Attempt {
        transport: to.transport,
        begun,
        ended: clock.now(),
        outcome,
    };
    if attempt.outcome.is_err() {
        // Nobody may be listening for early news; the ledger has it all the same.
        let _ = failed.send(attempt.clone());
    }
    let _ = done.send(attempt);
}
