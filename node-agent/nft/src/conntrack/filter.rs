//! Which connections a dump shall tell, in the form the kernel filters by.

use std::net::IpAddr;

use super::{Flow, cta};
use crate::expr::CtDirection;
use crate::wire::Writer;

/// Which fields of a tuple a kernel filter compares.
mod flag {
    pub(super) const IP_SRC: u32 = 1;
    pub(super) const IP_DST: u32 = 1 << 1;
    pub(super) const PROTO_NUM: u32 = 1 << 3;
    pub(super) const SRC_PORT: u32 = 1 << 4;
    pub(super) const DST_PORT: u32 = 1 << 5;
}

/// Which connections; a field that is `None` admits all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Transport protocol.
    pub protocol: Option<u8>,
    /// Source of the original direction.
    pub original_src: Option<IpAddr>,
    /// Destination of the original direction.
    pub original_dst: Option<IpAddr>,
    /// Destination port of the original direction; needs the protocol.
    pub original_dst_port: Option<u16>,
    /// Source of the reply direction.
    pub reply_src: Option<IpAddr>,
    /// Source port of the reply direction; needs the protocol.
    pub reply_src_port: Option<u16>,
    /// Mark as value and mask.
    pub mark: Option<(u32, u32)>,
    /// Zone.
    pub zone: Option<u16>,
}

impl Filter {
    /// Whether it admits a connection. Checked for every answer, since old kernels ignore the filter.
    pub fn admits(&self, flow: &Flow) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, found: T) -> bool {
            wanted.is_none_or(|wanted| wanted == found)
        }
        let (original, reply) = (&flow.original, &flow.reply);
        original.src.is_ipv6() == self.v6
            && is(self.protocol, original.protocol)
            && is(self.original_src, original.src)
            && is(self.original_dst, original.dst)
            && is(self.original_dst_port, original.dst_port)
            && is(self.reply_src, reply.src)
            && is(self.reply_src_port, reply.src_port)
            && is(self.zone, flow.zone)
            && self
                .mark
                .is_none_or(|(value, mask)| flow.mark & mask == value)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        let original = self.wanted(CtDirection::Original);
        let reply = self.wanted(CtDirection::Reply);
        original.encode(w, cta::TUPLE_ORIG);
        reply.encode(w, cta::TUPLE_REPLY);
        if let Some((value, mask)) = self.mark {
            w.u32(cta::MARK, value);
            w.u32(cta::MARK_MASK, mask);
        }
        if original.flags() | reply.flags() != 0 {
            w.nested(cta::FILTER, |w| {
                w.attribute(1, &original.flags().to_ne_bytes());
                w.attribute(2, &reply.flags().to_ne_bytes());
            });
        }
    }

    fn wanted(&self, direction: CtDirection) -> WantedTuple {
        // The kernel compares the protocol where it is told to; both directions have the same.
        match direction {
            CtDirection::Original => WantedTuple {
                src: self.original_src,
                dst: self.original_dst,
                protocol: self.protocol,
                dst_port: self.protocol.and(self.original_dst_port),
                src_port: None,
            },
            CtDirection::Reply => WantedTuple {
                src: self.reply_src,
                dst: None,
                protocol: self.protocol.filter(|_| self.reply_src_port.is_some()),
                dst_port: None,
                src_port: self.protocol.and(self.reply_src_port),
            },
        }
    }
}

/// The fields of a tuple that a filter compares.
#[derive(Debug)]
pub(super) struct WantedTuple {
    pub(super) src: Option<IpAddr>,
    pub(super) dst: Option<IpAddr>,
    pub(super) protocol: Option<u8>,
    pub(super) src_port: Option<u16>,
    pub(super) dst_port: Option<u16>,
}

impl WantedTuple {
    fn flags(&self) -> u32 {
        let when = |present: bool, flag: u32| if present { flag } else { 0 };
        when(self.src.is_some(), flag::IP_SRC)
            | when(self.dst.is_some(), flag::IP_DST)
            | when(self.protocol.is_some(), flag::PROTO_NUM)
            | when(self.src_port.is_some(), flag::SRC_PORT)
            | when(self.dst_port.is_some(), flag::DST_PORT)
    }

    pub(super) fn encode(&self, w: &mut Writer, kind: u16) {
        if self.flags() == 0 {
            return;
        }
        w.nested(kind, |w| {
            w.nested(1, |w| {
                self.src.iter().for_each(|addr| encode_addr(w, *addr, 0));
                self.dst.iter().for_each(|addr| encode_addr(w, *addr, 1));
            });
            if let Some(protocol) = self.protocol {
                w.nested(2, |w| {
                    w.u8(1, protocol);
                    self.src_port.iter().for_each(|port| w.u16(2, *port));
                    self.dst_port.iter().for_each(|port| w.u16(3, *port));
                });
            }
        });
    }
}

/// Attribute 1 or 2 for IPv4, 3 or 4 for IPv6: source, destination.
fn encode_addr(w: &mut Writer, addr: IpAddr, which: u16) {
    match addr {
        IpAddr::V4(v4) => w.attribute(1 + which, &v4.octets()),
        IpAddr::V6(v6) => w.attribute(3 + which, &v6.octets()),
    }
}
