//! What is known of every request of a load (FC-82), as lines of JSON in the world's folder: a report of a failing run has
//! the requests that went well beside those that did not.

use crate::{
    traffic::{Attempt, Transport},
    world::World,
};
use anyhow::{Context, Result};
use onehop_core::time::Time;
use serde::Serialize;
use std::{fmt::Write, net::SocketAddr};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Its number among those of its kind.
    pub id: u64,
    /// What it travelled on.
    pub kind: Transport,
    /// When it began.
    pub at: Time,
    /// The client's address and port; none where it had no socket.
    pub client: Option<SocketAddr>,
    /// The frontend that it was sent to.
    pub frontend: SocketAddr,
    /// The zone whose load balancer node serves that address; none if nobody does.
    pub zone: Option<String>,
    /// UID of the pod that answered.
    pub pod: Option<String>,
    /// The client's address as that pod saw it.
    pub seen: Option<SocketAddr>,
    /// The class of its failure.
    pub failure: Option<crate::traffic::FailureKind>,
}

impl Request {
    /// What became of an attempt in this world.
    pub fn new(world: &World, attempt: &Attempt) -> Self {
        let (answer, client, failure) = match &attempt.outcome {
            Ok((answer, client)) => (Some(answer), Some(*client), None),
            Err(failure) => (None, failure.local, Some(failure.kind)),
        };
        Self {
            id: attempt.number,
            kind: attempt.transport,
            at: attempt.begun,
            client,
            frontend: attempt.to,
            zone: world.zone_of(attempt.to.ip()),
            pod: answer.map(|answer| answer.uid.clone()),
            seen: answer.map(|answer| answer.peer),
            failure,
        }
    }
}

/// Writes all of them into the file `requests.jsonl` of the world's folder, in the order of their begin.
pub fn record<'a>(
    world: &World,
    attempts: impl IntoIterator<Item = &'a Attempt>,
) -> Result<Vec<Request>> {
    let requests = attempts.into_iter().map(|a| Request::new(world, a));
    let mut requests: Vec<_> = requests.collect();
    requests.sort_by_key(|request| (request.at, request.kind, request.id));
    let mut lines = String::new();
    for request in &requests {
        writeln!(lines, "{}", serde_json::to_string(request)?)?;
    }
    let path = world.folder().join("requests.jsonl");
    std::fs::write(&path, lines).with_context(|| format!("write {}", path.display()))?;
    Ok(requests)
}
