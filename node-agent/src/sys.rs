//! What the agent asks the node itself: interfaces, their addresses and their changes (S-27, S-28).
//! No policy here; `node.rs` decides which addresses count.

pub mod links;
pub mod process;
pub mod sysctl;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `_ROUTE`, `_RULE`, `RTMGRP_IPV6_IFADDR`, `_ROUTE` of linux/rtnetlink.h, and the
/// group of IPv6 rules.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000;

/// Every address of every interface but loopback, of both families, without duplicates.
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = getifaddrs()?
        .filter(|interface| !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Sends a tick whenever links, addresses, routes or rules of the caller's network namespace changed, from
/// a thread of its own that ends with the receiver. A tick that already waits stands for all.
pub fn follow_network() -> io::Result<Receiver<()>> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    let (tick, ticks) = channel(1);
    thread::Builder::new()
        .name("network".to_owned())
        .spawn(move || tell(&socket, &tick))?;
    Ok(ticks)
}

fn tell(socket: &OwnedFd, tick: &Sender<()>) {
    let mut buffer = [0; 8192];
    loop {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            // The content does not matter: the reader lists the addresses anew. A queue that
            // overflowed (ENOBUFS) lost messages, which means that there were some.
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => {
                tracing::error!(%error, "cannot read changes of addresses and routes; NodePorts stay as they are");
                return;
            }
        }
        if let Err(TrySendError::Closed(())) = tick.try_send(()) {
            return;
        }
    }
}
