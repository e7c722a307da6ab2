//! Which Service gets which address: a pure choice over pools and what is taken already (C-20 to C-38).
//!
//! Called by the local provider under the lock of the one [`AddressBook`]. It never writes anything;
//! the book is filled from every existing status, `LoadBalancer` object and cloud object before the
//! first new request is served (C-25).

mod book;
mod pool;
mod share;

use std::net::IpAddr;

use onehop_core::id::{IpFamily, ServiceKey};

use super::annotations::SHARING_NAMESPACES;
use crate::policy::{Policy, Sharing};

pub use book::{AddressBook, Holder, Source};
pub use pool::{Customer, Labels, Pool, Pools, Standing};
pub use share::{Backends, Clash, Partners, Scope, SharingKey, Terms};

/// What a Service asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// One address per family.
    pub families: Vec<IpFamily>,
    /// Exactly these, all or nothing (C-22).
    pub addresses: Vec<IpAddr>,
    /// Only from this pool.
    pub pool: Option<String>,
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Who.
    pub holder: &'a Holder,
    /// What selectors look at.
    pub customer: Customer<'a>,
    /// For what.
    pub request: &'a Request,
    /// On which terms with others.
    pub terms: &'a Terms,
    /// What it may ask for (K-60).
    pub policy: &'a Policy,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The addresses it has now. With a refusal: those that it had before.
    pub addresses: Vec<IpAddr>,
    /// Why what was asked for was not given.
    pub refused: Option<Denied>,
    /// Addresses of it that no pool has any more (C-27).
    pub orphaned: Vec<IpAddr>,
}

/// Why no address was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A fixed address belongs to somebody else.
    #[error("address {address} is held by Service {holder}")]
    InUse {
        /// The address.
        address: IpAddr,
        /// Who holds it.
        holder: ServiceKey,
    },
    /// Somebody has it in the cloud of whom no Service tells (C-33).
    #[error("address {address} is held in the cloud by {by}")]
    InCloud {
        /// The address.
        address: IpAddr,
        /// Who.
        by: String,
    },
    /// Two Services may not share an address (C-29).
    #[error(
        "address {address} cannot be used by both Service {service} and Service {holder}: {clash}"
    )]
    Clash {
        /// The address.
        address: IpAddr,
        /// Who asks.
        service: ServiceKey,
        /// Who holds it.
        holder: ServiceKey,
        /// What is in the way.
        clash: Clash,
    },
    /// A fixed address is in no pool that may give it.
    #[error("address {address} is in no pool that may give it (pools: {pools})")]
    NotInPool {
        /// The address.
        address: IpAddr,
        /// The pools asked.
        pools: String,
    },
    /// A fixed address is of a family that the Service does not have.
    #[error("address {0} is of a family that is not in the Service's ipFamilies")]
    Family(IpAddr),
    /// The named pool does not exist.
    #[error("there is no AddressPool {0:?}")]
    NoSuchPool(String),
    /// The named pool is there and gives nothing.
    #[error("AddressPool {pool:?} gives no address: {why}")]
    PoolRefuses {
        /// Its name.
        pool: String,
        /// Why.
        why: String,
    },
    /// The install does not let this namespace have it (K-60).
    #[error("{asked} is refused by policy {policy:?}, which allows {allowed}")]
    Policy {
        /// What.
        asked: String,
        /// The policy's name.
        policy: String,
        /// What would be right.
        allowed: String,
    },
    /// No pool is for this Service.
    #[error("no AddressPool is for this Service (there are: {0})")]
    NoPool(String),
    /// Everything is taken.
    #[error("no free {family} address in pools: {pools}")]
    Exhausted {
        /// Of this family.
        family: IpFamily,
        /// The pools asked.
        pools: String,
    },
}

/// Chooses the addresses for one Service and notes them in the book.
///
/// What it holds already stays as long as its own wish is the same (C-24, C-27); else pools are asked
/// by priority, then name, and within a pool the lowest free address is taken (C-21). With a sharing
/// key, an address that others have by that key goes before a free one.
pub fn allocate(ask: Ask<'_>, pools: &Pools, book: &mut AddressBook) -> Placement {
    let (addresses, refused) = match choose(ask, pools, book) {
        Ok(chosen) => {
            let with_pool =
                |address: &IpAddr| (*address, pools.of(*address).map(|p| p.name.clone()));
            let noted: Vec<_> = chosen.iter().map(with_pool).collect();
            book.give(ask.holder, (ask.request, ask.terms), &noted);
            (chosen, None)
        }
        Err(denied) => {
            book.wish(ask.holder, ask.terms);
            (in_order(ask, book), Some(denied))
        }
    };
    let orphaned = addresses
        .iter()
        .copied()
        .filter(|a| pools.of(*a).is_none())
        .collect();
    Placement {
        addresses,
        refused,
        orphaned,
    }
}

/// What is held, in the order in which it would be given.
fn in_order(ask: Ask<'_>, book: &AddressBook) -> Vec<IpAddr> {
    let mut held: Vec<IpAddr> = book.held_by(ask.holder).into_iter().collect();
    let families = &ask.request.families;
    held.sort_by_key(|address| families.iter().position(|f| *f == IpFamily::of(*address)));
    held
}

fn choose(ask: Ask<'_>, pools: &Pools, book: &AddressBook) -> Result<Vec<IpAddr>, Denied> {
    permitted(ask)?;
    if !ask.request.addresses.is_empty() {
        return fixed(ask, pools, book);
    }
    let held = in_order(ask, book);
    let mut chosen = Vec::new();
    for family in &ask.request.families {
        let kept = held
            .iter()
            .copied()
            .filter(|address| IpFamily::of(*address) == *family);
        let kept = kept
            .into_iter()
            .find(|address| stays(ask, *address, pools, book));
        let address = match kept {
            Some(address) => match book.refusal(address, ask.holder, ask.terms) {
                Some(denied) => return Err(denied),
                None => address,
            },
            None => fresh(ask, *family, &candidates(ask, pools)?, book)?,
        };
        chosen.push(address);
    }
    Ok(chosen)
}

/// Whether an address that is held is right for the request. One that was given for the same request
/// always is, whatever became of the pools; one that no pool has was given by a pool that changed.
fn stays(ask: Ask<'_>, address: IpAddr, pools: &Pools, book: &AddressBook) -> bool {
    let Some(name) = &ask.request.pool else {
        return true;
    };
    let before = book.request(ask.holder);
    let same = before.is_some_and(|r| r.pool.as_ref() == Some(name) && r.addresses.is_empty());
    same || pools.of(address).is_none_or(|pool| pool.name == *name)
}

/// All of a fixed set, or none (C-22).
fn fixed(ask: Ask<'_>, pools: &Pools, book: &AddressBook) -> Result<Vec<IpAddr>, Denied> {
    let held = book.held_by(ask.holder);
    for address in &ask.request.addresses {
        let families = &ask.request.families;
        if !families.is_empty() && !families.contains(&IpFamily::of(*address)) {
            return Err(Denied::Family(*address));
        }
        if let Some(denied) = book.refusal(*address, ask.holder, ask.terms) {
            return Err(denied);
        }
        // What it holds stays its own, also when the pool has changed (C-27).
        if held.contains(address) && stays_fixed(ask, book) {
            continue;
        }
        let candidates = candidates(ask, pools)?;
        if !candidates.iter().any(|pool| pool.offers(*address)) {
            let mut others = pools.iter().filter(|pool| may_serve(ask, pool));
            return Err(match others.find(|pool| pool.offers(*address)) {
                Some(pool) => no_pool(
                    ask,
                    format!("address {address} of AddressPool {:?}", pool.name),
                ),
                None => Denied::NotInPool {
                    address: *address,
                    pools: names(&candidates),
                },
            });
        }
    }
    Ok(ask.request.addresses.clone())
}

fn stays_fixed(ask: Ask<'_>, book: &AddressBook) -> bool {
    let before = book.request(ask.holder);
    before.is_none_or(|before| before.pool == ask.request.pool)
}

/// A new address of one family.
fn fresh(
    ask: Ask<'_>,
    family: IpFamily,
    candidates: &[&Pool],
    book: &AddressBook,
) -> Result<IpAddr, Denied> {
    // A neighbour that is just being changed is waited for, rather than taking an address of its own.
    let mut wait = None;
    for pool in candidates {
        let shareable = book.shareable(ask.holder, ask.terms);
        for address in shareable.filter(|a| IpFamily::of(*a) == family && pool.offers(*a)) {
            match book.refusal(address, ask.holder, ask.terms) {
                None => return Ok(address),
                Some(
                    denied @ Denied::Clash {
                        clash: Clash::Changing,
                        ..
                    },
                ) => {
                    wait.get_or_insert(denied);
                }
                Some(_) => {}
            }
        }
    }
    if let Some(denied) = wait {
        return Err(denied);
    }
    let free = candidates
        .iter()
        .find_map(|pool| pool.lowest_free(family, book));
    free.ok_or_else(|| Denied::Exhausted {
        family,
        pools: names(candidates),
    })
}

fn names(pools: &[&Pool]) -> String {
    let names: Vec<_> = pools.iter().map(|p| p.name.as_str()).collect();
    names.join(", ")
}

/// The pools that may serve the request, best first; there is at least one.
fn candidates<'a>(ask: Ask<'_>, pools: &'a Pools) -> Result<Vec<&'a Pool>, Denied> {
    if let Some(name) = &ask.request.pool {
        let Some(pool) = pools.named(name) else {
            return Err(Denied::NoSuchPool(name.clone()));
        };
        let why = match &pool.standing {
            Standing::Conflict(other) => format!("it overlaps the older pool {other:?}"),
            Standing::Terminating => "it is being deleted".to_owned(),
            Standing::Open if !pool.serves(ask.customer) => {
                "its serviceAllocation is not for this Service".to_owned()
            }
            Standing::Open => return Ok(vec![pool]),
        };
        let pool = name.clone();
        return Err(Denied::PoolRefuses { pool, why });
    }
    let serving: Vec<&Pool> = pools.iter().filter(|pool| may_serve(ask, pool)).collect();
    if serving.is_empty() {
        return Err(Denied::NoPool(names(&pools.iter().collect::<Vec<_>>())));
    }
    let allowed = |pool: &&&Pool| ask.policy.allows_pool(&pool.name);
    let chosen: Vec<&Pool> = serving.iter().filter(allowed).copied().collect();
    if chosen.is_empty() {
        return Err(no_pool(ask, format!("AddressPool {}", names(&serving))));
    }
    Ok(chosen)
}

/// Whether a pool that was not named would serve the request, whatever the policy says.
fn may_serve(ask: Ask<'_>, pool: &Pool) -> bool {
    let fixed = !ask.request.addresses.is_empty();
    let asked = fixed || pool.spec.auto_assign;
    let named = ask
        .request
        .pool
        .as_ref()
        .is_none_or(|name| pool.name == *name);
    named && asked && pool.standing == Standing::Open && pool.serves(ask.customer)
}

/// What a Service asks for by name has to be allowed, also where it has it already: the policy may be newer.
fn permitted(ask: Ask<'_>) -> Result<(), Denied> {
    let across = ask
        .terms
        .key
        .as_ref()
        .is_some_and(|k| k.scope == Scope::Across);
    if across && ask.policy.across_namespaces == Sharing::Forbidden {
        return Err(Denied::Policy {
            asked: SHARING_NAMESPACES.to_owned(),
            policy: ask.policy.name.clone(),
            allowed: "no sharing between namespaces".to_owned(),
        });
    }
    match &ask.request.pool {
        Some(name) if !ask.policy.allows_pool(name) => {
            Err(no_pool(ask, format!("AddressPool {name:?}")))
        }
        _ => Ok(()),
    }
}

fn no_pool(ask: Ask<'_>, asked: String) -> Denied {
    Denied::Policy {
        asked,
        policy: ask.policy.name.clone(),
        allowed: ask.policy.pools().to_string(),
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
