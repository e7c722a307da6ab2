//! What a Service wants of its load balancer, independent of the provider.
//!
//! The controller resolves one from its snapshot, providers plan from it. The part that can be
//! written down is the spec of the `LoadBalancer` object, so that the two never drift (harness.md
//! section 1); beside it stand the members, which only the current endpoints and nodes can tell.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::crd::{LoadBalancerPort, LoadBalancerSpec};
use crate::endpoint::{Conditions, PodRef};
use crate::id::{NodeName, PortKey, ServiceKey, Zone};

/// The resolved intent of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intent {
    /// The Service.
    pub service: ServiceKey,
    /// Everything that survives a restart.
    pub spec: LoadBalancerSpec,
    /// What may be a target now, per port: pods in pod mode, nodes in node and vip mode.
    pub members: BTreeMap<PortKey, Vec<Member>>,
}

/// Something that may be a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Address that the load balancer sends to.
    pub address: IpAddr,
    /// Port that it sends to.
    pub port: u16,
    /// The node, or the node of the pod.
    pub node: Option<NodeName>,
    /// Its zone.
    pub zone: Option<Zone>,
    /// The pod, in pod mode.
    pub pod: Option<PodRef>,
    /// Whether it can serve: of a node, whether it should take traffic.
    pub conditions: Conditions,
}

impl Intent {
    /// What may be a target of this port.
    pub fn members_of(&self, port: &LoadBalancerPort) -> &[Member] {
        self.members.get(&port.key()).map_or(&[], Vec::as_slice)
    }
}
