//! Readiness for exec probes (K-55, S-113): the agent answers on a local socket whether it is in
//! sync, and `onehop-node-agent ready` asks. Not HTTP: during an update the port of the node may be
//! answered by the other process.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream};
use std::time::Duration;

use onehop_runtime::backoff::Backoff;
use onehop_runtime::clock::Clock;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::watch;

/// How long the probe waits for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
const IN_SYNC: &str = "in sync";
const STANDBY: &str = "standby";

/// Where the agent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Lists are not complete, or nothing was committed yet.
    Starting,
    /// Another agent holds the tables; this one is ready to take over.
    Standby,
    /// What the API server says is in the kernel.
    InSync,
}

impl Readiness {
    fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => STANDBY,
            Self::InSync => IN_SYNC,
        }
    }
}

/// Opens the socket. A path that an earlier process left behind is replaced.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    // Only a socket that nobody answers is taken away; abstract ones go with their process.
    if !name.starts_with('@') && UnixStream::connect(name).is_err() {
        let _ = std::fs::remove_file(name);
    }
    let listener = StdListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Answers on a socket that another process has, once that process is gone: an update runs two agents on a node for a
/// while (K-55), and the newer one must not end because of it.
pub async fn serve_when_free(
    name: String,
    state: watch::Receiver<Readiness>,
    clock: Clock,
    mut backoff: Backoff,
) {
    tracing::warn!(
        "another process answers on the readiness socket {name}; until it ends, `ready` asks that one: give each agent its \
         own by --ready-socket"
    );
    loop {
        clock.sleep(backoff.next_delay()).await;
        match listen(&name) {
            Ok(listener) => return serve(listener, state, clock).await,
            Err(error) => tracing::debug!(%error, name, "the readiness socket is not free yet"),
        }
    }
}

/// Answers everybody who connects with one word.
pub async fn serve(listener: UnixListener, state: watch::Receiver<Readiness>, clock: Clock) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let word = state.borrow().word();
                // One word fits any socket buffer, so this cannot be held up by a slow reader.
                let _ = stream.write_all(word.as_bytes()).await;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a readiness question");
                clock.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Asks the agent; `Ok` holds its word if it is ready, `Err` why not. Blocking.
pub fn ask(name: &str) -> Result<String, String> {
    let word = question(name).map_err(|error| {
        format!("no answer on {name}: {error} (is the agent running in this network namespace?)")
    })?;
    if word == IN_SYNC || word == STANDBY {
        Ok(word)
    } else {
        Err(word)
    }
}

fn question(name: &str) -> io::Result<String> {
    let mut stream = connect(name)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.flush()?;
    let mut word = String::new();
    stream.read_to_string(&mut word)?;
    Ok(word)
}

/// Connects to a socket of this name.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(name)?)
}

fn address(name: &str) -> io::Result<SocketAddr> {
    match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked(name: &str) -> Result<String, String> {
        let name = name.to_owned();
        tokio::task::spawn_blocking(move || ask(&name))
            .await
            .expect("asks")
    }

    #[tokio::test]
    async fn k55_ready_means_in_sync_or_standby() {
        let name = format!("@onehop-ready-test-{}", std::process::id());
        // S-113: an exec probe, not a port that the other process of an update may answer.
        assert!(asked(&name).await.is_err(), "nobody listens yet");
        let (tell, state) = watch::channel(Readiness::Starting);
        let listener = listen(&name).expect("listens");
        let clock = Clock::system();
        let server = tokio::spawn(serve(listener, state, clock));
        assert_eq!(asked(&name).await, Err("starting".to_owned()));
        tell.send_replace(Readiness::Standby);
        assert_eq!(asked(&name).await, Ok("standby".to_owned()));
        tell.send_replace(Readiness::InSync);
        assert_eq!(asked(&name).await, Ok("in sync".to_owned()));
        server.abort();
    }
}
