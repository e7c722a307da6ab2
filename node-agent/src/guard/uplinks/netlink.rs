//! The route netlink socket: dumps of links, addresses, routes and rules, and changes of routes, rules and
//! settings of interfaces. No decision.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use ipnet::IpNet;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

use super::messages::{Change, Link, MarkRule, Route, Seen};
use crate::table::element::Family;

const NEWLINK: u16 = 16;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const GETADDR: u16 = 22;
const NEWROUTE: u16 = 24;
const DELROUTE: u16 = 25;
const GETROUTE: u16 = 26;
const NEWRULE: u16 = 32;
const DELRULE: u16 = 33;
const GETRULE: u16 = 34;
const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const CREATE_REPLACE: u16 = 0x500;
const CREATE_EXCLUSIVE: u16 = 0x600;

/// Attributes of a link around its IPv4 settings.
const BY_FAMILY: u16 = 26;
const INET: u16 = 2;
const INET_CONF: u16 = 1;

const HEADER: usize = 16;
const UNICAST: u8 = 1;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const PROTOCOL_STATIC: u8 = 4;
const TO_TABLE: u8 = 1;
const LOOPBACK: u32 = 1 << 3;
const CLONED: u32 = 0x200;

/// The socket. Blocking; the kernel answers at once.
#[derive(Debug)]
pub(super) struct Rtnetlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Rtnetlink {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; 256 << 10],
        })
    }

    /// The whole of the node's network that matters here.
    pub(super) fn look(&mut self) -> io::Result<Seen> {
        let mut seen = Seen::default();
        // A packet-family dump tells links; the body is an ifinfomsg of zeros.
        self.dump(GETLINK, &[0; 16], |kind, body| {
            seen.links
                .extend((kind == NEWLINK).then(|| link(body)).flatten());
        })?;
        for family in Family::ALL {
            let mut addresses = Vec::new();
            self.dump(GETADDR, &header(family, 8), |kind, body| {
                addresses.extend((kind == NEWADDR).then(|| address(family, body)).flatten());
            })?;
            for (index, address) in addresses {
                let links = seen.links.iter_mut().filter(|l| l.index == index);
                links.for_each(|l| l.addresses.push(address));
            }
            self.dump(GETROUTE, &header(family, 12), |kind, body| {
                seen.routes
                    .extend((kind == NEWROUTE).then(|| route(family, body)).flatten());
            })?;
            self.dump(GETRULE, &header(family, 12), |kind, body| {
                seen.rules
                    .extend((kind == NEWRULE).then(|| mark_rule(family, body)).flatten());
            })?;
        }
        Ok(seen)
    }

    /// Carries out one change; what is there already, or gone already, is no error.
    pub(super) fn apply(&mut self, change: &Change) -> io::Result<()> {
        let (kind, flags, body) = match change {
            Change::AddRoute(route) => (NEWROUTE, CREATE_REPLACE, route_body(route)),
            Change::DeleteRoute(route) => (DELROUTE, 0, route_body(route)),
            Change::AddRule(rule) => (NEWRULE, CREATE_EXCLUSIVE, rule_body(rule)),
            Change::DeleteRule(rule) => (DELRULE, 0, rule_body(rule)),
        };
        let result = self.talk(kind, flags | ACK, &body, |_, _| ());
        let settled = match change {
            Change::AddRoute(_) | Change::AddRule(_) => libc::EEXIST,
            Change::DeleteRoute(_) => libc::ESRCH,
            Change::DeleteRule(_) => libc::ENOENT,
        };
        match result {
            Err(error) if error.raw_os_error() == Some(settled) => Ok(()),
            other => other,
        }
    }

    /// Sets what `/proc/sys/net/ipv4/conf` has of an interface, by the setting's number in the kernel. Files there are
    /// read-only in a container that is not privileged; this needs `NET_ADMIN` alone (S-314).
    pub(super) fn set_ipv4(&mut self, index: u32, setting: u16, value: u32) -> io::Result<()> {
        let body = setting_body(index, setting, value);
        self.talk(SETLINK, ACK, &body, |_, _| ())
    }

    fn dump(&mut self, kind: u16, body: &[u8], each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.talk(kind, DUMP, body, each)
    }

    /// Sends one request and hands every answer to `each`, until the last.
    fn talk(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            while let Some((kind, sequence, body, after)) = next_message(rest) {
                rest = after;
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    DONE => return Ok(()),
                    ERROR => return error_of(body),
                    kind => each(kind, body),
                }
            }
        }
    }
}

fn error_of(body: &[u8]) -> io::Result<()> {
    match number(body, 0).map(u32::cast_signed) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::other("an answer without a code")),
    }
}

/// Kind, sequence number and body of the first message, and what follows it.
fn next_message(bytes: &[u8]) -> Option<(u16, u32, &[u8], &[u8])> {
    let length = usize::try_from(number(bytes, 0)?).ok()?;
    let body = bytes.get(HEADER..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((half(bytes, 4)?, number(bytes, 8)?, body, after))
}

fn header(family: Family, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes[0] = family_number(family);
    bytes
}

fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The attributes that begin at an offset.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn of(body: &'a [u8], offset: usize) -> Self {
        Self(body.get(offset..).unwrap_or_default())
    }

    fn get(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.0;
        loop {
            let length = usize::from(half(rest, 0)?);
            let kind = half(rest, 2)? & 0x3fff;
            let payload = rest.get(4..length)?;
            if kind == wanted {
                return Some(payload);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }

    fn number(&self, wanted: u16) -> Option<u32> {
        number(self.get(wanted)?, 0)
    }

    fn address(&self, wanted: u16) -> Option<IpAddr> {
        let bytes = self.get(wanted)?;
        let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
        v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
    }

    fn text(&self, wanted: u16) -> Option<String> {
        let bytes = self.get(wanted)?;
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

fn link(body: &[u8]) -> Option<Link> {
    let attributes = Attributes::of(body, 16);
    let info = attributes.get(18).map(Attributes);
    Some(Link {
        index: number(body, 4)?,
        name: attributes.text(3)?,
        kind: info.and_then(|info| info.text(1)),
        loopback: number(body, 8)? & LOOPBACK != 0,
        addresses: Vec::new(),
    })
}

fn address(family: Family, body: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = Attributes::of(body, 8);
    // The local one; on a link to one peer the other is the peer's.
    let address = attributes.address(2).or_else(|| attributes.address(1))?;
    (Family::of(address) == family).then_some((number(body, 4)?, address))
}

fn route(family: Family, body: &[u8]) -> Option<Route> {
    let attributes = Attributes::of(body, 12);
    let (length, kind, flags) = (*body.get(1)?, *body.get(7)?, number(body, 8)?);
    if kind != UNICAST || flags & CLONED != 0 {
        return None;
    }
    let to = match attributes.address(1) {
        Some(address) => Some(IpNet::new(address, length).ok()?),
        None => None,
    };
    Some(Route {
        family,
        table: attributes.number(15).unwrap_or(u32::from(*body.get(4)?)),
        to,
        via: attributes.address(5),
        // A route of several ways is none that one interface could copy.
        out: attributes.number(4)?,
        source: attributes.address(7),
    })
}

fn mark_rule(family: Family, body: &[u8]) -> Option<MarkRule> {
    let attributes = Attributes::of(body, 12);
    Some(MarkRule {
        family,
        priority: attributes.number(6).unwrap_or(0),
        mark: attributes.number(10)?,
        mask: attributes.number(16).unwrap_or(u32::MAX),
        table: attributes.number(15).unwrap_or(u32::from(*body.get(4)?)),
    })
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    // Addresses and numbers only.
    let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn route_body(route: &Route) -> Vec<u8> {
    let scope = if route.via.is_some() {
        SCOPE_UNIVERSE
    } else {
        SCOPE_LINK
    };
    let mut bytes = header(route.family, 12);
    bytes[1] = route.to.map_or(0, |to| to.prefix_len());
    (bytes[5], bytes[6], bytes[7]) = (PROTOCOL_STATIC, scope, UNICAST);
    if let Some(to) = route.to {
        attribute(&mut bytes, 1, &octets(to.network()));
    }
    attribute(&mut bytes, 4, &route.out.to_ne_bytes());
    if let Some(via) = route.via {
        attribute(&mut bytes, 5, &octets(via));
    }
    if let Some(source) = route.source {
        attribute(&mut bytes, 7, &octets(source));
    }
    attribute(&mut bytes, 15, &route.table.to_ne_bytes());
    bytes
}

fn setting_body(index: u32, setting: u16, value: u32) -> Vec<u8> {
    let around = |kind: u16, payload: &[u8]| {
        let mut bytes = Vec::new();
        attribute(&mut bytes, kind, payload);
        bytes
    };
    let settings = around(INET_CONF, &around(setting, &value.to_ne_bytes()));
    // An ifinfomsg that names the interface and changes no flag.
    let mut bytes = vec![0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    attribute(&mut bytes, BY_FAMILY, &around(INET, &settings));
    bytes
}

fn rule_body(rule: &MarkRule) -> Vec<u8> {
    let mut bytes = header(rule.family, 12);
    bytes[7] = TO_TABLE;
    attribute(&mut bytes, 6, &rule.priority.to_ne_bytes());
    attribute(&mut bytes, 10, &rule.mark.to_ne_bytes());
    attribute(&mut bytes, 16, &rule.mask.to_ne_bytes());
    attribute(&mut bytes, 15, &rule.table.to_ne_bytes());
    bytes
}
