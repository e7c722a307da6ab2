//! From one agent to the next on the same node (K-55, ZD-36): the one that ends lets go of the tables and goes on
//! answering until the one that waited for them answers too, so that no probe of a load balancer finds nobody.
//!
//! The one that waits listens on an abstract socket, which belongs to the network namespace and with it to the node. Who
//! connects there is told when it answers. Edge.

use std::io;
use std::pin::pin;
use std::time::Duration;

use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::health::doors::Doors;
use crate::ready::{self, Readiness};

/// Where a successor is found.
const SOCKET: &str = "@onehop-node-agent-successor";
/// Longest time that an agent stays for a successor that does not get there; well within a pod's grace.
const AT_MOST: Duration = Duration::from_secs(10);
const ANSWERS: &[u8] = b"answers";

/// Says where this agent stands, to who asks and to a predecessor.
#[derive(Debug)]
pub struct Announcer {
    /// Where it stands.
    pub readiness: watch::Receiver<Readiness>,
    /// Where it is said to stand.
    pub told: watch::Sender<Readiness>,
    /// Doors of probes; a predecessor goes once they are open.
    pub doors: Doors,
    /// Clock.
    pub clock: Clock,
    /// Time between two attempts to be the one that a predecessor finds.
    pub backoff: Backoff,
}

impl Announcer {
    /// Passes on where the agent stands, and from when it stands by until its doors are open lets a predecessor wait.
    ///
    /// That it stands by is said only once a predecessor finds it: whoever hears it may end that one at once, and it
    /// would end without waiting.
    pub async fn announce(self) {
        self.announce_on(SOCKET).await;
    }

    async fn announce_on(mut self, socket: &str) {
        while self.readiness.has_changed().is_ok() {
            let at = *self.readiness.borrow_and_update();
            if at == Readiness::Standby {
                match ready::listen(socket) {
                    Ok(listener) => {
                        self.backoff.reset();
                        self.until_it_answers(listener).await;
                        continue;
                    }
                    Err(error) => tracing::debug!(%error, "another agent stands by, too"),
                }
            }
            self.told.send_replace(at);
            let again = async {
                if at != Readiness::Standby {
                    return std::future::pending().await;
                }
                self.clock.sleep(self.backoff.next_delay()).await;
            };
            tokio::select! {
                _ = self.readiness.changed() => {}
                () = again => {}
            }
        }
    }

    async fn until_it_answers(&mut self, listener: UnixListener) {
        let mut waiting = Vec::new();
        let mut served = pin!(self.doors.all_open(self.readiness.clone()));
        loop {
            self.told.send_replace(*self.readiness.borrow_and_update());
            tokio::select! {
                () = &mut served => break,
                changed = self.readiness.changed() => if changed.is_err() { break },
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => waiting.push(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept the agent that ends");
                        self.clock.sleep(self.backoff.next_delay()).await;
                    }
                }
            }
        }
        self.told.send_replace(*self.readiness.borrow());
        if self.readiness.has_changed().is_err() {
            // The agent ends: the one that waits sees it by the connection's end.
            return;
        }
        for mut stream in waiting.into_iter().chain(left(listener)) {
            // Who has ended meanwhile needs no word.
            let _ = stream.write_all(ANSWERS).await;
        }
    }
}

/// Those who have connected and were not accepted yet: without a word they would take this agent for dead.
fn left(listener: UnixListener) -> Vec<UnixStream> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    let accepted = std::iter::from_fn(|| listener.accept().ok());
    accepted
        .filter_map(|(stream, _)| {
            stream.set_nonblocking(true).ok()?;
            UnixStream::from_std(stream).ok()
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ready::connect;
    use onehop_runtime::backoff::Policy;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;
    use std::collections::BTreeSet;

    #[tokio::test]
    async fn zd36_who_is_said_to_stand_by_is_found_by_the_one_that_ends() {
        let socket = format!("@onehop-succession-test-{}", std::process::id());
        let (stand, readiness) = watch::channel(Readiness::Starting);
        let (told, mut said) = watch::channel(Readiness::Starting);
        let (_listens, wanted) = watch::channel(BTreeSet::new());
        let doors = Doors::new(1, wanted);
        let announcer = Announcer {
            readiness,
            told,
            doors: doors.clone(),
            clock: Clock::system(),
            backoff: Policy::BIND.start(&mut SmallRng::seed_from_u64(1)),
        };
        let announces = tokio::spawn({
            let socket = socket.clone();
            async move { announcer.announce_on(&socket).await }
        });
        for _ in 0..3 {
            stand.send_replace(Readiness::Standby);
            let standby = |at: &Readiness| *at == Readiness::Standby;
            drop(said.wait_for(standby).await.expect("it is said"));
            let mut waits = connect(&socket).expect("ZD-36: found at once");
            stand.send_replace(Readiness::InSync);
            let door = doors.open();
            let word = tokio::task::spawn_blocking(move || {
                let mut word = Vec::new();
                std::io::Read::read_to_end(&mut waits, &mut word).map(|_| word)
            });
            assert_eq!(word.await.expect("reads").expect("a word"), ANSWERS);
            assert_eq!(*said.borrow(), Readiness::InSync, "ZD-36: said first");
            drop(door);
        }
        drop(stand);
        announces.await.expect("it ends");
    }
}
