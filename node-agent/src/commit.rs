//! The [`Dataplane`] that is the kernel: makes and takes over our two tables, reads them back, commits changes.
//! Owned by the writer thread. Blocking; never touches anything but the tables `ip onehop` and `ip6 onehop` (S-201).

mod classes;
mod parts;
mod skeleton;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use onehop_core::time::Time;
use onehop_nft::{Batch, CommitError, DumpError, Socket, kernel_version};

use crate::table::element::{
    CommitFailure, Dataplane, ElementChange, ElementKey, Elements, Family,
};
use crate::table::layout::{Layout, Options, table};
use classes::Classes;
use parts::{Part, Planned};
use skeleton::Takeover;

/// Default size limit of one batch (S-133).
const BATCH_LIMIT: usize = 16 << 20;
/// A class chain is deleted at the earliest this long after its last use (S-247).
const CLASS_REST: Duration = Duration::from_secs(1);
/// Name of the node lock where tables cannot be owned; abstract, so it belongs to the network namespace.
const LOCK_NAME: &[u8] = b"onehop-node-agent-tables";

/// Tells the time; the caller's clock.
pub type Now = Box<dyn Fn() -> Time + Send>;

/// What the running kernel can do. Detected at start; tests force the branches of older kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Tables can be owned by our socket and outlive it (kernel 6.9, S-267).
    pub owned_tables: bool,
}

impl Features {
    /// By the version of the running kernel.
    pub fn detect() -> Self {
        Self {
            owned_tables: kernel_version() >= (6, 9),
        }
    }
}

/// The kernel of the network namespace in which it was opened.
pub struct Kernel {
    socket: Socket,
    features: Features,
    limit: usize,
    now: Now,
    lock: Option<UnixDatagram>,
    families: Vec<FamilyState>,
}

/// One family's table.
struct FamilyState {
    family: Family,
    layout: Layout,
    /// `None` until the table was read back, and after a failure that leaves its content in doubt (S-130).
    classes: Option<Classes>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("features", &self.features)
            .field("limit", &self.limit)
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
            classes: None,
        });
        Ok(Self {
            socket,
            features,
            limit,
            now,
            lock: None,
            families: families.into(),
        })
    }

    /// Limits the size of one batch, to exercise the loading in pieces.
    #[must_use]
    pub fn with_batch_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Port of the socket; notifications of own commits carry it (S-260).
    pub fn port_id(&self) -> u32 {
        self.socket.port_id()
    }

    /// The node lock of kernels that cannot own tables; false when another agent has it.
    fn take_lock(&mut self) -> Result<bool, CommitFailure> {
        if self.features.owned_tables || self.lock.is_some() {
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
        let mut elements = Elements::new();
        let mut failures = Vec::new();
        for state in &mut self.families {
            state.classes = None;
            match skeleton::take_over(&mut self.socket, state.family, &state.layout, self.features)
            {
                Ok(Takeover::Standby) => return Ok(None),
                Ok(Takeover::Ours(held)) => {
                    state.classes = Some(Classes::of(&held, (self.now)()));
                    elements.extend(held.elements);
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

    fn commit(&mut self, change: &ElementChange) -> Result<(), CommitFailure> {
        let mut outcome = Outcome::default();
        for index in 0..self.families.len() {
            let part = Part::of(change, self.families[index].family);
            if !part.is_empty() {
                self.commit_family(index, part, &mut outcome);
            }
        }
        outcome.result()
    }

    fn idle(&mut self) -> Result<bool, CommitFailure> {
        let now = (self.now)();
        let mut waiting = false;
        for state in &mut self.families {
            let Some(classes) = &mut state.classes else {
                continue;
            };
            for class in classes.rested(now, CLASS_REST) {
                let mut batch = Batch::new();
                batch.del_chain(&state.layout.table, &class.name());
                match self.socket.commit(&batch) {
                    Ok(()) => classes.deleted(class),
                    // Kernels before 6.2 hold the reference of a removed element for a moment: later (S-247).
                    Err(error) if error.errno() == Some(libc::EBUSY) => {
                        classes.rest_again(class, now)
                    }
                    Err(error) => {
                        state.classes = None;
                        return Err(failure(format!(
                            "delete of chain {}: {error}",
                            class.name()
                        )));
                    }
                }
            }
            waiting |= state.classes.as_ref().is_some_and(Classes::any_resting);
        }
        Ok(waiting)
    }
}

/// What came of the families and pieces of one change.
#[derive(Default)]
struct Outcome {
    refused: BTreeSet<ElementKey>,
    messages: Vec<String>,
    /// The content of a table is in doubt.
    lost: bool,
    standby: bool,
}

impl Outcome {
    fn refuse(&mut self, part: &Part, message: String) {
        self.refused.extend(part.keys());
        self.messages.push(message);
    }

    fn lose(&mut self, message: String) {
        self.lost = true;
        self.messages.push(message);
    }

    fn result(self) -> Result<(), CommitFailure> {
        if self.messages.is_empty() {
            return Ok(());
        }
        // In doubt about anything, the caller reads back all of it: that is what an empty list says.
        let refused = if self.lost {
            BTreeSet::new()
        } else {
            self.refused
        };
        Err(CommitFailure {
            refused,
            message: self.messages.join("; "),
            standby: self.standby,
        })
    }
}

impl Kernel {
    /// Commits a part: whole, or in pieces when it is too large, or without what the kernel refuses (S-258).
    fn commit_family(&mut self, index: usize, part: Part, outcome: &mut Outcome) {
        // A stack instead of recursion: pieces keep their order, so that slots of a frontend go with its verdict.
        let mut pieces = vec![part];
        while let Some(part) = pieces.pop() {
            let state = &mut self.families[index];
            let Some(classes) = &mut state.classes else {
                outcome.refuse(&part, format!("{:?}: the table is not there", state.family));
                continue;
            };
            let planned = Planned::new(state.family, &part, classes);
            let result = match planned.too_large(self.limit) && part.can_split() {
                true => Err(CommitError::TooLarge {
                    bytes: planned.batch.len(),
                }),
                false => self.socket.commit(&planned.batch),
            };
            match result {
                Ok(()) => {
                    classes.committed(&part, &planned.new_classes, (self.now)());
                    if !planned.unencodable.is_empty() {
                        let message = format!(
                            "{} elements are not of their set or family",
                            planned.unencodable.len()
                        );
                        outcome.refused.extend(planned.unencodable);
                        outcome.messages.push(message);
                    }
                }
                Err(error) => {
                    pieces.extend(self.after_error(index, part, &planned, &error, outcome))
                }
            }
        }
    }

    /// What is still to be tried after an error, the next piece last.
    fn after_error(
        &mut self,
        index: usize,
        mut part: Part,
        planned: &Planned,
        error: &CommitError,
        outcome: &mut Outcome,
    ) -> Vec<Part> {
        match error {
            _ if error.errno() == Some(libc::EPERM) => {
                self.families[index].classes = None;
                outcome.standby = true;
                outcome.lose(format!("the tables belong to another agent: {error}"));
                Vec::new()
            }
            CommitError::Refused(failed) => {
                let bad = planned.meaning(failed);
                part.forget_removed(&bad.already_gone);
                let refused = part.take_owners_of(&bad.keys);
                if !refused.is_empty() {
                    outcome.refuse(&refused, error.to_string());
                }
                match refused.is_empty() && bad.already_gone.is_empty() {
                    true => halves(part, error, outcome),
                    false if part.is_empty() => Vec::new(),
                    false => vec![part],
                }
            }
            CommitError::TooLarge { .. } | CommitError::Batch { .. } | CommitError::Encoding => {
                halves(part, error, outcome)
            }
            CommitError::Generation | CommitError::Unknown(_) | CommitError::Socket(_) => {
                self.families[index].classes = None;
                outcome.lose(error.to_string());
                Vec::new()
            }
        }
    }
}

/// An error that names no element: each half alone (S-258); one owner alone is refused.
fn halves(part: Part, error: &CommitError, outcome: &mut Outcome) -> Vec<Part> {
    if part.can_split() {
        let (first, second) = part.split();
        return vec![second, first];
    }
    outcome.refuse(&part, error.to_string());
    Vec::new()
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
