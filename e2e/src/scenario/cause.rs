//! Why a request failed: joined with the load balancer's flow table, the cloud's log and the kubelets' (FC-83).

use crate::{
    traffic::{Attempt, FailureKind},
    world::World,
};
use onehop_core::time::Time;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};

/// What stands in a field whose value no log can give. A loss that maps to no event is itself a finding.
const UNKNOWN: &str = "unknown";

/// One failed request, joined with what the cloud and the kubelet stand-ins recorded.
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
    /// What the client's system said.
    pub detail: String,
}

/// Explains a failure. To be called at once, while the flow is still in the kernels' tables.
pub fn explain(world: &World, attempt: &Attempt, load_began: Time) -> Option<FailureReport> {
    let failure = attempt.outcome.as_ref().err()?;
    let target = failure
        .local
        .and_then(|client| world.lb.flow_target(client).ok().flatten());
    let pod_uid =
        target.and_then(|target| pod_behind(world, failure.local?, target, attempt.begun));
    let sigterm = pod_uid
        .as_deref()
        .and_then(|uid| world.journal.sigterm_of(uid));
    Some(FailureReport {
        at_ms: millis(attempt.begun.since(load_began)),
        kind: failure.kind,
        pod_uid: pod_uid.unwrap_or_else(|| UNKNOWN.into()),
        target_state: target.map_or_else(
            || UNKNOWN.into(),
            |target| state_of(world, target, attempt.begun),
        ),
        ms_since_sigterm: sigterm.map(|s| attempt.begun.as_millis() - s.as_millis()),
        detail: failure.detail.clone(),
    })
}

/// The pod that a flow to this target reached: the target itself in pod mode; in node mode what the node chose.
fn pod_behind(world: &World, client: SocketAddr, target: SocketAddr, at: Time) -> Option<String> {
    let IpAddr::V4(address) = target.ip() else {
        return None;
    };
    let node = world
        .kubelets
        .iter()
        .find(|k| k.node().address() == address);
    let pod_address = match node {
        None => address,
        Some(kubelet) => super::trace::chosen_endpoint(kubelet.node().netns(), client)?,
    };
    world.journal.pod_at(pod_address, at)
}

fn state_of(world: &World, target: SocketAddr, at: Time) -> String {
    let states = world.cloud.target_states_at(target, at);
    match states.into_values().next() {
        Some((state, Some(reason))) => format!("{state} ({reason})"),
        Some((state, None)) => state.to_string(),
        None => UNKNOWN.into(),
    }
}

pub(super) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
