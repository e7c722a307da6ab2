//! Readiness gates of pods: their names, and what their conditions say (AWS-500 to AWS-512, ZD-90). Pure.
//!
//! `reconcile::gates` asks this with what the last look at the cloud showed; the webhook asks it for names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use onehop_core::crd::{GROUP, TargetMode, TargetState};
use onehop_core::gate;
use onehop_core::id::{InstallId, PortKey, ServiceKey};
use onehop_core::service::ServiceSpec;
use onehop_core::time::Time;
use sha2::{Digest, Sha256};

use super::Listed;
use super::membership::CloudState;
use crate::index::{KnownGate, KnownPod};

/// Label of namespaces whose pods are to have gates (AWS-500).
pub const INJECT_LABEL: &str = "onehop.dev/pod-readiness-gate-inject";
/// The peer's label: it counts for Services of other classes than our own.
pub const PEER_INJECT_LABEL: &str = "elbv2.k8s.aws/pod-readiness-gate-inject";

/// Whether a namespace with these labels asks for gates for a Service.
pub fn are_asked_for(labels: &BTreeMap<String, String>, service: &ServiceSpec) -> bool {
    let enabled = |label| labels.get(label).is_some_and(|value| value == "enabled");
    enabled(INJECT_LABEL) || (is_peers(service) && enabled(PEER_INJECT_LABEL))
}

/// Whether a Service's class is another program's.
pub fn is_peers(service: &ServiceSpec) -> bool {
    let class = service.class.as_deref().unwrap_or_default();
    !class.starts_with(GROUP)
}

/// The gate of a port of a Service (AWS-503): the same for as long as Service and port have their names, whatever becomes
/// of groups.
pub fn name(install: &InstallId, service: &ServiceKey, port: u16, key: &PortKey) -> String {
    let inputs = format!(
        "{install}/gate/{}/{}/{port}/{}",
        service.namespace, service.name, key.protocol
    );
    let digest = Sha256::digest(inputs.as_bytes());
    let mut hash = String::new();
    for byte in digest.iter().take(5) {
        // Writing to a String does not fail.
        let _ = write!(hash, "{byte:02x}");
    }
    format!("{}{}{hash}", gate::PREFIX, stem(service))
}

/// What the names of all gates of a Service begin with, after the prefix: two Services may share it.
pub fn stem(service: &ServiceKey) -> String {
    format!("{}-{}-", plain(&service.namespace), plain(&service.name))
}

fn plain(text: &str) -> String {
    let plain = text.chars().filter(char::is_ascii_alphanumeric);
    plain.take(8).collect()
}

/// How the targets of one pod stand for one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Healthy, everywhere.
    Healthy,
    /// Registered, not judged yet.
    Initial,
    /// Registered and not healthy.
    Unhealthy,
    /// Still leaving: for the last pod of the address, or of this one.
    Draining,
    /// The cloud has nothing of it.
    Unregistered,
    /// Left out, since the group has as many targets as it may (AWS-433).
    OverLimit,
    /// There is no group whose targets are pods: nothing to wait for.
    NoGroup,
}

/// How a pod with these addresses stands for a port, by what a look at the cloud has shown.
pub fn standing(
    addresses: &BTreeSet<IpAddr>,
    port: &PortKey,
    mode: TargetMode,
    listed: &[Listed],
) -> Standing {
    if mode != TargetMode::Pod {
        return Standing::NoGroup;
    }
    let of_pod = listed.iter().filter(|one| {
        one.port == *port && one.mode == TargetMode::Pod && addresses.contains(&one.key.address)
    });
    let (mut seen, mut leaves) = (Vec::new(), false);
    for one in of_pod {
        leaves |= one.state == TargetState::Draining;
        seen.extend(one.seen);
    }
    let any = |state| seen.contains(&state);
    if any(CloudState::Draining) {
        Standing::Draining
    } else if any(CloudState::Unhealthy) {
        Standing::Unhealthy
    } else if any(CloudState::Initial) {
        Standing::Initial
    } else if !seen.is_empty() {
        Standing::Healthy
    } else if leaves {
        Standing::Draining
    } else {
        Standing::Unregistered
    }
}

/// What a condition is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Reason of a gate that was opened since it had waited for too long (AWS-507).
pub const FAIL_SAFE: &str = "GateFailSafe";
/// Reason of a gate with nothing to wait for (AWS-505).
pub const NO_GROUP: &str = "NoTargetGroup";

/// When a gate that is shut began to wait: once the containers were ready, or since it was last open.
pub fn waits_since(pod: &KnownPod, kept: &KnownGate, now: Time) -> Time {
    let shut = (!kept.is_open()).then_some(kept.since);
    let since = shut.flatten().into_iter().chain(pod.containers_ready);
    since.max().unwrap_or(now)
}

/// What the condition is to say now, if that is something else than it says. `limit`: how long a pod may wait (AWS-507).
pub fn decide(
    pod: &KnownPod,
    kept: &KnownGate,
    standing: Standing,
    now: Time,
    limit: Option<Duration>,
) -> Option<Said> {
    let waited = now.since(waits_since(pod, kept, now));
    let open = kept.is_open();
    let (status, reason, what) = match standing {
        Standing::Healthy => (
            "True",
            "Healthy",
            "the load balancer says that it is healthy",
        ),
        Standing::NoGroup => (
            "True",
            NO_GROUP,
            "no load balancer has pods as targets for this gate",
        ),
        Standing::Initial => (
            "False",
            "Elb.RegistrationInProgress",
            "registered; the load balancer has not judged it yet",
        ),
        Standing::Unhealthy => (
            "False",
            "Target.FailedHealthChecks",
            "the load balancer says that it is not healthy",
        ),
        Standing::Draining => (
            "False",
            "Target.DeregistrationInProgress",
            "the address is still leaving the load balancer",
        ),
        Standing::Unregistered => (
            "Unknown",
            "Target.NotRegistered",
            "not registered yet: events of the Service say why, if it takes long",
        ),
        Standing::OverLimit => (
            "Unknown",
            "TargetLimit",
            "left out: the group has as many targets as it may",
        ),
    };
    // One that was opened by the limit stays so until the load balancer agrees: it would come and go for ever.
    let given_up = kept.reason.as_deref() == Some(FAIL_SAFE) && open;
    let over = limit.is_some_and(|limit| waited >= limit) && pod.containers_ready.is_some();
    let said = if status != "True" && (given_up || (over && !open)) {
        Said {
            status: "True",
            reason: FAIL_SAFE,
            message: format!(
                "opened after {} s although the target is not healthy: {what}",
                waited.as_secs()
            ),
        }
    } else {
        let after = if status == "True" && !open {
            format!(", after {} s", waited.as_secs())
        } else {
            String::new()
        };
        Said {
            status,
            reason,
            message: format!("{what}{after}"),
        }
    };
    // The message alone is no news: it has a time in it (I4).
    let same =
        kept.status.as_deref() == Some(said.status) && kept.reason.as_deref() == Some(said.reason);
    (!same).then_some(said)
}

/// Gates of ours on a pod that belong to nobody: not to a port of ours, nor perhaps to a Service of another install
/// (AWS-505). `own`: the gates of our ports in the pod's namespace. `others`: stems of Services there that are not ours.
pub fn orphans<'a>(
    pod: &'a KnownPod,
    own: &BTreeSet<String>,
    others: &BTreeSet<String>,
) -> Vec<&'a KnownGate> {
    let is_orphan = |gate: &&KnownGate| {
        let Some(rest) = gate.kind.strip_prefix(gate::PREFIX) else {
            return false;
        };
        !own.contains(&gate.kind) && !others.iter().any(|stem| rest.starts_with(stem.as_str()))
    };
    pod.gates.iter().filter(is_orphan).collect()
}

#[cfg(test)]
mod tests;
