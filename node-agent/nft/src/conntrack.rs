//! Connection tracking over netlink: dump with a filter in the kernel, delete (S-265), notifications.
//! Called outside of any commit path. A filtered flush is not offered: kernels before 6.12 would not filter it (S-266).

mod changes;
mod filter;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::DumpError;
use crate::socket::{KernelError, exchange};
use crate::sys::{Direction, NetlinkSocket};
use crate::wire::{Attributes, Message, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ERROR, Writer};

pub use changes::{FlowChange, FlowChanges, Told};
pub use filter::Filter;
use filter::WantedTuple;

const SUBSYS_CTNETLINK: u16 = 1;
const CT_GET: u16 = 1;
const CT_DELETE: u16 = 2;
const BUFFER: i32 = 8 << 20;
/// Deletions sent in one datagram.
const DELETE_CHUNK: usize = 256;

/// Connection attributes.
mod cta {
    pub(super) const TUPLE_ORIG: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const PROTOINFO: u16 = 4;
    pub(super) const TIMEOUT: u16 = 7;
    pub(super) const MARK: u16 = 8;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const MARK_MASK: u16 = 21;
    pub(super) const FILTER: u16 = 25;
}

/// Status: a reply was seen.
pub const STATUS_SEEN_REPLY: u32 = 1 << 1;
/// Status: will not be dropped early.
pub const STATUS_ASSURED: u32 = 1 << 2;
/// Status: source translated.
pub const STATUS_SNAT: u32 = 1 << 4;
/// Status: destination translated.
pub const STATUS_DNAT: u32 = 1 << 5;

/// TCP state: SYN sent, nothing came back.
pub const TCP_SYN_SENT: u8 = 1;
/// TCP state: established.
pub const TCP_ESTABLISHED: u8 = 3;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// Source port; 0 for protocols without.
    pub src_port: u16,
    /// Destination port; 0 for protocols without.
    pub dst_port: u16,
}

/// A tracked connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// As the first packet was before translation.
    pub original: Tuple,
    /// As replies are before they are translated back.
    pub reply: Tuple,
    /// Status bits.
    pub status: u32,
    /// Connection mark.
    pub mark: u32,
    /// Zone.
    pub zone: u16,
    /// Seconds it has left.
    pub timeout: u32,
    /// TCP state.
    pub tcp_state: Option<u8>,
    /// The original tuple and id as the kernel wrote them, to delete exactly this entry.
    raw: (Vec<u8>, Option<u32>),
}

/// Connection tracking of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Conntrack {
    dumps: NetlinkSocket,
    /// Deletions go by a socket of their own, so that they can be sent while a dump runs.
    deletes: NetlinkSocket,
    sequence: u32,
    receive: Vec<u8>,
}

impl Conntrack {
    /// Opens the sockets.
    pub fn open() -> io::Result<Self> {
        let (dumps, deletes) = (NetlinkSocket::open()?, NetlinkSocket::open()?);
        dumps.raise_buffer(Direction::Receive, BUFFER)?;
        deletes.raise_buffer(Direction::Receive, BUFFER)?;
        Ok(Self {
            dumps,
            deletes,
            sequence: 1,
            receive: vec![0; 256 << 10],
        })
    }

    /// Hands every connection that the filter admits to `each`, as they come: nothing is collected.
    pub fn dump(&mut self, filter: &Filter, mut each: impl FnMut(Flow)) -> Result<(), DumpError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = self.request(CT_GET, NLM_F_DUMP, filter.v6, |w| filter.encode(w));
        let mut forward = |message: &Message<'_>| {
            if let Some(flow) = parse(message).filter(|flow| filter.admits(flow)) {
                each(flow);
            }
        };
        // A dump of a changing table is never of one piece; entries that live through it are all told.
        exchange(
            &self.dumps,
            &mut self.receive,
            &request,
            (self.sequence, true),
            &mut forward,
        )
        .map(|_| ())
    }

    /// The connections that the filter admits.
    pub fn list(&mut self, filter: &Filter) -> Result<Vec<Flow>, DumpError> {
        let mut flows = Vec::new();
        self.dump(filter, |flow| flows.push(flow))?;
        Ok(flows)
    }

    /// Deletes connections; the number of those that were still there.
    pub fn delete(&mut self, flows: &[Flow]) -> Result<usize, DumpError> {
        let mut deleted = 0;
        for chunk in flows.chunks(DELETE_CHUNK) {
            let requests: Vec<u8> = chunk.iter().flat_map(|flow| self.deletion(flow)).collect();
            deleted += self.send_deletes(&requests)?;
        }
        Ok(deleted)
    }

    /// Deletes the connection with this original tuple; false when there is none.
    pub fn delete_tuple(&mut self, original: &Tuple, zone: u16) -> Result<bool, DumpError> {
        let wanted = WantedTuple {
            src: Some(original.src),
            dst: Some(original.dst),
            protocol: Some(original.protocol),
            src_port: Some(original.src_port),
            dst_port: Some(original.dst_port),
        };
        let request = self.request(CT_DELETE, NLM_F_ACK, original.src.is_ipv6(), |w| {
            wanted.encode(w, cta::TUPLE_ORIG);
            encode_zone(w, zone);
        });
        Ok(self.send_deletes(&request)? > 0)
    }

    /// Deletes what the filter admits and `which` says; the number deleted.
    pub fn delete_where(
        &mut self,
        filter: &Filter,
        mut which: impl FnMut(&Flow) -> bool,
    ) -> Result<usize, DumpError> {
        let mut flows = Vec::new();
        self.dump(filter, |flow| {
            if which(&flow) {
                flows.push(flow);
            }
        })?;
        self.delete(&flows)
    }

    fn deletion(&self, flow: &Flow) -> Vec<u8> {
        self.request(CT_DELETE, NLM_F_ACK, flow.original.src.is_ipv6(), |w| {
            let (tuple, id) = &flow.raw;
            let nested = w.begin_nested(cta::TUPLE_ORIG);
            w.raw(tuple);
            w.end_nested(nested);
            encode_zone(w, flow.zone);
            if let Some(id) = id {
                w.u32(cta::ID, *id);
            }
        })
    }

    fn send_deletes(&mut self, requests: &[u8]) -> Result<usize, DumpError> {
        while self.deletes.receive(&mut self.receive)?.is_some() {}
        self.deletes.send(requests)?;
        let mut deleted = 0;
        while let Some(length) = self.deletes.receive(&mut self.receive)? {
            for answer in
                Message::all(&self.receive[..length]).filter(|message| message.kind == NLMSG_ERROR)
            {
                match KernelError::parse(&answer).map_or(libc::EPROTO, |error| error.errno) {
                    0 => deleted += 1,
                    libc::ENOENT => {}
                    errno => return Err(DumpError::Kernel(errno)),
                }
            }
        }
        Ok(deleted)
    }

    fn request(
        &self,
        kind: u16,
        flags: u16,
        v6: bool,
        encode: impl FnOnce(&mut Writer),
    ) -> Vec<u8> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let mut writer = Writer::default();
        let family = u8::try_from(family).unwrap_or(0);
        let start = writer.begin_message(
            SUBSYS_CTNETLINK << 8 | kind,
            NLM_F_REQUEST | flags,
            family,
            0,
        );
        encode(&mut writer);
        writer.end_message(start);
        writer.set_sequence(start, self.sequence);
        writer.bytes().to_vec()
    }
}

fn encode_zone(w: &mut Writer, zone: u16) {
    if zone != 0 {
        w.u16(cta::ZONE, zone);
    }
}

fn parse(message: &Message<'_>) -> Option<Flow> {
    let attributes = message.attributes();
    let original = attributes.find(cta::TUPLE_ORIG)?;
    Some(Flow {
        original: tuple(Attributes(original))?,
        reply: tuple(attributes.nested(cta::TUPLE_REPLY))?,
        status: attributes.u32(cta::STATUS).unwrap_or(0),
        mark: attributes.u32(cta::MARK).unwrap_or(0),
        zone: attributes.u16(cta::ZONE).unwrap_or(0),
        timeout: attributes.u32(cta::TIMEOUT).unwrap_or(0),
        tcp_state: attributes.nested(cta::PROTOINFO).nested(1).u8(1),
        raw: (original.to_vec(), attributes.u32(cta::ID)),
    })
}

fn tuple(attributes: Attributes<'_>) -> Option<Tuple> {
    let (ip, protocol) = (attributes.nested(1), attributes.nested(2));
    let addr = |which: u16| {
        let v4 = ip
            .find(1 + which)
            .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
            .map(Ipv4Addr::from);
        let v6 = ip
            .find(3 + which)
            .and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())
            .map(Ipv6Addr::from);
        v4.map(IpAddr::V4).or(v6.map(IpAddr::V6))
    };
    Some(Tuple {
        src: addr(0)?,
        dst: addr(1)?,
        protocol: protocol.u8(1)?,
        src_port: protocol.u16(2).unwrap_or(0),
        dst_port: protocol.u16(3).unwrap_or(0),
    })
}
