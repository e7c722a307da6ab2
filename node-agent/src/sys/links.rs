//! Which interfaces lead to the fabric and which to pods of this node, from links and routes of all tables (S-64,
//! S-400). Asked by `run` at start and after every change; which rules use it is the layout's matter.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use crate::table::element::InterfaceName;

const RTM_GETLINK: u16 = 18;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const HEADER: usize = 16;
const RTN_UNICAST: u8 = 1;
const RTPROT_KERNEL: u8 = 2;
/// Kinds of link behind which a pod may be; tunnels and physical interfaces are none.
const POD_KINDS: [&str; 4] = ["veth", "netkit", "tun", "ipvlan"];

/// Interfaces by what is behind them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Links {
    /// To the fabric: a default route of some table leaves by them.
    pub uplinks: BTreeSet<InterfaceName>,
    /// To pods of this node.
    pub pods: BTreeSet<InterfaceName>,
}

/// A link as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Link {
    name: String,
    kind: String,
}

/// A route that leaves by an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Route {
    link: u32,
    leads: Leads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// Everywhere.
    Default,
    /// To one address, which is on the link itself.
    Host,
    Elsewhere,
}

/// What the network namespace of the caller has.
pub fn links() -> io::Result<Links> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    let mut found = BTreeMap::new();
    dump(&socket, RTM_GETLINK, libc::AF_UNSPEC, |body| {
        found.extend(link(body));
    })?;
    let mut routes = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(&socket, RTM_GETROUTE, family, |body| {
            routes.extend(routes_of(body));
        })?;
    }
    Ok(sort(&found, &routes))
}

/// Decides. A bridge that is no uplink has pods behind it; any other link must lead to a single address.
fn sort(links: &BTreeMap<u32, Link>, routes: &[Route]) -> Links {
    let by = |leads| {
        let routes = routes.iter().filter(move |route| route.leads == leads);
        routes.map(|route| route.link).collect::<BTreeSet<u32>>()
    };
    let (default, host) = (by(Leads::Default), by(Leads::Host));
    let named = |chosen: &dyn Fn(u32, &Link) -> bool| {
        let chosen = links.iter().filter(|(index, link)| chosen(**index, link));
        chosen
            .filter_map(|(_, link)| InterfaceName::new(&link.name))
            .collect()
    };
    Links {
        uplinks: named(&|index, _| default.contains(&index)),
        pods: named(&|index, link| {
            let leads_to_pods = link.kind == "bridge"
                || (host.contains(&index) && POD_KINDS.contains(&link.kind.as_str()));
            leads_to_pods && !default.contains(&index)
        }),
    }
}

fn link(body: &[u8]) -> Option<(u32, Link)> {
    const NAME: u16 = 3;
    const INFO: u16 = 18;
    const INFO_KIND: u16 = 1;
    let index = u32_at(body, 4)?;
    let attributes = body.get(16..)?;
    let text = |bytes: &[u8]| {
        let text = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        String::from_utf8_lossy(text).into_owned()
    };
    let info = find(attributes, INFO).unwrap_or_default();
    Some((
        index,
        Link {
            name: text(find(attributes, NAME)?),
            kind: find(info, INFO_KIND).map(text).unwrap_or_default(),
        },
    ))
}

fn routes_of(body: &[u8]) -> Vec<Route> {
    const OIF: u16 = 4;
    const GATEWAY: u16 = 5;
    const MULTIPATH: u16 = 9;
    const VIA: u16 = 18;
    let [family, length, _, _, _, protocol, _, kind] = *body.first_chunk::<8>().unwrap_or(&[0; 8]);
    let attributes = body.get(12..).unwrap_or_default();
    if kind != RTN_UNICAST {
        return Vec::new();
    }
    let whole = if i32::from(family) == libc::AF_INET6 {
        128
    } else {
        32
    };
    let direct = find(attributes, GATEWAY).is_none() && find(attributes, VIA).is_none();
    let leads = match length {
        0 => Leads::Default,
        // The kernel's own host routes are for addresses of this node.
        _ if length == whole && direct && protocol != RTPROT_KERNEL => Leads::Host,
        _ => Leads::Elsewhere,
    };
    let several = find(attributes, MULTIPATH).unwrap_or_default();
    let single = find(attributes, OIF).and_then(|bytes| u32_at(bytes, 0));
    let all = single.into_iter().chain(next_hops(several));
    all.map(|link| Route { link, leads }).collect()
}

/// Interfaces of the next hops of a route.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut links = Vec::new();
    while let (Some(length), Some(link)) = (u16_at(bytes, 0), u32_at(bytes, 4)) {
        links.push(link);
        let next = usize::from(length).next_multiple_of(4);
        match bytes.get(next..) {
            Some(rest) if next >= 8 => bytes = rest,
            _ => break,
        }
    }
    links
}

/// Asks for all objects of a kind and hands the body of each to `each`.
fn dump(socket: &OwnedFd, kind: u16, family: i32, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    // The longest of the two bodies; the kernel ignores the rest.
    let mut request = [0_u8; HEADER + 16];
    let length = u32::try_from(request.len()).unwrap_or(0);
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    request[HEADER] = u8::try_from(family).unwrap_or(0);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Err(Errno::EINTR) => continue,
            length => length?,
        };
        let mut rest = &buffer[..length];
        while let (Some(size), Some(kind)) = (u32_at(rest, 0), u16_at(rest, 4)) {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            let Some(body) = rest.get(HEADER..size) else {
                break;
            };
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let errno = u32_at(body, 0).map_or(libc::EPROTO, |code| -code.cast_signed());
                    return Err(io::Error::from_raw_os_error(errno));
                }
                _ => each(body),
            }
            rest = rest.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The payload of the first attribute of a kind.
fn find(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    while let (Some(length), Some(found)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let payload = bytes.get(4..usize::from(length))?;
        if found & 0x3fff == kind {
            return Some(payload);
        }
        bytes = bytes
            .get(usize::from(length).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s64_pods_are_behind_bridges_and_behind_links_with_a_host_route() {
        let kinds = [
            ("eth0", "veth"),
            ("eth1", ""),
            ("pod1", "veth"),
            ("spare", "veth"),
            ("cni0", "bridge"),
            ("wg0", "wireguard"),
            ("br-ex", "bridge"),
        ];
        let links = (1..)
            .zip(kinds)
            .map(|(index, (name, kind))| {
                let (name, kind) = (name.to_owned(), kind.to_owned());
                (index, Link { name, kind })
            })
            .collect();
        let route = |link, leads| Route { link, leads };
        let routes = [
            route(1, Leads::Default),
            route(1, Leads::Host),
            route(2, Leads::Default),
            route(3, Leads::Host),
            route(4, Leads::Elsewhere),
            route(6, Leads::Host),
            route(7, Leads::Default),
        ];
        let sorted = sort(&links, &routes);
        let names = |set: &BTreeSet<InterfaceName>| {
            let names = set.iter().map(InterfaceName::as_str);
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(&sorted.uplinks), ["br-ex", "eth0", "eth1"], "S-400");
        assert_eq!(names(&sorted.pods), ["cni0", "pod1"], "S-64");
    }

    #[test]
    fn next_hops_of_a_route_with_several() {
        let hop = |link: u32| {
            let mut bytes = vec![16, 0, 0, 0];
            bytes.extend(link.to_ne_bytes());
            bytes.extend([8, 0, 5, 0, 10, 0, 0, 1]);
            bytes
        };
        assert_eq!(next_hops(&[hop(3), hop(5)].concat()), [3, 5]);
        assert_eq!(next_hops(&[]), [0_u32; 0]);
    }
}
