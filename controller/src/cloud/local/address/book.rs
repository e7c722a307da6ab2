//! The cluster-wide index of addresses in use (C-33): who uses each, on which terms.
//!
//! Knows no pools. An address that a Service is moved away from stays in the book until the cloud has
//! let it go, so that nobody is given what somebody still has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::id::{ServiceKey, ServiceUid};

use super::share::{Clash, Coming, Neighbour, Scope, SharingKey, Terms, agree, clash};
use super::{Denied, Request};

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The Service.
    pub service: ServiceKey,
    /// Its UID: a later Service of the same name is another holder.
    pub uid: ServiceUid,
}

/// Where an address in use was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the cloud, which is true.
    Cloud,
    /// In a status, which may be old.
    Status,
}

/// Whether an address is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Wanted,
    /// No longer, but the cloud may still have it.
    Leaving,
}

/// One use of one address.
#[derive(Clone, Debug)]
struct Use {
    hold: Hold,
    /// The pool that had it when it was seen last.
    pool: Option<String>,
}

/// What is known of one holder.
#[derive(Clone, Debug, Default)]
struct Known {
    uses: BTreeMap<IpAddr, Use>,
    terms: Terms,
    before: Option<Terms>,
    wished_key: Option<SharingKey>,
    /// The request that its addresses were given for.
    request: Option<Request>,
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct AddressBook {
    known: BTreeMap<Holder, Known>,
    users: BTreeMap<IpAddr, BTreeSet<Holder>>,
    /// Addresses in the status of Services that are not ours.
    foreign: BTreeMap<IpAddr, ServiceKey>,
    /// Addresses that others have in the cloud, by whom.
    taken: BTreeMap<IpAddr, String>,
    /// Services whose neighbour on an address has changed.
    stirred: BTreeSet<ServiceKey>,
    /// Whether something that others may wait for was given up.
    freed: bool,
    /// Counts how often something was.
    version: u64,
}

impl AddressBook {
    /// Notes an address found in a status, in a `LoadBalancer` object or in the cloud, with the terms
    /// and the request of its Service as far as they are known. The answer is another holder that it
    /// may not be shared with; that one keeps it. What two have in the cloud stays with both.
    pub fn restore(
        &mut self,
        address: IpAddr,
        holder: Holder,
        source: Source,
        (terms, request): (&Terms, Option<&Request>),
    ) -> Result<(), Holder> {
        let others = self.users.get(&address).into_iter().flatten();
        let mut others = others.filter(|other| **other != holder);
        let stranger = others.find(|other| {
            let shares = terms.key.is_some()
                && self.terms(other).and_then(|t| t.key.as_ref()) == terms.key.as_ref();
            let across = terms.key.as_ref().is_some_and(|k| k.scope == Scope::Across);
            !shares || (other.service.namespace != holder.service.namespace && !across)
        });
        if let (Some(other), Source::Status) = (stranger, source) {
            return Err(other.clone());
        }
        let known = self.known.entry(holder.clone()).or_default();
        known.terms = terms.clone();
        known.request = request.cloned();
        known.uses.entry(address).or_insert(Use {
            hold: Hold::Wanted,
            pool: None,
        });
        self.users.entry(address).or_default().insert(holder);
        Ok(())
    }

    /// The addresses of Services that are none of ours: nobody is given them.
    pub fn set_foreign(&mut self, foreign: BTreeMap<IpAddr, ServiceKey>) {
        let left = |address: &IpAddr| !foreign.contains_key(address);
        if self.foreign.keys().any(left) {
            self.free();
        }
        self.foreign = foreign;
    }

    /// The cloud says that somebody else has an address which was given to this holder: it is not its own, and what the
    /// holder would have left for it stays.
    pub fn lose(&mut self, holder: &Holder, address: IpAddr, by: &str) {
        self.taken.insert(address, by.to_owned());
        let Some(known) = self.known.get_mut(holder) else {
            return;
        };
        if known.uses.remove(&address).is_none() {
            return;
        }
        for of in known.uses.values_mut() {
            of.hold = Hold::Wanted;
        }
        if known.uses.is_empty() {
            self.known.remove(holder);
        }
        self.forget(address, holder);
    }

    /// Nobody knows any more whether somebody has it in the cloud.
    pub fn give_another_try(&mut self, address: IpAddr) {
        if self.taken.remove(&address).is_some() {
            self.free();
        }
    }

    /// Frees the addresses of every Service that has or had this name, but those of the UIDs in
    /// `keep`. Returns whether any was freed.
    pub fn release(&mut self, service: &ServiceKey, keep: &BTreeSet<ServiceUid>) -> bool {
        let named = |holder: &Holder| holder.service == *service && !keep.contains(&holder.uid);
        let going: Vec<Holder> = self.known.keys().filter(|h| named(h)).cloned().collect();
        for holder in &going {
            let uses = self.known.remove(holder).map(|known| known.uses);
            for address in uses.unwrap_or_default().into_keys() {
                self.forget(address, holder);
            }
        }
        !going.is_empty()
    }

    /// The cloud has taken what was last given to this Service: what it held before is free. The
    /// answer is what was let go.
    pub fn confirm(&mut self, holder: &Holder) -> Vec<IpAddr> {
        let Some(known) = self.known.get_mut(holder) else {
            return Vec::new();
        };
        let changed = known.before.take().is_some();
        let leaving =
            |(address, of): (&IpAddr, &Use)| (of.hold == Hold::Leaving).then_some(*address);
        let gone: Vec<IpAddr> = known.uses.iter().filter_map(leaving).collect();
        known.uses.retain(|_, of| of.hold == Hold::Wanted);
        for address in &gone {
            self.forget(*address, holder);
        }
        if changed {
            self.stir(holder);
        }
        gone
    }

    fn free(&mut self) {
        self.freed = true;
        self.version += 1;
    }

    /// Whoever was refused something in this version would be refused it again.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn forget(&mut self, address: IpAddr, holder: &Holder) {
        self.free();
        if let Some(users) = self.users.get_mut(&address) {
            users.remove(holder);
            self.stirred
                .extend(users.iter().map(|user| user.service.clone()));
            if users.is_empty() {
                self.users.remove(&address);
            }
        }
    }

    /// Its neighbours may have waited for a change of this one; so may those that have no address.
    fn stir(&mut self, holder: &Holder) {
        self.free();
        let addresses = self
            .known
            .get(holder)
            .into_iter()
            .flat_map(|k| k.uses.keys());
        let users = addresses
            .filter_map(|address| self.users.get(address))
            .flatten();
        let others = users.filter(|user| *user != holder);
        self.stirred.extend(others.map(|user| user.service.clone()));
    }

    /// Services to look at again because of what their neighbours did, and whether waiters should be.
    pub fn take_news(&mut self) -> (BTreeSet<ServiceKey>, bool) {
        (
            std::mem::take(&mut self.stirred),
            std::mem::take(&mut self.freed),
        )
    }

    /// Who holds an address: the first of them where it is shared.
    pub fn holder(&self, address: IpAddr) -> Option<&Holder> {
        self.users.get(&address)?.first()
    }

    /// Everybody who uses an address.
    pub fn users(&self, address: IpAddr) -> impl Iterator<Item = &Holder> {
        self.users.get(&address).into_iter().flatten()
    }

    /// Everybody who holds something.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.known.keys()
    }

    /// Every address in use.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.users.keys().copied()
    }

    /// The addresses this Service holds and wants.
    pub fn held_by(&self, holder: &Holder) -> BTreeSet<IpAddr> {
        let uses = self.known.get(holder).into_iter().flat_map(|k| &k.uses);
        uses.filter(|(_, of)| of.hold == Hold::Wanted)
            .map(|(address, _)| *address)
            .collect()
    }

    /// Number of addresses in use.
    pub fn in_use(&self) -> usize {
        self.users.len()
    }

    /// Addresses in use that this pool gave, by the last look at it.
    pub(super) fn given_by(&self, pool: &str) -> BTreeSet<IpAddr> {
        let uses = self.known.values().flat_map(|known| &known.uses);
        uses.filter(|(_, of)| of.pool.as_deref() == Some(pool))
            .map(|(address, _)| *address)
            .collect()
    }

    pub(super) fn terms(&self, holder: &Holder) -> Option<&Terms> {
        self.known.get(holder).map(|known| &known.terms)
    }

    pub(super) fn request(&self, holder: &Holder) -> Option<&Request> {
        self.known.get(holder)?.request.as_ref()
    }

    pub(super) fn is_free(&self, address: IpAddr) -> bool {
        let others = self.foreign.contains_key(&address) || self.taken.contains_key(&address);
        !others && !self.users.contains_key(&address)
    }

    /// Addresses, lowest first, of which somebody else would let this one in by its key.
    pub(super) fn shareable(&self, me: &Holder, terms: &Terms) -> impl Iterator<Item = IpAddr> {
        let open = move |users: &BTreeSet<Holder>| {
            terms.key.is_some()
                && users.iter().any(|user| {
                    self.terms(user).is_some_and(|theirs| {
                        let together = user.service.namespace == me.service.namespace;
                        theirs.key == terms.key && (together || agree((me, terms), (user, theirs)))
                    })
                })
        };
        self.users
            .iter()
            .filter(move |(_, users)| open(users))
            .map(|(address, _)| *address)
    }

    /// What keeps this Service off an address on these terms. Terms that it has there already are
    /// good, whatever others have become since (C-24).
    pub(super) fn refusal(&self, address: IpAddr, me: &Holder, terms: &Terms) -> Option<Denied> {
        let mine = self
            .known
            .get(me)
            // What it is leaving it left on other terms.
            .filter(
                |known| matches!(known.uses.get(&address), Some(of) if of.hold == Hold::Wanted),
            );
        let coming = match mine {
            Some(known) if known.terms == *terms => return None,
            Some(_) => Coming::Staying,
            None => Coming::New,
        };
        if let (Coming::New, Some(holder)) = (coming, self.foreign.get(&address)) {
            let holder = holder.clone();
            return Some(Denied::InUse { address, holder });
        }
        if let (Coming::New, Some(by)) = (coming, self.taken.get(&address)) {
            let by = by.clone();
            return Some(Denied::InCloud { address, by });
        }
        for other in self.users(address).filter(|user| *user != me) {
            let Some(known) = self.known.get(other) else {
                continue;
            };
            let neighbour = Neighbour {
                holder: other,
                terms: &known.terms,
                before: known.before.as_ref(),
                wished_key: known.wished_key.as_ref(),
            };
            let holder = other.service.clone();
            return match clash(me, terms, coming, neighbour) {
                None => continue,
                Some(Clash::Keys) if coming == Coming::New => {
                    Some(Denied::InUse { address, holder })
                }
                Some(clash) => Some(Denied::Clash {
                    address,
                    service: me.service.clone(),
                    holder,
                    clash,
                }),
            };
        }
        None
    }

    /// Gives these addresses, each with the pool that has it; what is held beyond them is leaving.
    pub(super) fn give(
        &mut self,
        holder: &Holder,
        (request, terms): (&Request, &Terms),
        chosen: &[(IpAddr, Option<String>)],
    ) {
        let known = self.known.entry(holder.clone()).or_default();
        let changed = known.terms != *terms && !known.uses.is_empty();
        if changed {
            let old = std::mem::replace(&mut known.terms, terms.clone());
            let before = known.before.get_or_insert_with(|| old.clone());
            before.ports.extend(old.ports);
        }
        known.terms = terms.clone();
        known.request = Some(request.clone());
        known.wished_key = None;
        for of in known.uses.values_mut() {
            of.hold = Hold::Leaving;
        }
        for (address, pool) in chosen {
            let of = known.uses.entry(*address).or_insert(Use {
                hold: Hold::Wanted,
                pool: None,
            });
            of.hold = Hold::Wanted;
            if pool.is_some() {
                of.pool.clone_from(pool);
            }
            self.users
                .entry(*address)
                .or_default()
                .insert(holder.clone());
        }
        if changed {
            self.stir(holder);
        }
    }

    /// Notes the key that a holder asked for in vain.
    pub(super) fn wish(&mut self, holder: &Holder, terms: &Terms) {
        let Some(known) = self.known.get_mut(holder) else {
            return;
        };
        let wished = terms.key.clone().filter(|_| terms.key != known.terms.key);
        if known.wished_key != wished {
            known.wished_key = wished;
            self.stir(holder);
        }
    }
}
