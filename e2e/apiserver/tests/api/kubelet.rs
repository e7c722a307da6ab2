//! A kubelet that runs nothing: pods become ready a while after they are bound, and end a while after their deletion.

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::support::typed;

/// Registers ready nodes `n0`, `n1`, … in zones `a` and `b` by turns.
pub(crate) async fn add_nodes(client: &Client, count: usize) {
    let api: Api<Node> = Api::all(client.clone());
    for index in 0..count {
        let zone = ["a", "b"][index % 2];
        let node = typed(json!({
            "metadata": {"name": format!("n{index}"), "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}
        }));
        api.create(&PostParams::default(), &node).await.unwrap();
    }
}

/// Runs pods until the client's server is gone.
pub(crate) fn run(client: Client, start: Duration, stop: Duration) {
    tokio::spawn(async move {
        let api: Api<Pod> = Api::all(client.clone());
        let mut events = Box::pin(
            api.watch(&WatchParams::default().timeout(290), "0")
                .await
                .unwrap(),
        );
        let mut next = 1;
        while let Ok(Some(event)) = events.try_next().await {
            if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event {
                let namespaced: Api<Pod> =
                    Api::namespaced(client.clone(), &pod.namespace().unwrap());
                let name = pod.name_any();
                let running = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.pod_ip.as_ref())
                    .is_some();
                let bound = pod.spec.as_ref().unwrap().node_name.is_some();
                if pod.metadata.deletion_timestamp.is_some() {
                    tokio::spawn(async move {
                        tokio::time::sleep(stop).await;
                        let _ = namespaced
                            .delete(&name, &DeleteParams::default().grace_period(0))
                            .await;
                    });
                } else if bound && !running {
                    let status = running_status(next);
                    next += 1;
                    tokio::spawn(async move {
                        tokio::time::sleep(start).await;
                        let patch = Patch::Merge(json!({ "status": status }));
                        let _ = namespaced
                            .patch_status(&name, &PatchParams::default(), &patch)
                            .await;
                    });
                }
            }
        }
    });
}

fn running_status(number: u32) -> serde_json::Value {
    let address = format!("10.244.0.{number}");
    json!({
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "ContainersReady", "status": "True"}
        ]
    })
}
