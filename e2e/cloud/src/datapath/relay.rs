//! The user-space path of an LB node, for what its kernel cannot do: end TLS (FC-65) and write a header of the PROXY
//! protocol into a flow (FC-66). Everything else is forwarded without it (FC-60).
//!
//! For the kernel a relayed frontend has one target, a listener of the node itself; behind that a program chooses among
//! the targets of the engine and carries bytes. The log marks such flows.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e_fabric::{LbNet, Netns};
use onehop_runtime::clock::Clock;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Error;
use super::preface;
use crate::engine::{Choice, DataPathState, Frontend, FrontendPath};

/// Longest wait for a target or a handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Told of each flow: client, frontend, target.
pub(super) type Told = Arc<dyn Fn(SocketAddr, Frontend, SocketAddr) + Send + Sync>;

/// The relays of one LB node.
pub(super) struct Relays {
    net: LbNet,
    clock: Clock,
    told: Told,
    open: BTreeMap<Frontend, Relay>,
    // Whether the namespace lets programs speak as clients.
    ready: bool,
}

struct Relay {
    at: SocketAddr,
    path: watch::Sender<FrontendPath>,
    _task: AbortOnDropHandle<()>,
}

impl Relays {
    pub(super) fn new(net: LbNet, clock: Clock, told: Told) -> Self {
        Self {
            net,
            clock,
            told,
            open: BTreeMap::new(),
            ready: false,
        }
    }

    /// What the kernel has to do for `state`: relayed frontends lead to their relays, which learn of the targets. A relay
    /// stays as long as its frontend, for the flows that it carries. To be called within a tokio runtime.
    pub(super) fn through(&mut self, state: &DataPathState) -> Result<DataPathState, Error> {
        self.open
            .retain(|front, _| state.frontends.contains_key(front));
        let mut through = state.clone();
        for (front, path) in &mut through.frontends {
            if path.relayed() && !self.open.contains_key(front) {
                let relay = self.open(*front, path.clone())?;
                self.open.insert(*front, relay);
            }
            let Some(relay) = self.open.get(front) else {
                continue;
            };
            relay.path.send_replace(path.clone());
            path.established.insert(relay.at);
            if path.relayed() && !path.targets.is_empty() {
                path.targets = vec![relay.at];
                path.preserve_client_ip = true;
            }
        }
        Ok(through)
    }

    fn open(&mut self, front: Frontend, path: FrontendPath) -> Result<Relay, Error> {
        let node = self.net.address().into();
        let failed = |source| Error::Fabric { node, source };
        if !self.ready {
            self.net.speak_as_clients().map_err(failed)?;
            self.ready = true;
        }
        let [v4, v6] = self.net.addresses();
        let own = if front.address.is_ipv4() { v4 } else { v6 };
        let ns = self.net.netns();
        let listener = ns.tcp_listener(SocketAddr::new(own, 0)).map_err(failed)?;
        let opened = |source| Error::Open { node, source };
        listener.set_nonblocking(true).map_err(opened)?;
        let at = listener.local_addr().map_err(opened)?;
        let listener = TcpListener::from_std(listener).map_err(opened)?;
        let (sender, path) = watch::channel(path);
        let carrier = Carrier {
            ns: ns.clone(),
            clock: self.clock,
            own: SocketAddr::new(own, 0),
            front,
            path,
            told: Arc::clone(&self.told),
        };
        Ok(Relay {
            at,
            path: sender,
            _task: AbortOnDropHandle::new(tokio::spawn(accept(listener, carrier))),
        })
    }
}

/// What carries the flows of one frontend.
#[derive(Clone)]
struct Carrier {
    ns: Netns,
    clock: Clock,
    own: SocketAddr,
    front: Frontend,
    path: watch::Receiver<FrontendPath>,
    told: Told,
}

async fn accept(listener: TcpListener, carrier: Carrier) {
    let mut flows = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, client)) = accepted {
                let carrier = carrier.clone();
                flows.spawn(async move {
                    // Who is at either end has heard the same error.
                    if let Err(error) = carrier.carry(stream, client).await {
                        tracing::debug!(%client, %error, "relayed flow ended");
                    }
                });
            },
            Some(_) = flows.join_next() => {}
        }
    }
}

impl Carrier {
    async fn carry(self, stream: TcpStream, client: SocketAddr) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let path = self.path.borrow().clone();
        // The other end is the relay's own frontend.
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let hash = match path.choice {
            Choice::FiveTuple => hasher.hash_one(client),
            Choice::Addresses | Choice::AddressesAndProtocol => hasher.hash_one(client.ip()),
        };
        let number = u64::try_from(path.targets.len()).unwrap_or(u64::MAX);
        let chosen = hash
            .checked_rem(number)
            .and_then(|at| usize::try_from(at).ok());
        let Some(target) = chosen.and_then(|at| path.targets.get(at).copied()) else {
            return Ok(());
        };
        (self.told)(client, self.front, target);
        let Some(certificate) = &path.tls else {
            return self.between(stream, client, target, &path).await;
        };
        let handshake = certificate.acceptor()?.accept(stream);
        match self.clock.within(PATIENCE, handshake).await {
            Ok(stream) => self.between(stream?, client, target, &path).await,
            Err(_) => Ok(()),
        }
    }

    /// Carries bytes until both ends have closed, or the target's flows are to end.
    async fn between(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        client: SocketAddr,
        target: SocketAddr,
        path: &FrontendPath,
    ) -> std::io::Result<()> {
        let source = if path.preserve_client_ip {
            client
        } else {
            self.own
        };
        let connect = self.ns.tcp_stream_as(source, target);
        let connected = self.clock.within(PATIENCE, connect).await;
        let Ok(connected) = connected else {
            return Ok(());
        };
        let mut inner = connected.map_err(std::io::Error::other)?;
        inner.set_nodelay(true)?;
        if path.proxy_protocol {
            let front = SocketAddr::new(self.front.address, self.front.port);
            inner.write_all(&preface::of(client, front)).await?;
        }
        let mut now = self.path.clone();
        tokio::select! {
            done = copy_bidirectional(&mut stream, &mut inner) => done.map(drop),
            // The sender goes with the frontend.
            _ = now.wait_for(|path| !path.established.contains(&target)) => Ok(()),
        }
    }
}
