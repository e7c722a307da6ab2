//! Where a flow went, and the first one that went anywhere.

use super::{World, eventually, sockets_of};
use crate::traffic::{Answer, ask_tcp};
use anyhow::{Context, Result};
use onehop_nft::conntrack::{Conntrack, Filter};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// How long a Service may take from its address to its first answer.
const FIRST_WITHIN: Duration = Duration::from_secs(30);

/// Asks the load balancer until a pod answers.
pub async fn first_answer(world: &World, address: SocketAddr) -> Result<Answer> {
    let sockets = sockets_of(world.client.netns(), world.client.address());
    eventually(
        &world.clock,
        &format!("{address} answers"),
        FIRST_WITHIN,
        async || {
            ask_tcp(&sockets, address)
                .await
                .map(|(answer, _)| answer)
                .map_err(|f| format!("{f:?}"))
        },
    )
    .await
}

/// Who answers a client's flow, by the connection table of the calling thread's namespace.
pub fn flow_of(client: SocketAddr) -> Result<Option<IpAddr>> {
    let filter = Filter {
        original_src: Some(client.ip()),
        ..Filter::default()
    };
    let flows = Conntrack::open()
        .context("open conntrack")?
        .list(&filter)
        .context("list conntrack")?;
    Ok(flows
        .iter()
        .find(|flow| flow.original.src_port == client.port())
        .map(|flow| flow.reply.src))
}
