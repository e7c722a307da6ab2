//! The vocabulary in which compile says what the kernel shall hold: elements of our sets and maps, and their difference.
//! Compile produces [`Elements`], the commit loop hands an [`ElementChange`] to a [`Dataplane`].
//! Nothing here knows bytes, netlink or Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use onehop_core::time::Time;
use onehop_nft::Ears;

use super::affinity::{Record, Sticky};
use super::layout::Ranges;

/// Address family; one table each (S-201): `ip onehop` and `ip6 onehop`.
pub use onehop_core::id::IpFamily as Family;
pub use onehop_core::id::{Frontend, Protocol};

/// A set or map of section 12.3; the same in both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// `cluster-ips` (S-212); key [`Key::Addr`], no data.
    ClusterIps,
    /// `other-cluster-ips` (S-289); key [`Key::Addr`], no data.
    OtherClusterIps,
    /// `nodeport-ips` (S-213); key [`Key::Addr`], no data.
    NodePortIps,
    /// `masq-frontends` (S-214); key [`Key::Frontend`], no data.
    MasqFrontends,
    /// `masq-nodeports` (S-214); key [`Key::NodePort`], no data.
    MasqNodePorts,
    /// `etp-local` (S-215); key [`Key::Frontend`], no data.
    EtpLocal,
    /// `etp-local-nodeports` (S-215); key [`Key::NodePort`], no data.
    EtpLocalNodePorts,
    /// `service-ips` (S-216); key [`Key::Frontend`], data class `N`.
    ServiceIps,
    /// `service-ips-local` (S-217); key [`Key::Frontend`], data class `L`.
    ServiceIpsLocal,
    /// `service-nodeports` (S-218); key [`Key::NodePort`], data class `Np`.
    ServiceNodePorts,
    /// `service-nodeports-local` (S-218); key [`Key::NodePort`], data class `Npl`.
    ServiceNodePortsLocal,
    /// `endpoints` (S-219); key [`Key::FrontendSlot`], data [`Data::Target`].
    Endpoints,
    /// `nodeport-endpoints` (S-220); key [`Key::NodePortSlot`], data [`Data::Target`].
    NodePortEndpoints,
    /// `no-endpoint-services` (S-221); key [`Key::Frontend`], data drop or reject.
    NoEndpointServices,
    /// `no-endpoint-nodeports` (S-221); key [`Key::NodePort`], data drop or reject.
    NoEndpointNodePorts,
    /// `hairpin` (S-222); key [`Key::Pair`], no data.
    Hairpin,
    /// `source-guarded` (S-223); key [`Key::Frontend`], no data.
    SourceGuarded,
    /// `source-allow` (S-224); key [`Key::Range`], no data.
    SourceAllow,
    /// `affinity` (S-225); key [`Key::Frontend`], data [`Verdict::Sticky`].
    Affinity,
    /// `affinity-local` (S-225); key [`Key::Frontend`], data [`Verdict::Sticky`].
    AffinityLocal,
    /// `affinity-nodeports` (S-225); key [`Key::NodePort`], data [`Verdict::Sticky`].
    AffinityNodePorts,
    /// `affinity-nodeports-local` (S-225); key [`Key::NodePort`], data [`Verdict::Sticky`].
    AffinityNodePortsLocal,
    /// `affinity-record` (S-211); key [`Key::Frontend`], node ports by each node address; data [`Verdict::Record`].
    AffinityRecord,
    /// `uplinks` (S-400); key [`Key::Interface`], no data.
    Uplinks,
    /// `uplink-marks` (S-402); key [`Key::Interface`], data [`Verdict::MarkUplink`].
    UplinkMarks,
    /// `uplink-addresses` (S-422); key [`Key::Addr`], data [`Verdict::ToUplink`].
    UplinkAddresses,
    /// `inside` (S-410); key [`Key::Edge`], no data.
    Inside,
    /// `guard-endpoints` (S-410); key [`Key::FrontendSlot`], data [`Data::Target`].
    GuardEndpoints,
    /// `guard-from` (S-410); key [`Key::Range`], timed class `Gl` or `Gr`.
    GuardFrom,
    /// `guard-any` (S-410); key [`Key::Frontend`], timed class `Gl` or `Gr`.
    GuardAny,
    /// `dead-from` (S-410); key [`Key::Range`], timed [`Verdict::DeadSteered`] or [`Verdict::DeadRefused`].
    DeadFrom,
    /// `dead-any` (S-410); key [`Key::Frontend`], data as `dead-from`.
    DeadAny,
    /// `dead-keys` (S-410); key [`Key::Frontend`], timed.
    DeadKeys,
    /// `targets`: listed targets, whose first refusal a client does not get; key [`Key::Frontend`], no data.
    Targets,
    /// `pod-health` (S-421): port of pod health at a target's address; key [`Key::Frontend`], data [`Data::Target`], where the
    /// agent listens.
    PodHealth,
    /// `health-from` (S-421): who probes it; key [`Key::Range`], data [`Verdict::PodHealth`].
    HealthFrom,
    /// `health-any`: it is probed from anywhere outside; key [`Key::Frontend`], data [`Verdict::PodHealth`].
    HealthAny,
    /// `window` (S-423): the Local window; key [`Key::Frontend`], timed class `W`.
    Window,
    /// `window-nodeports` (S-423); key [`Key::NodePort`], timed class `Npw`.
    WindowNodePorts,
    /// `pod-interfaces` (S-64); key [`Key::Interface`], no data.
    PodInterfaces,
}

/// Key of an element. Slot = scope x 65536 + index (S-208): scope 0 is the default list, scope 1 the Local list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An address.
    Addr(IpAddr),
    /// Frontend key K.
    Frontend(Frontend),
    /// Node port key P.
    NodePort {
        /// Transport protocol.
        protocol: Protocol,
        /// The node port.
        port: u16,
    },
    /// Slot of a frontend.
    FrontendSlot(Frontend, u32),
    /// Slot of a node port.
    NodePortSlot {
        /// Transport protocol.
        protocol: Protocol,
        /// The node port.
        port: u16,
        /// Scope x 65536 + index.
        slot: u32,
    },
    /// Source and destination address.
    Pair(IpAddr, IpAddr),
    /// A source range that may use a frontend.
    Range(Frontend, IpNet),
    /// Name of an interface.
    Interface(InterfaceName),
    /// Where a range of addresses begins, or the first address after one.
    Edge(IpAddr, Side),
}

/// Which end of a range an edge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first address inside.
    Begin,
    /// The first address after it.
    End,
}

/// Name of an interface as the kernel keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName([u8; 15]);

impl InterfaceName {
    /// A name of at most 15 bytes, which is all that the kernel allows.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; 15];
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(Self(bytes))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.0.len());
        // Made from a text, so it is one.
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Data of a map element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    /// Address and port of an endpoint.
    Target(SocketAddr),
    /// What the packet shall meet.
    Verdict(Verdict),
    /// What the packet shall meet until then; the kernel takes the element out by itself (ZD-54).
    Timed(Verdict, Time),
    /// The element of a plain set is there until then.
    Until(Time),
}

impl Data {
    /// The verdict, if it is one.
    pub const fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Verdict(verdict) | Self::Timed(verdict, _) => Some(*verdict),
            Self::Target(_) | Self::Until(_) => None,
        }
    }
}

/// Verdict of a verdict map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// `drop`.
    Drop,
    /// `goto reject-chain`.
    Reject,
    /// `goto` the class chain of a list with this many endpoints (at least 1).
    Class(ClassKind, u16),
    /// `jump` to the chain of known clients; who is not known comes back (S-236).
    Sticky(Sticky),
    /// `goto` the chain that records the connection (S-237).
    Record(Record),
    /// `goto dead-steered`: of a target that is gone while others serve.
    DeadSteered,
    /// `goto dead-refused`: of a target that is gone while nobody serves.
    DeadRefused,
    /// `goto pod-health`: the agent answers for the pod.
    PodHealth,
    /// `goto mark-uplink-<i>`.
    MarkUplink(UplinkNumber),
    /// `jump to-uplink-<i>`.
    ToUplink(UplinkNumber),
}

/// Number of an uplink, 1 to 15 (S-401).
pub type UplinkNumber = u8;
/// The highest one.
pub const MAX_UPLINK: UplinkNumber = 15;

/// The kinds of class chains (12.5, 12.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClassKind {
    /// `n<N>`: frontend, default list.
    N,
    /// `l<N>`: frontend, Local list.
    L,
    /// `np<N>`: node port, default list.
    Np,
    /// `npl<N>`: node port, Local list.
    Npl,
    /// `w<N>`: frontend in the Local window, default list.
    W,
    /// `npw<N>`: node port in the Local window, default list.
    Npw,
    /// `gl<N>-<s>`: guarded target, to others on the same node; the number is the scope (S-288).
    Gl(u8),
    /// `gr<N>-<s>`: guarded target, to others on other nodes.
    Gr(u8),
}

/// Most Services whose lists one guarded target can have apart (S-411).
pub const MAX_SCOPES: u8 = 8;

/// First slot of the Local list (scope 1, S-208).
pub const LOCAL_SCOPE: u32 = 65_536;

/// Most endpoints that one list may have (S-208).
pub const MAX_LIST: usize = 65_535;

/// Where an element lies.
pub type ElementKey = (Family, SetId, Key);

/// Everything both tables shall hold. The data is `None` in plain sets.
pub type Elements = BTreeMap<ElementKey, Option<Data>>;

/// What one commit shall do, in one transaction per family: take away first, then add.
/// An element whose data changes is in both lists (S-227).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ElementChange {
    /// Elements to add, with the data they shall have.
    pub add: Elements,
    /// Elements to remove.
    pub remove: BTreeSet<ElementKey>,
    /// Affinity maps from which endpoints have left: their entries may only name these (S-240).
    pub retain: BTreeMap<(Family, Sticky), BTreeSet<SocketAddr>>,
    /// Affinity maps whose endpoints only became more. Nothing is looked at for it; a look that is still due after an
    /// earlier change goes by these, or it would forget clients of the new ones.
    pub gained: BTreeMap<(Family, Sticky), BTreeSet<SocketAddr>>,
}

impl ElementChange {
    /// The change that leads from what the kernel holds to what it shall hold; empty when nothing differs (S-130).
    pub fn between(kernel: &Elements, wanted: &Elements) -> Self {
        let mut change = Self::default();
        for (key, data) in wanted {
            match kernel.get(key) {
                Some(held) if held == data => {}
                Some(_) => {
                    change.remove.insert(*key);
                    change.add.insert(*key, *data);
                }
                None => {
                    change.add.insert(*key, *data);
                }
            }
        }
        change
            .remove
            .extend(kernel.keys().filter(|key| !wanted.contains_key(*key)));
        change
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.writes_nothing() && self.retain.is_empty() && self.gained.is_empty()
    }

    /// Whether no element comes or goes.
    pub fn writes_nothing(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// Brings a copy of the kernel's state to where it is after this change was committed.
    pub fn apply(&self, kernel: &mut Elements) {
        for key in &self.remove {
            kernel.remove(key);
        }
        kernel.extend(self.add.iter().map(|(key, data)| (*key, *data)));
    }
}

/// Why a commit did not (wholly) succeed.
#[derive(Debug)]
pub struct CommitFailure {
    /// Elements the kernel refused, with the whole frontends they belong to (S-258). All else of the change is in the kernel.
    /// Empty when nothing at all could be committed: read back before the next attempt (S-130).
    pub refused: BTreeSet<ElementKey>,
    /// What was tried and what came back.
    pub message: String,
    /// Whether another process owns the tables now (S-267): stay in standby.
    pub standby: bool,
}

impl fmt::Display for CommitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "commit: {} ({} elements refused)",
            self.message,
            self.refused.len()
        )
    }
}

impl std::error::Error for CommitFailure {}

/// The kernel, or a stand-in of it in tests. Blocking; no call is made from an async task.
pub trait Dataplane: Send {
    /// Makes the skeleton (S-135), or takes over the one that is there, and reads what our sets and maps hold (S-121).
    /// `None`: another agent holds the tables (S-267); nothing was changed, try again later.
    fn read_back(&mut self) -> Result<Option<Elements>, CommitFailure>;

    /// Netlink port by which our commits are known, where others can change the tables (S-260).
    fn watched_port(&self) -> Option<u32> {
        None
    }

    /// This listener to notifications hears nothing of our commits. While a large one is under way it hears nothing at
    /// all; it is told if it may have missed something of others.
    fn spare(&mut self, _listener: Ears) {}

    /// Brings the static part to where it should be with these ranges, and leaves all else alone. Not called before the
    /// tables were read.
    fn configure(&mut self, _ranges: &Ranges) -> Result<(), CommitFailure> {
        Ok(())
    }

    /// With the next commit the tables that a stopped kube-proxy left go (S-127).
    fn retire_kube_proxy(&mut self) -> Result<(), CommitFailure> {
        Ok(())
    }

    /// Commits a change. Each family is one transaction; a failing family does not stop the other (S-10).
    fn commit(&mut self, change: &ElementChange) -> Result<(), CommitFailure>;

    /// Deletes class chains that were out of use for a second (S-247); true: some are still waiting, come back in about
    /// a second. Called when nothing else is to be done. An error names the family whose table is in doubt.
    fn idle(&mut self) -> Result<bool, (Family, CommitFailure)> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s130_no_difference_no_change() {
        let key = (
            Family::V4,
            SetId::ClusterIps,
            Key::Addr(IpAddr::from([10, 96, 0, 1])),
        );
        let held = Elements::from([(key, None)]);
        assert!(ElementChange::between(&held, &held).is_empty());
    }

    #[test]
    fn s227_changed_data_is_delete_and_add() {
        let frontend = Frontend {
            address: IpAddr::from([10, 96, 0, 1]),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let key = (
            Family::V4,
            SetId::NoEndpointServices,
            Key::Frontend(frontend),
        );
        let mut held = Elements::from([(key, Some(Data::Verdict(Verdict::Drop)))]);
        let wanted = Elements::from([(key, Some(Data::Verdict(Verdict::Reject)))]);
        let change = ElementChange::between(&held, &wanted);
        assert!(change.remove.contains(&key) && change.add.contains_key(&key));
        change.apply(&mut held);
        assert_eq!(held, wanted);
    }
}
