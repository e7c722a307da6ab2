//! What controllers said of the ports of this node (`local[]` of `NodeTargets`), and what of it still holds.
//!
//! As with targets, an entry ends only by `released`; one that vanishes without it has said nothing, and stays for as
//! long as a window may last (K-21, ZD-52).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use onehop_core::crd::{ClusterFacts, LateFlows, LocalPort, NodeInstall, TargetState};
use onehop_core::id::{InstallId, PortKey, ServiceKey, ServiceUid};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;

/// What was said of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Port on the node, in node mode.
    pub node_port: Option<u16>,
    /// Port that answers for local endpoints.
    pub health_port: Option<u16>,
    /// How it stands.
    pub state: TargetState,
    /// Since when.
    pub since: Time,
    /// What becomes of late flows.
    pub late_flows: LateFlows,
    tail: Duration,
    hold: Duration,
}

impl Entry {
    fn new(said: &LocalPort, facts: &ClusterFacts) -> Self {
        Self {
            node_port: said.node_port,
            health_port: said.health_check_node_port,
            state: said.state,
            since: said.since,
            late_flows: said.late_flows,
            tail: Duration::from_secs(facts.tail_max_seconds.into()),
            hold: Duration::from_secs(facts.hold_max_seconds.into()),
        }
    }

    /// How long a window lasts from its beginning.
    pub(super) fn length(&self) -> Duration {
        if self.state == TargetState::Held {
            self.hold + self.tail
        } else {
            self.tail
        }
    }

    /// Until when late flows are forwarded, the last endpoint having left then; where there never was one, from when the
    /// node was registered, since flows may come before the first verdict of the load balancer (ZD-63).
    pub(super) fn until(&self, left: Option<Time>) -> Option<Time> {
        if self.late_flows != LateFlows::Forward || !self.is_live() {
            return None;
        }
        let begin = left.unwrap_or(self.since);
        let bound = begin + self.hold + self.tail;
        if self.state == TargetState::Held {
            return Some(bound);
        }
        // What was held until a moment ago gets flows for one tail more.
        Some((begin.max(self.since) + self.tail).min(bound))
    }

    /// Whether it was not released yet.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, TargetState::Released | TargetState::Unknown)
    }
}

/// Which entry of which install: ports of several generations of a group stand beside each other.
type Identity = (InstallId, ServiceUid, PortKey, Option<u16>, Option<u16>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listed {
    entry: Entry,
    /// The object names it.
    named: bool,
    /// Since when it does not, if the time was told since.
    lost: Option<Time>,
}

impl Listed {
    fn forgotten_at(&self) -> Option<Time> {
        let since = self.lost.filter(|_| !self.named)?;
        Some(since + self.entry.hold + self.entry.tail)
    }
}

/// Everything that was said.
#[derive(Debug, Default)]
pub(super) struct Entries {
    by_service: BTreeMap<ServiceKey, BTreeMap<Identity, Listed>>,
    /// Whose each listed port of the node is, or was.
    by_port: BTreeMap<u16, BTreeSet<ServiceKey>>,
    /// There are some that nothing names any more.
    any_lost: bool,
}

impl Entries {
    /// Takes a newer object; the Services of which something else is said.
    pub(super) fn update(
        &mut self,
        installs: &BTreeMap<InstallId, NodeInstall>,
    ) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::new();
        let mut said = said(installs);
        for (service, entries) in &mut self.by_service {
            let before = entries.len();
            entries.retain(|identity, listed| {
                let new = said.remove(&(service.clone(), identity.clone()));
                listed.named = new.is_some();
                if let Some(new) = new {
                    listed.lost = None;
                    if std::mem::replace(&mut listed.entry, new) != new {
                        touched.insert(service.clone());
                    }
                }
                listed.named || listed.entry.is_live()
            });
            if entries.len() != before {
                touched.insert(service.clone());
            }
        }
        self.by_service.retain(|_, entries| !entries.is_empty());
        for ((service, identity), entry) in said {
            let listed = Listed {
                entry,
                named: true,
                lost: None,
            };
            touched.insert(service.clone());
            let entries = self.by_service.entry(service).or_default();
            entries.insert(identity, listed);
        }
        let mut all = self.by_service.values().flat_map(BTreeMap::values);
        self.any_lost = all.any(|listed| !listed.named);
        self.sort();
        touched
    }

    /// The entries of a Service, with the UID for which each was made.
    pub(super) fn of(
        &self,
        service: &ServiceKey,
    ) -> impl Iterator<Item = (&ServiceUid, &PortKey, &Entry)> {
        let entries = self.by_service.get(service).into_iter().flatten();
        entries.map(|((_, uid, port, ..), listed)| (uid, port, &listed.entry))
    }

    /// The others for which a port of this node is listed that a Service has now.
    pub(super) fn who_had(&self, service: &ServiceSpec) -> BTreeSet<ServiceKey> {
        let ports = service.ports.iter().filter_map(|port| port.node_port);
        let ports = ports.chain(service.health_check_node_port);
        let had = ports.filter_map(|port| self.by_port.get(&port)).flatten();
        had.filter(|key| **key != service.key).cloned().collect()
    }

    /// Sorts by port anew.
    fn sort(&mut self) {
        self.by_port.clear();
        for (service, entries) in &self.by_service {
            for listed in entries.values() {
                let ports = [listed.entry.node_port, listed.entry.health_port];
                for port in ports.into_iter().flatten() {
                    let had = self.by_port.entry(port).or_default();
                    had.insert(service.clone());
                }
            }
        }
    }

    /// Forgets entries that nothing names any more, once no window of theirs may be left; their Services.
    pub(super) fn forget(&mut self, now: Time) -> BTreeSet<ServiceKey> {
        let mut touched = BTreeSet::new();
        if !self.any_lost {
            return touched;
        }
        for (service, entries) in &mut self.by_service {
            for listed in entries.values_mut().filter(|listed| !listed.named) {
                listed.lost.get_or_insert(now);
            }
            let before = entries.len();
            entries.retain(|_, listed| listed.forgotten_at().is_none_or(|at| at > now));
            if entries.len() != before {
                touched.insert(service.clone());
            }
        }
        self.by_service.retain(|_, entries| !entries.is_empty());
        if !touched.is_empty() {
            self.sort();
        }
        touched
    }

    /// When the next entry is forgotten.
    pub(super) fn next_forgotten(&self) -> Option<Time> {
        let lost = self.any_lost.then_some(&self.by_service);
        let entries = lost.into_iter().flat_map(BTreeMap::values);
        let entries = entries.flat_map(BTreeMap::values);
        entries.filter_map(Listed::forgotten_at).min()
    }
}

/// What these installs say. One port may be named once per family: what one of the two still needs holds for both.
fn said(installs: &BTreeMap<InstallId, NodeInstall>) -> BTreeMap<(ServiceKey, Identity), Entry> {
    let mut said = BTreeMap::new();
    for (install, of_install) in installs {
        // A state that we do not know counts like a lost entry.
        let known = of_install.local.iter();
        for port in known.filter(|port| port.state != TargetState::Unknown) {
            let identity = (
                install.clone(),
                port.service.uid.clone(),
                PortKey::new(port.port_name.clone(), port.protocol),
                port.node_port,
                port.health_check_node_port,
            );
            let entry = Entry::new(port, &of_install.cluster);
            said.entry((port.service.key(), identity))
                .and_modify(|other| *other = stronger(*other, entry))
                .or_insert(entry);
        }
    }
    said
}

/// Of two that are said of one port, the one by which flows come for longer.
fn stronger(a: Entry, b: Entry) -> Entry {
    let rank = |entry: &Entry| match entry.state {
        TargetState::Held => 3,
        TargetState::Active => 2,
        TargetState::Draining => 1,
        TargetState::Released | TargetState::Unknown => 0,
    };
    if (rank(&a), a.since) >= (rank(&b), b.since) {
        a
    } else {
        b
    }
}
