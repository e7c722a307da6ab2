//! A node whose pods somebody else cables: a real container runtime with a CNI plugin. Its whole range of addresses is the
//! node's from the start, and its programs reach the management network.

use std::net::{IpAddr, Ipv6Addr};

use super::{NodeNet, SECONDARY_TABLE};
use crate::fabric::host;
use crate::ip::Batch;
use crate::netns::Netns;
use crate::twin::both;
use crate::{Fabric, Result, tables};

/// Host numbers that a range's pods may have, in both families. The first is the gateway's.
const FIRST_POD: u8 = 2;
const LAST_POD: u8 = 254;

impl NodeNet {
    /// The first and the last address that a CNI plugin may give to pods of this node, by family, IPv4 first.
    pub fn pod_range(&self) -> [(IpAddr, IpAddr); 2] {
        let [first, last] = [FIRST_POD, LAST_POD].map(|number| self.pod_addresses(number));
        [(first[0], last[0]), (first[1], last[1])]
    }

    /// Opens the network to pods that a CNI plugin cables: any address of [`NodeNet::pod_range`] may be used. Pods reach
    /// the management network, too, as the node (IPv4 only), and what lives there reaches the node and its pods.
    pub(crate) fn open_pod_range(&self, management: &Netns) -> Result<()> {
        let [via4, via6] = both(self.secondary_address());
        let all = (FIRST_POD..=LAST_POD).map(|number| self.pod_addresses(number));
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = all.map(|[v4, v6]| (v4, v6)).unzip();
        let (port, router) = (self.secondary_port(), &self.inner.plan.router);
        router.own_fresh(&v4, &port, via4)?;
        router.own_fresh(&v6, &port, via6)?;
        let mut batch = Batch::default();
        let pods = self.pod_cidr();
        batch
            .line(format!("rule add pref 512 to {pods} lookup main"))
            .line(format!(
                "rule add pref 1536 from {pods} lookup {SECONDARY_TABLE}"
            ));
        batch.run(self.netns())?;
        let mut batch = Batch::v6();
        let pods = self.pod_cidr6();
        batch
            .line(format!("rule add pref 512 to {pods} lookup main"))
            .line(format!(
                "rule add pref 1536 from {pods} lookup {SECONDARY_TABLE}"
            ));
        batch.run(self.netns())?;
        self.open_management(management)?;
        // An API server is a proxy to pods.
        let mut batch = Batch::default();
        batch.line(format!(
            "route add {} via {} src {}",
            self.pod_cidr(),
            self.management_address(),
            Fabric::MANAGEMENT
        ));
        batch.run(management)
    }

    /// Lets its pods reach the management network, as the node: by its address, for which there is a way back.
    pub(crate) fn open_management(&self, management: &Netns) -> Result<()> {
        let network = host([172, 30, 0], 0);
        let mut batch = Batch::default();
        batch.line(format!("rule add pref 1023 to {network}/24 lookup main"));
        batch.run(self.netns())?;
        tables::masquerade(self.netns(), "mgmt0")?;
        let mut batch = Batch::default();
        batch.line(format!(
            "route add {} via {} src {}",
            self.address(),
            self.management_address(),
            Fabric::MANAGEMENT
        ));
        batch.run(management)
    }

    fn pod_addresses(&self, number: u8) -> [IpAddr; 2] {
        let [a, b, c, _] = self.pod_cidr().addr().octets();
        let mut v6 = self.pod_cidr6().addr().segments();
        v6[7] = u16::from(number);
        [
            std::net::Ipv4Addr::new(a, b, c, number).into(),
            Ipv6Addr::from(v6).into(),
        ]
    }
}
