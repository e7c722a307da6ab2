//! What the tests of every provider put into the API server: our kinds, nodes, pods, endpoints; and what it was told.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

/// A pod behind a Service; one that terminates takes connections still.
pub(crate) struct Endpoint {
    /// Last octet of its address.
    pub(crate) n: u8,
    pub(crate) uid: String,
    pub(crate) terminating: bool,
}

/// A namespaced API of the namespace that all tests use.
pub(crate) fn api<K>(client: &Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), "default")
}

/// Makes our kinds known.
pub(crate) async fn install_crds(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in onehop_core::crd::definitions() {
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
}

/// Makes a node that is ready.
pub(crate) async fn node(client: &Client, n: u8, spec: Value, addresses: &[String]) {
    let nodes: Api<Node> = Api::all(client.clone());
    let name = format!("node-{n}");
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| json!({ "type": "InternalIP", "address": address }))
        .collect();
    let status = json!({
        "addresses": addresses,
        "conditions": [{ "type": "Ready", "status": "True" }],
    });
    let node: Node = read(json!({ "metadata": { "name": name }, "spec": spec }));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let patch = Patch::Merge(json!({ "status": status }));
    nodes
        .patch_status(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Makes a running pod by the last octet of its address; gives its UID.
pub(crate) async fn make_pod(client: &Client, n: u8) -> String {
    let (name, pods) = (format!("pod-{n}"), api::<Pod>(client));
    let pod = read(json!({
        "metadata": { "name": name }, "spec": { "containers": [{ "name": "server", "image": "pod-server" }] },
    }));
    let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let address = format!("10.244.1.{n}");
    let status = json!({ "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] });
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    pod.metadata.uid.unwrap()
}

/// Sets the endpoints of a Service.
pub(crate) async fn set_endpoints(client: &Client, service: &str, pods: &[Endpoint]) {
    let endpoint = |pod: &Endpoint| {
        let (n, terminating) = (pod.n, pod.terminating);
        json!({
            "addresses": [format!("10.244.1.{n}")], "nodeName": "node-1",
            "conditions": { "ready": !terminating, "serving": true, "terminating": terminating },
            "targetRef": { "kind": "Pod", "name": format!("pod-{n}"), "uid": pod.uid },
        })
    };
    let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
    let name = format!("{service}-1");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": endpoints,
    });
    let params = PatchParams::apply("test").force();
    api::<EndpointSlice>(client)
        .patch(&name, &params, &Patch::Apply(slice))
        .await
        .unwrap();
}

/// Reasons and messages of the events about a Service.
pub(crate) async fn told(client: &Client, name: &str) -> Vec<(String, String)> {
    let events = api::<Event>(client).list(&ListParams::default()).await;
    let about = events
        .unwrap()
        .items
        .into_iter()
        .filter(|e| e.involved_object.name.as_deref() == Some(name));
    about
        .filter_map(|e| Some((e.reason?, e.message?)))
        .collect()
}

/// An object from its JSON.
pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
