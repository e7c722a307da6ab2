//! Turns what changed into one batch for the kernel: compiles the dirty Services, settles who owns
//! which frontend and shared element, and takes the difference from what the kernel holds. Pure;
//! owned by the app. The cost depends on what changed, never on the size of the table.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use onehop_core::endpoint::Endpoints;
use onehop_core::health::LocalReady;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;

use crate::claims::{Claimant, Claims, Front};
use crate::compile::fronts::{self, Beyond};
use crate::compile::{self, Compiled, Surroundings};
use crate::guard;
use crate::ledger::Ledger;
use crate::metrics::FrontendCounts;
use crate::state::State;
use crate::sys::links::Links;
use crate::table::affinity::Sticky;
use crate::table::element::{
    Data, ElementChange, ElementKey, Elements, Family, Frontend, Key, LOCAL_SCOPE, Protocol, SetId,
};

/// Who wants an element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Owner {
    Service(ServiceKey),
    NodeAddresses,
    Interfaces,
    Network,
    Guard(Frontend),
}

/// What people should hear about a Service; told again only when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A frontend is programmed for an older Service (S-33).
    Lost {
        /// The frontend.
        front: Front,
        /// Who has it.
        winner: ServiceKey,
    },
    /// A list is longer than a list can be (S-208).
    Cut {
        /// The frontend.
        front: Front,
        /// Endpoints left out.
        left_out: usize,
    },
    /// The kernel refused a frontend (S-124).
    Refused {
        /// The frontend.
        front: Front,
    },
    /// The Service has source ranges, but none of a family of its load balancer addresses (S-73).
    Unrestricted {
        /// The family.
        family: Family,
    },
}

/// What one commit carries, and what becomes true with it.
#[derive(Debug, Default)]
pub struct Batch {
    /// For the kernel.
    pub change: ElementChange,
    /// The Services compiled for it with their local ready endpoints, for the health answers.
    pub services: Vec<(ServiceKey, LocalReady)>,
    /// UDP frontends whose servers changed, with the endpoints that serve now (S-91, S-92).
    pub udp: BTreeMap<Front, BTreeSet<SocketAddr>>,
    /// Targets whose pods are gone: half-open flows to them are to be deleted (ZD-45).
    pub gone: BTreeSet<Frontend>,
    /// What to tell about Services, for those about whom it changed.
    pub notices: Vec<(ServiceKey, Vec<Notice>)>,
    /// Services that changed, too, but were too many for one batch: the next one has more of them.
    pub more: bool,
}

/// What is remembered of a compiled Service besides its elements.
#[derive(Debug, Default)]
struct Summary {
    sticky: BTreeMap<(Family, Sticky), BTreeSet<SocketAddr>>,
    udp: BTreeMap<Front, BTreeSet<SocketAddr>>,
    notices: Vec<Notice>,
    programmed: usize,
    no_local: (usize, usize),
}

/// Everything that outlives one batch.
#[derive(Debug)]
pub struct Planner {
    ledger: Ledger<Owner>,
    claims: Claims,
    summaries: HashMap<ServiceKey, Summary>,
    refused: BTreeSet<Front>,
    totals: Totals,
    /// Services whose frontends are settled and that are yet to be compiled.
    waiting: BTreeSet<ServiceKey>,
    /// An earlier process left nothing of Services, or it was taken out.
    swept: bool,
    /// Guarded targets whose pods are gone, as far as flows were looked after.
    gone: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
    /// What guards add to the next batch.
    ended: Vec<(Frontend, BTreeSet<SocketAddr>)>,
    /// Addresses on which node ports answer, in the batch that is being made.
    eligible: Vec<IpAddr>,
    /// Services whose elements name these addresses.
    by_address: BTreeSet<ServiceKey>,
}

/// Sums over all Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    programmed: usize,
    skipped: usize,
    no_local: (usize, usize),
}

impl Planner {
    /// Starts from what was read from the kernel. The first batches must cover all Services.
    pub fn new(kernel: Elements) -> Self {
        let swept = kernel.is_empty();
        Self {
            ledger: Ledger::from_kernel(kernel),
            claims: Claims::default(),
            summaries: HashMap::new(),
            refused: BTreeSet::new(),
            totals: Totals::default(),
            waiting: BTreeSet::new(),
            swept,
            gone: BTreeMap::new(),
            ended: Vec::new(),
            eligible: Vec::new(),
            by_address: BTreeSet::new(),
        }
    }

    /// Starts anew from what was read from the kernel after a failure; frontends that the kernel
    /// refused are left out until [`Planner::retry_refused`].
    pub fn restart(&mut self, kernel: Elements, refused: &BTreeSet<ElementKey>) {
        let mut out = std::mem::take(&mut self.refused);
        out.extend(refused.iter().filter_map(front_of));
        *self = Self::new(kernel);
        self.refused = out;
    }

    /// Gives refused frontends another chance. Returns the Services to compile anew.
    pub fn retry_refused(&mut self) -> Vec<ServiceKey> {
        let refused = std::mem::take(&mut self.refused);
        let winner = |front| self.claims.winner(front).cloned();
        refused.iter().filter_map(winner).collect()
    }

    /// Takes the place of the node in the fabric into the next batch.
    pub fn network(&mut self, elements: Elements) {
        self.ledger.set(&Owner::Network, elements);
    }

    /// Takes guards into the next batch.
    pub fn guards(&mut self, compiled: Vec<guard::Compiled>) {
        for guard in compiled {
            let refused = self.refused.contains(&Front::Vip(guard.key));
            let elements = if refused {
                Elements::new()
            } else {
                guard.elements
            };
            self.ledger.set(&Owner::Guard(guard.key), elements);
            if !guard.gone {
                self.gone.remove(&guard.key);
            } else if self.gone.get(&guard.key) != Some(&guard.others) {
                self.gone.insert(guard.key, guard.others.clone());
                self.ended.push((guard.key, guard.others));
            }
        }
    }

    /// Makes the batch for everything that is dirty, or for about `limit` Services of it. What an earlier process left is
    /// brought to where it should be at once, whatever the limit.
    pub fn plan(&mut self, state: &mut State, node_addresses: &[IpAddr], limit: usize) -> Batch {
        let mut batch = Batch::default();
        let limit = if self.swept { limit } else { usize::MAX };
        let due = self.settle(state.take_dirty(), state, limit);
        self.compile_all(due, state, &mut batch);
        batch.more = !self.waiting.is_empty();
        let eligible = self.eligible(state, node_addresses);
        if eligible != self.eligible {
            self.eligible = eligible;
            self.compile_all(self.by_address.clone(), state, &mut batch);
        }
        let elements = self.eligible.iter().map(|addr| {
            let key = (Family::of(*addr), SetId::NodePortIps, Key::Addr(*addr));
            (key, None)
        });
        self.ledger.set(&Owner::NodeAddresses, elements.collect());
        if !self.swept {
            self.sweep(&mut batch);
            self.swept = true;
        }
        for (key, others) in std::mem::take(&mut self.ended) {
            match key.protocol {
                Protocol::Udp => {
                    batch.udp.insert(Front::Vip(key), others);
                }
                Protocol::Tcp => {
                    batch.gone.insert(key);
                }
                Protocol::Sctp => {}
            }
        }
        let noted = std::mem::take(&mut batch.change);
        batch.change = ElementChange {
            retain: noted.retain,
            gained: noted.gained,
            ..self.ledger.take_change()
        };
        batch
    }

    /// Takes note of the interfaces of the node, for the next batch (S-64, S-65).
    pub fn set_links(&mut self, links: &Links) {
        let of_set = |set, names: &BTreeSet<_>| {
            let both = Family::ALL.into_iter();
            let keys = both.flat_map(|family| names.iter().map(move |name| (family, *name)));
            keys.map(|(family, name)| ((family, set, Key::Interface(name)), None))
                .collect::<Elements>()
        };
        let mut elements = of_set(SetId::Uplinks, &links.uplinks);
        elements.extend(of_set(SetId::PodInterfaces, &links.pods));
        self.ledger.set(&Owner::Interfaces, elements);
    }

    /// The Service that a frontend is programmed for.
    pub fn owner(&self, front: &Front) -> Option<&ServiceKey> {
        self.claims.winner(front)
    }

    /// Settles whose each frontend of these Services is, and says which to compile now. Whose each is comes first: a list
    /// of a Service that loses it in the same batch would be laid into the slots of the one that has it. Services between
    /// which a frontend moves are compiled in the same batch, or it would have something of both.
    fn settle(
        &mut self,
        dirty: BTreeSet<ServiceKey>,
        state: &State,
        limit: usize,
    ) -> BTreeSet<ServiceKey> {
        let (mut queue, mut settled) = (dirty, BTreeSet::new());
        let mut due = BTreeSet::new();
        while let Some(key) = queue.pop_first() {
            let (touched, shrinks) = self.claim(&key, state);
            // What it gives up may be another one's next. Addresses of Services that are not ours must not count as nobody's
            // (S-289).
            if shrinks || !touched.is_empty() || !state.foreign_cluster_ips(&key).is_empty() {
                due.insert(key.clone());
                due.extend(touched.iter().cloned());
            }
            settled.insert(key);
            queue.extend(touched.into_iter().filter(|other| !settled.contains(other)));
        }
        // A change on its own does not wait for a flood.
        if settled.len() < limit {
            due.append(&mut settled);
        } else {
            self.waiting.append(&mut settled);
        }
        self.waiting.retain(|key| !due.contains(key));
        while due.len() < limit
            && let Some(key) = self.waiting.pop_first()
        {
            due.insert(key);
        }
        due
    }

    fn compile_all(&mut self, keys: BTreeSet<ServiceKey>, state: &State, batch: &mut Batch) {
        for key in keys {
            self.service(&key, state, batch);
        }
    }

    /// Whether Services are waiting to be compiled.
    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes note of the frontends that a Service claims; returns the others that win or lose one by it, and whether it
    /// gives one up.
    fn claim(&mut self, key: &ServiceKey, state: &State) -> (BTreeSet<ServiceKey>, bool) {
        let service = state.service(key);
        let fronts = service
            .map(|service| all_fronts(service, &state.beyond(service)))
            .unwrap_or_default();
        let shrinks = self.claims.shrinks(key, &fronts);
        let touched = match service {
            Some(service) => self.claims.set(claimant(service), fronts),
            None => self.claims.clear(key),
        };
        (touched, shrinks)
    }

    /// Addresses on which node ports answer. One that the Node object names is the node's, whoever else names it: load
    /// balancers made of nodes publish it, and any user may write it into externalIPs. Others may be there for the
    /// sake of a Service alone (S-29).
    fn eligible(&self, state: &State, node_addresses: &[IpAddr]) -> Vec<IpAddr> {
        let of_node = state.node().map_or(&[][..], |node| &node.addresses);
        let kept =
            |addr: &&IpAddr| of_node.contains(addr) || !self.claims.is_service_address(**addr);
        node_addresses.iter().filter(kept).copied().collect()
    }

    /// Takes out what an earlier process left. UDP frontends among it went while no agent ran.
    fn sweep(&mut self, batch: &mut Batch) {
        let swept = self.ledger.sweep();
        let udp = |front: &Front| front.protocol() == Protocol::Udp;
        for front in swept.iter().filter_map(front_of).filter(udp) {
            batch.udp.entry(front).or_default();
        }
    }

    /// Frontends programmed and left out.
    pub fn frontends(&self) -> FrontendCounts {
        FrontendCounts {
            programmed: self.totals.programmed,
            skipped: self.totals.skipped,
        }
    }

    /// Service ports whose internal or external Local policy finds no endpoint here (S-52).
    pub fn no_local(&self) -> (usize, usize) {
        self.totals.no_local
    }

    /// What a Service wants of the kernel.
    pub fn programmed(&self, key: &ServiceKey) -> Elements {
        let owner = Owner::Service(key.clone());
        self.ledger.wanted_by(&owner).collect()
    }

    /// The frontends of which something is programmed for a Service.
    pub fn fronts(&self, key: &ServiceKey) -> impl Iterator<Item = Front> {
        let elements = self.programmed(key).into_keys();
        elements.filter_map(|element| front_of(&element))
    }

    /// What there is to tell about a Service.
    pub fn noticed(&self, key: &ServiceKey) -> &[Notice] {
        self.summaries.get(key).map_or(&[], |of| &of.notices)
    }

    /// A digest of what the kernel holds once the last batch is committed.
    pub fn digest(&self) -> u64 {
        self.ledger.digest()
    }

    /// What the kernel holds once the last batch is committed.
    pub fn elements(&self) -> Elements {
        self.ledger.elements()
    }

    /// Compiles one Service into the ledger.
    fn service(&mut self, key: &ServiceKey, state: &State, batch: &mut Batch) {
        let endpoints = state.endpoints(key);
        let service = state.service(key);
        let mut compiled = service
            .map(|service| self.compile(service, &endpoints, state))
            .unwrap_or_default();
        let mut elements = std::mem::take(&mut compiled.elements);
        let foreign = state.foreign_cluster_ips(key).iter();
        elements.extend(foreign.map(|addr| {
            let key = (Family::of(*addr), SetId::OtherClusterIps, Key::Addr(*addr));
            (key, None)
        }));
        self.ledger.set(&Owner::Service(key.clone()), elements);
        self.note_udp(key, &compiled, batch);
        self.note_sticky(key, &compiled, batch);
        self.summarise(key, compiled, batch);
        let ready = LocalReady::of(&endpoints, &state.here().node);
        batch.services.push((key.clone(), ready));
    }

    fn compile(&self, service: &ServiceSpec, endpoints: &Endpoints, state: &State) -> Compiled {
        let owns = |front: &Front| {
            self.claims.winner(front) == Some(&service.key) && !self.refused.contains(front)
        };
        let around = Surroundings {
            beyond: &state.beyond(service),
            choices: state.choices(),
            here: state.here(),
            node_addresses: state.node().map_or(&[], |node| &node.addresses),
            nodeport_addresses: &self.eligible,
            owns: &owns,
            window: &|port, front, reach| state.windows().until(&service.key, port, (front, reach)),
            held: &|front, scope| self.held(front, scope),
        };
        compile::compile(service, endpoints, &around)
    }

    /// The list that the kernel holds for a frontend.
    fn held(&self, front: &Front, scope: u32) -> Vec<SocketAddr> {
        let first = compile::slot_key(front, scope);
        let last = compile::slot_key(front, scope + LOCAL_SCOPE - 1);
        self.ledger
            .slots(&first, &last)
            .filter_map(|data| match data {
                Some(Data::Target(target)) => Some(target),
                _ => None,
            })
            .collect()
    }

    /// UDP flows have to be looked at where servers changed, and where a frontend went (S-92).
    fn note_udp(&self, key: &ServiceKey, compiled: &Compiled, batch: &mut Batch) {
        let none = BTreeMap::new();
        let old = self
            .summaries
            .get(key)
            .map_or(&none, |summary| &summary.udp);
        for front in old
            .keys()
            .filter(|front| !compiled.udp.contains_key(*front))
        {
            // Another Service may have taken it over in the same batch.
            batch.udp.entry(*front).or_default();
        }
        for (front, servers) in &compiled.udp {
            if old.get(front) != Some(servers) {
                batch.udp.insert(*front, servers.clone());
            }
        }
    }

    /// Known clients have to be looked at where an endpoint left a list (S-240), and where nothing is known of what they
    /// were allowed before: after a start, or when affinity is switched on again.
    fn note_sticky(&mut self, key: &ServiceKey, compiled: &Compiled, batch: &mut Batch) {
        let old = self.summaries.get(key).map(|summary| &summary.sticky);
        for (map, endpoints) in &compiled.sticky {
            let before = old.and_then(|old| old.get(map));
            let changed = match before {
                Some(before) if before == endpoints => continue,
                Some(before) if before.is_subset(endpoints) => &mut batch.change.gained,
                _ => &mut batch.change.retain,
            };
            changed.insert(*map, endpoints.clone());
        }
        if compiled.uses_nodeport_addresses {
            self.by_address.insert(key.clone());
        } else {
            self.by_address.remove(key);
        }
    }

    fn summarise(&mut self, key: &ServiceKey, compiled: Compiled, batch: &mut Batch) {
        let notices = self.notices(&compiled);
        let new = Summary {
            sticky: compiled.sticky,
            udp: compiled.udp,
            notices,
            programmed: compiled.programmed,
            no_local: (compiled.no_local_internal, compiled.no_local_external),
        };
        let old = self.summaries.remove(key).unwrap_or_default();
        self.totals.replace(&old, &new);
        if new.notices != old.notices {
            batch.notices.push((key.clone(), new.notices.clone()));
        }
        if new.programmed + new.notices.len() > 0 {
            self.summaries.insert(key.clone(), new);
        }
    }

    fn notices(&self, compiled: &Compiled) -> Vec<Notice> {
        let lost = compiled.lost.iter().map(|front| {
            let winner = self
                .claims
                .winner(front)
                .filter(|_| !self.refused.contains(front));
            match winner {
                Some(winner) => Notice::Lost {
                    front: *front,
                    winner: winner.clone(),
                },
                None => Notice::Refused { front: *front },
            }
        });
        let cut = compiled.cut.iter().map(|(front, left_out)| Notice::Cut {
            front: *front,
            left_out: *left_out,
        });
        let unrestricted = compiled.unrestricted.iter();
        let unrestricted = unrestricted.map(|family| Notice::Unrestricted { family: *family });
        lost.chain(cut).chain(unrestricted).collect()
    }
}

impl Totals {
    fn replace(&mut self, old: &Summary, new: &Summary) {
        self.programmed = self.programmed + new.programmed - old.programmed;
        self.skipped = self.skipped + new.skipped() - old.skipped();
        self.no_local.0 = self.no_local.0 + new.no_local.0 - old.no_local.0;
        self.no_local.1 = self.no_local.1 + new.no_local.1 - old.no_local.1;
    }
}

impl Summary {
    fn skipped(&self) -> usize {
        let skipped =
            |notice: &&Notice| matches!(notice, Notice::Lost { .. } | Notice::Refused { .. });
        self.notices.iter().filter(skipped).count()
    }
}

fn claimant(service: &ServiceSpec) -> Claimant {
    Claimant {
        created: service.created,
        uid: service.uid.clone(),
        service: service.key.clone(),
    }
}

fn all_fronts(service: &ServiceSpec, beyond: &Beyond) -> BTreeSet<Front> {
    let ports = service.ports.iter();
    ports
        .flat_map(|port| fronts::of_port(service, port, beyond).into_keys())
        .collect()
}

/// TCP frontends that these elements make serve.
pub fn tcp_frontends(elements: &Elements) -> BTreeSet<Front> {
    let serves = |set: SetId| {
        matches!(
            set,
            SetId::ServiceIps
                | SetId::ServiceIpsLocal
                | SetId::ServiceNodePorts
                | SetId::ServiceNodePortsLocal
        )
    };
    let fronts = elements
        .keys()
        .filter(|key| serves(key.1))
        .filter_map(front_of);
    fronts
        .filter(|front| front.protocol() == Protocol::Tcp)
        .collect()
}

/// The frontend that an element belongs to.
pub fn front_of(element: &ElementKey) -> Option<Front> {
    let (family, _, key) = element;
    match *key {
        Key::Frontend(frontend) | Key::FrontendSlot(frontend, _) | Key::Range(frontend, _) => {
            Some(Front::Vip(frontend))
        }
        Key::NodePort { protocol, port } | Key::NodePortSlot { protocol, port, .. } => {
            Some(Front::NodePort(*family, protocol, port))
        }
        Key::Addr(_) | Key::Pair(..) | Key::Interface(_) | Key::Edge(..) => None,
    }
}
