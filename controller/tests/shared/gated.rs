//! Pods with readiness gates, and what their conditions say.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{api, read};

/// Makes a pod by the last octet of its address, whose containers are ready and which has these gates; gives its UID.
pub(crate) async fn gated_pod(client: &Client, n: u8, gates: &[&str]) -> String {
    let gates: Vec<_> = gates
        .iter()
        .map(|gate| json!({ "conditionType": gate }))
        .collect();
    let (name, address) = (format!("pod-{n}"), format!("10.244.1.{n}"));
    let pod = read(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "server", "image": "pod-server" }], "readinessGates": gates },
    }));
    let pods = api::<Pod>(client);
    let pod: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let status = json!({
        "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [
            { "type": "ContainersReady", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z" },
            { "type": "Ready", "status": "False" },
        ],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    pod.metadata.uid.unwrap()
}

/// The conditions of a pod.
pub(crate) async fn conditions(client: &Client, n: u8) -> Vec<PodCondition> {
    let pod = api::<Pod>(client).get(&format!("pod-{n}")).await.unwrap();
    pod.status.and_then(|s| s.conditions).unwrap_or_default()
}

/// Status and reason of a gate's condition.
pub(crate) async fn says(client: &Client, n: u8, gate: &str) -> Option<(String, String)> {
    let all = conditions(client, n).await;
    let of_gate = all.into_iter().find(|c| c.type_ == gate)?;
    Some((of_gate.status, of_gate.reason.unwrap_or_default()))
}
