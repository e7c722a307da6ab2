//! A port of this machine's loopback that leads to an address inside a world: the harness's own client of a real API
//! server and kubectl go through it, since they live outside the world's namespaces.

use anyhow::{Context, Result};
use e2e_fabric::Netns;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

/// An open port. Dropping it closes the listener and every connection.
#[derive(Debug)]
pub struct Forward {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Forward {
    /// Opens a port that leads to `to` in `netns`.
    pub async fn open(netns: &Netns, to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("listen on loopback")?;
        let address = listener.local_addr().context("the listener's address")?;
        let task = tokio::spawn(serve(listener, netns.clone(), to));
        Ok(Self {
            address,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, netns: Netns, to: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(pass_on(stream, netns.clone(), to));
                }
                Err(error) => tracing::warn!(%error, "accept a connection to forward"),
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A connection that ends with an error has ended for both sides; each sees it by itself.
async fn pass_on(mut outside: TcpStream, netns: Netns, to: SocketAddr) {
    let passed = async {
        let mut inside = netns.tcp_stream(to).await?;
        inside.set_nodelay(true)?;
        outside.set_nodelay(true)?;
        copy_bidirectional(&mut outside, &mut inside).await?;
        anyhow::Ok(())
    };
    if let Err(error) = passed.await {
        tracing::debug!(%error, %to, "a forwarded connection ended");
    }
}
