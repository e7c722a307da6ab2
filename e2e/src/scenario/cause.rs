//! Why a request failed: joined with what load balancer and node chose for its flow, with the cloud's log and the
//! kubelets' (FC-83).

use crate::{
    traffic::{Attempt, FailureKind, Transport},
    world::World,
};
use e2e_cloud::{datapath::Chosen, engine::Protocol};
use onehop_core::time::Time;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};

/// What stands in a field whose value no log can give. A loss that maps to no event is itself a finding.
const UNKNOWN: &str = "unknown";

/// One failed request, joined with what the cloud and the kubelet stand-ins recorded.
#[derive(Clone, Debug, Serialize)]
pub struct FailureReport {
    /// Milliseconds since the load began, in time of the cloud.
    pub at_ms: u64,
    /// What it travelled on.
    pub transport: Transport,
    /// Its class.
    pub kind: FailureKind,
    /// The pod that the flow was sent to.
    pub pod_uid: String,
    /// That target's state in the cloud when the flow was chosen.
    pub target_state: String,
    /// Milliseconds, in time of the cloud, from that pod's SIGTERM to the start of the request; negative before it, none
    /// without one.
    pub ms_since_sigterm: Option<i64>,
    /// What the client's system said.
    pub detail: String,
}

impl FailureReport {
    /// Whether the pod had accepted the connection when it ended: nobody else could have answered it (W4).
    pub fn was_accepted(&self) -> bool {
        let established = matches!(
            self.kind,
            FailureKind::Rst | FailureKind::Eof | FailureKind::TimeoutResponse
        );
        self.transport == Transport::Tcp && established
    }
}

/// Explains a failure. To be called before the client can have used the same port again.
pub fn explain(world: &World, attempt: &Attempt, load_began: Time) -> Option<FailureReport> {
    let failure = attempt.outcome.as_ref().err()?;
    let speed = world.cloud.scale().speed();
    let protocol = match attempt.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    };
    let chosen = failure
        .local
        .and_then(|client| world.chosen(protocol, client));
    let pod_uid = chosen.and_then(|chosen| pod_behind(world, protocol, chosen));
    let sigterm = pod_uid
        .as_deref()
        .and_then(|uid| world.journal.sigterm_of(uid));
    Some(FailureReport {
        at_ms: millis(attempt.begun.since(load_began) * speed),
        transport: attempt.transport,
        kind: failure.kind,
        pod_uid: pod_uid.unwrap_or_else(|| UNKNOWN.into()),
        target_state: chosen.map_or_else(
            || UNKNOWN.into(),
            |chosen| state_of(world, chosen.target, chosen.at),
        ),
        ms_since_sigterm: sigterm
            .map(|s| (attempt.begun.as_millis() - s.as_millis()).saturating_mul(i64::from(speed))),
        detail: failure.detail.clone(),
    })
}

/// The pod that a flow reached: the target itself in pod mode; in node mode what the node chose.
fn pod_behind(world: &World, protocol: Protocol, chosen: Chosen) -> Option<String> {
    let node = world
        .nodes
        .iter()
        .find(|node| chosen.target.ip() == node.address());
    let (endpoint, at) = match node {
        None => (chosen.target, chosen.at),
        Some(node) => node.flows().endpoint_of(protocol.number(), chosen.source)?,
    };
    match endpoint.ip() {
        IpAddr::V4(address) => world.journal.pod_at(address, at),
        IpAddr::V6(_) => None,
    }
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
