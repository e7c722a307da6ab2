//! What the router and nodes drop, packet by packet, read through NFLOG (FC-72, FC-73, FC-29c).
//!
//! nftables' `log` to the kernel log is mute in child namespaces; an nflog group is not. The reader is a thread of
//! the namespace; it knows the numbers of `nfnetlink_log` that it needs and nothing else of netlink.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::net::if_::if_indextoname;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Netns;
use crate::{Result, io};

/// The nflog group that rules log to.
pub const GROUP: u16 = 1;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The port does not own the packet's source (FC-72).
    SrcCheckDrop,
    /// No port owns the packet's destination (FC-73).
    NoOwner,
    /// The node got a packet for the address of a load balancer, and nobody on it forwards that (FC-29c).
    VipNoProxy,
}

impl DropReason {
    const ALL: [Self; 3] = [Self::SrcCheckDrop, Self::NoOwner, Self::VipNoProxy];

    /// The word in logs, also the prefix of the nflog rule.
    pub const fn word(self) -> &'static str {
        match self {
            Self::SrcCheckDrop => "src_check_drop",
            Self::NoOwner => "no_owner",
            Self::VipNoProxy => "vip_no_proxy",
        }
    }
}

/// One packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drop {
    /// Why.
    pub reason: DropReason,
    /// Interface on which it came in: a router's port, as `n1e0` (node 1, primary interface), or one of the node.
    pub port: String,
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, for TCP and UDP.
    pub ports: Option<(u16, u16)>,
}

/// Called on the reader's thread for each drop.
pub(crate) type DropHook = Arc<dyn Fn(&Drop) + Send + Sync>;

/// The reader; stops when dropped.
pub(crate) struct DropLog {
    seen: Arc<Mutex<Vec<Drop>>>,
    stop: Arc<AtomicBool>,
    control: Socket,
    reader: Option<std::thread::JoinHandle<Result<()>>>,
}

/// As many drops are kept for [`DropLog::seen`]; the counters of the rules go on.
const KEPT: usize = 4096;

impl DropLog {
    pub(crate) fn start(ns: &Netns, hook: Option<DropHook>) -> Result<Self> {
        let socket = ns
            .run(open)
            .map_err(io(format!("bind the nflog group in {}", ns.name())))?;
        let control = socket.try_clone().map_err(io("clone the nflog socket"))?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (to, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let reader = ns.thread("nflog", move || read(socket, &stopped, &to, hook.as_ref()))?;
        Ok(Self {
            seen,
            stop,
            control,
            reader: Some(reader),
        })
    }

    pub(crate) fn seen(&self) -> Vec<Drop> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl std::ops::Drop for DropLog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The kernel's acknowledgement wakes the reader.
        let _ = (&self.control).write(&command(&[(CFG_CMD, &[CMD_UNBIND])]));
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read(mut socket: Socket, stop: &AtomicBool, seen: &Mutex<Vec<Drop>>, hook: Option<&DropHook>) {
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Acquire) {
        // ENOBUFS: packets were lost to the log, not to the counters.
        let Ok(length) = socket.read(&mut buffer) else {
            continue;
        };
        for drop in messages(&buffer[..length]).filter_map(packet) {
            if let Some(hook) = hook {
                hook(&drop);
            }
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < KEPT {
                seen.push(drop);
            }
        }
    }
}

// linux/netfilter/nfnetlink_log.h
const MSG_PACKET: u16 = 4 << 8;
const MSG_CONFIG: u16 = (4 << 8) | 1;
pub(crate) const CFG_CMD: u16 = 1;
const CFG_MODE: u16 = 2;
const CFG_QTHRESH: u16 = 5;
const CMD_BIND: u8 = 1;
pub(crate) const CMD_UNBIND: u8 = 2;
const COPY_PACKET: u8 = 2;
const ATTR_INDEV: u16 = 4;
pub(crate) const ATTR_PAYLOAD: u16 = 9;
const ATTR_PREFIX: u16 = 10;

pub(crate) fn open() -> std::io::Result<Socket> {
    let mut socket = Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(libc::NETLINK_NETFILTER)),
    )?;
    socket.set_recv_buffer_size(4 << 20)?;
    send(&mut socket, &[(CFG_CMD, &[CMD_BIND])])?;
    // 64 bytes of each packet: the IP header with options, and the ports. One packet a message, at once.
    send(
        &mut socket,
        &[
            (CFG_MODE, &[0, 0, 0, 64, COPY_PACKET, 0]),
            (CFG_QTHRESH, &[0, 0, 0, 1]),
        ],
    )?;
    Ok(socket)
}

fn send(socket: &mut Socket, attributes: &[(u16, &[u8])]) -> std::io::Result<()> {
    socket.write_all(&command(attributes))?;
    let mut answer = [0; 256];
    let length = socket.read(&mut answer)?;
    // An nlmsgerr: the header, then the error as a negative errno, 0 for an acknowledgement.
    match answer[..length]
        .get(16..20)
        .and_then(|b| b.try_into().ok())
        .map(i32::from_ne_bytes)
    {
        Some(0) => Ok(()),
        Some(code) => Err(std::io::Error::from_raw_os_error(-code)),
        None => Err(std::io::Error::other("short netlink answer")),
    }
}

pub(crate) fn command(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(GROUP.to_be_bytes());
    for (kind, value) in attributes {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        body.extend(length.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(*value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).unwrap_or_default();
    let length = u32::try_from(body.len() + 16).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(MSG_CONFIG.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// The bodies of the packet messages in one datagram, after their nfgenmsg.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        loop {
            let length =
                usize::try_from(u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
            let kind = u16::from_ne_bytes(rest.get(4..6)?.try_into().ok()?);
            let message = rest.get(..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if kind == MSG_PACKET {
                return message.get(20..);
            }
        }
    })
}

pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn packet(message: &[u8]) -> Option<Drop> {
    let find =
        |wanted| attributes(message).find_map(|(kind, value)| (kind == wanted).then_some(value));
    let prefix = std::str::from_utf8(find(ATTR_PREFIX)?)
        .ok()?
        .trim_end_matches('\0');
    let reason = DropReason::ALL.into_iter().find(|r| r.word() == prefix)?;
    let index = u32::from_be_bytes(find(ATTR_INDEV)?.try_into().ok()?);
    let port = if_indextoname(index).map_or_else(
        |_| format!("if{index}"),
        |n| n.to_string_lossy().into_owned(),
    );
    let ip = find(ATTR_PAYLOAD)?;
    let header = header(ip)?;
    let number = |at: usize| Some(u16::from_be_bytes(ip.get(at..at + 2)?.try_into().ok()?));
    let protocol = header.protocol;
    let has_ports = matches!(i32::from(protocol), libc::IPPROTO_TCP | libc::IPPROTO_UDP);
    Some(Drop {
        reason,
        port,
        source: header.source,
        destination: header.destination,
        protocol,
        ports: if has_ports {
            number(header.length).zip(number(header.length + 2))
        } else {
            None
        },
    })
}

pub(crate) struct Header {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) length: usize,
}

/// The IP header at the start of a packet; an IPv6 one without extensions, which nobody here sends.
pub(crate) fn header(ip: &[u8]) -> Option<Header> {
    if ip.first()? >> 4 == 6 {
        let address = |at: usize| {
            Some(Ipv6Addr::from(
                <[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?,
            ))
        };
        return Some(Header {
            source: address(8)?.into(),
            destination: address(24)?.into(),
            protocol: *ip.get(6)?,
            length: 40,
        });
    }
    let address = |at: usize| {
        Some(Ipv4Addr::from(
            <[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?,
        ))
    };
    Some(Header {
        source: address(12)?.into(),
        destination: address(16)?.into(),
        protocol: *ip.get(9)?,
        length: usize::from(ip.first()? & 0x0f) * 4,
    })
}
