//! The pods of a node: a namespace, a link and an address each, and what becomes of the address afterwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use onehop_core::time::Time;

use super::{Inner, NodeNet, SECONDARY_TABLE};
use crate::fabric::lock;
use crate::ip::Batch;
use crate::netns::Netns;
use crate::ownership::{AddressEvent, Step};
use crate::settle::settle;
use crate::twin::{both, twin};
use crate::{Error, Result};

/// Next hop that every pod has, at the other end of its link. No interface carries the address; the neighbour entry
/// is static, as with the routed-pod CNIs.
const POD_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const POD_GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";
/// The same in IPv6: the link-local address that follows from the link-layer one.
const POD_GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

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

    /// What its starter called it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        both(self.address)
    }
}

impl NodeNet {
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
        let address6 = twin(address);
        let mut batch = Batch::v6();
        batch
            .line(format!("rule del pref 512 to {address6} lookup main"))
            .line(format!(
                "rule del pref 1536 from {address6} lookup {SECONDARY_TABLE}"
            ));
        batch.run(self.netns())?;
        drop(ns);
        let until = lock(&self.inner.book).give_back(address, self.now());
        self.tell(AddressEvent::Cooling {
            node: self.name().to_owned(),
            address,
            cooldown: self.inner.plan.cooldown,
        });
        self.settle()?;
        self.settle_later(until)
    }

    /// Ends a cool-down in its time, unless the world ends before.
    fn settle_later(&self, until: Time) -> Result<()> {
        let clock = self.inner.plan.clock;
        if until <= clock.now() {
            return Ok(());
        }
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|e| Error::Invalid(format!("cool-downs need a tokio runtime: {e}")))?;
        let node = Arc::downgrade(&self.inner);
        runtime.spawn(async move {
            clock.sleep_until(until).await;
            let Some(inner) = node.upgrade() else { return };
            let node = NodeNet { inner };
            let settled = tokio::task::spawn_blocking(move || node.settle()).await;
            if let Ok(Err(error)) = settled {
                tracing::warn!(%error, "end of a cool-down");
            }
        });
        Ok(())
    }

    /// Ends the cool-downs that are over.
    pub(crate) fn settle(&self) -> Result<()> {
        let steps = lock(&self.inner.book).settle(self.now());
        for step in steps {
            let (Step::Release(address) | Step::Offer(address)) = step;
            for address in both(address) {
                self.inner.plan.router.disown(address)?;
            }
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
            let port = self.secondary_port();
            for (address, via) in both(address)
                .into_iter()
                .zip(both(self.secondary_address()))
            {
                plan.router.own(address, &port, Some(via))?;
            }
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
        let address6 = twin(address);
        let mut batch = Batch::v6();
        batch
            .line(format!("route add {address6} dev {interface}"))
            .line(format!("rule add pref 512 to {address6} lookup main"))
            .line(format!(
                "rule add pref 1536 from {address6} lookup {SECONDARY_TABLE}"
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
        let mut batch = Batch::v6();
        batch
            .line(format!("addr add {address6}/128 dev eth0 nodad"))
            .line(format!(
                "neigh add {POD_GATEWAY6} lladdr {POD_GATEWAY_MAC} dev eth0 nud permanent"
            ))
            .line(format!("route add default via {POD_GATEWAY6} dev eth0"));
        batch.run(&ns)?;
        settle(&ns, &[(address6, "eth0")])?;
        Batch::default().sends(&interface).run(node)?;
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

    fn tell(&self, event: AddressEvent) {
        if let Some(hook) = &self.inner.plan.on_address {
            hook(event);
        }
    }

    fn now(&self) -> Time {
        self.inner.plan.clock.now()
    }
}
