//! A node: two interfaces to the VPC, one to the management network, the CNI stand-in and the pods (FC-71, FC-74).
//!
//! The primary interface carries the node's address, the secondary one its pods': pods leave by it through a rule on
//! their source address, and replies that leave by the wrong one die at the router's source check. As real CNIs do,
//! the stand-in marks flows that came in by the primary interface for a node address (0x80) so that their replies
//! go back that way (harness.md section 3). The kubelet stand-in adds and removes pods.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipnet::Ipv4Net;

use crate::fabric::{AddressHook, host, lock};
use crate::ip::Batch;
use crate::netns::Netns;
use crate::ownership::{AddressBook, AddressEvent, AfterCooldown, Step};
use crate::process::Processes;
use crate::router::{Port, Router};
use crate::tag::WorldTag;
use crate::{Error, Result, tables};

/// Next hop that every pod has, at the other end of its link. No interface carries the address; the neighbour entry
/// is static, as with the routed-pod CNIs.
const POD_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const POD_GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";
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
    pub(crate) cooldown: Duration,
    pub(crate) after_cooldown: AfterCooldown,
    pub(crate) on_address: Option<AddressHook>,
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
}

/// A pod's namespace on a node. Give it back by [`NodeNet::remove_pod`]; its processes must have ended.
#[derive(Debug)]
pub struct PodNet {
    ns: Netns,
    name: String,
    address: Ipv4Addr,
    interface: String,
}

impl PodNet {
    /// Its namespace.
    pub fn netns(&self) -> &Netns {
        &self.ns
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The node's end of its link.
    pub fn node_interface(&self) -> &str {
        &self.interface
    }
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
        let node = Self {
            inner: Arc::new(Inner {
                ns,
                plan,
                book: Mutex::new(book),
            }),
        };
        node.configure()?;
        tables::create_cni(node.netns(), Self::PRIMARY, PRIMARY_MARK)?;
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

    /// The router port of the primary interface.
    pub fn primary_port(&self) -> String {
        format!("n{}e0", self.inner.plan.index)
    }

    /// The router port of the secondary interface.
    pub fn secondary_port(&self) -> String {
        format!("n{}e1", self.inner.plan.index)
    }

    /// The next pod on this node gets `address` (FC-77), unless a pod uses it.
    pub fn set_next_pod_ip(&self, address: Ipv4Addr) -> Result<()> {
        if lock(&self.inner.book).choose_next(address) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{address} is used by a pod of {}",
            self.name()
        )))
    }

    /// Makes the namespace and link of a pod. `address`: one that the caller chose, else the next of the node's
    /// range. `pod` names it in logs and in the namespace's name; it must be unique on the node.
    pub fn add_pod(&self, pod: &str, address: Option<Ipv4Addr>) -> Result<PodNet> {
        let address = self.take_address(address)?;
        let made = self.cable_pod(pod, address);
        if made.is_err() {
            lock(&self.inner.book).give_back(address, self.now());
        }
        made
    }

    /// Removes a pod's link and route at once; its address cools down (FC-75). Sockets still open in the namespace
    /// keep only the namespace alive.
    pub fn remove_pod(&self, pod: PodNet) -> Result<()> {
        let PodNet {
            ns,
            address,
            interface,
            ..
        } = pod;
        let mut batch = Batch::default();
        batch
            .line(format!("link del {interface}"))
            .line(format!("rule del pref 512 to {address} lookup main"))
            .line(format!(
                "rule del pref 1536 from {address} lookup {SECONDARY_TABLE}"
            ));
        batch.run(self.netns())?;
        drop(ns);
        let cooldown = lock(&self.inner.book).give_back(address, self.now());
        self.tell(AddressEvent::Cooling {
            node: self.name().to_owned(),
            address,
            cooldown,
        });
        self.settle()
    }

    /// Ends the cool-downs that are over.
    pub(crate) fn settle(&self) -> Result<()> {
        let steps = lock(&self.inner.book).settle(self.now());
        for step in steps {
            let (Step::Release(address) | Step::Offer(address)) = step;
            self.inner.plan.router.disown(address)?;
            self.tell(AddressEvent::Released {
                node: self.name().to_owned(),
                address,
            });
            if matches!(step, Step::Offer(_)) {
                lock(&self.inner.plan.offered).push((address, self.name().to_owned()));
            }
        }
        Ok(())
    }

    fn take_address(&self, chosen: Option<Ipv4Addr>) -> Result<Ipv4Addr> {
        let mut book = lock(&self.inner.book);
        if let Some(address) = chosen.or_else(|| self.offered_elsewhere()) {
            let free = book.take_exactly(address);
            return if free {
                Ok(address)
            } else {
                Err(Error::Invalid(format!(
                    "{address} is used by a pod of {}",
                    self.name()
                )))
            };
        }
        book.take()
            .ok_or_else(|| Error::Invalid(format!("{} has no pod address left", self.name())))
    }

    fn offered_elsewhere(&self) -> Option<Ipv4Addr> {
        let mut offered = lock(&self.inner.plan.offered);
        let at = offered.iter().position(|(_, node)| node != self.name())?;
        Some(offered.remove(at).0)
    }

    fn cable_pod(&self, pod: &str, address: Ipv4Addr) -> Result<PodNet> {
        let Inner { plan, ns: node, .. } = &*self.inner;
        if plan.router.owner(address).as_deref() != Some(self.secondary_port().as_str()) {
            plan.router.own(
                address,
                &self.secondary_port(),
                Some(self.secondary_address()),
            )?;
            self.tell(AddressEvent::Assigned {
                node: self.name().to_owned(),
                address,
            });
        }
        // The node's name keeps pods of one name on two nodes apart.
        let ns = Netns::new(
            &plan.tag,
            &format!("pod-{}-{pod}", self.name()),
            Arc::clone(&plan.processes),
        )?;
        let interface = format!("veth{:08x}", u32::from(address));
        let mut batch = Batch::default();
        batch
            .line(format!(
                "link add {interface} address {POD_GATEWAY_MAC} type veth peer name eth0 netns {}",
                ns.name()
            ))
            .line(format!("link set {interface} up"))
            .line(format!(
                "route add {address} dev {interface} scope link src {}",
                self.address()
            ))
            .line(format!("rule add pref 512 to {address} lookup main"))
            .line(format!(
                "rule add pref 1536 from {address} lookup {SECONDARY_TABLE}"
            ));
        batch.run(node)?;
        let mut batch = Batch::default();
        batch
            .line("link set eth0 up")
            .line(format!("addr add {address}/32 dev eth0"))
            .line(format!("route add {POD_GATEWAY} dev eth0 scope link"))
            .line(format!(
                "neigh add {POD_GATEWAY} lladdr {POD_GATEWAY_MAC} dev eth0 nud permanent"
            ))
            .line(format!("route add default via {POD_GATEWAY} dev eth0"));
        batch.run(&ns)?;
        self.tell(AddressEvent::Used {
            node: self.name().to_owned(),
            address,
            pod: pod.to_owned(),
        });
        Ok(PodNet {
            ns,
            name: pod.to_owned(),
            address,
            interface,
        })
    }

    fn configure(&self) -> Result<()> {
        let (primary, secondary) = (self.address(), self.secondary_address());
        // Before the interfaces exist: writing ip_forward resets what they have of their own.
        self.netns().sysctl(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            ("net/ipv4/conf/default/send_redirects", "0"),
        ])?;
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
        self.netns().sysctl(&[
            ("net/ipv4/conf/eth0/rp_filter", "2"),
            ("net/ipv4/conf/eth1/rp_filter", "1"),
        ])
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

    fn tell(&self, event: AddressEvent) {
        if let Some(hook) = &self.inner.plan.on_address {
            hook(event);
        }
    }

    #[expect(
        clippy::unused_self,
        reason = "the world's clock comes with the first cool-down that is not zero"
    )]
    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

impl PodNet {
    /// What its starter called it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, as sockets want it.
    pub fn ip(&self) -> IpAddr {
        self.address.into()
    }
}
