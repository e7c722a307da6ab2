//! The server as its users see it: start, clients, identities, faults.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ipnet::{IpNet, Ipv4Net};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::alloc::Allocations;
use crate::audit::{Audit, Record};
use crate::kinds::Kinds;
use crate::owners::Owners;
use crate::pki::Authority;
use crate::state::State;
use crate::store::Store;
use onehop_runtime::clock::Clock;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// Seed of UIDs, generated names, addresses and ports.
    pub seed: u64,
    /// Changes that each resource remembers for watches and pages; older ones are 410 Gone.
    pub history: usize,
    /// Ranges of cluster addresses; the first is the default family.
    pub service_cidrs: Vec<IpNet>,
}

impl Default for Config {
    fn default() -> Self {
        let range = Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 96, 0, 0), 16);
        Self {
            seed: 0,
            history: 4096,
            service_cidrs: vec![range.into()],
        }
    }
}

/// In whose name a client speaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    user: String,
    groups: Vec<String>,
}

impl Identity {
    /// A member of `system:masters`.
    pub fn admin() -> Self {
        Self {
            user: "kubernetes-admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
        }
    }

    /// A `ServiceAccount`.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".to_owned(),
        ];
        Self {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            groups: groups.into(),
        }
    }

    /// A user of any name.
    pub fn user_named(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            groups: vec!["system:authenticated".into()],
        }
    }

    /// User name as the real server shows it.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Groups of the user.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.user)
    }
}

/// An embedded Kubernetes API server. Clones share one state.
#[derive(Clone)]
pub struct ApiServer(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    clock: Clock,
    tokens: Mutex<BTreeMap<String, Identity>>,
    hang_up: watch::Sender<u64>,
    audit: Mutex<Audit>,
    /// Made on first use: a simulation never needs one.
    authority: OnceLock<Authority>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("version", &self.state().store.version())
            .finish_non_exhaustive()
    }
}

impl ApiServer {
    /// A server with the namespaces that every cluster has.
    pub fn start(clock: Clock, config: Config) -> Self {
        let rng = SmallRng::seed_from_u64(config.seed);
        let mut state = State {
            store: Store::new(config.history),
            kinds: Kinds::built_in(),
            allocations: Allocations::new(config.service_cidrs, rng),
            owners: Owners::default(),
            warnings: Vec::new(),
        };
        crate::bootstrap::fill(&mut state, clock.now());
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            clock,
            tokens: Mutex::default(),
            hang_up: watch::Sender::new(0),
            audit: Mutex::default(),
            authority: OnceLock::new(),
        }))
    }

    /// The server's clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The state, locked. Never held over an await: the guard is not `Send`.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hang_up(&self) -> watch::Receiver<u64> {
        self.0.hang_up.subscribe()
    }

    /// The certificate authority, made on first use.
    pub(crate) fn authority(&self) -> Result<&Authority, rcgen::Error> {
        if let Some(known) = self.0.authority.get() {
            return Ok(known);
        }
        let made = Authority::new()?;
        Ok(self.0.authority.get_or_init(|| made))
    }

    fn tokens(&self) -> MutexGuard<'_, BTreeMap<String, Identity>> {
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identity behind a bearer token.
    pub(crate) fn identity(&self, token: &str) -> Option<Identity> {
        self.tokens().get(token).cloned()
    }

    /// A bearer token for an identity; the same one each time.
    pub fn token(&self, identity: &Identity) -> String {
        let known = self
            .tokens()
            .iter()
            .find(|(_, known)| *known == identity)
            .map(|(token, _)| token.clone());
        if let Some(token) = known {
            return token;
        }
        let token = self.state().allocations.suffix(32);
        self.tokens().insert(token.clone(), identity.clone());
        token
    }

    /// The version of the last write.
    pub fn resource_version(&self) -> u64 {
        self.state().store.version()
    }

    /// Every object that is stored, for reports.
    pub fn dump(&self) -> Value {
        let objects = self.state().store.snapshot();
        objects
            .iter()
            .map(|change| change.object().clone())
            .collect()
    }

    /// Every request from now on, in the order of the answers.
    pub fn audit(&self) -> mpsc::UnboundedReceiver<Record> {
        self.audit_log().listen()
    }

    pub(crate) fn audit_log(&self) -> MutexGuard<'_, Audit> {
        self.0.audit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the server's address as the endpoint of the Service `kubernetes`.
    pub fn publish(&self, address: SocketAddr) {
        crate::bootstrap::publish(&mut self.state(), self.clock().now(), address);
    }

    /// Ends every open watch, as a restart of the server or a proxy would.
    pub fn drop_watches(&self) {
        self.0.hang_up.send_modify(|count| *count += 1);
    }

    /// Forgets the history: older versions are 410 Gone, for open watches too if they are behind.
    pub fn compact(&self) {
        self.state().store.compact();
    }
}
