//! What the Azure provider knows beside Services and observations: flags and cloud config, resolved. Read by every pure
//! module.

use std::collections::BTreeMap;
use std::time::Duration;

use onehop_core::crd::TargetMode;
use onehop_core::id::{Cidr, InstallId};

use crate::cloud::local::resolve::NodeProxy;

/// Settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This install.
    pub install: InstallId,
    /// The cluster's name: part of the names of public IPs (AZ-089).
    pub cluster: String,
    /// Who forwards on the nodes.
    pub proxy: NodeProxy,
    /// Mode where nothing says.
    pub mode: TargetMode,
    /// Where things are.
    pub place: Place,
    /// Ranges of pods that have addresses of the virtual network, so that the load balancer reaches them (AZ-251).
    pub pod_prefixes: Vec<Cidr>,
    /// Tags on everything that we make (AZ-185).
    pub tags: BTreeMap<String, String>,
    /// `disableOutboundSnat` of rules to nodes (AZ-130).
    pub disable_outbound_snat: bool,
    /// Most members of one pool (AZ-266).
    pub pool_size: usize,
    /// How long a replaced pool or frontend serves on.
    pub switch_tail: Duration,
    /// How long a flow can still come to a member after it was taken out.
    pub tail: Duration,
    /// How long a member that is set Down keeps its flows before it is taken out (AZ-291).
    pub drain: Duration,
    /// How long the former address of a Service serves on after it was given another one (AZ-113).
    pub dns_grace: Duration,
}

/// Where things are. All of it can come from flags (AZ-450).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The subscription.
    pub subscription: String,
    /// Resource group of our load balancers and, unless an annotation says otherwise, public IPs (AZ-016).
    pub resource_group: String,
    /// The region.
    pub location: String,
    /// Name of our load balancer; the internal one has `-internal` behind it.
    pub load_balancer: String,
    /// Resource group of the virtual network.
    pub vnet_resource_group: String,
    /// The virtual network.
    pub vnet: String,
    /// Subnet of internal frontends where no annotation names one.
    pub subnet: String,
    /// The network security group; none if there is none that we may write (AZ-018).
    pub security_group: Option<SecurityGroup>,
}

/// A network security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Its resource group.
    pub resource_group: String,
    /// Its name.
    pub name: String,
}

/// Which of our load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The one with public frontends.
    External,
    /// The one with private frontends.
    Internal,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::External, Self::Internal];

    /// The other one.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::External => Self::Internal,
            Self::Internal => Self::External,
        }
    }
}

impl Place {
    /// Name of a load balancer of ours (AZ-081, AZ-099).
    pub fn balancer(&self, kind: Kind) -> String {
        match kind {
            Kind::External => self.load_balancer.clone(),
            Kind::Internal => format!("{}-internal", self.load_balancer),
        }
    }

    /// Resource id of a load balancer.
    pub fn balancer_id(&self, kind: Kind) -> String {
        self.network(&self.resource_group, "loadBalancers", &self.balancer(kind))
    }

    /// Resource id of a child of a load balancer.
    pub fn child_id(&self, kind: Kind, list: &str, name: &str) -> String {
        format!("{}/{list}/{name}", self.balancer_id(kind))
    }

    /// Resource id of a public IP.
    pub fn public_ip_id(&self, resource_group: Option<&str>, name: &str) -> String {
        let group = resource_group.unwrap_or(&self.resource_group);
        self.network(group, "publicIPAddresses", name)
    }

    /// Resource id of the virtual network.
    pub fn vnet_id(&self) -> String {
        self.network(&self.vnet_resource_group, "virtualNetworks", &self.vnet)
    }

    /// Resource id of a subnet.
    pub fn subnet_id(&self, name: Option<&str>) -> String {
        format!(
            "{}/subnets/{}",
            self.vnet_id(),
            name.unwrap_or(&self.subnet)
        )
    }

    /// Resource id of a network security group.
    pub fn security_group_id(&self, group: &SecurityGroup) -> String {
        self.network(&group.resource_group, "networkSecurityGroups", &group.name)
    }

    /// Resource id of something of Microsoft.Network.
    pub fn network(&self, resource_group: &str, kind: &str, name: &str) -> String {
        let subscription = &self.subscription;
        format!(
            "/subscriptions/{subscription}/resourceGroups/{resource_group}/providers/Microsoft.Network/{kind}/{name}"
        )
    }
}
