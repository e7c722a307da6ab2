//! What the Azure provider knows beside Services and observations: flags and cloud config, resolved. Read by every pure
//! module.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::crd::{MembershipPolicy, TargetMode};
use onehop_core::id::{Cidr, InstallId};
use serde_json::{Value, json};

use super::resolve::Flavour;
use crate::cloud::local::resolve::NodeProxy;
use crate::plan::Bounds;
use crate::plan::custody::{PeerServices, Selection};

/// Seconds for which new flows may still come to a member that was taken out (C-52).
pub const TAIL_SECONDS: u32 = 30;

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
    /// How members come and go where nothing says; by the class if the install does not (K-32).
    pub membership: Option<MembershipPolicy>,
    /// Where things are.
    pub place: Place,
    /// Ranges of pods that have addresses of the virtual network, so that the load balancer reaches them (AZ-251).
    pub pod_prefixes: Vec<Cidr>,
    /// Tags on everything that we make (AZ-185).
    pub tags: BTreeMap<String, String>,
    /// `disableOutboundSnat` of rules to nodes (AZ-130).
    pub disable_outbound_snat: bool,
    /// Keys of tags that stay although we did not set them, where the others go; none: all stay (AZ-185).
    pub system_tags: Option<BTreeSet<String>>,
    /// Whether nodes of the control plane are no members (AZ-233).
    pub exclude_control_plane: bool,
    /// Load balancers whose pools of nodes others fill (AZ-236).
    pub others_pools: BTreeSet<Kind>,
    /// Port and path of the one probe of all Services of the peer's class with policy Cluster; none: each has its own
    /// (AZ-142).
    pub shared_probe: Option<(u16, String)>,
    /// Most members of one pool (AZ-266).
    pub pool_size: usize,
    /// How long a replaced pool or frontend serves on.
    pub switch_tail: Duration,
    /// How many members stay, and for how long (C-52).
    pub bounds: Bounds,
    /// How long a member that is set Down keeps its flows before it is taken out (AZ-291).
    pub drain: Duration,
    /// How long the former address of a Service serves on after it was given another one (AZ-113).
    pub dns_grace: Duration,
    /// Whose load balancers we write.
    pub layout: Layout,
    /// Taking over from cloud-provider-azure.
    pub take_over: TakeOver,
}

impl Settings {
    /// Whose names and tags the public IPs and security rules of a Service of this class have. Those of the peer only
    /// where it is off: beside it they would be its to change (AZ-005, AZ-010).
    pub fn naming(&self, class: Option<&str>) -> Flavour {
        match self.take_over.peer {
            PeerServices::Off => Flavour::of(class),
            PeerServices::MayAct => Flavour::Own,
        }
    }
}

/// Whose load balancers we write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Our own, known by our tag (AZ-016).
    #[default]
    Own,
    /// The cluster's, which others write too (AZ-017).
    Shared,
}

/// What is taken over from cloud-provider-azure (AZ-014): nothing is written before it was said that its service
/// controller is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// Whether it may still act on Services.
    pub peer: PeerServices,
    /// Whose load balancers are taken over; the others are looked at only.
    pub of: Selection,
    /// Whose differences are accepted.
    pub accepted: Selection,
}

impl Default for TakeOver {
    fn default() -> Self {
        Self {
            peer: PeerServices::MayAct,
            of: Selection::default(),
            accepted: Selection::default(),
        }
    }
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
    /// The edge zone of the region that the cluster is in, if it is in one: what is made there is in no zone (AZ-175).
    pub edge_zone: Option<String>,
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
    /// The one of the pods' subnet, where that has its own (AZ-216).
    pub pod_security_group: Option<SecurityGroup>,
    /// The node resource group of AKS, if anything of it is written: what is there is written under AKS's lease (AZ-009).
    pub node_resource_group: Option<String>,
}

/// A network security group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityGroup {
    /// Its resource group.
    pub resource_group: String,
    /// Its name.
    pub name: String,
}

/// What a network security group stands before (AZ-216).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Frontends and nodes, and pods in their subnet.
    #[default]
    Nodes,
    /// Pods in a subnet of their own.
    Pods,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nodes, Self::Pods];
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
    /// Whether AKS writes there too (AZ-009).
    pub fn is_under_lease(&self, id: &str) -> bool {
        let Some(group) = &self.node_resource_group else {
            return false;
        };
        let part = format!("/resourcegroups/{}/", group.to_ascii_lowercase());
        id.to_ascii_lowercase().contains(&part)
    }

    /// Says in a new document that it is in the edge zone, where the cluster is in one (AZ-175).
    pub fn put_in_edge_zone(&self, document: &mut Value) {
        if let Some(name) = &self.edge_zone {
            document["extendedLocation"] = json!({"name": name, "type": "EdgeZone"});
        }
    }

    /// Resource id of what Azure says of Microsoft.Network and its regions.
    pub fn provider_id(&self) -> String {
        format!(
            "/subscriptions/{}/providers/Microsoft.Network",
            self.subscription
        )
    }

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

    /// The network security group of a side, if it has one that we may write.
    pub const fn group(&self, side: Side) -> Option<&SecurityGroup> {
        match side {
            Side::Nodes => self.security_group.as_ref(),
            Side::Pods => self.pod_security_group.as_ref(),
        }
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
