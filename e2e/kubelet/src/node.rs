//! The Node object and its Lease.

use std::collections::BTreeMap;
use std::time::Duration;

use e2e_fabric::NodeNet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};

/// What the world chooses about a Node.
pub(crate) struct NodeInfo {
    pub(crate) zone: String,
    pub(crate) provider_id: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Creates the Node, or takes over one that exists, and says that it is ready.
pub(crate) async fn register(
    client: &Client,
    node: &NodeNet,
    info: &NodeInfo,
    now: Time,
) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let object = object(node, info);
    let typed: Node = serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &typed).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.code == 409 => {
            api.patch(node.name(), &PatchParams::default(), &Patch::Merge(object))
                .await?;
        }
        Err(error) => return Err(error),
    }
    let status = json!({ "status": status(node, now) });
    api.patch_status(node.name(), &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

fn object(node: &NodeNet, info: &NodeInfo) -> Value {
    let mut labels = json!({
        "kubernetes.io/hostname": node.name(),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": "local",
        "topology.kubernetes.io/zone": info.zone,
    });
    for (key, value) in &info.labels {
        labels[key] = json!(value);
    }
    let local = || format!("local:///{}/{}", info.zone, node.name());
    let provider_id = info.provider_id.clone().unwrap_or_else(local);
    let pods = [node.pod_cidr().to_string(), node.pod_cidr6().to_string()];
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.name(), "labels": labels },
        "spec": {
            "podCIDR": pods[0],
            "podCIDRs": pods,
            "providerID": provider_id,
        },
    })
}

fn status(node: &NodeNet, now: Time) -> Value {
    let now = meta::Time::from(now);
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "kubelet stand-in",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let room = json!({ "cpu": "8", "memory": "16Gi", "pods": "250", "ephemeral-storage": "64Gi" });
    let addresses = node.addresses();
    let addresses = addresses.map(|a| json!({ "type": "InternalIP", "address": a.to_string() }));
    let hostname = json!({ "type": "Hostname", "address": node.name() });
    json!({
        "addresses": addresses.into_iter().chain([hostname]).collect::<Vec<_>>(),
        "capacity": room,
        "allocatable": room,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady"),
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": node.name(),
            "containerRuntimeVersion": "process://1",
            "kernelVersion": "netns",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.33.0",
            "machineID": node.name(),
            "operatingSystem": "linux",
            "osImage": "network namespace",
            "systemUUID": node.name(),
        },
    })
}

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const RENEW: Duration = Duration::from_secs(10);

/// Renews the node's Lease for ever. Its absence is the node controller's business, so a failure is only logged.
pub(crate) async fn heartbeats(client: Client, node: String, clock: Clock) {
    let api: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
    loop {
        if let Err(error) = renew(&api, &node, clock.now()).await {
            tracing::warn!(node, %error, "renew the node's lease");
        }
        clock.sleep(RENEW).await;
    }
}

async fn renew(api: &Api<Lease>, node: &str, now: Time) -> Result<(), kube::Error> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": node },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": meta::MicroTime::from(now),
        },
    });
    match api
        .patch(node, &PatchParams::default(), &Patch::Merge(&lease))
        .await
    {
        Err(kube::Error::Api(answer)) if answer.code == 404 => {
            let typed = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            api.create(&PostParams::default(), &typed).await.map(drop)
        }
        other => other.map(drop),
    }
}
