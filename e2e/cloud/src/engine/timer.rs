//! The engine's agenda: what happens when, in order of time and then of entry.
//!
//! Entries are never taken back; each is checked against the object when it is due and does nothing
//! if the object has changed its plans.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use onehop_core::time::Time;

use super::log::Seq;
use super::model::{GroupId, LbId, ListenerKey, NodeId};

/// Something that falls due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// A load balancer starts to serve.
    Provisioned(LbId),
    /// A registration takes effect.
    Registered(GroupId, SocketAddr),
    /// A drain time is over.
    Drained(GroupId, SocketAddr),
    /// A probe starts.
    Probe(GroupId, SocketAddr, NodeId),
    /// An LB node stops choosing a target.
    TailEnd(GroupId, SocketAddr, NodeId),
    /// An LB node starts using the listener's new group.
    Switched(LbId, ListenerKey, NodeId),
}

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BTreeMap<(Time, u64), (Timer, Option<Seq>)>,
    next: u64,
}

impl Agenda {
    /// Enters a timer with the event that led to it.
    pub(super) fn enter(&mut self, due: Time, timer: Timer, cause: Option<Seq>) {
        self.entries.insert((due, self.next), (timer, cause));
        self.next += 1;
    }

    /// Takes the first entry that is due at `now`.
    pub(super) fn take_due(&mut self, now: Time) -> Option<(Time, Timer, Option<Seq>)> {
        let first = self.entries.first_entry()?;
        let due = first.key().0;
        if due > now {
            return None;
        }
        let (timer, cause) = first.remove();
        Some((due, timer, cause))
    }

    /// When the next entry is due.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.entries.keys().next().map(|(due, _)| *due)
    }
}
