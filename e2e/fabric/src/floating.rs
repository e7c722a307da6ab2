//! Delivery to a chosen member with the destination kept (floating address, mode `vip`; FC-29b, FC-73): a link between
//! an LB node and the router for each member, so that the link says which member a packet is for. Made on demand by
//! [`crate::Router::deliver`]; the packet rules are in [`crate::tables`].
//!
//! Members answer the client directly: their replies never see the LB node. They carry the LB address as source, which
//! no member owns, so they pass the source check only as part of a flow that was delivered through the same port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Result;
use crate::ip::Batch;
use crate::lb::LbNet;
use crate::router::Router;

/// Routing tables and rule priorities of delivery links begin here, in the router and in LB nodes.
const TABLES: u32 = 20_000;
/// Bit of the router's connection mark that says: delivered by the link whose number is in the other bits.
pub(crate) const DELIVERED: u32 = 0x1000_0000;
/// Next hop on every delivery link. Never asked for: its link-layer address is written down.
const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
const NEXT_HOP6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfd);

/// The links of one world.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    links: BTreeMap<(String, IpAddr), Delivery>,
}

/// One link.
#[derive(Clone, Debug)]
struct Delivery {
    number: u32,
    // The member's port that its table and its return path name; none while nobody owns the address.
    port: Option<String>,
}

impl Router {
    /// Makes, or brings up to date, the way from `lb` to `member`, the address of a port. Returns the packet mark by
    /// which the LB node sends a packet there, whatever its destination address. Packets for a member whose
    /// address nobody owns are dropped.
    pub fn deliver(&self, lb: &LbNet, member: impl Into<IpAddr>) -> Result<u32> {
        let member = member.into();
        let owner = self.owner(member);
        let mut deliveries = self.deliveries();
        let key = (lb.port().to_owned(), member);
        let next = u32::try_from(deliveries.links.len()).unwrap_or(u32::MAX) + 1;
        if !deliveries.links.contains_key(&key) {
            self.cable_delivery(lb, next, member)?;
            deliveries.links.insert(
                key.clone(),
                Delivery {
                    number: next,
                    port: None,
                },
            );
            self.route_delivery(next, member, None)?;
        }
        let Some(delivery) = deliveries.links.get_mut(&key) else {
            return Ok(next);
        };
        if delivery.port != owner {
            self.route_delivery(delivery.number, member, owner.as_deref())?;
            let (number, old) = (delivery.number, delivery.port.as_deref());
            self.table().returns(number, old, owner.as_deref())?;
            delivery.port = owner;
        }
        Ok(delivery.number)
    }

    fn cable_delivery(&self, lb: &LbNet, number: u32, member: IpAddr) -> Result<()> {
        let [a, b, c, d] = number.to_be_bytes();
        let hardware = format!("02:fd:{a:02x}:{b:02x}:{c:02x}:{d:02x}");
        let (name, table) = (link(number), TABLES + number);
        let mut router = Batch::of(member);
        router
            .line(format!(
                "link add {name} address {hardware} type veth peer name {name} netns {}",
                lb.netns().name()
            ))
            .line(format!("link set {name} up"))
            .line(format!("rule add pref {table} iif {name} lookup {table}"));
        router.run(self.netns())?;
        let next_hop: IpAddr = if member.is_ipv4() {
            NEXT_HOP.into()
        } else {
            NEXT_HOP6.into()
        };
        let mut node = Batch::of(member);
        node.line(format!("link set {name} up"))
            .line(format!(
                "neigh add {next_hop} lladdr {hardware} dev {name} nud permanent"
            ))
            .line(format!(
                "route add default via {next_hop} dev {name} onlink table {table}"
            ))
            .line(format!(
                "rule add pref {table} fwmark {number} lookup {table}"
            ))
            .sends(&name);
        node.run(lb.netns())?;
        Batch::default().sends(&name).run(self.netns())?;
        self.table().add_delivery(&name, number)
    }

    fn route_delivery(&self, number: u32, member: IpAddr, port: Option<&str>) -> Result<()> {
        let table = TABLES + number;
        let mut batch = Batch::of(member);
        match port {
            Some(port) => batch.line(format!(
                "route replace default via {member} dev {port} table {table}"
            )),
            None => batch.line(format!("route replace blackhole default table {table}")),
        };
        batch.run(self.netns())
    }
}

fn link(number: u32) -> String {
    format!("d{number}")
}
