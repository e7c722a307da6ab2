//! Runs scenarios, some at a time, each in a world and a runtime of its own.

use crate::{Peer, Scenario};
use onehop_e2e::world::{Cluster, Proxy};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Who is compared: our agent as the node's only proxy, and a real kube-proxy.
const PROXIES: [Proxy; 2] = [Proxy::Replace, Proxy::KubeProxy];

/// What the command line asked for, in libtest's words.
pub(crate) struct Asked {
    filters: Vec<String>,
    threads: usize,
}

impl Asked {
    /// Reads `[--test-threads N] [FILTER ...]`.
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> Self {
        let mut asked = Self {
            filters: Vec::new(),
            threads: 1,
        };
        while let Some(arg) = args.next() {
            if arg == "--test-threads" {
                let number = args.next().and_then(|number| number.parse().ok());
                asked.threads = number.unwrap_or(1).max(1);
            } else {
                asked.filters.push(arg);
            }
        }
        asked
    }

    fn wants(&self, scenario: &Scenario) -> bool {
        let mut filters = self.filters.iter();
        self.filters.is_empty() || filters.any(|filter| scenario.name.contains(filter))
    }
}

/// A scenario with what came of it; what did not run has no outcome.
pub(crate) struct Row {
    pub(crate) scenario: Scenario,
    pub(crate) agent: Option<Result<(), String>>,
    pub(crate) kube_proxy: Option<Result<(), String>>,
}

/// Runs what was asked for, with Services without our label: the node's own proxy's.
pub(crate) fn rows(scenarios: Vec<Scenario>, asked: &Asked) -> Vec<Row> {
    // A panic's message is told in its row; the rest of what the hook prints would only mix with other rows.
    std::panic::set_hook(Box::new(|_| {}));
    let wanted = scenarios.into_iter().filter(|s| asked.wants(s));
    let rows: Vec<Mutex<Row>> = wanted
        .map(|scenario| {
            Mutex::new(Row {
                scenario,
                agent: None,
                kube_proxy: None,
            })
        })
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..asked.threads {
            scope.spawn(|| {
                // Each row is two pieces of work: the agent's and kube-proxy's.
                loop {
                    let piece = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(piece / 2) else {
                        return;
                    };
                    work(row, PROXIES[piece % 2]);
                }
            });
        }
    });
    rows.into_iter()
        .map(|row| row.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

fn work(row: &Mutex<Row>, proxy: Proxy) {
    let lock = || row.lock().unwrap_or_else(PoisonError::into_inner);
    let scenario = lock().scenario;
    if matches!(scenario.peer, Peer::Ours(..)) {
        return;
    }
    let outcome = one(scenario, Cluster::proxied_by(proxy));
    let said = match &outcome {
        Ok(()) => "ok".to_owned(),
        Err(why) => format!("failed: {why}"),
    };
    println!("{} with {proxy:?}: {said}", scenario.name);
    let mut row = lock();
    if proxy == PROXIES[0] {
        row.agent = Some(outcome);
    } else {
        row.kube_proxy = Some(outcome);
    }
}

fn one(scenario: Scenario, on: Cluster) -> Result<(), String> {
    let run = || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build()?;
        runtime.block_on((scenario.run)(on))
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| format!("{error:#}")),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_else(|| "panicked".to_owned())),
    }
}
