//! What the watches have delivered, as views, and which Services a change concerns.
//!
//! Filled by `watch`, read by `snapshot`. No I/O. A change that leaves a view equal concerns nobody;
//! nothing is decided before every cache has had its first full list (I1).

mod rollouts;
mod told;
mod views;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use onehop_core::crd::{AddressPool, LoadBalancer, RELEASE_ANNOTATION};
use onehop_core::endpoint::{Endpoints, Slice};
use onehop_core::id::{IpFamily, NodeName, PodUid, ServiceKey, ServiceUid};
use onehop_core::node::NodeView;
use onehop_runtime::watch::{Cache, Change, ObjectKey, Seen};

use crate::plan::Machine;
pub use rollouts::Rollout;
pub use views::{KnownGate, KnownPod, KnownPool, KnownService, PodLife};
use views::{KnownTargets, known_pod, known_pool, known_service, known_slice};

/// Everything known of the cluster.
#[derive(Debug, Default)]
pub struct Index {
    services: Cache<KnownService>,
    slices: Cache<Slice>,
    nodes: Cache<NodeView>,
    /// The machine behind each node address; made anew when it is asked for after a change.
    machines: Option<Arc<BTreeMap<IpAddr, Machine>>>,
    pods: Cache<KnownPod>,
    pools: Cache<KnownPool>,
    /// Only for advice: nothing waits for them.
    rollouts: Cache<Rollout>,
    namespaces: Cache<BTreeMap<String, String>>,
    balancers: Cache<Arc<LoadBalancer>>,
    node_targets: Cache<KnownTargets>,
    slices_of: HashMap<ServiceKey, BTreeSet<ObjectKey>>,
    pods_at: HashMap<IpAddr, BTreeSet<ObjectKey>>,
    pods_by_uid: HashMap<PodUid, ObjectKey>,
    /// Pods of which a gate about targets is shut.
    shut: BTreeSet<ObjectKey>,
    /// Pods that are Ready agents, by node.
    agents: HashMap<NodeName, BTreeSet<ObjectKey>>,
    /// Counts what concerns everybody's addresses.
    market_version: u64,
    /// Counts what concerns the presence of agents.
    agents_version: u64,
    /// Longest tail that agents have seen of each Service, in seconds (ZD-83).
    tails: HashMap<ServiceUid, u32>,
    /// Counts changes of what agents offer.
    offers_version: u64,
    /// Services that have, or want, a target at an address.
    interest: HashMap<IpAddr, BTreeSet<ServiceKey>>,
}

/// The Services to look at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// These, perhaps none.
    Services(Vec<ServiceKey>),
    /// All of them.
    All,
}

impl Index {
    /// Whether every cache has had its first full list.
    pub fn is_synced(&self) -> bool {
        self.first_lists().iter().all(|(_, there)| *there)
    }

    /// The kinds whose first full list is still waited for.
    pub fn missing(&self) -> Vec<&'static str> {
        let lists = self.first_lists().into_iter();
        lists
            .filter(|(_, there)| !there)
            .map(|(kind, _)| kind)
            .collect()
    }

    /// The kinds without which nothing is decided, and whether each was listed. Not `NodeTargets`: nobody's traffic
    /// depends on them (K-26).
    fn first_lists(&self) -> [(&'static str, bool); 7] {
        [
            ("services", self.services.is_synced()),
            ("endpointslices.discovery.k8s.io", self.slices.is_synced()),
            ("nodes", self.nodes.is_synced()),
            ("pods", self.pods.is_synced()),
            ("addresspools.onehop.dev", self.pools.is_synced()),
            ("namespaces", self.namespaces.is_synced()),
            ("loadbalancers.onehop.dev", self.balancers.is_synced()),
        ]
    }

    /// A Service came, changed or went. One that cannot be read is left out.
    pub fn on_service(&mut self, event: Seen<Service>) -> Touched {
        touched(self.services.apply(event, known_service))
    }

    /// What the server answered to our write of a Service.
    pub fn wrote_service(&mut self, service: &Service) -> Touched {
        touched(self.services.written(service, known_service))
    }

    /// An `EndpointSlice` came, changed or went.
    pub fn on_slice(&mut self, event: Seen<EndpointSlice>) -> Touched {
        let mut touched = BTreeSet::new();
        for Change { key, old } in self.slices.apply(event, known_slice) {
            if let Some(old) = old {
                remove_from(&mut self.slices_of, &old.service, &key);
                touched.insert(old.service);
            }
            if let Some(new) = self.slices.get(&key) {
                touched.insert(new.service.clone());
                self.slices_of
                    .entry(new.service.clone())
                    .or_default()
                    .insert(key);
            }
        }
        Touched::Services(touched.into_iter().collect())
    }

    /// A Node came, changed or went. Heartbeats change nothing in the view.
    pub fn on_node(&mut self, event: Seen<Node>) -> Touched {
        let changes = self.nodes.apply(event, |node| Some(NodeView::of(node)));
        if changes.is_empty() {
            Touched::Services(Vec::new())
        } else {
            self.machines = None;
            self.agents_version += 1;
            Touched::All
        }
    }

    /// Changes with pools and with labels of namespaces.
    pub const fn market_version(&self) -> u64 {
        self.market_version
    }

    /// Changes with what agents say that they can do.
    pub const fn offers_version(&self) -> u64 {
        self.offers_version
    }

    /// Changes with what [`Index::ready_agents`] and the nodes say.
    pub const fn agents_version(&self) -> u64 {
        self.agents_version
    }

    /// Nodes with a Ready agent.
    pub fn ready_agents(&self) -> BTreeSet<NodeName> {
        self.agents.keys().cloned().collect()
    }

    /// A Pod came, changed or went. Endpoints tell of pods that serve; this tells of the end of
    /// those that do not, and concerns only who has a target at their address.
    pub fn on_pod(&mut self, event: Seen<Pod>) -> Touched {
        let changes = self.pods.apply(event, known_pod);
        self.took_in_pods(changes)
    }

    fn took_in_pods(&mut self, changes: Vec<Change<KnownPod>>) -> Touched {
        let mut addresses = BTreeSet::new();
        for Change { key, old } in changes {
            if let Some(old) = old {
                self.pods_by_uid.remove(&old.uid);
                if let Some(node) = &old.ready_agent_of {
                    remove_from(&mut self.agents, node, &key);
                    self.agents_version += 1;
                }
                for address in old.addresses {
                    remove_from(&mut self.pods_at, &address, &key);
                    addresses.insert(address);
                }
            }
            self.shut.remove(&key);
            if let Some(new) = self.pods.get(&key) {
                if new.life == PodLife::Running && !new.gates.iter().all(KnownGate::is_open) {
                    self.shut.insert(key.clone());
                }
                self.pods_by_uid.insert(new.uid.clone(), key.clone());
                if let Some(node) = &new.ready_agent_of {
                    let pods = self.agents.entry(node.clone()).or_default();
                    pods.insert(key.clone());
                    self.agents_version += 1;
                }
                for address in &new.addresses {
                    self.pods_at
                        .entry(*address)
                        .or_default()
                        .insert(key.clone());
                    addresses.insert(*address);
                }
            }
        }
        let services = addresses
            .iter()
            .filter_map(|a| self.interest.get(a))
            .flatten();
        let services: BTreeSet<_> = services.cloned().collect();
        Touched::Services(services.into_iter().collect())
    }

    /// An `AddressPool` came, changed or went. Its status concerns no Service.
    pub fn on_pool(&mut self, event: Seen<AddressPool>) -> Touched {
        let changes = self.pools.apply(event, |pool| Some(known_pool(pool)));
        let seen = |change: &Change<KnownPool>| {
            let matters = |pool: &KnownPool| {
                let deleted = pool.object.metadata.deletion_timestamp.is_some();
                (pool.object.spec.clone(), deleted)
            };
            change.old.as_ref().map(matters) != self.pools.get(&change.key).map(matters)
        };
        if changes.iter().any(seen) {
            self.market_version += 1;
            Touched::All
        } else {
            Touched::Services(Vec::new())
        }
    }

    /// What the server answered to our write of a pool's status: no news for anybody.
    pub fn wrote_pool(&mut self, pool: &AddressPool) -> Touched {
        self.pools.written(pool, |pool| Some(known_pool(pool)));
        Touched::Services(Vec::new())
    }

    /// A Namespace came, changed or went. Only its labels matter, to the selectors of pools.
    pub fn on_namespace(&mut self, event: Seen<Namespace>) -> Touched {
        let labels = |ns: &Namespace| Some(ns.metadata.labels.clone().unwrap_or_default());
        let changes = self.namespaces.apply(event, labels);
        self.market_version += u64::from(!changes.is_empty());
        let of = |service: &&KnownService| {
            let namespace = &service.spec.key.namespace;
            changes.iter().any(|change| change.key.name == *namespace)
        };
        let services = self.services().filter(of);
        Touched::Services(services.map(|s| s.spec.key.clone()).collect())
    }

    /// A `LoadBalancer` came, changed or went. What we have written ourselves is no news; that
    /// somebody deletes it, or asks for its release, is.
    pub fn on_balancer(&mut self, event: Seen<LoadBalancer>) -> Touched {
        let changes = self.balancers.apply(event, |b| Some(Arc::new(b.clone())));
        let news = changes.into_iter().filter(|change| {
            let new = self.balancers.get(&change.key);
            let released = |b: &Arc<LoadBalancer>| b.annotations().contains_key(RELEASE_ANNOTATION);
            let before = change.old.as_ref().is_some_and(released);
            new.is_none_or(|b| b.metadata.deletion_timestamp.is_some() || released(b) != before)
        });
        Touched::Services(news.map(|c| service_key(&c.key)).collect())
    }

    /// What the server answered to our write of a `LoadBalancer`: no news for anybody.
    pub fn wrote_balancer(&mut self, balancer: &LoadBalancer) -> Touched {
        self.balancers
            .written(balancer, |b| Some(Arc::new(b.clone())));
        Touched::Services(Vec::new())
    }

    /// One node.
    pub fn node(&self, node: &NodeName) -> Option<&NodeView> {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        self.nodes.get(&key)
    }

    /// Whether there is such a node.
    pub fn has_node(&self, node: &NodeName) -> bool {
        self.node(node).is_some()
    }

    /// Notes at which addresses a Service has or wants targets.
    pub fn set_interest(
        &mut self,
        service: &ServiceKey,
        old: &BTreeSet<IpAddr>,
        new: &BTreeSet<IpAddr>,
    ) {
        for address in old.difference(new) {
            remove_from(&mut self.interest, address, service);
        }
        for address in new.difference(old) {
            self.interest
                .entry(*address)
                .or_default()
                .insert(service.clone());
        }
    }

    /// The Services.
    pub fn services(&self) -> impl Iterator<Item = &KnownService> {
        self.services.all().values()
    }

    /// One Service.
    pub fn service(&self, key: &ServiceKey) -> Option<&KnownService> {
        self.services.get(&object_key(key))
    }

    /// All endpoints of a Service, merged.
    pub fn endpoints(&self, service: &ServiceKey) -> Endpoints {
        let keys = self.slices_of.get(service).into_iter().flatten();
        Endpoints::merge(keys.filter_map(|key| self.slices.get(key)))
    }

    /// The nodes, ordered by name.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.all().values()
    }

    /// The machine behind each node's primary addresses.
    pub fn machines(&mut self) -> Arc<BTreeMap<IpAddr, Machine>> {
        let nodes = self.nodes.all().values();
        let machine = |node: &NodeView| {
            let machine = Machine {
                node: node.name.clone(),
                provider_id: node.provider_id.clone(),
                zone: node.zone.clone(),
                labels: node.labels.clone(),
            };
            let addresses = IpFamily::ALL.map(|family| node.primary_address(family));
            addresses
                .into_iter()
                .flatten()
                .map(move |address| (address, machine.clone()))
        };
        let made = self
            .machines
            .get_or_insert_with(|| Arc::new(nodes.flat_map(machine).collect()));
        Arc::clone(made)
    }

    /// A pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<&KnownPod> {
        self.pods.get(self.pods_by_uid.get(uid)?)
    }

    /// A pod by UID, with its name.
    pub fn named_pod(&self, uid: &PodUid) -> Option<(&ObjectKey, &KnownPod)> {
        let key = self.pods_by_uid.get(uid)?;
        Some((key, self.pods.get(key)?))
    }

    /// Pods that run and of which a gate about targets is shut.
    pub fn shut_pods(&self) -> impl Iterator<Item = (&ObjectKey, &KnownPod)> {
        let pods = self.shut.iter();
        pods.filter_map(|key| Some((key, self.pods.get(key)?)))
    }

    /// What the server answered to our write of a pod's status.
    pub fn wrote_pod(&mut self, pod: &Pod) -> Touched {
        let changes = self.pods.written(pod, known_pod);
        self.took_in_pods(changes)
    }

    /// The pods that have this address.
    pub fn pods_at(&self, address: IpAddr) -> impl Iterator<Item = &KnownPod> {
        let keys = self.pods_at.get(&address).into_iter().flatten();
        keys.filter_map(|key| self.pods.get(key))
    }

    /// The pools.
    pub fn pools(&self) -> impl Iterator<Item = &KnownPool> {
        self.pools.all().values()
    }

    /// Labels of a namespace.
    pub fn namespace_labels(&self, namespace: &str) -> BTreeMap<String, String> {
        let key = ObjectKey {
            namespace: String::new(),
            name: namespace.to_owned(),
        };
        self.namespaces.get(&key).cloned().unwrap_or_default()
    }

    /// The `LoadBalancer` object of a Service.
    pub fn balancer(&self, service: &ServiceKey) -> Option<&Arc<LoadBalancer>> {
        self.balancers.get(&object_key(service))
    }

    /// All `LoadBalancer` objects, by the Service they are named as.
    pub fn balancers(&self) -> impl Iterator<Item = (ServiceKey, &Arc<LoadBalancer>)> {
        self.balancers
            .all()
            .iter()
            .map(|(key, b)| (service_key(key), b))
    }
}

fn remove_from<K: std::hash::Hash + Eq, V: Ord>(
    map: &mut HashMap<K, BTreeSet<V>>,
    key: &K,
    value: &V,
) {
    if let Some(set) = map.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

fn object_key(key: &ServiceKey) -> ObjectKey {
    ObjectKey {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

fn service_key(key: &ObjectKey) -> ServiceKey {
    ServiceKey::new(&key.namespace, &key.name)
}

fn touched<V>(changes: Vec<Change<V>>) -> Touched {
    Touched::Services(changes.into_iter().map(|c| service_key(&c.key)).collect())
}

#[cfg(test)]
mod tests;
