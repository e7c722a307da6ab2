//! The first request that a Service answers.

use super::{World, eventually};
use crate::traffic::{Answer, ask_tcp};
use anyhow::Result;
use std::{net::SocketAddr, time::Duration};

/// How long a Service may take from its address to its first answer.
const FIRST_WITHIN: Duration = Duration::from_secs(30);

/// Asks the load balancer until a pod answers.
pub async fn first_answer(world: &World, address: SocketAddr) -> Result<Answer> {
    let sockets = &world.sockets;
    eventually(
        &world.clock,
        &format!("{address} answers"),
        FIRST_WITHIN,
        async || {
            ask_tcp(sockets, address)
                .await
                .map(|(answer, _)| answer)
                .map_err(|f| format!("{f:?}"))
        },
    )
    .await
}
