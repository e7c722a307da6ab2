//! The event log of a run (FC-102): one line per thing that happened, with cloud time, wall time, a
//! sequence number and the number of the event that caused it.
//!
//! Kept in memory, oldest lines dropped beyond a bound. Serialized one JSON object a line; the same
//! seed in virtual time gives the same bytes (FC-05), so no field may come from outside the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use onehop_core::time::Time;
use serde::Serialize;

use super::call::Operation;
use super::faults::{Edit, Effect};
use super::model::{GroupId, LbId, LbState, Mode, NodeId, Reason, Tags, TargetState};
use super::path::Frontend;
use super::probe::{Outcome, Verdict};
use crate::scale::Scale;

/// Number of an event; counts from 1 without gaps.
pub type Seq = u64;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Number.
    pub seq: Seq,
    /// Time in the cloud.
    pub cloud_time: Time,
    /// Time outside, which runs slower by the scale factor.
    pub wall_time: Time,
    /// The event that led to this one.
    pub cause: Option<Seq>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// The line without its newline.
    pub fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "kind",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
pub enum What {
    /// Head of the log: what is needed to repeat the run (FC-05, FC-07).
    RunStarted {
        /// Profile name.
        profile: &'static str,
        /// Seed of every draw.
        seed: u64,
        /// How much faster than the wall the cloud runs.
        speed: u32,
        /// What the factor does not reach.
        unscaled: &'static [&'static str],
    },
    /// An LB node joined.
    NodeAdded {
        /// The node.
        node: NodeId,
        /// Its zone.
        zone: String,
        /// Its address.
        address: IpAddr,
    },
    /// A call arrived.
    ApiCall {
        /// Operation, `CreateLoadBalancer`.
        operation: Operation,
        /// Object it is about, empty for creates and lists.
        subject: String,
    },
    /// The answer to the call that is the cause.
    ApiAnswer {
        /// Operation.
        operation: Operation,
        /// `ok` or the error code.
        result: &'static str,
        /// The object, also for creates.
        subject: String,
    },
    /// A fault was injected into the call that is the cause.
    FaultInjected {
        /// Operation.
        operation: Operation,
        /// What happened to it.
        effect: Effect,
    },
    /// Something was changed behind the product's back (FC-96).
    OutOfBand {
        /// What.
        #[serde(flatten)]
        edit: Edit,
    },
    /// A load balancer changed its state.
    LoadBalancerState {
        /// Which.
        lb: LbId,
        /// New state.
        state: LbState,
    },
    /// Whether LB nodes of a load balancer choose targets of other zones, from now on.
    CrossZone {
        /// Which.
        lb: LbId,
        /// Whether they do.
        on: bool,
    },
    /// A load balancer took an address.
    AddressAssigned {
        /// Which.
        lb: LbId,
        /// The address.
        address: IpAddr,
    },
    /// A load balancer gave an address back.
    AddressReleased {
        /// Which.
        lb: LbId,
        /// The address.
        address: IpAddr,
    },
    /// One address asked for by two owners: fails the run (FC-100).
    AddressConflict {
        /// The address.
        address: IpAddr,
        /// Who has it: id and name.
        holder: [String; 2],
        /// Who wanted it: id (empty for a create) and name.
        claimant: [String; 2],
    },
    /// A group was made, or has other tags: what a reader of the log knows it by once it is gone.
    GroupTagged {
        /// Group.
        group: GroupId,
        /// What its targets are.
        mode: Mode,
        /// All of its tags.
        tags: Tags,
    },
    /// A listener points at a group, or is gone.
    ListenerSet {
        /// Load balancer.
        lb: LbId,
        /// Port and protocol, `80-tcp`.
        listener: String,
        /// Where new flows go; none when it is gone.
        group: Option<GroupId>,
    },
    /// A target's reported state or reason changed.
    TargetState {
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
        /// State before.
        from: TargetState,
        /// New state.
        state: TargetState,
        /// New reason.
        reason: Option<Reason>,
        /// Its zone; near for every LB node if it has none.
        zone: Option<String>,
    },
    /// A registered target is in another zone than it was registered in.
    TargetMoved {
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
        /// Its zone now.
        zone: Option<String>,
    },
    /// A probe was answered or failed.
    Probe {
        /// LB node that probed.
        node: NodeId,
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
        /// How it went.
        outcome: Outcome,
    },
    /// One LB node changed its mind about a target (FC-36).
    Verdict {
        /// LB node.
        node: NodeId,
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
        /// New verdict.
        verdict: Verdict,
    },
    /// An LB node goes on choosing a target that should get nothing.
    TailStarted {
        /// LB node.
        node: NodeId,
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
        /// When it stops.
        until: Time,
    },
    /// That is over.
    TailEnded {
        /// LB node.
        node: NodeId,
        /// Group.
        group: GroupId,
        /// Target.
        target: SocketAddr,
    },
    /// An LB node's kernel now forwards by this state of the engine.
    DataPathCommitted {
        /// LB node.
        node: NodeId,
        /// Engine revision.
        revision: u64,
        /// Flows that ended because their target or frontend left.
        flows_cut: usize,
    },
    /// An LB node's kernel refused the new state; the old one still holds.
    DataPathFailed {
        /// LB node.
        node: NodeId,
        /// Engine revision.
        revision: u64,
        /// Why.
        error: String,
    },
    /// An LB node chose a target for a client's first packet.
    FlowStarted {
        /// LB node.
        node: NodeId,
        /// Where the flow comes from.
        client: SocketAddr,
        /// Where the client sent it.
        frontend: Frontend,
        /// The target.
        target: SocketAddr,
    },
    /// A program of an LB node carries a client's flow to a target: no packet of one is a packet of the other, so such a
    /// flow counts for no claim about losses (FC-65, FC-66).
    FlowRelayed {
        /// LB node.
        node: NodeId,
        /// Where the flow comes from.
        client: SocketAddr,
        /// Where the client sent it.
        frontend: Frontend,
        /// The target.
        target: SocketAddr,
    },
    /// An LB node forgot a flow: it was reset or cut, or is closed or idle for so long.
    FlowEnded {
        /// LB node.
        node: NodeId,
        /// Where the flow came from.
        client: SocketAddr,
        /// Where the client sent it.
        frontend: Frontend,
        /// Its target.
        target: SocketAddr,
    },
    /// Something that another part of the world saw: pods, guards, drops, clients.
    Observed {
        /// Who saw it, `kubelet`.
        source: String,
        /// What, `sigterm`.
        event: String,
        /// More about it.
        fields: BTreeMap<String, serde_json::Value>,
    },
}

/// How many lines are kept.
const CAPACITY: usize = 500_000;

/// The log.
#[derive(Debug)]
pub struct Log {
    scale: Scale,
    next: Seq,
    lines: VecDeque<Arc<Event>>,
    violations: BTreeSet<String>,
}

impl Log {
    pub(crate) fn new(scale: Scale) -> Self {
        Self {
            scale,
            next: 1,
            lines: VecDeque::new(),
            violations: BTreeSet::new(),
        }
    }

    /// Appends an event and returns its number.
    pub(crate) fn push(&mut self, now: Time, cause: Option<Seq>, what: What) -> Seq {
        let seq = self.next;
        self.next += 1;
        if self.lines.len() == CAPACITY {
            self.lines.pop_front();
        }
        let wall_time = self.scale.wall(now);
        self.lines.push_back(Arc::new(Event {
            seq,
            cloud_time: now,
            wall_time,
            cause,
            what,
        }));
        seq
    }

    /// Notes something that fails the run whatever a test asserts.
    pub(crate) fn violation(&mut self, text: String) {
        self.violations.insert(text);
    }

    /// What fails the run (FC-100); empty in a good one.
    pub fn violations(&self) -> Vec<String> {
        self.violations.iter().cloned().collect()
    }

    /// Number of the newest event.
    pub fn last(&self) -> Seq {
        self.next - 1
    }

    /// Events with a number above `seq`, oldest first. A gap at the start means lines were dropped.
    pub fn after(&self, seq: Seq) -> impl DoubleEndedIterator<Item = &Arc<Event>> {
        let oldest = self.next - self.lines.len() as u64;
        let skip = seq.saturating_add(1).saturating_sub(oldest);
        self.lines.range(
            usize::try_from(skip)
                .unwrap_or(usize::MAX)
                .min(self.lines.len())..,
        )
    }

    /// All kept events as JSON lines.
    pub fn json_lines(&self) -> String {
        self.lines.iter().map(|event| event.line() + "\n").collect()
    }
}
