//! A socket joined to multicast groups of the kernel, and what was read from it before anybody asked.
//! Called by the notifications of `nf_tables` and of connection tracking, which say what a message means.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::sys::{Bell, Direction, NetlinkSocket};
use crate::wire::Message;

/// Asked for as receive buffer: what comes while the reader is busy must fit.
const BUFFER: i32 = 32 << 20;

/// Notifications of type `T`.
#[derive(Debug)]
pub(crate) struct Notices<T> {
    ears: Ears,
    receive: Vec<u8>,
    queue: VecDeque<T>,
    meaning: Meaning<T>,
}

/// Stops listening for a while, from any thread. As long as anybody listens the kernel makes a notification of several
/// kilobytes of every element of a transaction, and keeps all of them until its end: a large one takes ten times as long
/// and gigabytes of memory.
#[derive(Debug, Clone)]
pub struct Ears(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    socket: NetlinkSocket,
    groups: Vec<u32>,
    missed: Bell,
}

impl Ears {
    /// Nothing is heard from now on.
    pub fn close(&self) -> io::Result<()> {
        let inner = &*self.0;
        inner.groups.iter().try_for_each(|g| inner.socket.leave(*g))
    }

    /// Listens again.
    pub fn open(&self) -> io::Result<()> {
        let inner = &*self.0;
        inner.groups.iter().try_for_each(|g| inner.socket.join(*g))
    }

    /// What the holder of this netlink port does is not heard any more: who would not act on it need not wake up for it.
    pub fn ignore(&self, port: u32) -> io::Result<()> {
        self.0.socket.ignore(port)
    }

    /// Tells the listener that something happened while it did not listen.
    pub fn missed(&self) -> io::Result<()> {
        self.0.missed.ring()
    }
}

/// What messages mean, and what is told in place of those that did not fit.
#[derive(Debug)]
pub(crate) struct Meaning<T> {
    pub(crate) parse: fn(&Message<'_>) -> Option<T>,
    pub(crate) lost: fn() -> T,
}

impl<T> Notices<T> {
    /// Opens a socket that hears everything told to `groups` from now on.
    pub(crate) fn open(groups: &[u32], meaning: Meaning<T>) -> io::Result<Self> {
        let socket = NetlinkSocket::open()?;
        socket.raise_buffer(Direction::Receive, BUFFER)?;
        let inner = Inner {
            socket,
            groups: groups.to_vec(),
            missed: Bell::new()?,
        };
        let ears = Ears(Arc::new(inner));
        ears.open()?;
        Ok(Self {
            ears,
            receive: vec![0; 256 << 10],
            queue: VecDeque::new(),
            meaning,
        })
    }

    /// What makes it deaf for a while.
    pub(crate) fn ears(&self) -> Ears {
        self.ears.clone()
    }

    /// The next notification, if there is one already.
    pub(crate) fn poll(&mut self) -> io::Result<Option<T>> {
        let Inner { socket, missed, .. } = &*self.ears.0;
        if missed.rang() {
            return Ok(Some((self.meaning.lost)()));
        }
        loop {
            if let Some(notice) = self.queue.pop_front() {
                return Ok(Some(notice));
            }
            match socket.receive(&mut self.receive) {
                Ok(None) => return Ok(None),
                Ok(Some(length)) => {
                    let messages = Message::all(&self.receive[..length]);
                    self.queue
                        .extend(messages.filter_map(|message| (self.meaning.parse)(&message)));
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Some((self.meaning.lost)()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The next notification; `None` when none came in time.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Option<T>> {
        match self.poll()? {
            Some(notice) => Ok(Some(notice)),
            None if self.wait_for_any(timeout)? => self.poll(),
            None => Ok(None),
        }
    }
}

impl<T> Notices<T> {
    fn wait_for_any(&self, timeout: Duration) -> io::Result<bool> {
        let inner = &*self.ears.0;
        inner.socket.wait(&inner.missed, timeout)
    }
}

impl<T> AsFd for Notices<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ears.0.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::batch::msg;
    use crate::{Batch, FlowChange, FlowChanges, Socket, Table, Told};
    use nix::sched::{CloneFlags, unshare};

    #[test]
    fn what_did_not_fit_is_told_as_lost_and_the_next_is_heard_again() {
        std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let meaning = Meaning {
                parse: |message| match message.kind & 0xff {
                    msg::NEWTABLE => message.attributes().string(1),
                    _ => None,
                },
                lost: || "lost".to_owned(),
            };
            let mut names = Notices::open(&[7], meaning).unwrap();
            // The least that the kernel grants.
            names
                .ears
                .0
                .socket
                .raise_buffer(Direction::Receive, 1)
                .unwrap();
            let mut socket = Socket::open().unwrap();
            let mut make = |name: String| {
                let mut batch = Batch::new();
                batch.add_table(&Table::ip(&name), 0, None);
                socket.commit(&batch).unwrap();
            };
            (0..200).for_each(|n| make(format!("t{n}")));
            assert_eq!(names.poll().unwrap().as_deref(), Some("lost"));
            while names.poll().unwrap().is_some() {}
            make("after".to_owned());
            assert_eq!(names.poll().unwrap().as_deref(), Some("after"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_quiet_group_gives_nothing_in_time() {
        let quiet = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut changes = FlowChanges::open(Told::All).unwrap();
            changes.wait(Duration::from_millis(10)).unwrap()
        });
        assert_eq!(quiet.join().unwrap(), None::<FlowChange>);
    }
}
