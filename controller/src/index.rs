//! What the watches have delivered, as views, and which Services a change concerns.
//!
//! Filled by `watch`, read by `snapshot`. No I/O. A change that leaves a view equal concerns nobody;
//! nothing is decided before every cache has had its first full list (I1).

mod views;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use onehop_core::crd::{AddressPool, Feature, LoadBalancer, NodeTarget, NodeTargets};
use onehop_core::endpoint::{Endpoints, Slice};
use onehop_core::id::{Cidr, InstallId, NodeName, PodUid, ServiceKey, ServiceUid};
use onehop_core::node::NodeView;
use onehop_runtime::watch::{Cache, Change, ObjectKey, Seen};

use crate::plan::Machine;
pub use views::{KnownPod, KnownPool, KnownService, PodLife};
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
    namespaces: Cache<BTreeMap<String, String>>,
    balancers: Cache<Arc<LoadBalancer>>,
    node_targets: Cache<KnownTargets>,
    slices_of: HashMap<ServiceKey, BTreeSet<ObjectKey>>,
    pods_at: HashMap<IpAddr, BTreeSet<ObjectKey>>,
    pods_by_uid: HashMap<PodUid, ObjectKey>,
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
    pub const fn is_synced(&self) -> bool {
        self.services.is_synced()
            && self.slices.is_synced()
            && self.nodes.is_synced()
            && self.pods.is_synced()
            && self.pools.is_synced()
            && self.namespaces.is_synced()
            && self.balancers.is_synced()
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
            Touched::All
        }
    }

    /// A Pod came, changed or went. Endpoints tell of pods that serve; this tells of the end of
    /// those that do not, and concerns only who has a target at their address.
    pub fn on_pod(&mut self, event: Seen<Pod>) -> Touched {
        let mut addresses = BTreeSet::new();
        for Change { key, old } in self.pods.apply(event, known_pod) {
            if let Some(old) = old {
                self.pods_by_uid.remove(&old.uid);
                for address in old.addresses {
                    remove_from(&mut self.pods_at, &address, &key);
                    addresses.insert(address);
                }
            }
            if let Some(new) = self.pods.get(&key) {
                self.pods_by_uid.insert(new.uid.clone(), key.clone());
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
        let of = |service: &&KnownService| {
            let namespace = &service.spec.key.namespace;
            changes.iter().any(|change| change.key.name == *namespace)
        };
        let services = self.services().filter(of);
        Touched::Services(services.map(|s| s.spec.key.clone()).collect())
    }

    /// A `LoadBalancer` came, changed or went. What we have written ourselves is no news; that
    /// somebody deletes it is.
    pub fn on_balancer(&mut self, event: Seen<LoadBalancer>) -> Touched {
        let changes = self.balancers.apply(event, |b| Some(Arc::new(b.clone())));
        let news = changes.into_iter().filter(|change| {
            let new = self.balancers.get(&change.key);
            new.is_none_or(|b| b.metadata.deletion_timestamp.is_some())
        });
        Touched::Services(news.map(|c| service_key(&c.key)).collect())
    }

    /// What the server answered to our write of a `LoadBalancer`: no news for anybody.
    pub fn wrote_balancer(&mut self, balancer: &LoadBalancer) -> Touched {
        self.balancers
            .written(balancer, |b| Some(Arc::new(b.clone())));
        Touched::Services(Vec::new())
    }

    /// A `NodeTargets` object came, changed or went: concerns the Services that wait for their addresses to be
    /// programmed. Nothing else is decided by it.
    pub fn on_node_targets(&mut self, event: Seen<NodeTargets>) -> Touched {
        let old = match &event {
            Seen::Listed(object) | Seen::Applied(object) => {
                self.node_targets.get(&ObjectKey::of(object)).cloned()
            }
            _ => None,
        };
        let changes = self.node_targets.apply(event, |object| {
            Some(KnownTargets::after(old.as_ref(), object.clone()))
        });
        self.waiting(changes)
    }

    /// What the server answered to our write of a `NodeTargets` object.
    pub fn wrote_node_targets(&mut self, object: &NodeTargets) -> Touched {
        let old = self.node_targets.get(&ObjectKey::of(object)).cloned();
        let changes = self.node_targets.written(object, |object| {
            Some(KnownTargets::after(old.as_ref(), object.clone()))
        });
        self.waiting(changes)
    }

    fn waiting(&self, changes: Vec<Change<KnownTargets>>) -> Touched {
        let mut waiting = BTreeSet::new();
        for change in changes {
            let targets = self.node_targets.get(&change.key);
            let installs = targets
                .into_iter()
                .flat_map(|t| t.object.spec.installs.values());
            for vip in installs.flat_map(|install| &install.vips) {
                let key = vip.service.key();
                let published = |service: &KnownService| {
                    service
                        .spec
                        .ingress
                        .iter()
                        .any(|i| i.address == Some(vip.address))
                };
                if self
                    .service(&key)
                    .is_some_and(|service| !published(service))
                {
                    waiting.insert(key);
                }
            }
        }
        Touched::Services(waiting.into_iter().collect())
    }

    /// What was said to a node.
    pub fn node_targets(&self, node: &NodeName) -> Option<&NodeTargets> {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        self.node_targets.get(&key).map(|known| &known.object)
    }

    /// What the agent of a node says that it can do (K-24).
    pub fn agent_offers(&self, node: &NodeName, feature: Feature) -> bool {
        let status = self.node_targets(node).and_then(|o| o.status.as_ref());
        status.is_some_and(|s| s.features.contains(&feature)) && self.has_node(node)
    }

    /// What was last said to its node of a Service's target at this address.
    pub fn told_of(
        &self,
        service: &ServiceUid,
        address: IpAddr,
    ) -> Option<(&NodeName, &NodeTarget)> {
        self.node_targets.all().values().find_map(|known| {
            let mut targets = known.object.spec.installs.values().flat_map(|i| &i.targets);
            let target = targets.find(|t| t.service.uid == *service && t.address == address)?;
            Some((&known.node, target))
        })
    }

    /// Ranges of pod addresses, and of node addresses, as the Nodes tell them.
    pub fn ranges(&self) -> (Vec<Cidr>, Vec<Cidr>) {
        let pods = self.nodes().flat_map(|node| node.pod_cidrs.iter().copied());
        let addresses = self.nodes().flat_map(|node| node.addresses.iter().copied());
        (
            Cidr::aggregate(pods),
            Cidr::aggregate(addresses.map(Cidr::host)),
        )
    }

    /// Nodes to which this install has said something.
    pub fn told_nodes(&self, install: &InstallId) -> BTreeSet<NodeName> {
        let all = self.node_targets.all().values();
        all.filter(|known| known.object.spec.installs.contains_key(install))
            .map(|known| known.node.clone())
            .collect()
    }

    /// Whether it is known what was said to nodes.
    pub const fn node_targets_synced(&self) -> bool {
        self.node_targets.is_synced()
    }

    /// Whether there is such a node.
    pub fn has_node(&self, node: &NodeName) -> bool {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        self.nodes.get(&key).is_some()
    }

    /// Nodes to which something was said, and which are gone.
    pub fn gone_nodes(&self) -> BTreeSet<NodeName> {
        let told = self.node_targets.all().keys();
        let gone = told.filter(|key| self.nodes.get(key).is_none());
        gone.map(|key| NodeName::from(key.name.clone())).collect()
    }

    /// The nodes whose objects name a Service.
    pub fn nodes_that_name(&self, service: &ServiceKey) -> BTreeSet<NodeName> {
        let names = |known: &KnownTargets| {
            known.object.spec.installs.values().any(|install| {
                let targets = install.targets.iter().map(|t| &t.service);
                let local = install.local.iter().map(|l| &l.service);
                let vips = install.vips.iter().map(|v| &v.service);
                targets
                    .chain(local)
                    .chain(vips)
                    .any(|s| s.key() == *service)
            })
        };
        let all = self.node_targets.all().iter();
        all.filter(|(_, known)| names(known))
            .map(|(key, _)| NodeName::from(key.name.clone()))
            .collect()
    }

    /// Whether the node was told of an address and its agent has programmed it. A node without an agent that proxies
    /// Services programs it by the Service's status, if at all.
    pub fn vip_is_programmed(
        &self,
        node: &NodeName,
        install: &InstallId,
        service: &ServiceUid,
        address: IpAddr,
    ) -> bool {
        let key = ObjectKey {
            namespace: String::new(),
            name: node.to_string(),
        };
        let Some(known) = self.node_targets.get(&key) else {
            return false;
        };
        let Some(since) = known
            .since
            .get(&(install.clone(), service.clone(), address))
        else {
            return false;
        };
        let status = known.object.status.as_ref();
        let Some(status) = status.filter(|s| s.features.contains(&Feature::ServiceProxy)) else {
            return true;
        };
        status.observed_generation.unwrap_or(0) >= *since
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

    /// The machine behind each node's first address.
    pub fn machines(&mut self) -> Arc<BTreeMap<IpAddr, Machine>> {
        let nodes = self.nodes.all().values();
        let machine = |node: &NodeView| {
            let machine = Machine {
                node: node.name.clone(),
                provider_id: node.provider_id.clone(),
                zone: node.zone.clone(),
                labels: node.labels.clone(),
            };
            Some((*node.addresses.first()?, machine))
        };
        let made = self
            .machines
            .get_or_insert_with(|| Arc::new(nodes.filter_map(machine).collect()));
        Arc::clone(made)
    }

    /// A pod by UID.
    pub fn pod(&self, uid: &PodUid) -> Option<&KnownPod> {
        self.pods.get(self.pods_by_uid.get(uid)?)
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
