//! The [`Dataplane`] that is the kernel: makes and takes over our two tables, reads them back, commits changes.
//! Owned by the writer thread. Blocking; never touches anything but the tables `ip onehop` and `ip6 onehop` (S-201),
//! except for those of a stopped kube-proxy when it is told to (S-127).

mod chains;
mod family;
mod line;
mod parts;
mod skeleton;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::SocketAddr as Endpoint;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use onehop_core::time::Time;
use onehop_nft::{Batch, CommitError, DumpError, Ears, Socket, kernel_version};

use crate::peer_watch;
use crate::table::affinity::Sticky;
use crate::table::element::{CommitFailure, Dataplane, ElementChange, Elements, Family};
use crate::table::layout::{Layout, Options, Ranges, table};
use chains::Chains;
use family::{FamilyState, Outcome, Retain};
use line::Line;
use parts::Part;
use skeleton::Takeover;
use watch::Watch;

/// Default size limit of one batch (S-133).
const BATCH_LIMIT: usize = 16 << 20;
/// A class chain is deleted at the earliest this long after its last use (S-247).
const CLASS_REST: Duration = Duration::from_secs(1);
/// How often reading starts again because somebody changed the tables meanwhile.
const READ_ATTEMPTS: usize = 10;
/// Name of the node lock where tables cannot be owned; abstract, so it belongs to the network namespace.
const LOCK_NAME: &[u8] = b"onehop-node-agent-tables";

/// Tells the time; the caller's clock.
pub type Now = Box<dyn Fn() -> Time + Send>;

/// What the running kernel can do. Detected at start; tests force the branches of older kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Tables can be owned by our socket and outlive it (kernel 6.9, S-267).
    pub owned_tables: bool,
    /// Elements can be deleted that may have ended by themselves (kernel 6.3, S-268).
    pub destroy_elements: bool,
}

impl Features {
    /// By the version of the running kernel.
    pub fn detect() -> Self {
        Self {
            owned_tables: kernel_version() >= (6, 9),
            destroy_elements: kernel_version() >= (6, 3),
        }
    }
}

/// The kernel of the network namespace in which it was opened.
pub struct Kernel {
    line: Line,
    now: Now,
    lock: Option<UnixDatagram>,
    options: Options,
    /// The static part is fully known. Until then rules that differ are left as they are: they may be what an earlier
    /// process wrote for the same network, and a restart changes nothing (S-121).
    settled: bool,
    families: Vec<FamilyState>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Opens the socket; nothing is written before [`Dataplane::read_back`].
    pub fn open(options: &Options, features: Features, now: Now) -> io::Result<Self> {
        let socket = Socket::open()?;
        let buffer = socket.send_buffer();
        // The kernel accounts for its own overhead too, so half of what was granted is safe (S-252).
        let limit = if buffer.forced {
            BATCH_LIMIT
        } else {
            BATCH_LIMIT.min(buffer.granted / 2)
        };
        if !buffer.forced {
            tracing::warn!(
                granted = buffer.granted,
                "cannot force the netlink send buffer; large changes go in pieces"
            );
        }
        let families = Family::ALL.map(|family| FamilyState {
            family,
            layout: Layout::new(family, options),
            chains: None,
            retired: None,
            recheck: Retain::new(),
        });
        Ok(Self {
            line: Line {
                socket,
                limit,
                features,
                watch: None,
                listeners: Vec::new(),
            },
            now,
            lock: None,
            options: options.clone(),
            settled: true,
            families: families.into(),
        })
    }

    /// Expects [`Dataplane::configure`] before the static part counts as known.
    #[must_use]
    pub fn awaiting_ranges(mut self) -> Self {
        self.settled = false;
        self
    }

    /// Limits the size of one batch, to exercise the loading in pieces.
    #[must_use]
    pub fn with_batch_limit(mut self, bytes: usize) -> Self {
        self.line.limit = bytes;
        self
    }

    /// Port of the socket; notifications of own commits carry it (S-260).
    pub fn port_id(&self) -> u32 {
        self.line.socket.port_id()
    }

    /// The node lock of kernels that cannot own tables; false when another agent has it.
    fn take_lock(&mut self) -> Result<bool, CommitFailure> {
        if self.line.features.owned_tables || self.lock.is_some() {
            return Ok(true);
        }
        let bound = SocketAddr::from_abstract_name(LOCK_NAME)
            .and_then(|name| UnixDatagram::bind_addr(&name));
        match bound {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
            Err(error) => Err(failure(format!("node lock: {error}"))),
        }
    }
}

impl Dataplane for Kernel {
    fn read_back(&mut self) -> Result<Option<Elements>, CommitFailure> {
        if !self.take_lock()? {
            return Ok(None);
        }
        for _ in 0..READ_ATTEMPTS {
            self.line.watch = None;
            if !self.line.features.owned_tables {
                let watch = Watch::begin(&mut self.line.socket);
                self.line.watch = Some(watch.map_err(|error| failure(error.to_string()))?);
            }
            let elements = self.read_families()?;
            let watch = self.line.watch.as_mut().map_or(Ok(false), Watch::touched);
            if !watch.map_err(|error| failure(error.to_string()))? {
                return Ok(elements);
            }
        }
        Err(failure(
            "the tables change all the time while they are read".to_owned(),
        ))
    }

    fn watched_port(&self) -> Option<u32> {
        (!self.line.features.owned_tables).then(|| self.port_id())
    }

    fn spare(&mut self, listener: Ears) {
        if let Err(error) = listener.ignore(self.port_id()) {
            tracing::debug!(%error, "own commits are told to the own listener, too");
        }
        self.line.listeners.push(listener);
    }

    fn configure(&mut self, ranges: &Ranges) -> Result<(), CommitFailure> {
        let options = self.options.with(ranges);
        self.settled = true;
        let mut failures = Vec::new();
        for state in &mut self.families {
            state.layout = Layout::new(state.family, &options);
            if state.chains.is_none() {
                continue;
            }
            if let Err(error) = skeleton::repair(&mut self.line, &state.layout) {
                state.chains = None;
                failures.push(format!("{:?}: {error}", state.family));
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(failure(failures.join("; ")))
    }

    fn retire_kube_proxy(&mut self) -> Result<(), CommitFailure> {
        let tables = self.line.socket.tables();
        let tables = tables.map_err(|error| failure(format!("list of tables: {error}")))?;
        for state in &mut self.families {
            let left = peer_watch::table(state.family);
            state.retired = tables.iter().any(|info| info.table == left).then_some(left);
        }
        Ok(())
    }

    fn commit(&mut self, change: &ElementChange) -> Result<(), CommitFailure> {
        let (mut outcome, now) = (Outcome::default(), (self.now)());
        for state in &mut self.families {
            let part = Part::of(change, state.family);
            state.gain(of_family(&change.gained, state.family));
            let retain = of_family(&change.retain, state.family);
            if !part.is_empty() || !retain.is_empty() || state.retired.is_some() {
                state.commit(&mut self.line, (part, retain), now, &mut outcome);
            }
        }
        outcome.result()
    }

    fn idle(&mut self) -> Result<bool, (Family, CommitFailure)> {
        let now = (self.now)();
        let mut waiting = false;
        for state in &mut self.families {
            let tidied = state.tidy(&mut self.line, CLASS_REST, now);
            waiting |= tidied.map_err(|error| {
                let message = format!("delete of chains out of use: {error}");
                (state.family, failure(message))
            })?;
        }
        Ok(waiting)
    }
}

impl Kernel {
    fn read_families(&mut self) -> Result<Option<Elements>, CommitFailure> {
        let mut elements = Elements::new();
        let mut failures = Vec::new();
        let now = (self.now)();
        for state in &mut self.families {
            state.chains = None;
            state.recheck.clear();
            let how = (self.settled, now);
            match skeleton::take_over(&mut self.line, &state.layout, how) {
                Ok(Takeover::Standby) => return Ok(None),
                Ok(Takeover::Ours(mut held)) => {
                    state.chains = Some(Chains::of(&held, now));
                    elements.append(&mut held.elements);
                }
                Err(error) => failures.push(format!("{:?}: {error}", state.family)),
            }
        }
        // One family failing does not stop the other (S-10): its elements are refused at commit.
        if failures.len() == self.families.len() {
            return Err(failure(failures.join("; ")));
        }
        for message in failures {
            tracing::error!(message, "a family cannot be programmed");
        }
        Ok(Some(elements))
    }
}

fn of_family(maps: &BTreeMap<(Family, Sticky), BTreeSet<Endpoint>>, wanted: Family) -> Retain {
    let of_family = maps.iter().filter(|((family, _), _)| *family == wanted);
    of_family
        .map(|((_, map), endpoints)| (*map, endpoints.clone()))
        .collect()
}

fn failure(message: String) -> CommitFailure {
    CommitFailure {
        refused: BTreeSet::new(),
        message,
        standby: false,
    }
}

/// Why our tables could not be deleted.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// The tables cannot be listed.
    #[error("cannot list the nftables tables: {0}")]
    List(#[from] DumpError),
    /// The kernel refused.
    #[error("cannot delete the nftables tables (an agent that still runs owns them): {0}")]
    Delete(#[from] CommitError),
    /// No socket.
    #[error("cannot open a netlink socket: {0}")]
    Socket(#[from] io::Error),
}

/// Deletes our two tables and nothing else (S-122).
pub fn cleanup() -> Result<(), CleanupError> {
    let mut socket = Socket::open()?;
    let held = socket.tables()?;
    let mut batch = Batch::new();
    for table in Family::ALL.map(table) {
        if held.iter().any(|info| info.table == table) {
            batch.del_table(&table);
        }
    }
    socket.commit(&batch)?;
    Ok(())
}
