//! Who owns which frontend address (FC-100): one load balancer each.

use std::net::IpAddr;

use super::log::{Seq, What};
use super::{ApiError, Engine, Holder, LbId, LbSpec};

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
            let Some(owner) = self
                .owners
                .get(address)
                .filter(|owner| Some(*owner) != claimant)
            else {
                continue;
            };
            let held = &self.balancer(owner)?.spec;
            let holder = Holder {
                id: owner.clone(),
                name: held.name.clone(),
                tags: held.tags.clone(),
            };
            self.note_conflict(*address, &holder, claimant, &spec.name, cause);
            return Err(ApiError::AddressInUse {
                address: *address,
                holder: Box::new(holder),
            });
        }
        Ok(())
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
            self.owners.remove(address);
            let what = What::AddressReleased {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
        for address in new.iter().filter(|address| !old.contains(address)) {
            self.owners.insert(*address, id.clone());
            let what = What::AddressAssigned {
                lb: id.clone(),
                address: *address,
            };
            self.log.push(self.now, Some(cause), what);
        }
    }
}
