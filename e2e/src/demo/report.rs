//! What a demo run found, as people's tables and tools' JSON (`--json`) both show it.

use crate::traffic::FailureKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Seed of every random choice in this run.
    pub seed: u64,
    /// By target mode: `node`, `pod`.
    pub modes: BTreeMap<String, ModeReport>,
}

/// One target mode.
#[derive(Debug, Serialize)]
pub struct ModeReport {
    /// The load balancer's address.
    pub address: String,
    /// What a packet passes from the client to the pod, in order.
    pub hops: Vec<Hop>,
    /// The source address that the pod's server saw for a client outside.
    pub client_ip_seen: String,
    /// Seconds from the start of the program to the first answer through the load balancer.
    pub first_answer_s: f64,
    /// By kind of pod: `graceful`, `instant`.
    pub rollouts: BTreeMap<String, RolloutReport>,
}

/// A place that a packet passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// Where: `client`, `lb`, `node a`, `pod web-…`.
    pub at: String,
    /// Packets to the Service counted there during the trace.
    pub packets: u64,
}

/// One rollout under load.
#[derive(Debug, Default, Serialize)]
pub struct RolloutReport {
    /// TCP connections begun.
    pub connections: usize,
    /// UDP requests begun.
    pub datagrams: usize,
    /// Of both, those that failed.
    pub failed: usize,
    /// SYN segments that the client had to send again.
    pub syn_retx: u64,
    /// Connections begun as a share of rate times time.
    pub kept_rate: f64,
    /// Each failure with its cause.
    pub failures: Vec<FailureReport>,
    /// From the change of the Deployment to its completion.
    pub rollout_ms: u64,
}

/// One failed request, joined with what the cloud and the kubelet stand-in recorded (FC-83).
#[derive(Clone, Debug, Serialize)]
pub struct FailureReport {
    /// Milliseconds since the load began.
    pub at_ms: u64,
    /// Its class.
    pub kind: FailureKind,
    /// The pod that the flow was sent to.
    pub pod_uid: String,
    /// That target's state in the cloud when the flow was chosen.
    pub target_state: String,
    /// Milliseconds from that pod's SIGTERM to the start of the request; negative before it, none without one.
    pub ms_since_sigterm: Option<i64>,
}
