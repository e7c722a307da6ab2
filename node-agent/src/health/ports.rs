//! healthCheckNodePort servers (S-100 to S-107): one listener per Service and node address, on a
//! thread and runtime of their own, so that decoding a large list or a scrape never delays an
//! answer. Told the wanted set by the app; answers come from the [`Board`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use onehop_core::health::HealthAnswer;
use onehop_core::id::ServiceKey;
use onehop_runtime::backoff::Policy;
use onehop_runtime::clock::Clock;
use rand::rngs::SmallRng;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::doors::Doors;
use crate::http::{Handler, Port, Tables};

/// One listener: whose answer, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// The Service that the answer is about.
    pub service: ServiceKey,
    /// Node address (or the wildcard) and health check node port.
    pub addr: SocketAddr,
}

/// A listener could not be opened; it is tried again by a timer (S-105).
#[derive(Debug)]
pub struct BindFailure {
    /// The listener.
    pub listen: Listen,
    /// What the system said.
    pub error: String,
}

/// What the listeners share.
pub struct Ports {
    /// Where the answers come from.
    pub board: Arc<Board>,
    /// Clock.
    pub clock: Clock,
    /// Source of jitter for tries to bind.
    pub rng: SmallRng,
    /// Whether they may be opened yet.
    pub tables: watch::Receiver<Tables>,
    /// Hears of the first failure to bind of each.
    pub failures: UnboundedSender<BindFailure>,
    /// Closes them once what was accepted is answered.
    pub closing: CancellationToken,
    /// Where they are counted.
    pub doors: Doors,
}

impl Ports {
    /// Keeps the open listeners equal to the wanted set until its sender is dropped, and then until they are closed.
    pub async fn run(mut self, mut wanted: watch::Receiver<BTreeSet<Listen>>) {
        let mut open: BTreeMap<Listen, (CancellationToken, JoinHandle<()>)> = BTreeMap::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            let (kept, gone) = open
                .into_iter()
                .partition(|(listen, _)| now.contains(listen));
            open = kept;
            for (_, (stop, task)) in gone {
                stop.cancel();
                // A port may pass from one Service to another: closed before opened (S-100).
                let _ = task.await;
            }
            for listen in now {
                open.entry(listen)
                    .or_insert_with_key(|listen| self.open(listen));
            }
            if wanted.changed().await.is_err() {
                break;
            }
        }
        for (_, task) in open.into_values() {
            let _ = task.await;
        }
    }

    fn open(&mut self, listen: &Listen) -> (CancellationToken, JoinHandle<()>) {
        let stop = CancellationToken::new();
        let port = Port {
            addr: listen.addr,
            handler: handler(listen.service.clone(), self.board.clone()),
            clock: self.clock,
            backoff: Policy::BIND.start(&mut self.rng),
            tables: self.tables.clone(),
            stop: stop.clone(),
            closing: self.closing.clone(),
            doors: Some(self.doors.clone()),
            scrapes: None,
        };
        let mut failure = Some((listen.clone(), self.failures.clone()));
        let task = tokio::spawn(port.run(move |error| {
            if let Some((listen, failures)) = failure.take() {
                let error = error.to_string();
                // The app being gone means that the process ends.
                let _ = failures.send(BindFailure { listen, error });
            }
        }));
        (stop, task)
    }
}

fn handler(service: ServiceKey, board: Arc<Board>) -> Handler {
    Arc::new(move |_| response(&board.port(&service)).into())
}

/// Status, headers and body of S-101 to S-103, the same for every method and path.
fn response(answer: &HealthAnswer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body()));
    let status = StatusCode::from_u16(answer.status());
    *response.status_mut() = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    for (name, value) in answer.headers() {
        // Digits and constants, so both always convert.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
