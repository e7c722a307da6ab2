//! The `nf_tables` socket: commits batches and reads back (S-251 to S-255).
//! Long-lived: tables with [`crate::TABLE_OWNER`] are bound to it (S-267).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::batch::{Batch, SUBSYS_NFTABLES, Sealed, msg};
use crate::dump::{self, ChainInfo, Counter, RuleInfo, SetInfo, TableInfo};
use crate::error::{CommitError, DumpError, FailedOp};
use crate::object::Table;
use crate::set::Element;
use crate::sys::{Buffer, Direction, NetlinkSocket};
use crate::wire::{
    Attributes, Message, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, Writer, u32_ne,
};

/// Size asked for both buffers (S-252).
const BUFFER: i32 = 128 << 20;
/// Larger than any datagram the kernel sends on dumps (it caps them at 32 KiB).
const RECEIVE: usize = 256 << 10;
/// Flag of a dump message: the rule set changed meanwhile.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flags of an error message: the request is cut to its header, attributes follow.
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const DUMP_ATTEMPTS: usize = 20;

/// A socket to `nf_tables` in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    netlink: NetlinkSocket,
    send_buffer: Buffer,
    sequence: u32,
    receive: Vec<u8>,
}

impl Socket {
    /// Opens a socket and raises its buffers; see [`Self::send_buffer`].
    pub fn open() -> io::Result<Self> {
        let netlink = NetlinkSocket::open()?;
        let send_buffer = netlink.raise_buffer(Direction::Send, BUFFER)?;
        netlink.raise_buffer(Direction::Receive, BUFFER)?;
        Ok(Self {
            netlink,
            send_buffer,
            sequence: 1,
            receive: vec![0; RECEIVE],
        })
    }

    /// What was granted as send buffer. When it was not forced, batches must stay below about half of it (S-252).
    pub fn send_buffer(&self) -> Buffer {
        self.send_buffer
    }

    /// Our netlink port; events of own commits carry it (S-260).
    pub fn port_id(&self) -> u32 {
        self.netlink.port_id()
    }

    /// Commits a batch: all of it or nothing.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.commit_at(batch, None)
    }

    /// Commits a batch if nobody committed since this generation; else [`CommitError::Generation`] (S-255).
    pub fn commit_if(&mut self, batch: &Batch, generation: u32) -> Result<(), CommitError> {
        self.commit_at(batch, Some(generation))
    }

    fn commit_at(&mut self, batch: &Batch, generation: Option<u32>) -> Result<(), CommitError> {
        if batch.is_empty() {
            return Ok(());
        }
        let sealed = batch
            .seal(self.sequence, generation)
            .ok_or(CommitError::Encoding)?;
        self.sequence = sealed.last.wrapping_add(2);
        self.drain()?;
        self.netlink
            .send(&sealed.bytes)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EMSGSIZE) => CommitError::TooLarge {
                    bytes: sealed.bytes.len(),
                },
                _ => CommitError::Socket(error),
            })?;
        self.answers(batch, &sealed)
    }

    /// Reads all answers: the kernel has put them into our queue before `send` returned.
    fn answers(&mut self, batch: &Batch, sealed: &Sealed) -> Result<(), CommitError> {
        let mut failed = Vec::new();
        let mut whole = None;
        let mut acknowledged = false;
        while let Some(length) = self
            .netlink
            .receive(&mut self.receive)
            .map_err(CommitError::Unknown)?
        {
            for answer in
                Message::all(&self.receive[..length]).filter(|message| message.kind == NLMSG_ERROR)
            {
                let offset = answer.sequence.wrapping_sub(sealed.first);
                let Some(error) = KernelError::parse(&answer) else {
                    continue;
                };
                if error.errno == 0 {
                    acknowledged |= answer.sequence == sealed.last;
                } else if let Some((op, element)) = offset
                    .checked_sub(1)
                    .and_then(|message| batch.locate(message, error.offset))
                {
                    failed.push(FailedOp {
                        op,
                        element,
                        errno: error.errno,
                        message: error.message,
                    });
                } else {
                    whole = Some(error);
                }
            }
        }
        match whole {
            _ if !failed.is_empty() => Err(CommitError::Refused(failed)),
            Some(error) if error.errno == libc::ERESTART => Err(CommitError::Generation),
            Some(error) => Err(CommitError::Batch {
                errno: error.errno,
                message: error.message,
            }),
            None if acknowledged => Ok(()),
            None => Err(CommitError::Unknown(io::Error::from(
                io::ErrorKind::UnexpectedEof,
            ))),
        }
    }

    /// Throws away what an earlier request left unread.
    fn drain(&mut self) -> io::Result<()> {
        loop {
            match self.netlink.receive(&mut self.receive) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The current generation id.
    pub fn generation(&mut self) -> Result<u32, DumpError> {
        let mut generation = None;
        self.request(
            msg::GETGEN,
            0,
            0,
            |_| {},
            |message| generation = message.attributes().u32(1),
        )?;
        generation.ok_or(DumpError::NotFound)
    }

    /// All tables of all families.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>, DumpError> {
        self.dump(
            msg::GETTABLE,
            0,
            |_| {},
            |message, found| found.extend(dump::table(message)),
        )
    }

    /// The chains of a table.
    pub fn chains(&mut self, table: &Table) -> Result<Vec<ChainInfo>, DumpError> {
        let family = table.family as u8;
        self.dump(
            msg::GETCHAIN,
            family,
            |_| {},
            |message, found| found.extend(dump::chain(message, table)),
        )
    }

    /// The rules of a table, chain by chain in order; of one chain if it is named.
    pub fn rules(
        &mut self,
        table: &Table,
        chain: Option<&str>,
    ) -> Result<Vec<RuleInfo>, DumpError> {
        let ask = |w: &mut Writer| {
            w.string(1, &table.name);
            if let Some(chain) = chain {
                w.string(2, chain);
            }
        };
        self.dump(msg::GETRULE, table.family as u8, ask, |message, found| {
            found.extend(dump::rule(message, table));
        })
    }

    /// The counter of the rule with this comment.
    pub fn rule_counter(
        &mut self,
        table: &Table,
        chain: &str,
        comment: &str,
    ) -> Result<Counter, DumpError> {
        let rules = self.rules(table, Some(chain))?;
        let rule = rules
            .into_iter()
            .find(|rule| rule.comment.as_deref() == Some(comment));
        rule.and_then(|rule| rule.counter)
            .ok_or(DumpError::NotFound)
    }

    /// The sets and maps of a table.
    pub fn sets(&mut self, table: &Table) -> Result<Vec<SetInfo>, DumpError> {
        let ask = |w: &mut Writer| w.string(1, &table.name);
        self.dump(msg::GETSET, table.family as u8, ask, |message, found| {
            found.extend(dump::set(message, table));
        })
    }

    /// The elements of a set or map.
    pub fn elements(&mut self, table: &Table, set: &str) -> Result<Vec<Element>, DumpError> {
        self.elements_as(table, set, |element| element)
    }

    /// The elements of a set or map, each as what `read` makes of it: an element has room for any, and there may be very
    /// many.
    pub fn elements_as<T>(
        &mut self,
        table: &Table,
        set: &str,
        read: impl Fn(Element) -> T,
    ) -> Result<Vec<T>, DumpError> {
        let ask = |w: &mut Writer| {
            w.string(1, &table.name);
            w.string(2, set);
        };
        self.dump(
            msg::GETSETELEM,
            table.family as u8,
            ask,
            |message, found| found.extend(dump::elements(message).into_iter().map(&read)),
        )
    }

    fn dump<T>(
        &mut self,
        kind: u16,
        family: u8,
        ask: impl Fn(&mut Writer),
        parse: impl Fn(&Message<'_>, &mut Vec<T>),
    ) -> Result<Vec<T>, DumpError> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let whole = self.request(kind, family, NLM_F_DUMP, &ask, |message| {
                parse(message, &mut found);
            })?;
            if whole {
                return Ok(found);
            }
        }
        Err(DumpError::Interrupted)
    }

    /// One request and its answers; false when the rule set changed during a dump.
    fn request(
        &mut self,
        kind: u16,
        family: u8,
        flags: u16,
        ask: impl Fn(&mut Writer),
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<bool, DumpError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut writer = Writer::default();
        let start = writer.begin_message(
            SUBSYS_NFTABLES << 8 | kind,
            NLM_F_REQUEST | flags,
            family,
            0,
        );
        ask(&mut writer);
        writer.end_message(start);
        writer.set_sequence(start, self.sequence);
        exchange(
            &self.netlink,
            &mut self.receive,
            writer.bytes(),
            (self.sequence, flags == NLM_F_DUMP),
            &mut each,
        )
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

/// Sends a request and hands each answer to `each`, up to the end of the dump (or the first answer if it is none).
/// False when the kernel says that the dump is not of one piece.
pub(crate) fn exchange(
    socket: &NetlinkSocket,
    buffer: &mut [u8],
    request: &[u8],
    (sequence, dump): (u32, bool),
    each: &mut dyn FnMut(&Message<'_>),
) -> Result<bool, DumpError> {
    while socket.receive(buffer)?.is_some() {}
    socket.send(request)?;
    let mut whole = true;
    // The kernel answers inside `send` and continues a dump inside `receive`: an empty queue is the end.
    while let Some(length) = socket.receive(buffer)? {
        for message in
            Message::all(&buffer[..length]).filter(|message| message.sequence == sequence)
        {
            whole &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.kind {
                NLMSG_DONE => return Ok(whole),
                NLMSG_ERROR => {
                    return match KernelError::parse(&message)
                        .map_or(libc::EPROTO, |error| error.errno)
                    {
                        0 => Ok(whole),
                        libc::ENOENT => Err(DumpError::NotFound),
                        libc::EINTR | libc::EAGAIN => Ok(false),
                        errno => Err(DumpError::Kernel(errno)),
                    };
                }
                _ => each(&message),
            }
        }
    }
    if dump { Ok(false) } else { Ok(whole) }
}

/// Content of an error message.
pub(crate) struct KernelError {
    pub(crate) errno: i32,
    message: Option<String>,
    /// Offset of the bad attribute in the request's message.
    offset: Option<u32>,
}

impl KernelError {
    pub(crate) fn parse(message: &Message<'_>) -> Option<Self> {
        const MSG: u16 = 1;
        const OFFSET: u16 = 2;
        let errno = u32_ne(message.body, 0)?.cast_signed().saturating_neg();
        let mut error = Self {
            errno,
            message: None,
            offset: None,
        };
        if message.flags & NLM_F_ACK_TLVS != 0 {
            let request = match message.flags & NLM_F_CAPPED {
                0 => usize::try_from(u32_ne(message.body, 4)?).ok()?,
                _ => crate::wire::HEADER,
            };
            let attributes = Attributes(
                message
                    .body
                    .get(4 + request.next_multiple_of(4)..)
                    .unwrap_or_default(),
            );
            error.message = attributes.string(MSG);
            error.offset = attributes.find(OFFSET).and_then(|bytes| u32_ne(bytes, 0));
        }
        Some(error)
    }
}
