//! Which Service gets which address: a pure choice over pools and what is taken already (C-20 to C-25).
//!
//! Called by the local provider under the lock of the one [`AddressBook`]. It never writes anything;
//! the book is filled from every existing status, `LoadBalancer` object and cloud object before the
//! first new request is served (C-25).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onehop_core::crd::{AddressPool, AddressPoolSpec, AddressRange};
use onehop_core::id::{IpFamily, ParseError, ServiceKey, ServiceUid};

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The Service.
    pub service: ServiceKey,
    /// Its UID: a later Service of the same name is another holder.
    pub uid: ServiceUid,
}

/// The cluster-wide index of addresses in use (C-33).
#[derive(Clone, Debug, Default)]
pub struct AddressBook {
    holders: BTreeMap<IpAddr, Holder>,
}

impl AddressBook {
    /// Notes an address found in a status, in a `LoadBalancer` object or in the cloud. The first one
    /// that is known to hold it keeps it; the answer is the other holder if there is one.
    pub fn restore(&mut self, address: IpAddr, holder: Holder) -> Result<(), Holder> {
        match self.holders.get(&address) {
            Some(known) if *known != holder => Err(known.clone()),
            Some(_) => Ok(()),
            None => {
                self.holders.insert(address, holder);
                Ok(())
            }
        }
    }

    /// Frees the addresses of every Service that has or had this name, but those of the UIDs in
    /// `keep`. Returns whether any was freed.
    pub fn release(&mut self, service: &ServiceKey, keep: &BTreeSet<ServiceUid>) -> bool {
        let before = self.holders.len();
        self.holders
            .retain(|_, h| h.service != *service || keep.contains(&h.uid));
        self.holders.len() < before
    }

    /// Who holds an address.
    pub fn holder(&self, address: IpAddr) -> Option<&Holder> {
        self.holders.get(&address)
    }

    /// The addresses this Service holds.
    pub fn held_by(&self, holder: &Holder) -> BTreeSet<IpAddr> {
        self.holders
            .iter()
            .filter(|(_, h)| *h == holder)
            .map(|(address, _)| *address)
            .collect()
    }

    /// Number of addresses in use.
    pub fn in_use(&self) -> usize {
        self.holders.len()
    }
}

/// A pool as the choice sees it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// What it says.
    pub spec: AddressPoolSpec,
    /// Its ranges that could be read, lowest first.
    ranges: Vec<AddressRange>,
}

impl Pool {
    /// The pool of an object, with what could not be read of it.
    pub fn read(object: &AddressPool) -> (Self, Vec<ParseError>) {
        let (mut ranges, problems) = object.spec.ranges();
        ranges.sort_unstable();
        let name = object.metadata.name.clone().unwrap_or_default();
        (
            Self {
                name,
                spec: object.spec.clone(),
                ranges,
            },
            problems,
        )
    }

    /// Whether it has addresses of this family.
    pub fn has(&self, family: IpFamily) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Lower goes first; 0 and unset come last (C-20).
    fn rank(&self) -> (u32, &str) {
        let priority = self
            .spec
            .service_allocation
            .as_ref()
            .and_then(|a| a.priority);
        (priority.filter(|p| *p != 0).unwrap_or(u32::MAX), &self.name)
    }
}

/// What a Service asks for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// One address per family.
    pub families: Vec<IpFamily>,
    /// Exactly these, all or nothing (C-22).
    pub addresses: Vec<IpAddr>,
    /// Only from this pool.
    pub pool: Option<String>,
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
    /// A fixed address is in no pool that may give it.
    #[error("address {address} is in no pool that may give it (pools: {pools})")]
    NotInPool {
        /// The address.
        address: IpAddr,
        /// The pools asked.
        pools: String,
    },
    /// The named pool does not exist.
    #[error("there is no AddressPool {0:?}")]
    NoSuchPool(String),
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
/// What it holds already stays as long as it meets the request (C-24); else pools are asked by priority,
/// then name, and within a pool the lowest free address is taken (C-21).
pub fn allocate(
    request: &Request,
    holder: &Holder,
    pools: &[Pool],
    book: &mut AddressBook,
) -> Result<Vec<IpAddr>, Denied> {
    let candidates = candidates(request, pools)?;
    let names = || {
        candidates
            .iter()
            .map(|p| p.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let held = book.held_by(holder);
    let chosen = if request.addresses.is_empty() {
        let mut chosen = Vec::new();
        for family in &request.families {
            let kept = held.iter().copied().find(|a| IpFamily::of(*a) == *family);
            let address = kept.or_else(|| lowest_free(*family, &candidates, book));
            let denied = || Denied::Exhausted {
                family: *family,
                pools: names(),
            };
            chosen.push(address.ok_or_else(denied)?);
        }
        chosen
    } else {
        for address in &request.addresses {
            if let Some(other) = book.holder(*address).filter(|other| *other != holder) {
                return Err(Denied::InUse {
                    address: *address,
                    holder: other.service.clone(),
                });
            }
            if !held.contains(address) && !candidates.iter().any(|p| p.contains(*address)) {
                return Err(Denied::NotInPool {
                    address: *address,
                    pools: names(),
                });
            }
        }
        request.addresses.clone()
    };
    book.holders
        .retain(|address, h| h != holder || chosen.contains(address));
    for address in &chosen {
        book.holders.insert(*address, holder.clone());
    }
    Ok(chosen)
}

/// The pools that may serve the request, best first.
fn candidates<'a>(request: &Request, pools: &'a [Pool]) -> Result<Vec<&'a Pool>, Denied> {
    let fixed = !request.addresses.is_empty();
    let mut chosen: Vec<&Pool> = pools
        .iter()
        .filter(|pool| match &request.pool {
            Some(name) => pool.name == *name,
            None => fixed || pool.spec.auto_assign,
        })
        .collect();
    if let (Some(name), true) = (&request.pool, chosen.is_empty()) {
        return Err(Denied::NoSuchPool(name.clone()));
    }
    chosen.sort_by(|a, b| a.rank().cmp(&b.rank()));
    Ok(chosen)
}

fn lowest_free(family: IpFamily, pools: &[&Pool], book: &AddressBook) -> Option<IpAddr> {
    pools.iter().find_map(|pool| {
        // Bounded by the number of addresses in use: the first gap ends the search.
        let ranges = pool.ranges.iter().filter(|range| range.family() == family);
        ranges
            .flat_map(|range| range.iter())
            .find(|address| pool.spec.may_give(*address) && book.holder(*address).is_none())
    })
}

#[cfg(test)]
mod tests;
