//! What a demo run found, as people's tables and tools' JSON (`--json`) both show it.

use crate::scenario::{Hop, RolloutReport};
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr};

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
    pub address: SocketAddr,
    /// What a packet passes from the client to the pod, in order.
    pub hops: Vec<Hop>,
    /// The source address that the pod's server saw for a client outside.
    pub client_ip_seen: String,
    /// Seconds from applying the manifests to the first answer through the load balancer.
    pub first_answer_s: f64,
    /// By kind of pod: `graceful`, `instant`.
    pub rollouts: BTreeMap<String, RolloutReport>,
    /// Calls of the cloud's API, phase by phase, where the cloud counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<PhaseCalls>,
}

/// The calls of one phase.
#[derive(Debug, Serialize)]
pub struct PhaseCalls {
    /// What happened meanwhile.
    pub phase: String,
    /// Name of the call, service first, and how often.
    pub calls: BTreeMap<String, u64>,
}
