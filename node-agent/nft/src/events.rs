//! Notifications of every change to `nf_tables` in the namespace, by whomever (S-260).
//! Called by who has to notice foreign changes to its own table; the end of each commit tells who it was.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::batch::{SUBSYS_NFTABLES, msg};
use crate::notices::{Ears, Meaning, Notices};
use crate::object::{Family, Table};
use crate::wire::Message;

const GROUP_NFTABLES: u32 = 7;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something in (or of) a table was added or deleted.
    Changed {
        /// The table.
        table: Table,
        /// Netlink port of who did it.
        port_id: u32,
    },
    /// A commit ended; all of its changes were told before.
    Committed {
        /// New generation id.
        generation: u32,
        /// Netlink port of who committed.
        port_id: u32,
        /// Its process id.
        pid: Option<u32>,
        /// Name of the process.
        process: Option<String>,
    },
    /// Notifications were lost: anything may have changed (S-261).
    Lost,
}

/// Receives notifications.
#[derive(Debug)]
pub struct Events(Notices<Event>);

impl Events {
    /// Opens a socket; everything committed from now on will be told.
    pub fn open() -> io::Result<Self> {
        let meaning = Meaning {
            parse,
            lost: || Event::Lost,
        };
        Notices::open(&[GROUP_NFTABLES], meaning).map(Self)
    }

    /// What makes it deaf for a while; what it misses then is told as [`Event::Lost`].
    pub fn ears(&self) -> Ears {
        self.0.ears()
    }

    /// The next notification, if there is one already. Readiness of the descriptor tells when to ask again.
    pub fn poll(&mut self) -> io::Result<Option<Event>> {
        self.0.poll()
    }

    /// The next notification; `None` when none came in time.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<Event>> {
        self.0.wait(timeout)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn parse(message: &Message<'_>) -> Option<Event> {
    if message.kind >> 8 != SUBSYS_NFTABLES {
        return None;
    }
    let (attributes, port_id) = (message.attributes(), message.port_id);
    if message.kind & 0xff == msg::NEWGEN {
        return Some(Event::Committed {
            generation: attributes.u32(1)?,
            port_id,
            pid: attributes.u32(2),
            process: attributes.string(3),
        });
    }
    // The table's name is the first attribute of every other kind.
    let table = Table {
        family: Family::from_number(message.family())?,
        name: attributes.string(1)?,
    };
    Some(Event::Changed { table, port_id })
}
