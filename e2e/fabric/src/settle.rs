//! IPv6 addresses in use. The kernel takes an address in by a worker of its own: until then its interface neither
//! answers neighbour solicitations for it nor delivers packets to it, and whoever asked for it once waits a second.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use crate::netns::Netns;
use crate::{Result, io};

/// How long the worker may take on a busy machine.
const WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_micros(300);
/// `RTF_LOCAL` of `linux/ipv6_route.h`.
const LOCAL: u32 = 0x8000_0000;

/// Waits until `ns` has taken in these addresses, each on its interface.
pub(crate) fn settle(ns: &Netns, wanted: &[(Ipv6Addr, &str)]) -> Result<()> {
    let own = wanted.iter().map(|(a, i)| (*a, (*i).to_owned()));
    let wanted: Vec<(Ipv6Addr, String)> = own.collect();
    let what = format!("wait for {wanted:?} in {}", ns.name());
    ns.run(move || {
        let deadline = Instant::now() + WITHIN;
        loop {
            // The thread's own view: /proc/self is the main thread's, which lives elsewhere.
            let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
            let there = |(address, interface): &(Ipv6Addr, String)| {
                routes.lines().any(|l| is_local(l, *address, interface))
            };
            if wanted.iter().all(there) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    })
    .map_err(io(what))
}

/// Whether a line of `ipv6_route` is the local route of an address: destination, its length, five more columns, flags,
/// interface.
fn is_local(line: &str, address: Ipv6Addr, interface: &str) -> bool {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let [destination, "80", .., flags, device] = columns.as_slice() else {
        return false;
    };
    *device == interface
        && *destination == format!("{:032x}", u128::from(address))
        && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LOCAL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_route_is_told_from_one_to_a_neighbour() {
        let zero = "0".repeat(32);
        let line = |address: &str, flags: &str| {
            format!("{address} 80 {zero} 00 {zero} 00000000 00000002 00000000 {flags}     eth0")
        };
        let address: Ipv6Addr = "fd00:10:0:1::11".parse().unwrap();
        let hex = "fd000010000000010000000000000011";
        assert!(is_local(&line(hex, "80200001"), address, "eth0"));
        assert!(!is_local(&line(hex, "00000001"), address, "eth0"));
        assert!(!is_local(&line(hex, "80200001"), address, "eth1"));
        assert!(!is_local(&line(&zero, "80200001"), address, "eth0"));
    }
}
