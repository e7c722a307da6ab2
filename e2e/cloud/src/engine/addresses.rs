//! Who owns which frontend address (FC-100): one load balancer each, or several that share it by a key and
//! have no listener in common.

use std::net::IpAddr;

use super::log::{Seq, What};
use super::{ApiError, Balancer, Engine, Holder, LbId, LbSpec, ListenerKey};

impl Engine {
    /// Refuses addresses that are not routed or that another load balancer holds; the latter fails
    /// the run, since no two owners should ever be given one address (FC-100).
    pub(super) fn check_addresses(
        &mut self,
        claimant: Option<&LbId>,
        spec: &LbSpec,
        cause: Seq,
    ) -> Result<(), ApiError> {
        for address in &spec.addresses {
            let routed = |ranges: &[ipnet::IpNet]| ranges.iter().any(|r| r.contains(address));
            if !self.ranges.is_empty() && !routed(&self.ranges) {
                return Err(ApiError::AddressNotRouted { address: *address });
            }
            let mine = claimant.and_then(|id| self.balancers.get(id));
            if mine.is_some_and(|mine| mine.spec.addresses.contains(address)) {
                continue;
            }
            let clashes = |other: &Balancer| {
                let shares =
                    spec.sharing_key.is_some() && spec.sharing_key == other.spec.sharing_key;
                let listeners = mine.into_iter().flat_map(|mine| mine.listeners.keys());
                !shares
                    || listeners
                        .into_iter()
                        .any(|key| other.listeners.contains_key(key))
            };
            let Some(holder) = self.holder_that(*address, claimant, clashes) else {
                continue;
            };
            self.note_conflict(*address, &holder, claimant, &spec.name, cause);
            return Err(ApiError::AddressInUse {
                address: *address,
                holder: Box::new(holder),
            });
        }
        Ok(())
    }

    /// Refuses a listener that another load balancer has on an address that they share.
    pub(super) fn check_listener(
        &mut self,
        id: &LbId,
        key: ListenerKey,
        cause: Seq,
    ) -> Result<(), ApiError> {
        let spec = self.balancer(id)?.spec.clone();
        for address in &spec.addresses {
            let has_it = |other: &Balancer| other.listeners.contains_key(&key);
            if let Some(holder) = self.holder_that(*address, Some(id), has_it) {
                self.note_conflict(*address, &holder, Some(id), &spec.name, cause);
                return Err(ApiError::AddressInUse {
                    address: *address,
                    holder: Box::new(holder),
                });
            }
        }
        Ok(())
    }

    /// The first other owner of an address of which this holds.
    fn holder_that(
        &self,
        address: IpAddr,
        claimant: Option<&LbId>,
        holds: impl Fn(&Balancer) -> bool,
    ) -> Option<Holder> {
        let owners = self.owners.get(&address).into_iter().flatten();
        let mut others = owners.filter(|owner| Some(*owner) != claimant);
        others.find_map(|owner| {
            let other = self.balancers.get(owner).filter(|other| holds(other))?;
            Some(Holder {
                id: owner.clone(),
                name: other.spec.name.clone(),
                tags: other.spec.tags.clone(),
            })
        })
    }

    fn note_conflict(
        &mut self,
        address: IpAddr,
        holder: &Holder,
        claimant: Option<&LbId>,
        claimant_name: &str,
        cause: Seq,
    ) {
        let claimant = claimant.map_or_else(String::new, ToString::to_string);
        self.log.violation(format!(
            "address {address} of {} ({}) was asked for by {claimant_name} {claimant}",
            holder.id, holder.name
        ));
        let what = What::AddressConflict {
            address,
            holder: [holder.id.to_string(), holder.name.clone()],
            claimant: [claimant, claimant_name.to_owned()],
        };
        self.log.push(self.now, Some(cause), what);
    }

    pub(super) fn move_addresses(&mut self, id: &LbId, old: &[IpAddr], new: &[IpAddr], cause: Seq) {
        for address in old.iter().filter(|address| !new.contains(address)) {
            if let Some(owners) = self.owners.get_mut(address) {
                owners.remove(id);
                if owners.is_empty() {
                    self.owners.remove(address);
                }
            }
            let what = What::AddressReleased {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
        for address in new.iter().filter(|address| !old.contains(address)) {
            self.owners.entry(*address).or_default().insert(id.clone());
            let what = What::AddressAssigned {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
    }
}
