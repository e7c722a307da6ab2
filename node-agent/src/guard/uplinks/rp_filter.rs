//! The reverse-path filter of the uplinks (S-406, ZD-47): a steered packet's reply leaves by the interface of arrival,
//! which the filter cannot know, so strict mode drops it. Read from files of `/proc/sys`, which a container cannot write:
//! written by the route netlink socket.

use std::fs;
use std::io;

use super::netlink::Rtnetlink;
use crate::guard::network::Uplink;
use crate::table::element::Family;

const STRICT: u8 = 1;
const LOOSE: u8 = 2;
const OFF: u8 = 0;
/// Number of the setting in the kernel (`IPV4_DEVCONF_RP_FILTER`).
const RP_FILTER: u16 = 8;

/// Loosens what is strict; what stays strict is a problem. With `keep` nothing is written.
pub(super) fn loosen(socket: &mut Rtnetlink, uplinks: &[Uplink], keep: bool) -> Vec<String> {
    uplinks
        .iter()
        .filter_map(|uplink| one(socket, uplink, keep).err())
        .collect()
}

fn one(socket: &mut Rtnetlink, uplink: &Uplink, keep: bool) -> Result<(), String> {
    let name = uplink.name.as_str();
    let has_address = uplink
        .addresses
        .iter()
        .any(|a| Family::of(*a) == Family::V4);
    let told = |error: io::Error| format!("cannot read the reverse-path filter of {name}: {error}");
    let (all, own) = (read("all").map_err(told)?, read(name).map_err(told)?);
    let Some(wanted) = wanted(all, own, has_address) else {
        return Ok(());
    };
    let reason = if keep {
        "a flag forbids to change it".to_owned()
    } else if wanted == OFF && all != OFF {
        "the interface has no IPv4 address, and the setting for all interfaces is not 0".to_owned()
    } else {
        match write(socket, name, wanted) {
            Ok(()) => {
                tracing::info!(
                    interface = name,
                    rp_filter = wanted,
                    "reverse-path filter loosened"
                );
                return Ok(());
            }
            Err(error) => error.to_string(),
        }
    };
    Err(format!(
        "the reverse-path filter of {name} (net.ipv4.conf.{name}.rp_filter) drops steered packets and has to be {wanted}: {reason}"
    ))
}

/// The value to write, if what is there would drop steered packets. The larger of the two settings counts; without an
/// address even loose mode drops.
fn wanted(all: u8, own: u8, has_address: bool) -> Option<u8> {
    match (all.max(own), has_address) {
        (OFF, _) | (LOOSE, true) => None,
        (STRICT, true) => Some(LOOSE),
        (_, false) => Some(OFF),
        (_, true) => None,
    }
}

fn path(interface: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter")
}

fn read(interface: &str) -> io::Result<u8> {
    let text = fs::read_to_string(path(interface))?;
    text.trim().parse().map_err(io::Error::other)
}

fn write(socket: &mut Rtnetlink, interface: &str, value: u8) -> io::Result<()> {
    let index = nix::net::if_::if_nametoindex(interface)?;
    socket.set_ipv4(index, RP_FILTER, value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s406_strict_becomes_loose_and_without_an_address_off() {
        assert_eq!(wanted(0, 1, true), Some(LOOSE), "S-406");
        assert_eq!(wanted(1, 0, true), Some(LOOSE));
        assert_eq!(wanted(1, 2, true), None);
        assert_eq!(wanted(0, 0, true), None);
        assert_eq!(wanted(0, 2, false), Some(OFF));
        assert_eq!(wanted(0, 0, false), None);
    }
}
