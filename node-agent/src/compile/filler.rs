//! Writes one frontend's elements. The only place that knows which set or map a frontend of which
//! form goes to; the rules that decide what goes there are in the parent module.

use std::net::SocketAddr;

use onehop_core::time::Time;

use super::{Affinity, Compiled, Surroundings, slots};
use crate::claims::Front;
use crate::table::affinity::{List, Record, Recorder, Sticky};
use crate::table::element::{
    ClassKind, Data, ElementKey, Family, Frontend, Key, LOCAL_SCOPE, MAX_LIST, SetId, Verdict,
};

/// Plain sets that a frontend may be in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plain {
    /// External, policy Cluster: always masquerade (S-214).
    Masquerade,
    /// External, policy Local (S-215).
    EtpLocal,
}

/// Collects the elements of one frontend.
pub(super) struct Filler<'a, 'b> {
    /// The frontend.
    pub(super) front: &'a Front,
    /// What the kernel holds for it.
    pub(super) around: &'a Surroundings<'b>,
    /// Where the elements go.
    pub(super) compiled: &'a mut Compiled,
}

impl Filler<'_, '_> {
    /// Puts the frontend into a plain set.
    pub(super) fn plain(&mut self, plain: Plain) {
        let set = match (plain, self.front) {
            (Plain::Masquerade, Front::Vip(_)) => SetId::MasqFrontends,
            (Plain::Masquerade, Front::NodePort(..)) => SetId::MasqNodePorts,
            (Plain::EtpLocal, Front::Vip(_)) => SetId::EtpLocal,
            (Plain::EtpLocal, Front::NodePort(..)) => SetId::EtpLocalNodePorts,
        };
        self.insert(set, key(self.front), None);
    }

    /// Slots and verdict of scope 0; whether the list is empty.
    pub(super) fn default_list(&mut self, targets: &[SocketAddr]) -> bool {
        let (set, class) = match self.front {
            Front::Vip(_) => (SetId::ServiceIps, ClassKind::N),
            Front::NodePort(..) => (SetId::ServiceNodePorts, ClassKind::Np),
        };
        self.list(targets, 0, set, class)
    }

    /// Slots and verdict of scope 1; whether the list is empty.
    pub(super) fn local_list(&mut self, targets: &[SocketAddr]) -> bool {
        let (set, class) = match self.front {
            Front::Vip(_) => (SetId::ServiceIpsLocal, ClassKind::L),
            Front::NodePort(..) => (SetId::ServiceNodePortsLocal, ClassKind::Npl),
        };
        self.list(targets, LOCAL_SCOPE, set, class)
    }

    /// What new connections meet where the list for them is empty (S-221).
    pub(super) fn no_endpoint(&mut self, verdict: Verdict) {
        let set = match self.front {
            Front::Vip(_) => SetId::NoEndpointServices,
            Front::NodePort(..) => SetId::NoEndpointNodePorts,
        };
        self.insert(set, key(self.front), Some(Data::Verdict(verdict)));
    }

    /// New flows that come late go to the list of scope 0, which has so many endpoints, until then (S-415).
    pub(super) fn window(&mut self, count: usize, until: Time) {
        let (set, class) = match self.front {
            Front::Vip(_) => (SetId::Window, ClassKind::W),
            Front::NodePort(..) => (SetId::WindowNodePorts, ClassKind::Npw),
        };
        let count = u16::try_from(count.min(MAX_LIST)).unwrap_or(u16::MAX);
        let verdict = Data::Timed(Verdict::Class(class, count), until);
        self.insert(set, key(self.front), Some(verdict));
    }

    /// Sends known clients where they were, and records new ones (S-236 to S-238). `default` is what scope 0 holds;
    /// `local`: there is a Local list for outside clients too. Empty lists have nobody to stick to; of flows in the Local
    /// window nothing is recorded.
    pub(super) fn affinity(
        &mut self,
        affinity: &Affinity,
        default: Option<List>,
        (local, window): (bool, bool),
    ) {
        let (sticky, sticky_local) = match self.front {
            Front::Vip(_) => (SetId::Affinity, SetId::AffinityLocal),
            Front::NodePort(..) => (SetId::AffinityNodePorts, SetId::AffinityNodePortsLocal),
        };
        let port = affinity.port;
        let jump = |list| Some(Data::Verdict(Verdict::Sticky(Sticky { list, port })));
        if let Some(list) = default {
            self.insert(sticky, key(self.front), jump(list));
        }
        if local {
            self.insert(sticky_local, key(self.front), jump(List::Local));
        }
        let by = match default {
            _ if local || window => Recorder::ByClient,
            Some(list) => Recorder::List(list),
            None => return,
        };
        let seconds = affinity.seconds;
        let record = Verdict::Record(Record { by, port, seconds });
        for original in self.destinations() {
            let data = Some(Data::Verdict(record));
            self.insert(SetId::AffinityRecord, Key::Frontend(original), data);
        }
    }

    /// What a packet to the frontend can have as its original destination (S-211).
    fn destinations(&self) -> Vec<Frontend> {
        match *self.front {
            Front::Vip(frontend) => vec![frontend],
            Front::NodePort(family, protocol, port) => {
                let addresses = self.around.nodeport_addresses.iter().copied();
                addresses
                    .filter(|address| Family::of(*address) == family)
                    .map(|address| Frontend {
                        address,
                        protocol,
                        port,
                    })
                    .collect()
            }
        }
    }

    fn list(
        &mut self,
        targets: &[SocketAddr],
        scope: u32,
        verdicts: SetId,
        class: ClassKind,
    ) -> bool {
        // Targets come sorted, so the cut is the same on every pass.
        let kept = &targets[..targets.len().min(MAX_LIST)];
        if kept.len() < targets.len() {
            self.compiled
                .cut
                .insert(*self.front, targets.len() - kept.len());
        }
        let held = (self.around.held)(self.front, scope);
        for (slot, target) in (scope..).zip(slots::assign(&held, kept)) {
            let (_, set, key) = slot_key(self.front, slot);
            self.insert(set, key, Some(Data::Target(target)));
            // Without its pair a connection of a pod to itself would hang (S-222).
            self.insert(SetId::Hairpin, Key::Pair(target.ip(), target.ip()), None);
        }
        let Some(count) = u16::try_from(kept.len()).ok().filter(|count| *count > 0) else {
            return true;
        };
        let verdict = Verdict::Class(class, count);
        self.insert(verdicts, key(self.front), Some(Data::Verdict(verdict)));
        false
    }

    fn insert(&mut self, set: SetId, key: Key, data: Option<Data>) {
        let key = (self.front.family(), set, key);
        self.compiled.elements.insert(key, data);
    }
}

/// Key of a slot of a frontend (S-208).
pub fn slot_key(front: &Front, slot: u32) -> ElementKey {
    let (set, key) = match *front {
        Front::Vip(frontend) => (SetId::Endpoints, Key::FrontendSlot(frontend, slot)),
        Front::NodePort(_, protocol, port) => (
            SetId::NodePortEndpoints,
            Key::NodePortSlot {
                protocol,
                port,
                slot,
            },
        ),
    };
    (front.family(), set, key)
}

fn key(front: &Front) -> Key {
    match *front {
        Front::Vip(frontend) => Key::Frontend(frontend),
        Front::NodePort(_, protocol, port) => Key::NodePort { protocol, port },
    }
}
