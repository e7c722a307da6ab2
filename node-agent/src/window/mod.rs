//! The Local window (zero-drop.md ZD-60 to ZD-66): for a bounded time after the last endpoint of a Service with
//! externalTrafficPolicy Local left this node, new flows that come late go to an endpoint on another node.
//!
//! Pure. `entries` has what controllers said of the node's ports; here is since when nobody serves on this node. The
//! state asks before Services are compiled, and compile turns an open window into one timed element per frontend, which
//! the kernel takes out by itself (ZD-54, ZD-65).

mod entries;

use std::collections::{BTreeMap, BTreeSet};

use onehop_core::crd::NodeInstall;
use onehop_core::id::{InstallId, IpFamily, PortKey, ServiceKey};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

use self::entries::Entries;
pub use self::entries::Entry;
use crate::claims::Front;
use crate::compile::fronts::{self, Beyond, Reach};
use crate::table::element::{Data, Elements, SetId};

/// A window that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    until: Time,
    /// The node port by which the load balancer sends, in node mode.
    node_port: Option<u16>,
}

impl Open {
    /// Whether late flows of the load balancer come to this frontend.
    fn covers(&self, front: &Front, reach: Reach) -> bool {
        match front {
            Front::Vip(_) => reach == Reach::LoadBalancer,
            Front::NodePort(_, _, port) => self.node_port == Some(*port),
        }
    }
}

/// Who serves a port of a Service in one family, as far as the window depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Serving {
    /// Somebody on this node, be it for as long as it still runs (ZD-61).
    pub here: bool,
    /// Somebody on another node; an endpoint that is on no node is no pod of this cluster (ZD-66).
    pub elsewhere: bool,
}

/// A port of a Service in one family.
type Place = (PortKey, IpFamily);

/// How long nobody on this node has served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Watch {
    /// When the last endpoint left; none while there is one, or if there never was any.
    left: Option<Time>,
    /// There was one.
    seen: bool,
    /// The windows. Two installs may serve one Service, and ports of a group that is being replaced are beside the new ones.
    open: Vec<Open>,
}

/// What an earlier process left in the kernel for a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inherited {
    /// Somebody on this node served.
    Served,
    /// The window was open, until then.
    Until(Time),
}

/// All windows of the node, and what they follow from.
#[derive(Debug, Default)]
pub struct Windows {
    entries: Entries,
    watches: BTreeMap<ServiceKey, BTreeMap<Place, Watch>>,
    /// When the first of the open windows of a port ends.
    ends: BTreeMap<(ServiceKey, Place), Time>,
    inherited: BTreeMap<Front, Inherited>,
}

impl Windows {
    /// What controllers say now; the Services of which something else is said. Without an object nothing new is said
    /// (K-21).
    pub fn targets(&mut self, installs: &BTreeMap<InstallId, NodeInstall>) -> BTreeSet<ServiceKey> {
        self.entries.update(installs)
    }

    /// Takes over what the kernel holds (ZD-37).
    pub fn inherit(&mut self, elements: &Elements) {
        self.inherited.clear();
        for (key, data) in elements {
            let held = match (key.1, data) {
                (SetId::ServiceIpsLocal | SetId::ServiceNodePortsLocal, _) => Inherited::Served,
                (SetId::Window | SetId::WindowNodePorts, Some(Data::Timed(_, until))) => {
                    Inherited::Until(*until)
                }
                _ => continue,
            };
            let Some(front) = crate::planner::front_of(key) else {
                continue;
            };
            self.inherited.insert(front, held);
        }
    }

    /// Whether controllers listed a port of this Service.
    pub fn concern(&self, service: &ServiceKey) -> bool {
        self.entries.of(service).next().is_some()
    }

    /// The Services for which controllers named a port of this node that a Service has now (ZD-68).
    pub fn who_had(&self, service: &ServiceSpec) -> BTreeSet<ServiceKey> {
        self.entries.who_had(service)
    }

    /// The listed ports of a Service.
    pub fn entries(&self, service: &ServiceSpec) -> impl Iterator<Item = (&PortKey, &Entry)> {
        let of_key = self.entries.of(&service.key);
        of_key
            .filter(|(uid, ..)| **uid == service.uid)
            .map(|(_, port, entry)| (port, entry))
    }

    /// Until when the window of a frontend is open, as [`Windows::settle`] left it.
    pub fn until(
        &self,
        service: &ServiceKey,
        port: &PortKey,
        (front, reach): (&Front, Reach),
    ) -> Option<Time> {
        let place = (port.clone(), front.family());
        let open = self.watches.get(service)?.get(&place)?.open.iter();
        open.filter(|open| open.covers(front, reach))
            .map(|open| open.until)
            .max()
    }

    /// Brings the windows of a Service to where they should be at this time. `serving` says who serves.
    pub fn settle(
        &mut self,
        service: &ServiceSpec,
        beyond: &Beyond,
        serving: impl Fn(&PortKey, IpFamily) -> Serving,
        now: Time,
    ) {
        let known = self.watches.remove(&service.key).unwrap_or_default();
        self.end(&service.key, &known);
        let mut watches = BTreeMap::new();
        for port in &service.ports {
            let entries = self.entries(service);
            let of_port = entries.filter(|(key, _)| **key == port.key);
            let listed: Vec<Entry> = of_port.map(|(_, entry)| *entry).collect();
            if listed.is_empty() {
                continue;
            }
            let all = fronts::of_port(service, port, beyond);
            for family in fronts::families(service) {
                let place = (port.key.clone(), family);
                let mut of_family = all.keys().filter(|front| front.family() == family);
                let held = of_family.find_map(|front| self.inherited.get(front));
                let watch = known.get(&place).cloned();
                let mut watch = watch.unwrap_or_else(|| Watch::after(held.copied(), &listed, now));
                watch.look(serving(&port.key, family), &listed, now);
                watches.insert(place, watch);
            }
        }
        for (place, watch) in &watches {
            let first = watch.open.iter().map(|open| open.until).min();
            let place = (service.key.clone(), place.clone());
            self.ends.extend(first.map(|end| (place, end)));
        }
        if !watches.is_empty() {
            self.watches.insert(service.key.clone(), watches);
        }
    }

    /// A Service is gone, or somebody else's now.
    pub fn forget(&mut self, service: &ServiceKey) {
        if let Some(known) = self.watches.remove(service) {
            self.end(service, &known);
        }
    }

    fn end(&mut self, service: &ServiceKey, places: &BTreeMap<Place, Watch>) {
        for place in places.keys() {
            self.ends.remove(&(service.clone(), place.clone()));
        }
    }

    /// The Services of which something ends by itself at this time.
    pub fn pass(&mut self, now: Time) -> BTreeSet<ServiceKey> {
        let mut touched = self.entries.forget(now);
        let over = self.ends.iter().filter(|(_, end)| **end <= now);
        touched.extend(over.map(|((service, _), _)| service.clone()));
        touched
    }

    /// When [`Windows::pass`] has something to do.
    pub fn next_end(&self) -> Option<Time> {
        let ends = self.ends.values().copied();
        ends.chain(self.entries.next_forgotten()).min()
    }
}

impl Watch {
    /// The first look at a port, after what an earlier process left.
    fn after(held: Option<Inherited>, listed: &[Entry], now: Time) -> Self {
        let left = match held {
            None => return Self::default(),
            Some(Inherited::Served) => None,
            // It was made by the same rules, so its beginning follows from its end.
            Some(Inherited::Until(until)) => {
                let longest = listed.iter().map(Entry::length).max();
                Some(longest.map_or(now, |length| until - length))
            }
        };
        Self {
            left,
            seen: true,
            open: Vec::new(),
        }
    }

    fn look(&mut self, serving: Serving, listed: &[Entry], now: Time) {
        self.open.clear();
        if serving.here {
            (self.left, self.seen) = (None, true);
            return;
        }
        if self.seen {
            self.left.get_or_insert(now);
        }
        if !serving.elsewhere {
            return;
        }
        let open = listed.iter().filter_map(|entry| {
            let until = entry.until(self.left)?;
            Some(Open {
                until,
                node_port: entry.node_port,
            })
        });
        self.open = open.filter(|open| open.until > now).collect();
    }
}

#[cfg(test)]
mod tests;
