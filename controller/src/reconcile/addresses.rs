//! Who is given which address, and in which turn: the oldest waiter first (C-23). What is given is noted
//! in the one book; what somebody gives up wakes those who wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_core::crd::LoadBalancer;
use onehop_core::id::ServiceKey;
use onehop_core::service::ServiceSpec;
use onehop_runtime::events::Severity;

use super::cases::Wanted;
use super::{Reconciler, lock};
use crate::cloud::{AddressBook, Holder, Source};
use crate::index::{Index, KnownService};
use crate::plan::{Existing, Found, Giver, Intent, Market, Provider, Refusal};
use crate::snapshot::{self, Standing};

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
        let resolution = self.provider.resolve(&service.spec, last_good);
        let mut wanted = Wanted {
            service,
            spec: resolution.spec,
            addresses: Vec::new(),
            giver: Giver::default(),
            refusals: resolution.refusals,
            notices: resolution.notices,
        };
        let Some(spec) = &wanted.spec else {
            return wanted;
        };
        let key = wanted.service.spec.key.clone();
        let market = self.market(&key);
        let placed = {
            let mut book = lock(&self.book);
            let service = &wanted.service.spec;
            let placed = self.provider.place(service, spec, &market, &mut book);
            // Under one lock with the refusal: what is freed a moment later wakes it.
            self.note_waiting(&key, placed.refusal.as_ref());
            placed
        };
        wanted.notices.extend(placed.notices);
        wanted.addresses = placed.addresses;
        wanted.giver = placed.giver;
        if let Some(refusal) = placed.refusal {
            wanted.refusals.push(refusal);
            if !wanted.addresses.is_empty() {
                wanted.spec = last_good.cloned();
            }
        }
        self.pools_changed.notify_one();
        wanted
    }

    fn market(&self, service: &ServiceKey) -> Market {
        let index = lock(&self.index);
        Market {
            pools: index.pools().map(|pool| pool.object.clone()).collect(),
            namespace_labels: index.namespace_labels(&service.namespace),
        }
    }

    fn note_waiting(&self, service: &ServiceKey, refusal: Option<&Refusal>) {
        let mut waiting = lock(&self.waiting);
        if refusal.is_some() {
            waiting.insert(service.clone());
        } else {
            waiting.remove(service);
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
                book.held_by(&holder_of(spec)).is_empty() || waiting.contains(&spec.key)
            };
            if !waits(&book, &service.spec) {
                return;
            }
            let mut foreign = BTreeMap::new();
            for other in index.services() {
                let spec = &other.spec;
                let object = index.balancer(&spec.key).filter(|o| claim.made(o));
                match claim.standing(spec, object.map(AsRef::as_ref)) {
                    Standing::Foreign => {
                        let addresses = spec.ingress.iter().filter_map(|i| i.address);
                        foreign.extend(addresses.map(|address| (address, spec.key.clone())));
                    }
                    Standing::Ours if age(spec) < age(&service.spec) && waits(&book, spec) => {
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
        let waiting = lock(&self.waiting).clone();
        for service in stirred.iter().chain(waiting.iter().filter(|_| freed)) {
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
