//! The VPC router: a port per interface, each with the addresses it owns (FC-70 to FC-73), and the way back through
//! the LB node (FC-63).
//!
//! Routes say where an owned address lives; the tables of [`crate::tables`] say who may send as it. Only
//! [`crate::Fabric`] and the nodes it makes change ownership; the fake cloud adds LB addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::drops::{Drop, DropLog, DropReason};
use crate::floating::Deliveries;
use crate::ip::Batch;
use crate::lb::LbNet;
use crate::netns::Netns;
use crate::settle::settle;
use crate::tables::RouterTable;
use crate::twin::{ROUTER, both, twin};
use crate::{Error, Result};

/// The router of one world. Clones share it.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

struct Inner {
    ns: Netns,
    table: RouterTable,
    drops: DropLog,
    // Address → the port that owns it. The one truth; routes and sets follow it.
    owners: Mutex<BTreeMap<IpAddr, String>>,
    deliveries: Mutex<Deliveries>,
}

/// How a new port is cabled.
pub(crate) struct Port<'a> {
    /// Name in the router, at most 15 bytes.
    pub(crate) name: &'a str,
    /// The other end: namespace and interface name.
    pub(crate) peer: (&'a Netns, &'a str),
    /// The router's own address on this link, the peer's gateway.
    pub(crate) gateway: Ipv4Addr,
    /// The peer's address on the link.
    pub(crate) address: Ipv4Addr,
    /// Whether packets from it must carry a source that it owns.
    pub(crate) source_check: bool,
}

impl Router {
    pub(crate) fn new(ns: Netns, drops: DropLog) -> Result<Self> {
        ns.forward()?;
        let table = RouterTable::create(&ns)?;
        Ok(Self {
            inner: Arc::new(Inner {
                ns,
                table,
                drops,
                owners: Mutex::default(),
                deliveries: Mutex::default(),
            }),
        })
    }

    /// The router's namespace, for counters and captures.
    pub fn netns(&self) -> &Netns {
        &self.inner.ns
    }

    /// Packets dropped so far, counted by the rules themselves.
    pub fn drop_count(&self, reason: DropReason) -> Result<u64> {
        self.inner.table.drop_count(reason)
    }

    /// The first few thousand drops, with their tuples. They arrive a moment after the packet.
    pub fn drops(&self) -> Vec<Drop> {
        self.inner.drops.seen()
    }

    /// The port that owns `address` now.
    pub fn owner(&self, address: impl Into<IpAddr>) -> Option<String> {
        self.owners().get(&address.into()).cloned()
    }

    /// Delivers `address` to the LB node. One LB node per address; a second call moves it.
    pub fn route_lb_address(&self, address: impl Into<IpAddr>, lb: &LbNet) -> Result<()> {
        let address = address.into();
        let [v4, v6] = lb.addresses();
        let via = if address.is_ipv4() { v4 } else { v6 };
        self.own(address, lb.port(), Some(via))?;
        self.inner.table.add_lb_address(address)
    }

    /// Takes an LB address out of the network: packets to it find no owner.
    pub fn unroute_lb_address(&self, address: impl Into<IpAddr>) -> Result<()> {
        let address = address.into();
        self.inner.table.remove_lb_address(address)?;
        self.disown(address)
    }

    /// Lets an LB node begin flows as `source`, which any number of LB nodes may be at once: what answers goes back to the
    /// one that asked (FC-38). Nobody is there for flows that others begin to it.
    pub fn begin_as(&self, lb: &LbNet, source: Ipv4Addr) -> Result<()> {
        let (first, last) = lb.own_ports();
        let ports = format!("{first} {last}");
        lb.netns()
            .sysctl(&[("net/ipv4/ip_local_port_range", ports.as_str())])?;
        let mut batch = Batch::default();
        batch.line(format!("addr add {source}/32 dev lo"));
        batch.run(lb.netns())?;
        if self.owner(source).is_none() {
            self.own(source.into(), lb.port(), Some(lb.address().into()))?;
        }
        Ok(())
    }

    /// Switches the source check of one port (FC-72).
    pub fn set_source_check(&self, port: &str, on: bool) -> Result<()> {
        self.inner.table.set_source_check(port, on)
    }

    /// Makes the link and gives the port its first address.
    pub(crate) fn add_port(&self, port: &Port<'_>) -> Result<()> {
        let Port {
            name,
            peer: (ns, interface),
            gateway,
            address,
            source_check,
        } = port;
        let mut batch = Batch::default();
        batch
            .line(format!(
                "link add {name} type veth peer name {interface} netns {}",
                ns.name()
            ))
            .line(format!("link set {name} up"))
            .line(format!("addr add {gateway}/32 dev {name}"));
        batch.run(&self.inner.ns)?;
        if !source_check {
            self.inner.table.set_source_check(name, false)?;
        }
        let mut batch = Batch::v6();
        batch.line(format!("addr add {ROUTER}/64 dev {name} nodad"));
        batch.run(&self.inner.ns)?;
        both(*address)
            .into_iter()
            .try_for_each(|address| self.own(address, name, None))
    }

    /// Waits until these ports deliver; to be called once the other ends are up.
    pub(crate) fn ports_send(&self, ports: &[&str]) -> Result<()> {
        let mut batch = Batch::default();
        for port in ports {
            batch.sends(port);
        }
        batch.run(&self.inner.ns)?;
        let own: Vec<_> = ports.iter().map(|port| (ROUTER, *port)).collect();
        settle(&self.inner.ns, &own)
    }

    /// Makes the port of an LB node: its source check is off, and flows it forwards come back through it.
    pub(crate) fn add_lb_port(&self, port: &Port<'_>, mark: u32) -> Result<()> {
        self.add_port(port)?;
        let mut batch = Batch::default();
        batch
            .line(format!(
                "route add default via {} dev {} table {}",
                port.address,
                port.name,
                1000 + mark
            ))
            .line(format!(
                "rule add pref {} fwmark {mark} lookup {}",
                1000 + mark,
                1000 + mark
            ));
        batch.run(&self.inner.ns)?;
        let mut batch = Batch::v6();
        batch
            .line(format!(
                "route add default via {} dev {} table {}",
                twin(port.address),
                port.name,
                1000 + mark
            ))
            .line(format!(
                "rule add pref {} fwmark {mark} lookup {}",
                1000 + mark,
                1000 + mark
            ));
        batch.run(&self.inner.ns)?;
        self.inner.table.add_lb_port(port.name, mark)
    }

    /// Gives `address` to `port`; `via` is the next hop, none for the link's own address. Moves it from its last
    /// owner, if any.
    pub(crate) fn own(&self, address: IpAddr, port: &str, via: Option<IpAddr>) -> Result<()> {
        let mut owners = self.owners();
        let via = via.map(|v| format!("via {v} ")).unwrap_or_default();
        let mut batch = Batch::of(address);
        batch.line(format!("route replace {address} {via}dev {port}"));
        batch.run(&self.inner.ns)?;
        self.inner
            .table
            .own(address, port, owners.get(&address).map(String::as_str))?;
        owners.insert(address, port.to_owned());
        Ok(())
    }

    /// Gives addresses that nobody has had, all of one family, to `port`, with `via` as next hop.
    pub(crate) fn own_fresh(&self, addresses: &[IpAddr], port: &str, via: IpAddr) -> Result<()> {
        let mut owners = self.owners();
        let mut batch = Batch::of(via);
        for address in addresses {
            batch.line(format!("route add {address} via {via} dev {port}"));
        }
        batch.run(&self.inner.ns)?;
        self.inner.table.own_fresh(addresses, port)?;
        owners.extend(addresses.iter().map(|address| (*address, port.to_owned())));
        Ok(())
    }

    /// Takes `address` off its port.
    pub(crate) fn disown(&self, address: IpAddr) -> Result<()> {
        let mut owners = self.owners();
        let Some(port) = owners.remove(&address) else {
            return Err(Error::Invalid(format!("{address} has no owner")));
        };
        self.inner.table.disown(address, &port)?;
        let mut batch = Batch::of(address);
        batch.line(format!("route del {address}"));
        batch.run(&self.inner.ns)
    }

    pub(crate) fn table(&self) -> &RouterTable {
        &self.inner.table
    }

    pub(crate) fn deliveries(&self) -> std::sync::MutexGuard<'_, Deliveries> {
        self.inner
            .deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, BTreeMap<IpAddr, String>> {
        self.inner
            .owners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
