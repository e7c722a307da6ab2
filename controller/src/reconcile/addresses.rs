//! Who is given which address, and in which turn: the oldest waiter first (C-23). What is given is noted
//! in the one book; what somebody gives up wakes those who wait for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use onehop_core::crd::LoadBalancer;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use onehop_runtime::events::Severity;

use super::agentless::{unguarded, unserved};
use super::cases::Wanted;
use super::late_flows;
use super::{Reconciler, lock};
use crate::cloud::{AddressBook, Holder, Source, Taken};
use crate::index::{Index, KnownService};
use crate::plan::{Existing, Found, Giver, Intent, Market, Provider};
use crate::snapshot::{self, Standing};

/// How long an address that somebody else has in the cloud is not asked for again; doubled each time.
const TAKEN_FOR: Duration = Duration::from_mins(1);
const TAKEN_AT_MOST: Duration = Duration::from_hours(1);

/// On what a Service was refused an address last.
#[derive(Debug)]
pub(super) struct Stamp {
    book: u64,
    market: u64,
    service: Arc<ServiceSpec>,
}

pub(super) fn holder_of(service: &ServiceSpec) -> Holder {
    Holder {
        service: service.key.clone(),
        uid: service.uid.clone(),
    }
}

impl<P: Provider> Reconciler<P> {
    /// Resolves a Service and gives it addresses. While it is refused something, it keeps what it has
    /// and what was carried out last (C-08, C-22).
    pub(super) fn want(&self, service: KnownService, object: Option<&LoadBalancer>) -> Wanted {
        let last_good = snapshot::last_good(&self.settings.claim, &service.spec, object);
        let numbers = snapshot::numbers(&lock(&self.index), &service.spec);
        let named = self.provider.name_ports(&service.spec, last_good, &numbers);
        let spec = named
            .as_ref()
            .map_or(&*service.spec, |named| &named.service);
        let mut resolution = self.provider.resolve(spec, last_good);
        resolution
            .notices
            .extend(named.into_iter().flat_map(|named| named.notices));
        let mut wanted = Wanted {
            service,
            spec: resolution.spec,
            addresses: Vec::new(),
            giver: Giver::default(),
            refusals: resolution.refusals,
            notices: resolution.notices,
        };
        let unserved = unserved(&lock(&self.index), &wanted.service.spec);
        wanted.notices.extend(unserved);
        let spec = wanted.spec.as_ref();
        let strict = spec
            .and_then(|spec| late_flows::dropped(&wanted.service.spec, spec, self.settings.proxy));
        wanted.notices.extend(strict);
        self.ask_agents(&mut wanted, last_good);
        let Some(spec) = &wanted.spec else {
            return wanted;
        };
        let unguarded = unguarded(&lock(&self.index), &wanted.service.spec.key, spec);
        wanted.notices.extend(unguarded);
        let key = wanted.service.spec.key.clone();
        let (market, version) = self.market(&key);
        let placed = {
            let mut book = lock(&self.book);
            let service = &wanted.service.spec;
            let placed = self.provider.place(service, spec, &market, &mut book);
            // Under one lock with the refusal: what is freed a moment later wakes it.
            let stamp = placed.refusal.is_some().then(|| Stamp {
                book: book.version(),
                market: version,
                service: Arc::clone(service),
            });
            self.note_waiting(&key, stamp);
            placed
        };
        wanted.notices.extend(placed.notices);
        wanted.addresses = placed.addresses;
        wanted.giver = placed.giver;
        if let Some(refusal) = placed.refusal {
            wanted.refusals.push(refusal);
            // Where the cloud gives addresses there are none to tell whether the Service has had one.
            if !wanted.addresses.is_empty() || wanted.giver == Giver::Cloud {
                wanted.spec = last_good.cloned();
            }
        }
        self.pools_changed.notify_one();
        wanted
    }

    /// Where addresses come from, and its version.
    fn market(&self, service: &ServiceKey) -> (Market, u64) {
        let index = lock(&self.index);
        let namespace_labels = index.namespace_labels(&service.namespace);
        let market = Market {
            pools: index.pools().map(|pool| pool.object.clone()).collect(),
            policy: Arc::clone(self.settings.policies.of(&namespace_labels)),
            namespace_labels,
        };
        (market, index.market_version())
    }

    fn note_waiting(&self, service: &ServiceKey, refused: Option<Stamp>) {
        let mut waiting = lock(&self.waiting);
        match refused {
            Some(stamp) => drop(waiting.insert(service.clone(), stamp)),
            None => drop(waiting.remove(service)),
        }
    }

    /// Whoever waits longer is given addresses before this Service is.
    pub(super) fn elders_first(&self, service: &KnownService) {
        let claim = &self.settings.claim;
        let age = |spec: &ServiceSpec| (spec.created, spec.key.clone());
        let mut elders: Vec<(KnownService, Option<Arc<LoadBalancer>>)> = Vec::new();
        {
            let index = lock(&self.index);
            let mut book = lock(&self.book);
            let waiting = lock(&self.waiting);
            let waits = |book: &AddressBook, spec: &ServiceSpec| {
                book.held_by(&holder_of(spec)).is_empty() || waiting.contains_key(&spec.key)
            };
            // Refused on exactly this state of things: asked again it would be refused again. Without this, many waiters
            // for one address would each ask for all of the others.
            let (of_book, of_market) = (book.version(), index.market_version());
            let in_vain = |other: &KnownService| {
                waiting.get(&other.spec.key).is_some_and(|stamp| {
                    (stamp.book, stamp.market) == (of_book, of_market)
                        && stamp.service == other.spec
                })
            };
            if !waits(&book, &service.spec) {
                return;
            }
            let mut foreign = BTreeMap::new();
            for other in index.services() {
                let spec = &other.spec;
                let object = index.balancer(&spec.key);
                match claim.standing(spec, object.map(AsRef::as_ref)) {
                    Standing::Foreign => {
                        let addresses = spec.ingress.iter().filter_map(|i| i.address);
                        foreign.extend(addresses.map(|address| (address, spec.key.clone())));
                    }
                    Standing::Ours
                        if age(spec) < age(&service.spec)
                            && waits(&book, spec)
                            && !in_vain(other) =>
                    {
                        let object = object.filter(|o| claim.made(o));
                        elders.push((other.clone(), object.cloned()));
                    }
                    Standing::Ours | Standing::Leaving => {}
                }
            }
            book.set_foreign(foreign);
        }
        elders.sort_by_key(|(elder, _)| age(&elder.spec));
        for (elder, object) in elders {
            let key = elder.spec.key.clone();
            let before = lock(&self.book).held_by(&holder_of(&elder.spec));
            let wanted = self.want(elder, object.as_deref());
            if !wanted
                .addresses
                .iter()
                .all(|address| before.contains(address))
            {
                self.touch_service(&key);
            }
        }
    }

    /// A call failed since somebody else has an address in the cloud: another one is chosen, or the Service waits (C-33).
    pub(super) fn address_taken(&self, shard: &P::Shard, taken: &Taken) {
        if taken.install.as_ref() == Some(&self.settings.claim.install) {
            // One of ours that is just being changed: it is in the book already.
            return;
        }
        let now = self.clock.now();
        {
            let index = lock(&self.index);
            let mut book = lock(&self.book);
            for key in self.provider.services(shard) {
                if let Some(service) = index.service(&key) {
                    book.lose(&holder_of(&service.spec), taken.address, &taken.by);
                }
            }
        }
        let mut known = lock(&self.taken);
        let last = known.get(&taken.address).map(|(_, wait)| *wait * 2);
        let wait = last.unwrap_or(TAKEN_FOR).min(TAKEN_AT_MOST);
        known.insert(taken.address, (now + wait, wait));
    }

    /// Addresses that others had in the cloud may be free by now.
    pub(super) fn try_taken_again(&self) {
        let now = self.clock.now();
        let known = lock(&self.taken);
        let over = known.iter().filter(|(_, (until, _))| *until <= now);
        let over: Vec<IpAddr> = over.map(|(address, _)| *address).collect();
        drop(known);
        for address in over {
            lock(&self.book).give_another_try(address);
        }
        self.pass_on_news();
    }

    /// Wakes those who wait for what the book has let go.
    pub(super) fn pass_on_news(&self) {
        let (stirred, freed, in_use) = {
            let mut book = lock(&self.book);
            let (stirred, freed) = book.take_news();
            (stirred, freed, book.in_use())
        };
        self.measures
            .addresses
            .set(i64::try_from(in_use).unwrap_or(i64::MAX));
        self.pools_changed.notify_one();
        let mut concerned = stirred;
        if freed {
            let index = lock(&self.index);
            let mut waiting = lock(&self.waiting);
            // Whoever is gone waits no longer.
            waiting.retain(|service, _| index.service(service).is_some());
            concerned.extend(waiting.keys().cloned());
        }
        for service in &concerned {
            self.touch_service(service);
        }
    }

    /// The cloud has everything as it was last asked: what Services held before is free.
    pub(super) fn confirm_addresses(&self, intents: &[Intent]) {
        for intent in intents {
            let holder = Holder {
                service: intent.service.clone(),
                uid: intent.uid.clone(),
            };
            let gone = lock(&self.book).confirm(&holder);
            let service = lock(&self.index).service(&intent.service).cloned();
            if let (Some(service), false) = (service, gone.is_empty()) {
                let list: Vec<_> = gone.iter().map(ToString::to_string).collect();
                let message = format!("Gave back {}", list.join(", "));
                self.tell(&service.spec, Severity::Normal, "ClearAssignment", &message);
            }
        }
        self.pass_on_news();
    }

    /// Notes every address in use before the first new one is given (C-25).
    pub(super) fn restore_addresses(&self, index: &Index, existing: &[Existing<P::Shard>]) {
        let mut book = lock(&self.book);
        let mut restore = |address, holder: &Holder, source| {
            let service = index.service(&holder.service).map(|known| &*known.spec);
            let service = service.filter(|spec| spec.uid == holder.uid);
            let object = index
                .balancer(&holder.service)
                .filter(|o| self.settings.claim.made(o) && o.spec.service_uid == holder.uid);
            let resolved = match (object, service) {
                (None, Some(service)) => self.provider.resolve(service, None).spec,
                _ => None,
            };
            let found = Found {
                address,
                holder,
                source,
                service,
                spec: object.map(|o| &o.spec).or(resolved.as_ref()),
            };
            if let Err(other) = self.provider.restore(found, &mut book) {
                let service = &holder.service;
                tracing::error!(%address, %service, holder = %other.service, "address held twice");
            }
        };
        // What the cloud has is true; statuses may be old.
        for entry in existing {
            let holder = Holder {
                service: entry.service.clone(),
                uid: entry.uid.clone(),
            };
            for address in &entry.addresses {
                restore(*address, &holder, Source::Cloud);
            }
        }
        for service in index.services() {
            let spec = &service.spec;
            let object = index.balancer(&spec.key).map(AsRef::as_ref);
            if self.settings.claim.standing(spec, object) == Standing::Foreign {
                continue;
            }
            for address in spec.ingress.iter().filter_map(|i| i.address) {
                restore(address, &holder_of(spec), Source::Status);
            }
        }
        let made = index
            .balancers()
            .filter(|(_, o)| self.settings.claim.made(o));
        for (service, object) in made {
            let holder = Holder {
                service,
                uid: object.spec.service_uid.clone(),
            };
            let addresses = object.status.iter().flat_map(|s| &s.addresses);
            for address in addresses.filter_map(|a| a.ip) {
                restore(address, &holder, Source::Status);
            }
        }
    }
}
