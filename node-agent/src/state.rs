//! The cluster as this node sees it: Services, their slices, the own Node. Takes watch steps, says
//! which Services have to be compiled anew. Pure; used by the app and the planner.

mod windows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use onehop_core::crd::NodeInstall;
use onehop_core::endpoint::{Endpoint, Endpoints, Slice};
use onehop_core::health::LocalReady;
use onehop_core::id::{InstallId, IpFamily, NodeName, PortKey, ServiceKey};
use onehop_core::node::{NodeView, OUT_OF_SERVICE_TAINT};
use onehop_core::select::Here;
use onehop_core::service::{ServiceKind, ServiceSpec, TrafficPolicy};
use onehop_core::time::Time;
use onehop_runtime::watch::ObjectKey;

use crate::args::{Config, Mode};
use crate::collection::{Collection, Step};
use crate::compile::choices::Choices;
use crate::guard::network::{self, Network};
use crate::guard::{Cluster, Compiled, Fate, Guards, PodView};
use crate::handover::Handovers;
use crate::node::Eligibility;
use crate::table::element::Elements;
use crate::table::layout::Ranges;
use crate::targets::{KnownTargets, OwnTargets, Truth};
use crate::window::Windows;

/// One step of one of the watches.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Of the Services.
    Service(Step<ServiceKey, Box<ServiceSpec>>),
    /// Of the EndpointSlices.
    Slice(Step<ObjectKey, Slice>),
    /// Of the own Node.
    Node(Step<NodeName, NodeView>),
    /// Of the own `NodeTargets`; an empty list where the API server does not know the kind (K-26).
    Targets(Step<NodeName, Box<OwnTargets>>),
    /// Of the pods of this node.
    Pod(Step<ObjectKey, PodView>),
    /// Of the `ServiceCIDRs`, as the only proxy (S-26); an empty list where the API server does not know the kind.
    ServiceCidr(Step<String, Vec<IpNet>>),
}

/// Which Services are ours to proxy (S-02).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Way to run.
    pub mode: Mode,
    /// Our proxy name.
    pub proxy_name: String,
}

impl Ownership {
    /// As configured.
    pub fn of(config: &Config) -> Self {
        Self {
            mode: config.mode,
            proxy_name: config.proxy_name.clone(),
        }
    }

    /// Whether we proxy a Service.
    pub fn covers(&self, service: &ServiceSpec) -> bool {
        service.is_proxied()
            && match service.proxy_name() {
                Some(name) => name == self.proxy_name,
                None => self.mode == Mode::Replace,
            }
    }
}

/// Everything that the watches said.
#[derive(Debug)]
pub struct State {
    ownership: Ownership,
    /// Name and zone of the own node.
    here: Here,
    services: Collection<ServiceKey, Box<ServiceSpec>>,
    slices: Collection<ObjectKey, Slice>,
    by_service: HashMap<ServiceKey, Vec<ObjectKey>>,
    nodes: Collection<NodeName, NodeView>,
    last_node: Option<NodeView>,
    service_cidrs: Collection<String, Vec<IpNet>>,
    /// Services that kube-proxy programs too (S-126).
    given_up: BTreeSet<ServiceKey>,
    /// Services that kube-proxy is to program from now on (S-345).
    handovers: Handovers,
    targets: Collection<NodeName, Box<OwnTargets>>,
    /// A lost object is no statement (K-21): what it said last holds.
    known_targets: KnownTargets,
    guards: Guards,
    windows: Windows,
    network: Network,
    /// Pod ranges given by hand.
    pod_ranges: Vec<IpNet>,
    /// What is left to the administrator.
    choices: Choices,
    /// Port on which the agent answers for pods.
    health_port: Option<u16>,
    dirty: BTreeSet<ServiceKey>,
    /// When the changes of endpoints that wait to be compiled were made in the cluster.
    triggers: Vec<(IpFamily, Time)>,
    node_changed: bool,
}

impl State {
    /// Nothing was seen yet.
    pub fn new(ownership: Ownership, name: NodeName) -> Self {
        Self {
            ownership,
            here: Here {
                node: name,
                zone: None,
            },
            services: Collection::default(),
            slices: Collection::default(),
            by_service: HashMap::new(),
            nodes: Collection::default(),
            last_node: None,
            service_cidrs: Collection::default(),
            given_up: BTreeSet::new(),
            handovers: Handovers::default(),
            targets: Collection::default(),
            known_targets: KnownTargets::default(),
            guards: Guards::default(),
            windows: Windows::default(),
            network: Network::default(),
            pod_ranges: Vec::new(),
            choices: Choices::default(),
            health_port: None,
            dirty: BTreeSet::new(),
            triggers: Vec::new(),
            node_changed: false,
        }
    }

    /// With ranges of pods beside those that controllers name.
    #[must_use]
    pub fn with_pod_ranges(mut self, ranges: Vec<IpNet>) -> Self {
        self.pod_ranges = ranges;
        self
    }

    /// With what the administrator chose.
    #[must_use]
    pub fn with_choices(mut self, choices: Choices) -> Self {
        self.choices = choices;
        self
    }

    /// What is left to the administrator.
    pub fn choices(&self) -> Choices {
        self.choices
    }

    /// With a port on which the agent answers for pods.
    #[must_use]
    pub fn with_pod_health(mut self, port: Option<u16>) -> Self {
        self.health_port = port;
        self
    }

    /// Takes a step. Returns the Services that it made dirty.
    pub fn apply(&mut self, change: Change) -> BTreeSet<ServiceKey> {
        let touched = match change {
            Change::Service(step) => self.service_step(step),
            Change::Slice(step) => self.slice(step),
            Change::Node(step) => self.node_step(step),
            Change::Targets(step) => self.targets_step(step),
            Change::ServiceCidr(step) => {
                self.service_cidrs.step(step);
                BTreeSet::new()
            }
            Change::Pod(step) => {
                self.guards.pod(step);
                return BTreeSet::new();
            }
        };
        for service in &touched {
            self.guards.service(service);
        }
        self.dirty.extend(touched.iter().cloned());
        touched
    }

    /// Whether all lists have been complete once (that of pods matters to the guard alone); before that nothing may be programmed (S-09).
    pub fn synced(&self) -> bool {
        self.services.synced()
            && self.slices.synced()
            && self.nodes.synced()
            && self.targets.synced()
            && (self.ownership.mode == Mode::Beside || self.service_cidrs.synced())
    }

    /// What the static part of the tables depends on. Beside kube-proxy no range is closed: what is not ours is
    /// kube-proxy's (S-26).
    pub fn ranges(&self) -> Ranges {
        let alone = self.ownership.mode == Mode::Replace;
        let ranges = self.service_cidrs.values().filter(|_| alone).flatten();
        let service_cidrs: BTreeSet<IpNet> = ranges.map(IpNet::trunc).collect();
        let pods = self.node().map_or(&[][..], |node| &node.pod_cidrs);
        Ranges {
            service_cidrs: service_cidrs.into_iter().collect(),
            node_pod_cidrs: pods.iter().map(|range| range.net()).collect(),
        }
    }

    /// Virtual addresses of a Service that another proxy serves: not ours, but not unallocated either (S-289).
    pub fn foreign_cluster_ips(&self, key: &ServiceKey) -> &[IpAddr] {
        let service = self.services.get(key);
        let foreign = service.filter(|service| {
            self.ownership.mode == Mode::Replace
                && service.is_proxied()
                && !self.ownership.covers(service)
        });
        foreign.map_or(&[], |service| &service.cluster_ips)
    }

    /// A Service, if we proxy it.
    pub fn service(&self, key: &ServiceKey) -> Option<&ServiceSpec> {
        let known = self.services.get(key).map(|service| &**service);
        let ours = known.filter(|service| self.ownership.covers(service));
        let service = ours.or_else(|| self.handovers.get(key));
        service.filter(|_| !self.given_up.contains(key))
    }

    /// Whether there is a kube-proxy that takes Services which are not ours any more.
    pub fn set_taker(&mut self, there: bool) {
        self.handovers.set_taker(there);
    }

    /// Lets go of Services that kube-proxy has taken, or had time enough to take.
    pub fn pass_handovers(&mut self, now: Time, looks: u64, taken: impl Fn(&ServiceKey) -> bool) {
        self.dirty.extend(self.handovers.pass(now, looks, taken));
    }

    /// When [`State::pass_handovers`] has something to do by itself.
    pub fn next_handover(&self) -> Option<Time> {
        self.handovers.next_end()
    }

    /// Leaves a Service to kube-proxy, which programs it too.
    pub fn give_up(&mut self, key: ServiceKey) {
        self.given_up.insert(key.clone());
        self.touch(key);
    }

    /// Proxies a Service again.
    pub fn take_back(&mut self, key: &ServiceKey) {
        if self.given_up.remove(key) {
            self.touch(key.clone());
        }
    }

    /// Load balancer addresses of a Service that this node captures: those of its status, and those that controllers
    /// list before they publish them (S-22, K-27).
    pub fn vips(&self, service: &ServiceSpec) -> BTreeSet<IpAddr> {
        let live = service.kind == ServiceKind::LoadBalancer;
        let listed = live.then(|| self.known_targets.vips(service));
        service.vips().chain(listed.into_iter().flatten()).collect()
    }

    /// Generation of the own `NodeTargets` that is known, and the mode that the agent runs in.
    pub fn targets_truth(&self) -> Truth {
        Truth {
            mode: self.ownership.mode,
            generation: self.known_targets.generation(),
            guard: self.guards.ready() && self.network.offers_guard(),
            answers: self.health_port.is_some(),
            window: self.network.offers_guard(),
            problems: self.network.problems.clone(),
            tails: Vec::new(),
        }
    }

    /// The guards.
    pub fn guards(&mut self) -> &mut Guards {
        &mut self.guards
    }

    /// When a guard ends by itself.
    pub fn next_guard_end(&self) -> Option<Time> {
        self.guards.next_end()
    }

    /// The node's place in the fabric is this; whether that is news.
    pub fn set_network(&mut self, network: Network) -> bool {
        let news = self.network != network;
        self.network = network;
        news
    }

    /// Uplinks, and what is inside the cluster, as elements.
    pub fn network_elements(&self) -> Elements {
        let mut elements = self.network.elements();
        if self.guards.has_targets() {
            let mut inside = self.guards.inside();
            inside.extend(&self.pod_ranges);
            elements.extend(network::edges(&inside));
        }
        elements
    }

    /// Compiles the guards that are dirty. Where steered packets would be lost there are none (ZD-47).
    pub fn compile_guards(&mut self, now: Time) -> Vec<Compiled> {
        let mut guards = std::mem::take(&mut self.guards);
        let compiled = guards.compile(self, now);
        self.guards = guards;
        if self.network.offers_guard() {
            compiled
        } else {
            compiled
                .into_iter()
                .map(|guard| Compiled {
                    // Probes would be lost as well.
                    answers: Some(BTreeMap::new()),
                    ..Compiled::nothing(guard.key)
                })
                .collect()
        }
    }

    /// What was said in the own `NodeTargets`; none while there is no such object.
    pub fn own_targets(&self) -> Option<&KnownTargets> {
        let there = self.targets.get(&self.here.node).is_some();
        there.then_some(&self.known_targets)
    }

    /// What controllers said of targets, as last seen.
    pub fn installs(&self) -> &BTreeMap<InstallId, NodeInstall> {
        self.known_targets.installs()
    }

    /// All endpoints of a Service.
    pub fn endpoints(&self, key: &ServiceKey) -> Endpoints {
        let slices = self.by_service.get(key).into_iter().flatten();
        Endpoints::merge(slices.filter_map(|slice| self.slices.get(slice)))
    }

    /// The own Node object as it was last seen. Its deletion alone changes nothing about what the
    /// node serves (S-104): every load balancer would fail at once when all nodes are replaced.
    pub fn node(&self) -> Option<&NodeView> {
        self.last_node.as_ref()
    }

    /// Whether the own Node object exists.
    pub fn node_exists(&self) -> bool {
        self.nodes.get(&self.here.node).is_some()
    }

    /// Name and zone of the own node.
    pub fn here(&self) -> &Here {
        &self.here
    }

    /// Health check node port of a Service that has one (S-100).
    fn health_port(&self, key: &ServiceKey) -> Option<u16> {
        // The port is for kube-proxy to open, which tries again only when it syncs.
        self.service(key)
            .filter(|_| self.handovers.get(key).is_none())
            .filter(|service| service.kind == ServiceKind::LoadBalancer)
            .filter(|service| service.external_policy == TrafficPolicy::Local)
            .and_then(|service| service.health_check_node_port)
    }

    /// Local ready addresses of a Service over all ports (S-101).
    pub fn local_ready(&self, key: &ServiceKey) -> LocalReady {
        LocalReady::of(&self.endpoints(key), &self.here.node)
    }

    /// Marks a Service dirty: its elements must be made anew although it did not change.
    pub fn touch(&mut self, service: ServiceKey) {
        self.dirty.insert(service);
    }

    /// Marks every Service dirty.
    pub fn touch_all(&mut self) {
        let all = self.services.keys().chain(self.handovers.keys());
        self.dirty.extend(all.cloned());
        self.guards.touch_all();
    }

    /// All Services that were seen, ours or not.
    pub fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }

    /// Whether anything waits to be compiled.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || self.guards.is_dirty()
    }

    /// The Services to compile; from here on they count as compiled.
    pub fn take_dirty(&mut self) -> BTreeSet<ServiceKey> {
        std::mem::take(&mut self.dirty)
    }

    /// When the changes of endpoints since the last call were made in the cluster, by family.
    pub fn take_triggers(&mut self) -> Vec<(IpFamily, Time)> {
        std::mem::take(&mut self.triggers)
    }

    /// Whether the own Node changed since the last call.
    pub fn take_node_changed(&mut self) -> bool {
        std::mem::take(&mut self.node_changed)
    }

    fn service_step(&mut self, step: Step<ServiceKey, Box<ServiceSpec>>) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::new();
        for changed in self.services.step(step) {
            let key = changed.key;
            let old = changed.old.filter(|old| self.ownership.covers(old));
            let beside = self.ownership.mode == Mode::Beside;
            if self.services.get(&key).is_some() {
                self.handovers.forget(&key);
            } else if let Some(old) = old.filter(|_| beside && !self.given_up.contains(&key)) {
                self.handovers.left(old);
            }
            let new = self.services.get(&key);
            touched.extend(new.into_iter().flat_map(|new| self.windows.who_had(new)));
            touched.insert(key);
        }
        touched
    }

    fn slice(&mut self, mut step: Step<ObjectKey, Slice>) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::new();
        // Guards look at this node's pods alone.
        if let Step::Apply(_, slice) = &mut step {
            slice.forget_pods_elsewhere(&self.here.node);
        }
        for changed in self.slices.step(step) {
            if let Some(old) = changed.old {
                // The label may have been moved to another Service.
                if let Some(slices) = self.by_service.get_mut(&old.service) {
                    slices.retain(|slice| *slice != changed.key);
                    if slices.is_empty() {
                        self.by_service.remove(&old.service);
                    }
                }
                touched.insert(old.service);
            }
            if let Some(new) = self.slices.get(&changed.key) {
                self.triggers
                    .extend(new.triggered.map(|at| (new.family, at)));
                // Nearly always it is the only one.
                if let Some(slices) = self.by_service.get_mut(&new.service) {
                    slices.push(changed.key);
                } else {
                    let slices = vec![changed.key];
                    self.by_service.insert(new.service.clone(), slices);
                }
                touched.insert(new.service.clone());
            }
        }
        for key in touched
            .iter()
            .filter(|key| !self.by_service.contains_key(*key))
        {
            self.handovers.forget(key);
        }
        touched
    }

    fn targets_step(&mut self, step: Step<NodeName, Box<OwnTargets>>) -> BTreeSet<ServiceKey> {
        let first = !self.targets.synced();
        let changed = !self.targets.step(step).is_empty();
        // The first list counts also where it is empty: what was kept of an earlier one is named by nothing then.
        let listed = first && self.targets.synced();
        if !(changed || listed) {
            return BTreeSet::new();
        }
        let Some(targets) = self.targets.get(&self.here.node) else {
            // A lost object is no statement (K-21).
            self.guards.targets(&BTreeMap::new());
            return self.windows.targets(&BTreeMap::new());
        };
        self.guards.targets(&targets.installs);
        let mut touched = self.windows.targets(&targets.installs);
        touched.extend(self.known_targets.update((**targets).clone()));
        touched
    }

    fn node_step(&mut self, step: Step<NodeName, NodeView>) -> BTreeSet<ServiceKey> {
        let fate = self.fate();
        self.node_changed |= !self.nodes.step(step).is_empty();
        self.retold(fate);
        let Some(node) = self.nodes.get(&self.here.node).cloned() else {
            return BTreeSet::new();
        };
        let old = self.last_node.as_ref();
        // Only zone and addresses take part in compiling, not heartbeats (S-42, S-72).
        let same = old.is_some_and(|old| old.zone == node.zone && old.addresses == node.addresses);
        self.here.zone.clone_from(&node.zone);
        self.last_node = Some(node);
        self.retold(fate);
        if same {
            return BTreeSet::new();
        }
        self.services.keys().cloned().collect()
    }
}

impl State {
    /// The answers for pods depend on what is to become of the node (ZD-78).
    fn retold(&mut self, before: Fate) {
        if self.fate() != before {
            self.guards.touch_all();
        }
    }
}

impl Cluster for State {
    fn here(&self) -> &NodeName {
        &self.here.node
    }

    fn health_at(&self, family: IpFamily) -> Option<SocketAddr> {
        let port = self.health_port?;
        let named = self.node().and_then(|node| node.primary_address(family));
        let uplinks = self.network.uplinks.iter().flat_map(|u| &u.addresses);
        let mut own = uplinks.filter(|address| IpFamily::of(**address) == family);
        let address = named.or_else(|| own.next().copied())?;
        Some(SocketAddr::new(address, port))
    }

    fn fate(&self) -> Fate {
        let Some(node) = self.node() else {
            return Fate::Stays;
        };
        if !self.node_exists() || node.has_taint(OUT_OF_SERVICE_TAINT) {
            Fate::Out
        } else if Eligibility::default().of(node) {
            Fate::Stays
        } else {
            Fate::Goes
        }
    }

    fn endpoints(&self, service: &ServiceKey, port: &PortKey, family: IpFamily) -> Vec<Endpoint> {
        let all = Self::endpoints(self, service);
        // Also of Services that others proxy, as far as they are known.
        let known = self.services.get(service);
        match known.and_then(|s| Some((s, s.port(port)?))) {
            Some((spec, port)) => all.of(spec, port, family).to_vec(),
            None => all.port(family, port).to_vec(),
        }
    }
}
