//! Packet rules of the router (source check, owners, way back) and of the CNI stand-in.
//!
//! All are map-only: ownership is an element, never a rule. Called by [`crate::Router`] and [`crate::NodeNet`]. The tables
//! of both families are alike; what is not about an address is written into both.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use onehop_nft::expr::{CT_STATE_NEW, FIB_DADDR, FIB_LOCAL, FibResult};
use onehop_nft::{
    Batch, Chain, ChainType, CmpOp, CtDirection, Element, Expr, Family, Field, FieldType, Hook,
    Reg, Rule, Set, Socket, Table, Value,
};

use crate::drops::{DropReason, GROUP};
use crate::floating::DELIVERED;
use crate::netns::Netns;
use crate::{Error, Fabric, Result};

const RAW: i32 = -300;
/// After connection tracking, before everything that asks it.
const TRACKED: i32 = -190;
const MANGLE: i32 = -150;
const SRCNAT: i32 = 100;
/// After every service proxy's own filters.
const AFTER_PROXIES: i32 = 300;

/// The router's tables, `ip fabric` and `ip6 fabric`.
pub(crate) struct RouterTable {
    ns: Netns,
}

/// `(port, source)` pairs that may pass.
const OWNED: &str = "owned";
/// Ports whose sources are not checked.
const UNCHECKED: &str = "unchecked";
/// Destinations that some port owns.
const REACHABLE: &str = "reachable";
const LB_ADDRESSES: &str = "lb-addresses";
const LB_PORTS: &str = "lb-ports";
/// Links by which LB nodes deliver packets with the destination kept.
const DELIVERY_PORTS: &str = "delivery-ports";
/// `(port, connection mark)`: by which port the replies of a delivered flow may come.
const RETURNS: &str = "returns";

impl RouterTable {
    pub(crate) fn create(ns: &Netns) -> Result<Self> {
        let table = Self { ns: ns.clone() };
        let mut batch = Batch::new();
        for family in FAMILIES {
            let of = Self::table(family);
            batch.add_table(&of, 0, None);
            let address = address_type(family);
            batch.add_set(&of, &Set::new(OWNED, &[FieldType::IFNAME, address]));
            for (name, field) in [
                (UNCHECKED, FieldType::IFNAME),
                (REACHABLE, address),
                (LB_ADDRESSES, address),
                (LB_PORTS, FieldType::IFNAME),
                (DELIVERY_PORTS, FieldType::IFNAME),
            ] {
                batch.add_set(&of, &Set::new(name, &[field]));
            }
            batch.add_set(
                &of,
                &Set::new(RETURNS, &[FieldType::IFNAME, FieldType::MARK]),
            );
            add_checks(&mut batch, family);
            add_floating_check(&mut batch, family);
            add_way_back(&mut batch, family);
        }
        table.commit("make the router's tables", batch)?;
        Ok(table)
    }

    /// Packets dropped for `reason` since the start.
    pub(crate) fn drop_count(&self, reason: DropReason) -> Result<u64> {
        let chains: &[&str] = match reason {
            DropReason::SrcCheckDrop => &["source-check", "floating-check"],
            DropReason::NoOwner => &["destination-check"],
            // Nodes do that.
            DropReason::VipNoProxy => &[],
        };
        let counted: std::result::Result<u64, String> = self.ns.run(move || {
            let mut socket = Socket::open().map_err(|e| e.to_string())?;
            let mut count = |(family, chain): (Family, &&str)| {
                socket
                    .rule_counter(&Self::table(family), chain, reason.word())
                    .map(|c| c.packets)
                    .map_err(|e| e.to_string())
            };
            let both = FAMILIES.iter();
            let both = both.flat_map(|family| chains.iter().map(|chain| (*family, chain)));
            both.map(&mut count).sum()
        });
        counted.map_err(|e| self.error(&format!("count {}: {e}", reason.word())))
    }

    /// Makes `port` the one owner of `address`.
    pub(crate) fn own(&self, address: IpAddr, port: &str, last: Option<&str>) -> Result<()> {
        let of = Self::table_of(address);
        let mut batch = Batch::new();
        if let Some(last) = last {
            batch.del_elements(&of, OWNED, [owned(last, address)]);
        }
        batch.add_elements(&of, OWNED, [owned(port, address)]);
        batch.add_elements(&of, REACHABLE, [host(address)]);
        self.commit("add an owner", batch)
    }

    /// Makes `port` the owner of addresses that nobody has had.
    pub(crate) fn own_fresh(&self, addresses: &[IpAddr], port: &str) -> Result<()> {
        let mut batch = Batch::new();
        for address in addresses {
            let of = Self::table_of(*address);
            batch.add_elements(&of, OWNED, [owned(port, *address)]);
            batch.add_elements(&of, REACHABLE, [host(*address)]);
        }
        self.commit("add owners", batch)
    }

    pub(crate) fn disown(&self, address: IpAddr, port: &str) -> Result<()> {
        let of = Self::table_of(address);
        let mut batch = Batch::new();
        batch.del_elements(&of, OWNED, [owned(port, address)]);
        batch.del_elements(&of, REACHABLE, [host(address)]);
        self.commit("remove an owner", batch)
    }

    pub(crate) fn set_source_check(&self, port: &str, on: bool) -> Result<()> {
        let mut batch = Batch::new();
        for of in FAMILIES.map(Self::table) {
            if on {
                batch.destroy_elements(&of, UNCHECKED, [interface(port)]);
            } else {
                batch.add_elements(&of, UNCHECKED, [interface(port)]);
            }
        }
        self.commit("switch a source check", batch)
    }

    pub(crate) fn add_lb_address(&self, address: IpAddr) -> Result<()> {
        let mut batch = Batch::new();
        batch.add_elements(&Self::table_of(address), LB_ADDRESSES, [host(address)]);
        self.commit("add an LB address", batch)
    }

    pub(crate) fn remove_lb_address(&self, address: IpAddr) -> Result<()> {
        let mut batch = Batch::new();
        batch.del_elements(&Self::table_of(address), LB_ADDRESSES, [host(address)]);
        self.commit("remove an LB address", batch)
    }

    /// Flows that begin on this port get `mark`, and their replies are routed by it.
    pub(crate) fn add_lb_port(&self, port: &str, mark: u32) -> Result<()> {
        let mut batch = Batch::new();
        for family in FAMILIES {
            let of = Self::table(family);
            batch.add_elements(&of, LB_PORTS, [interface(port)]);
            let begins = Rule::new(family).iifname(port).ct_state(CT_STATE_NEW);
            batch.add_rule(&of, "from-lb", &begins.set_ct_mark(0, mark));
        }
        self.commit("add an LB port", batch)
    }

    /// Flows that come by this delivery link are marked with its number; its packets are not checked for sources.
    pub(crate) fn add_delivery(&self, port: &str, number: u32) -> Result<()> {
        let mut batch = Batch::new();
        for family in FAMILIES {
            let of = Self::table(family);
            batch.add_elements(&of, DELIVERY_PORTS, [interface(port)]);
            batch.add_elements(&of, UNCHECKED, [interface(port)]);
            // Every packet, not only the first: a flow whose tuple is used again may go to another member.
            let each = Rule::new(family).iifname(port);
            batch.add_rule(&of, "delivered", &each.set_ct_mark(0, DELIVERED | number));
        }
        self.commit("add a delivery link", batch)
    }

    /// Lets replies of the flows of a delivery link come by `new` instead of `old`.
    pub(crate) fn returns(&self, number: u32, old: Option<&str>, new: Option<&str>) -> Result<()> {
        let element =
            |port: &str| Element::key(Value::new().ifname(port).u32_host(DELIVERED | number));
        let mut batch = Batch::new();
        for of in FAMILIES.map(Self::table) {
            if let Some(old) = old {
                batch.del_elements(&of, RETURNS, [element(old)]);
            }
            if let Some(new) = new {
                batch.add_elements(&of, RETURNS, [element(new)]);
            }
        }
        self.commit("set a return path", batch)
    }

    fn table(family: Family) -> Table {
        Table::new(family, "fabric")
    }

    fn table_of(address: IpAddr) -> Table {
        Self::table(family_of(address))
    }

    fn commit(&self, what: &str, batch: Batch) -> Result<()> {
        commit(&self.ns, what, batch)
    }

    fn error(&self, message: &str) -> Error {
        Error::Nft {
            namespace: self.ns.name().to_owned(),
            message: message.to_owned(),
        }
    }
}

const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

fn family_of(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::Ip,
        IpAddr::V6(_) => Family::Ip6,
    }
}

fn address_type(family: Family) -> FieldType {
    match family {
        Family::Ip6 => FieldType::IPV6,
        _ => FieldType::IPV4,
    }
}

/// Raw priority: who may send as whom, and whether the destination lives anywhere.
fn add_checks(batch: &mut Batch, family: Family) {
    let of = RouterTable::table(family);
    let rule = || Rule::new(family);
    batch.add_chain(
        &of,
        &Chain::base("check", ChainType::Filter, Hook::Prerouting, RAW),
    );
    for chain in ["source-check", "destination-check", "tracking"] {
        batch.add_chain(&of, &Chain::regular(chain));
    }
    if family == Family::Ip6 {
        // Neighbour discovery and its like stay on the link: the router forwards nothing of it.
        for (prefix, length) in LINK_LOCAL {
            batch.add_rule(&of, "check", &rule().daddr(prefix.into(), length).accept());
        }
    }
    batch.add_rule(&of, "check", &rule().jump("source-check"));
    batch.add_rule(&of, "check", &rule().jump("destination-check"));
    batch.add_rule(&of, "check", &rule().jump("tracking"));
    batch.add_rule(
        &of,
        "source-check",
        &rule().in_set(&[Field::IifName, Field::Saddr], OWNED).ret(),
    );
    batch.add_rule(
        &of,
        "source-check",
        &rule().in_set(&[Field::IifName], UNCHECKED).ret(),
    );
    // A reply of a floating flow: judged once it is known whether it is one.
    batch.add_rule(
        &of,
        "source-check",
        &rule().in_set(&[Field::Saddr], LB_ADDRESSES).ret(),
    );
    batch.add_rule(
        &of,
        "source-check",
        &dropped(rule(), DropReason::SrcCheckDrop),
    );
    batch.add_rule(
        &of,
        "destination-check",
        &rule().in_set(&[Field::Daddr], REACHABLE).ret(),
    );
    batch.add_rule(
        &of,
        "destination-check",
        &dropped(rule(), DropReason::NoOwner),
    );
    // Delivered packets have the LB address as destination too, and are tracked: their replies must be known.
    batch.add_rule(
        &of,
        "tracking",
        &rule().in_set(&[Field::IifName], DELIVERY_PORTS).ret(),
    );
    // A flow through an LB node crosses the router twice. In vip mode both crossings have the same tuple, so only
    // the second one, between LB node and target, is tracked; the first, between client and LB node, needs no memory.
    batch.add_rule(
        &of,
        "tracking",
        &rule()
            .in_set(&[Field::IifName], LB_PORTS)
            .in_set(&[Field::Saddr], LB_ADDRESSES)
            .notrack(),
    );
    batch.add_rule(
        &of,
        "tracking",
        &rule()
            .not_in_set(&[Field::IifName], LB_PORTS)
            .in_set(&[Field::Daddr], LB_ADDRESSES)
            .notrack(),
    );
}

/// Destinations that no packet is forwarded to: multicast, and addresses of the link.
const LINK_LOCAL: [(Ipv6Addr, u8); 2] = [
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];

fn dropped(rule: Rule, reason: DropReason) -> Rule {
    rule.comment(reason.word())
        .counter()
        .nflog(GROUP, reason.word())
        .drop()
}

/// The second half of the source check, for packets with an LB address as source: they pass only as replies of a flow
/// that was delivered through the port by which they come (FC-29b, FC-72).
fn add_floating_check(batch: &mut Batch, family: Family) {
    let of = RouterTable::table(family);
    let rule = || Rule::new(family);
    batch.add_chain(
        &of,
        &Chain::base(
            "floating-check",
            ChainType::Filter,
            Hook::Prerouting,
            TRACKED,
        ),
    );
    let from_lb_address = || rule().in_set(&[Field::Saddr], LB_ADDRESSES);
    for rule in [
        rule().in_set(&[Field::IifName], UNCHECKED).ret(),
        from_lb_address()
            .ct_direction(CtDirection::Reply)
            .in_set(&[Field::IifName, Field::CtMark], RETURNS)
            .ret(),
        dropped(from_lb_address(), DropReason::SrcCheckDrop),
    ] {
        batch.add_rule(&of, "floating-check", &rule);
    }
}

/// After the source check: replies of flows that an LB node forwarded go back through that LB node, whatever their
/// destination (FC-63).
fn add_way_back(batch: &mut Batch, family: Family) {
    let of = RouterTable::table(family);
    let rule = || Rule::new(family);
    batch.add_chain(
        &of,
        &Chain::base("way-back", ChainType::Filter, Hook::Prerouting, MANGLE),
    );
    batch.add_chain(&of, &Chain::regular("from-lb"));
    batch.add_chain(&of, &Chain::regular("delivered"));
    batch.add_rule(
        &of,
        "way-back",
        &rule()
            .in_set(&[Field::IifName], DELIVERY_PORTS)
            .goto("delivered"),
    );
    // Replies of delivered flows are routed by their destination, straight to the client.
    batch.add_rule(
        &of,
        "way-back",
        &rule()
            .masked(Field::CtMark, DELIVERED, CmpOp::Eq, DELIVERED)
            .ret(),
    );
    batch.add_rule(
        &of,
        "way-back",
        &rule().in_set(&[Field::IifName], LB_PORTS).goto("from-lb"),
    );
    batch.add_rule(
        &of,
        "way-back",
        &rule()
            .ct_direction(CtDirection::Reply)
            .cmp(Field::CtMark, CmpOp::Neq, Value::new().u32_host(0))
            .mark_from_ct(u32::MAX),
    );
}

/// The CNI stand-in of a node: flows that came in by the primary interface for a node address keep it as their way
/// back. Tables `ip cni` and `ip6 cni`.
///
/// A floating address counts as one of the node: it is no pod's. Real networks with pods behind a second interface know
/// only the node's own addresses; there the agent has to remember the uplink (S-404).
pub(crate) fn create_cni(node: &Netns, primary: &str, mark: u32, pods: [IpNet; 2]) -> Result<()> {
    let mut batch = Batch::new();
    for pods in pods {
        add_cni(&mut batch, primary, mark, pods);
    }
    commit(node, "make the CNI stand-in's tables", batch)
}

fn add_cni(batch: &mut Batch, primary: &str, mark: u32, pods: IpNet) {
    let family = family_of(pods.addr());
    let of = Table::new(family, "cni");
    batch.add_table(&of, 0, None);
    batch.add_chain(
        &of,
        &Chain::base("prerouting", ChainType::Filter, Hook::Prerouting, MANGLE),
    );
    let local = Expr::Cmp {
        sreg: Reg(0),
        op: CmpOp::Eq,
        data: Value::new().u32_host(FIB_LOCAL),
    };
    let to_node = Rule::new(family)
        .iifname(primary)
        .push(Expr::Fib {
            dreg: Reg(0),
            result: FibResult::AddrType,
            flags: FIB_DADDR,
        })
        .push(local)
        .set_ct_mark(!mark, mark);
    let floating = Rule::new(family)
        .iifname(primary)
        .ct_state(CT_STATE_NEW)
        .not_daddr(pods.addr(), pods.prefix_len())
        .set_ct_mark(!mark, mark);
    let from_pod = Rule::new(family)
        .iifname("veth*")
        .masked(Field::CtMark, mark, CmpOp::Eq, mark)
        .set_mark(!mark, mark);
    for rule in [to_node, floating, from_pod] {
        batch.add_rule(&of, "prerouting", &rule);
    }
    // FC-29c: what a service proxy has not translated by now would go back into the network.
    let lb: IpNet = match family {
        Family::Ip6 => Fabric::LB_CIDR6.into(),
        _ => Fabric::LB_CIDR.into(),
    };
    let late = Chain::base("forward", ChainType::Filter, Hook::Forward, AFTER_PROXIES);
    batch.add_chain(&of, &late);
    let nobody = Rule::new(family).iifname(primary);
    let nobody = nobody.daddr(lb.addr(), lb.prefix_len());
    batch.add_rule(&of, "forward", &dropped(nobody, DropReason::VipNoProxy));
}

/// What leaves by this interface is sent as the node itself, as it is on networks that know no pods. Table `ip uplink`.
pub(crate) fn masquerade(node: &Netns, interface: &str) -> Result<()> {
    let of = Table::new(Family::Ip, "uplink");
    let mut batch = Batch::new();
    batch.add_table(&of, 0, None);
    let chain = Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, SRCNAT);
    batch.add_chain(&of, &chain);
    let rule = Rule::new(Family::Ip).oifname(interface);
    let masquerade = Expr::Masquerade {
        ports: None,
        flags: 0,
    };
    batch.add_rule(&of, "postrouting", &rule.push(masquerade));
    commit(node, "make the uplink's table", batch)
}

pub(crate) fn commit(ns: &Netns, what: &str, batch: Batch) -> Result<()> {
    ns.run(move || {
        let mut socket = Socket::open().map_err(|e| e.to_string())?;
        socket.commit(&batch).map_err(|e| e.to_string())
    })
    .map_err(|message| Error::Nft {
        namespace: ns.name().to_owned(),
        message: format!("{what}: {message}"),
    })
}

fn owned(port: &str, address: IpAddr) -> Element {
    Element::key(Value::new().ifname(port).addr(address))
}

fn host(address: IpAddr) -> Element {
    Element::key(Value::new().addr(address))
}

fn interface(name: &str) -> Element {
    Element::key(Value::new().ifname(name))
}
