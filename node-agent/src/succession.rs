//! From one agent to the next on the same node (K-55, ZD-36): the one that ends lets go of the tables and goes on
//! answering until the one that waited for them answers too, so that no probe of a load balancer finds nobody.
//!
//! The one that waits listens on an abstract socket, which belongs to the network namespace and with it to the node. Who
//! connects there is told when it answers. Edge.

use std::io;
use std::time::Duration;

use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::health::doors::Doors;
use crate::ready::{self, Readiness};

/// Where a successor is found.
const SOCKET: &str = "@onehop-node-agent-successor";
/// Longest time that an agent stays for a successor that does not get there; well within a pod's grace.
const AT_MOST: Duration = Duration::from_secs(10);
const ANSWERS: &[u8] = b"answers";

/// Tells a predecessor when this agent answers in its place: from when it stands by until its doors are open.
pub async fn announce(
    mut readiness: watch::Receiver<Readiness>,
    doors: Doors,
    clock: Clock,
    mut backoff: Backoff,
) {
    let standby = |at: &Readiness| *at == Readiness::Standby;
    while readiness.wait_for(standby).await.is_ok() {
        let listener = match ready::listen(SOCKET) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::debug!(%error, "another agent stands by, too");
                clock.sleep(backoff.next_delay()).await;
                continue;
            }
        };
        backoff.reset();
        let mut waiting = Vec::new();
        let mut served = std::pin::pin!(doors.all_open(readiness.clone()));
        loop {
            tokio::select! {
                () = &mut served => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => waiting.push(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept the agent that ends");
                        clock.sleep(backoff.next_delay()).await;
                    }
                }
            }
        }
        for mut stream in waiting {
            // Who has ended meanwhile needs no word.
            let _ = stream.write_all(ANSWERS).await;
        }
    }
}

/// Waits until a successor answers the node's probes. Returns at once if there is none.
pub async fn served(clock: Clock) {
    let Ok(mut successor) = connect() else { return };
    let mut word = Vec::new();
    tokio::select! {
        read = successor.read_to_end(&mut word) => {
            if read.is_err() || word != ANSWERS {
                tracing::warn!("the agent that stood by has ended before it answered");
            }
        }
        () = clock.sleep(AT_MOST) => tracing::warn!(
            "the agent that stands by does not answer within {} s; this one ends all the same",
            AT_MOST.as_secs()
        ),
    }
}

fn connect() -> io::Result<UnixStream> {
    let stream = ready::connect(SOCKET)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
