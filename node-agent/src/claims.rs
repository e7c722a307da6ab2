//! Which Service gets a frontend that several claim (S-33). Used by the planner alone.
//!
//! Nothing upstream keeps two Services from naming the same external address and port, or from
//! overlapping for a moment while one is deleted and another made. The oldest Service wins, then
//! the lower UID, whatever the order in which the events came.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use onehop_core::id::{ServiceKey, ServiceUid};
use onehop_core::time::Time;

use crate::table::element::{Family, Frontend, Protocol};

/// What clients connect to: an address of the Service, or a node port of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Front {
    /// Address, protocol and port.
    Vip(Frontend),
    /// The node port on every eligible node address of the family.
    NodePort(Family, Protocol, u16),
}

impl Front {
    /// Family of the table that serves it.
    pub fn family(&self) -> Family {
        match self {
            Self::Vip(frontend) => Family::of(frontend.address),
            Self::NodePort(family, ..) => *family,
        }
    }

    /// Transport protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Vip(frontend) => frontend.protocol,
            Self::NodePort(_, protocol, _) => *protocol,
        }
    }
}

impl std::fmt::Display for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vip(front) => write!(f, "{}:{}/{:?}", front.address, front.port, front.protocol),
            Self::NodePort(_, protocol, port) => write!(f, "node port {port}/{protocol:?}"),
        }
    }
}

/// Who claims. The order decides who wins: age first, then UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// When the Service was created.
    pub created: Time,
    /// UID of the Service.
    pub uid: ServiceUid,
    /// The Service.
    pub service: ServiceKey,
}

/// All claims of all Services.
#[derive(Debug, Default)]
pub struct Claims {
    /// The winner comes first. Nearly always there is one.
    by_front: BTreeMap<Front, Vec<Arc<Claimant>>>,
    by_service: HashMap<ServiceKey, (Arc<Claimant>, Box<[Front]>)>,
}

impl Claims {
    /// Replaces what a Service claims and returns the other Services that won or lost by it.
    pub fn set(&mut self, claimant: Claimant, fronts: BTreeSet<Front>) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::new();
        let known = self.by_service.get(&claimant.service);
        let claimant = match known.map(|(old, _)| old) {
            Some(old) if **old == claimant => Arc::clone(old),
            known => {
                if known.is_some() {
                    // Deleted and made anew: another age and UID.
                    touched = self.clear(&claimant.service);
                }
                Arc::new(claimant)
            }
        };
        let service = &claimant.service;
        let old = self.by_service.remove(service).map(|(_, fronts)| fronts);
        let old = old.unwrap_or_default();
        let left = old.iter().filter(|front| !fronts.contains(front));
        touched.extend(left.filter_map(|front| self.drop(front, &claimant)));
        let new = fronts
            .iter()
            .filter(|front| old.binary_search(front).is_err());
        touched.extend(new.filter_map(|front| self.add(front, &claimant)));
        touched.remove(service);
        if !fronts.is_empty() {
            self.by_service
                .insert(service.clone(), (claimant, fronts.into_iter().collect()));
        }
        touched
    }

    /// Whether a Service claims a frontend that is not among these.
    pub fn shrinks(&self, service: &ServiceKey, fronts: &BTreeSet<Front>) -> bool {
        let claimed = self.by_service.get(service);
        claimed.is_some_and(|(_, old)| old.iter().any(|front| !fronts.contains(front)))
    }

    /// Takes back all claims of a Service and returns the others that won by it.
    pub fn clear(&mut self, service: &ServiceKey) -> BTreeSet<ServiceKey> {
        let Some((claimant, fronts)) = self.by_service.remove(service) else {
            return BTreeSet::new();
        };
        let won = fronts
            .iter()
            .filter_map(|front| self.drop(front, &claimant));
        won.collect()
    }

    /// Adds one claim; returns who lost by it.
    fn add(&mut self, front: &Front, claimant: &Arc<Claimant>) -> Option<ServiceKey> {
        let claimants = self.by_front.entry(*front).or_default();
        let Err(place) = claimants.binary_search(claimant) else {
            return None;
        };
        let before = claimants.first().map(|winner| winner.service.clone());
        claimants.insert(place, Arc::clone(claimant));
        before.filter(|_| place == 0)
    }

    /// Takes one claim back; returns who won by it.
    fn drop(&mut self, front: &Front, claimant: &Arc<Claimant>) -> Option<ServiceKey> {
        let claimants = self.by_front.get_mut(front)?;
        let place = claimants.binary_search(claimant).ok()?;
        claimants.remove(place);
        let next = claimants.first().map(|next| next.service.clone());
        if next.is_none() {
            self.by_front.remove(front);
        }
        next.filter(|_| place == 0)
    }

    /// Who wins a frontend.
    pub fn winner(&self, front: &Front) -> Option<&ServiceKey> {
        let claimants = self.by_front.get(front)?;
        claimants.first().map(|claimant| &claimant.service)
    }

    /// Whether an address is claimed by any Service. Such an address is no node address, even if
    /// it is assigned to the node (S-29).
    pub fn is_service_address(&self, addr: IpAddr) -> bool {
        let lowest = Front::Vip(Frontend {
            address: addr,
            protocol: Protocol::Tcp,
            port: 0,
        });
        let next = self.by_front.range(lowest..).next();
        matches!(next, Some((Front::Vip(frontend), _)) if frontend.address == addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vip(port: u16) -> Front {
        Front::Vip(Frontend {
            address: IpAddr::from([198, 51, 100, 7]),
            protocol: Protocol::Tcp,
            port,
        })
    }

    fn claimant(name: &str, created: i64) -> Claimant {
        Claimant {
            created: Time::from_millis(created),
            uid: ServiceUid::from(name),
            service: ServiceKey::new("default", name),
        }
    }

    #[test]
    fn s33_oldest_wins_in_any_order_of_events() {
        // DI-50
        let (old, young) = (claimant("old", 1), claimant("young", 2));
        let fronts = BTreeSet::from([vip(80)]);
        for (order, loses) in [([&old, &young], None), ([&young, &old], Some(&young))] {
            let mut claims = Claims::default();
            assert!(claims.set(order[0].clone(), fronts.clone()).is_empty());
            let touched = claims.set(order[1].clone(), fronts.clone());
            let lost = loses.into_iter().map(|claimant| claimant.service.clone());
            assert_eq!(touched, lost.collect());
            assert_eq!(claims.winner(&vip(80)), Some(&old.service));
            assert!(
                claims.set(order[0].clone(), fronts.clone()).is_empty(),
                "nothing changed"
            );
        }
    }

    #[test]
    fn s33_the_next_one_gets_what_the_winner_leaves() {
        let (old, young) = (claimant("old", 1), claimant("young", 2));
        let mut claims = Claims::default();
        claims.set(old.clone(), BTreeSet::from([vip(80), vip(81)]));
        claims.set(young.clone(), BTreeSet::from([vip(80)]));
        let touched = claims.set(old.clone(), BTreeSet::from([vip(81)]));
        assert_eq!(touched, BTreeSet::from([young.service.clone()]));
        assert_eq!(claims.winner(&vip(80)), Some(&young.service));
        assert_eq!(claims.winner(&vip(81)), Some(&old.service));
    }

    #[test]
    fn s29_service_address_is_found_by_address_alone() {
        let mut claims = Claims::default();
        claims.set(claimant("a", 1), BTreeSet::from([vip(443)]));
        assert!(claims.is_service_address(IpAddr::from([198, 51, 100, 7])));
        assert!(!claims.is_service_address(IpAddr::from([198, 51, 100, 8])));
        assert!(!claims.is_service_address(IpAddr::from([198, 51, 100, 6])));
    }
}
