//! Readiness gates of pods that are about the health of load balancer targets (AWS-500 to AWS-512, ZD-90).
//!
//! The controller sets their conditions. The agent has to know of them too: a pod that waits for its gate is not ready,
//! and yet has to pass the health check of the load balancer, or neither would ever come first.

use k8s_openapi::api::core::v1::{Pod, PodCondition};

/// Prefix of the gates that we inject (AWS-503).
pub const PREFIX: &str = "target-health.onehop.dev/";
/// Prefix of those that aws-load-balancer-controller has injected, each followed by the name of a binding (AWS-504).
pub const PEER_PREFIX: &str = "target-health.elbv2.k8s.aws/";

/// Whether a gate is about the health of a target.
pub fn is_about_targets(gate: &str) -> bool {
    gate.starts_with(PREFIX) || gate.starts_with(PEER_PREFIX)
}

/// A condition of a pod.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind)
}

/// The gates of a pod that are about targets.
pub fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    all_gates(pod).filter(|gate| is_about_targets(gate))
}

fn all_gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.as_ref().and_then(|s| s.readiness_gates.as_deref());
    gates
        .unwrap_or_default()
        .iter()
        .map(|gate| gate.condition_type.as_str())
}

/// Whether nothing but such gates keeps a pod from being ready: its containers are, it stays, and every other gate is
/// open (AWS-412).
pub fn waits(pod: &Pod) -> bool {
    let is_true = |kind: &str| condition(pod, kind).is_some_and(|c| c.status == "True");
    let (of_targets, others): (Vec<&str>, Vec<&str>) =
        all_gates(pod).partition(|gate| is_about_targets(gate));
    pod.metadata.deletion_timestamp.is_none()
        && is_true("ContainersReady")
        && others.into_iter().all(is_true)
        && of_targets.into_iter().any(|gate| !is_true(gate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(gates: &[&str], open: &[&str]) -> Pod {
        let gates: Vec<_> = gates
            .iter()
            .map(|gate| serde_json::json!({ "conditionType": gate }))
            .collect();
        let open: Vec<_> = open
            .iter()
            .map(|kind| serde_json::json!({ "type": kind, "status": "True" }))
            .collect();
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "a" },
            "spec": { "containers": [], "readinessGates": gates },
            "status": { "conditions": open },
        }))
        .unwrap()
    }

    #[test]
    fn aws412_only_a_gate_about_targets_may_keep_a_pod_from_being_ready() {
        const OURS: &str = "target-health.onehop.dev/shop-web-0123456789";
        const PEERS: &str = "target-health.elbv2.k8s.aws/k8s-shop-web-0123456789";
        const OTHER: &str = "example.org/warm";
        let ready = "ContainersReady";
        for gate in [OURS, PEERS] {
            assert!(waits(&pod(&[gate], &[ready])), "AWS-412");
            assert!(waits(&pod(&[OTHER, gate], &[ready, OTHER])), "AWS-412");
            assert!(!waits(&pod(&[gate], &[])), "its containers are not ready");
            assert!(!waits(&pod(&[OTHER, gate], &[ready])), "somebody else's");
            assert!(!waits(&pod(&[gate], &[ready, gate])), "it is open");
        }
        assert!(waits(&pod(&[OURS, PEERS], &[ready, OURS])));
        assert!(!waits(&pod(&[], &[ready])), "it has none");
        assert!(!waits(&pod(&[OTHER], &[ready])), "it has none of these");
        let mut going = pod(&[OURS], &[ready]);
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
        assert!(!waits(&going), "it leaves");
    }
}
