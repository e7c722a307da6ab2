//! Endpoint selection: which endpoints of one Service port a node uses, and what happens to new
//! connections when there are none (sections 3 and 4 of the datapath specification).
//!
//! Called by the agent's compiler for each port and family, and by tests of the packet path.
//! Hints alone decide topology: the Service's `trafficDistribution` and annotations are not read (S-41).

use std::collections::BTreeSet;

use crate::endpoint::Endpoint;
use crate::id::{NodeName, Zone};
use crate::service::{ServicePort, ServiceSpec, TrafficPolicy};

/// The node on which the selection is made. Of a node, only these two matter (S-42).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Here {
    /// Its name.
    pub node: NodeName,
    /// Its zone; without one no zone hint ever matches (S-46).
    pub zone: Option<Zone>,
}

/// The traffic policies that apply to one Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// For traffic to the ClusterIP.
    pub internal: TrafficPolicy,
    /// For traffic to NodePorts, LB addresses and external IPs; `None` if it has none of these.
    pub external: Option<TrafficPolicy>,
}

impl Policies {
    /// The policies of a port. `also_external` says that the node has external destinations for it
    /// which the Service itself does not show: VIPs and retired `NodePorts` from `NodeTargets`
    /// (S-22, S-24).
    pub fn of(service: &ServiceSpec, port: &ServicePort, also_external: bool) -> Self {
        let external = also_external || service.is_externally_accessible(port);
        Self {
            internal: service.internal_policy,
            external: external.then_some(service.external_policy),
        }
    }

    /// Whether some traffic uses the Cluster list (`UsesCluster`).
    pub fn uses_cluster(self) -> bool {
        self.internal == TrafficPolicy::Cluster || self.external.is_some()
    }

    /// Whether some traffic uses the Local list (`UsesLocal`).
    pub fn uses_local(self) -> bool {
        self.internal == TrafficPolicy::Local || self.external == Some(TrafficPolicy::Local)
    }
}

/// The endpoints of one Service port, as one node uses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection<'a> {
    policies: Policies,
    /// The Cluster list; `None` if no traffic uses it.
    pub cluster: Option<Vec<&'a Endpoint>>,
    /// The Local list; `None` if no traffic uses it.
    pub local: Option<Vec<&'a Endpoint>>,
    /// Whether a usable endpoint exists anywhere, remote ones included (`AnyEndpoints`).
    pub any: bool,
}

/// Where a new connection comes from and goes to, as far as the choice of list depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// To the ClusterIP.
    Internal,
    /// To an external destination, from outside the cluster.
    ExternalFromOutside,
    /// To an external destination, from a pod or a process on this node (S-63 a and b).
    ExternalFromInside,
}

impl Traffic {
    /// All kinds.
    pub const ALL: [Self; 3] = [
        Self::Internal,
        Self::ExternalFromOutside,
        Self::ExternalFromInside,
    ];
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'s, 'a> {
    /// It goes to one of these, chosen at random (S-43).
    Serve(&'s [&'a Endpoint]),
    /// It is dropped: somebody else has endpoints (S-49, S-55).
    Drop,
    /// It is refused: nobody has (S-48).
    Reject,
}

/// Selects from the endpoints of one port and family. They must be merged, see
/// [`crate::endpoint::Endpoints::merge`]; the result keeps their order.
pub fn select<'a>(policies: Policies, endpoints: &'a [Endpoint], here: &Here) -> Selection<'a> {
    Selection {
        policies,
        cluster: policies
            .uses_cluster()
            .then(|| cluster_list(endpoints, here)),
        local: policies.uses_local().then(|| local_list(endpoints, here)),
        any: endpoints.iter().any(|e| e.conditions.is_usable()),
    }
}

impl<'a> Selection<'a> {
    /// Every endpoint of either list once, ordered by address and port.
    pub fn all(&self) -> Vec<&'a Endpoint> {
        let lists = self.cluster.iter().chain(&self.local).flatten();
        let mut seen = BTreeSet::new();
        let mut all: Vec<_> = lists
            .copied()
            .filter(|e| seen.insert((e.address, e.port)))
            .collect();
        all.sort_by_key(|e| (e.address, e.port));
        all
    }

    /// What happens to new connections of this kind; `None` if the port has no such destination.
    pub fn verdict(&self, traffic: Traffic) -> Option<Verdict<'_, 'a>> {
        let policy = match traffic {
            Traffic::Internal => self.policies.internal,
            Traffic::ExternalFromOutside => self.policies.external?,
            // Pods and the node itself are served as if they had gone out to the load balancer and
            // come back to a node that has endpoints (S-63, S-64).
            Traffic::ExternalFromInside => {
                self.policies.external?;
                TrafficPolicy::Cluster
            }
        };
        let list = match policy {
            TrafficPolicy::Cluster => self.cluster.as_deref(),
            TrafficPolicy::Local => self.local.as_deref(),
        };
        Some(match list {
            Some(list) if !list.is_empty() => Verdict::Serve(list),
            _ if self.any => Verdict::Drop,
            _ => Verdict::Reject,
        })
    }
}

/// Steps 1 to 5 of the Cluster list.
fn cluster_list<'a>(endpoints: &'a [Endpoint], here: &Here) -> Vec<&'a Endpoint> {
    let ready: Vec<_> = endpoints.iter().filter(|e| e.conditions.ready).collect();
    if ready.is_empty() {
        return endpoints
            .iter()
            .filter(|e| e.conditions.is_serving_terminating())
            .collect();
    }
    let on_node = |e: &Endpoint| e.hints.nodes.contains(&here.node);
    let in_zone = |e: &Endpoint| {
        here.zone
            .as_ref()
            .is_some_and(|z| e.hints.zones.contains(z))
    };
    narrowed(&ready, |e| !e.hints.nodes.is_empty(), on_node)
        .or_else(|| narrowed(&ready, |e| !e.hints.zones.is_empty(), in_zone))
        .unwrap_or(ready)
}

/// The endpoints that a level of topology leaves, or `None` if the level is off: one ready endpoint
/// has no hint of that level (S-46), or none is meant for here.
fn narrowed<'a>(
    ready: &[&'a Endpoint],
    is_hinted: impl Fn(&Endpoint) -> bool,
    is_for_here: impl Fn(&Endpoint) -> bool,
) -> Option<Vec<&'a Endpoint>> {
    if !ready.iter().all(|e| is_hinted(e)) {
        return None;
    }
    let chosen: Vec<_> = ready.iter().copied().filter(|e| is_for_here(e)).collect();
    (!chosen.is_empty()).then_some(chosen)
}

/// The Local list: hints play no part.
fn local_list<'a>(endpoints: &'a [Endpoint], here: &Here) -> Vec<&'a Endpoint> {
    let local = || endpoints.iter().filter(|e| e.is_local(&here.node));
    let ready: Vec<_> = local().filter(|e| e.conditions.ready).collect();
    if ready.is_empty() {
        return local()
            .filter(|e| e.conditions.is_serving_terminating())
            .collect();
    }
    ready
}
