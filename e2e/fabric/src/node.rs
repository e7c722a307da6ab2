//! A node: two interfaces to the VPC, one to the management network, the CNI stand-in and the pods (FC-71, FC-74).
//!
//! The primary interface carries the node's address, the secondary one its pods': pods leave by it through a rule on
//! their source address, and replies that leave by the wrong one die at the router's source check. As real CNIs do,
//! the stand-in marks flows that came in by the primary interface for a node address (0x80) so that their replies
//! go back that way (harness.md section 3). The kubelet stand-in adds and removes pods.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipnet::{Ipv4Net, Ipv6Net};
use onehop_runtime::clock::Clock;

use crate::drops::{Drop, DropHook, DropLog};
use crate::fabric::{AddressHook, host};
use crate::flows::FlowLog;
use crate::ip::Batch;
use crate::netns::Netns;
use crate::ownership::{AddressBook, AfterCooldown};
use crate::process::Processes;
use crate::router::{Port, Router};
use crate::settle::settle;
use crate::tag::WorldTag;
use crate::twin::{ROUTER, both, twin};
use crate::{Result, tables};

mod pods;
mod range;

pub use pods::PodNet;

/// Routing table of the secondary interface.
const SECONDARY_TABLE: u32 = 102;
/// Connection mark of flows that came in by the primary interface for a node address.
pub(crate) const PRIMARY_MARK: u32 = 0x80;

/// What a node is made from.
pub(crate) struct NodePlan {
    pub(crate) name: String,
    pub(crate) index: u8,
    pub(crate) tag: WorldTag,
    pub(crate) processes: Arc<Processes>,
    pub(crate) router: Router,
    pub(crate) clock: Clock,
    pub(crate) cooldown: Duration,
    pub(crate) after_cooldown: AfterCooldown,
    pub(crate) on_address: Option<AddressHook>,
    pub(crate) on_drop: Option<DropHook>,
    pub(crate) offered: Arc<Mutex<Vec<(Ipv4Addr, String)>>>,
}

/// The network of one node. Clones share it.
#[derive(Clone)]
pub struct NodeNet {
    inner: Arc<Inner>,
}

struct Inner {
    ns: Netns,
    plan: NodePlan,
    book: Mutex<AddressBook>,
    flows: FlowLog,
    drops: DropLog,
}

impl NodeNet {
    pub(crate) fn new(ns: Netns, plan: NodePlan) -> Result<Self> {
        let index = plan.index;
        let book = AddressBook::new(
            host([10, 244, index], 2),
            host([10, 244, index], 254),
            plan.cooldown,
            plan.after_cooldown,
        );
        let flows = FlowLog::start(&ns, plan.clock)?;
        let drops = DropLog::start(&ns, plan.on_drop.clone())?;
        let node = Self {
            inner: Arc::new(Inner {
                ns,
                plan,
                book: Mutex::new(book),
                flows,
                drops,
            }),
        };
        node.configure()?;
        let pods = crate::Fabric::CLUSTER_CIDR;
        let pods = [pods.into(), crate::Fabric::CLUSTER_CIDR6.into()];
        tables::create_cni(node.netns(), Self::PRIMARY, PRIMARY_MARK, pods)?;
        Ok(node)
    }

    /// Name of the interface with the node's address.
    pub const PRIMARY: &'static str = "eth0";
    /// Name of the interface to which pod addresses are routed.
    pub const SECONDARY: &'static str = "eth1";

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.inner.plan.name
    }

    /// The node's own namespace; hostNetwork pods run in it.
    pub fn netns(&self) -> &Netns {
        &self.inner.ns
    }

    /// Which endpoints the node chose for flows that came to its ports and addresses.
    pub fn flows(&self) -> &FlowLog {
        &self.inner.flows
    }

    /// Packets for a load balancer's address that nobody on the node forwarded, the first 4,096.
    pub fn drops(&self) -> Vec<Drop> {
        self.inner.drops.seen()
    }

    /// The node is gone from every network at once, as after a crash. It does not come back.
    pub fn go_dark(&self) -> Result<()> {
        let mut batch = Batch::default();
        for interface in [Self::PRIMARY, Self::SECONDARY, "mgmt0"] {
            batch.line(format!("link set {interface} down"));
        }
        batch.run(self.netns())
    }

    /// The node cannot reach the management network, and with it the API server, any more; or again. Everything else of it
    /// goes on.
    pub fn cut_off(&self, cut: bool) -> Result<()> {
        let state = if cut { "down" } else { "up" };
        let mut batch = Batch::default();
        batch.line(format!("link set mgmt0 {state}"));
        batch.run(self.netns())
    }

    /// The node's address (`InternalIP`).
    pub fn address(&self) -> Ipv4Addr {
        host([10, 0, 1], 10 + self.inner.plan.index)
    }

    /// The secondary interface's own address.
    pub fn secondary_address(&self) -> Ipv4Addr {
        host([10, 0, 2], 10 + self.inner.plan.index)
    }

    /// The node's address on the management network.
    pub fn management_address(&self) -> Ipv4Addr {
        host([172, 30, 0], 10 + self.inner.plan.index)
    }

    /// Where its pods' addresses come from (`spec.podCIDR`).
    pub fn pod_cidr(&self) -> Ipv4Net {
        Ipv4Net::new_assert(host([10, 244, self.inner.plan.index], 0), 24)
    }

    /// The IPv6 range of its pods.
    pub fn pod_cidr6(&self) -> Ipv6Net {
        Ipv6Net::new_assert(twin(self.pod_cidr().addr()), 64)
    }

    /// The node's addresses (`InternalIP`), IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        both(self.address())
    }

    /// The network brings one more address to the primary interface, as it does with an external address that a node
    /// announces, or a second address that it gets. Which interface of the node has it, if any, is not touched.
    pub fn announce(&self, address: IpAddr) -> Result<()> {
        let [v4, v6] = self.addresses();
        let via = if address.is_ipv4() { v4 } else { v6 };
        let router = &self.inner.plan.router;
        router.own(address, &self.primary_port(), Some(via))
    }

    /// The router port of the primary interface.
    pub fn primary_port(&self) -> String {
        format!("n{}e0", self.inner.plan.index)
    }

    /// The router port of the secondary interface.
    pub fn secondary_port(&self) -> String {
        format!("n{}e1", self.inner.plan.index)
    }

    fn configure(&self) -> Result<()> {
        let (primary, secondary) = (self.address(), self.secondary_address());
        self.netns().forward()?;
        let (gateway0, gateway1) = (host([10, 0, 1], 1), host([10, 0, 2], 1));
        self.cable(&self.primary_port(), Self::PRIMARY, gateway0, primary)?;
        self.cable(&self.secondary_port(), Self::SECONDARY, gateway1, secondary)?;
        let mut batch = Batch::default();
        batch
            // Scope link: masquerade towards a pod must choose a VPC address, as on a node without such a network.
            .line(format!(
                "addr add {}/24 dev mgmt0 scope link",
                self.management_address()
            ))
            .line("link set mgmt0 up")
            // Everything in the VPC is reached through the router, also neighbours of the own subnet: no
            // connected routes.
            .line(format!("addr add {primary}/24 dev eth0 noprefixroute"))
            .line("link set eth0 up")
            .line(format!(
                "route add {gateway0} dev eth0 scope link src {primary}"
            ))
            .line(format!(
                "route add default via {gateway0} dev eth0 src {primary}"
            ))
            .line(format!("addr add {secondary}/24 dev eth1 noprefixroute"))
            .line("link set eth1 up")
            .line(format!(
                "route add {gateway1} dev eth1 scope link src {secondary} table {SECONDARY_TABLE}"
            ))
            .line(format!(
                "route add default via {gateway1} dev eth1 table {SECONDARY_TABLE}"
            ))
            .line(format!(
                "rule add pref 1024 fwmark {PRIMARY_MARK:#x}/{PRIMARY_MARK:#x} lookup main"
            ))
            .line(format!(
                "rule add pref 1537 from {secondary} lookup {SECONDARY_TABLE}"
            ))
            // Packets to a pod that is gone end here, instead of going round by the default route.
            .line(format!("route add blackhole {}", self.pod_cidr()));
        batch.run(self.netns())?;
        self.configure_v6()?;
        let ports = [self.primary_port(), self.secondary_port()];
        self.inner.plan.router.ports_send(&[&ports[0], &ports[1]])?;
        self.netns().sysctl(&[
            ("net/ipv4/conf/eth0/rp_filter", "2"),
            ("net/ipv4/conf/eth1/rp_filter", "1"),
            // Refusals of kube-proxy are ICMP for TCP, too; a scenario that asks often would use up what the kernel
            // sends to one client in a second, and the next refusal would look like a drop.
            ("net/ipv4/icmp_ratelimit", "0"),
        ])
    }

    /// The same in IPv6; every link's gateway is the router's link-local address.
    fn configure_v6(&self) -> Result<()> {
        let (primary, secondary) = (twin(self.address()), twin(self.secondary_address()));
        let mut batch = Batch::v6();
        batch
            .line(format!(
                "addr add {primary}/64 dev eth0 nodad noprefixroute"
            ))
            .line(format!(
                "route add default via {ROUTER} dev eth0 src {primary}"
            ))
            .line(format!(
                "addr add {secondary}/64 dev eth1 nodad noprefixroute"
            ))
            .line(format!(
                "route add default via {ROUTER} dev eth1 table {SECONDARY_TABLE}"
            ))
            .line(format!(
                "rule add pref 1024 fwmark {PRIMARY_MARK:#x}/{PRIMARY_MARK:#x} lookup main"
            ))
            .line(format!(
                "rule add pref 1537 from {secondary} lookup {SECONDARY_TABLE}"
            ))
            .line(format!("route add blackhole {}", self.pod_cidr6()));
        batch.run(self.netns())?;
        let own = [(primary, Self::PRIMARY), (secondary, Self::SECONDARY)];
        settle(self.netns(), &own)
    }

    fn cable(
        &self,
        port: &str,
        interface: &str,
        gateway: Ipv4Addr,
        address: Ipv4Addr,
    ) -> Result<()> {
        let peer = (self.netns(), interface);
        self.inner.plan.router.add_port(&Port {
            name: port,
            peer,
            gateway,
            address,
            source_check: true,
        })
    }
}
