//! Notifications of connections that begin and end in the namespace, also of those that no dump would find in time:
//! a reset that answers the first packet ends an entry at once.
//! The kernel tells where `net.netfilter.nf_conntrack_events` is 1, or 2 and the socket was there first. A beginning is
//! told when the first packet leaves the hooks, hence before anybody can have answered it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{CT_DELETE, Flow, SUBSYS_CTNETLINK, parse};
use crate::notices::{Meaning, Notices};
use crate::wire::Message;

const CT_NEW: u16 = 0;
const GROUP_NEW: u32 = 1;
const GROUP_DESTROY: u32 = 3;

/// What is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Beginnings.
    Beginnings,
    /// Beginnings and ends.
    All,
}

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowChange {
    /// The first packet of a connection passed; its translations are final.
    Began(Flow),
    /// A connection's entry is gone: closed, timed out, reset or deleted.
    Ended(Flow),
    /// Notifications were lost: the reader was too slow.
    Lost,
}

/// Receives notifications, of all families.
#[derive(Debug)]
pub struct FlowChanges(Notices<FlowChange>);

impl FlowChanges {
    /// Opens a socket; everything from now on will be told.
    pub fn open(told: Told) -> io::Result<Self> {
        let groups: &[u32] = match told {
            Told::Beginnings => &[GROUP_NEW],
            Told::All => &[GROUP_NEW, GROUP_DESTROY],
        };
        let meaning = Meaning {
            parse: change,
            lost: || FlowChange::Lost,
        };
        Notices::open(groups, meaning).map(Self)
    }

    /// The next notification, if there is one already. Readiness of the descriptor tells when to ask again.
    pub fn poll(&mut self) -> io::Result<Option<FlowChange>> {
        self.0.poll()
    }

    /// The next notification; `None` when none came in time.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Option<FlowChange>> {
        self.0.wait(timeout)
    }
}

impl AsFd for FlowChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn change(message: &Message<'_>) -> Option<FlowChange> {
    if message.kind >> 8 != SUBSYS_CTNETLINK {
        return None;
    }
    let flow = parse(message)?;
    match message.kind & 0xff {
        CT_NEW => Some(FlowChange::Began(flow)),
        CT_DELETE => Some(FlowChange::Ended(flow)),
        _ => None,
    }
}
