//! Nodes: cordons, silence, eviction and pods of nodes that are gone.

use std::time::Duration;

use e2e_apiserver::{ApiServer, ControllerOptions, Controllers, Identity};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::kubelet;
use crate::support::{server, typed};

struct World {
    client: Client,
    server: ApiServer,
    _controllers: Controllers,
}

impl World {
    async fn new() -> Self {
        let server = server();
        let controllers = server.run_controllers(&ControllerOptions::default());
        let client = server.client(&Identity::admin());
        kubelet::add_nodes(&client, 2).await;
        Self {
            client,
            server,
            _controllers: controllers,
        }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    async fn pod(&self, name: &str, spec: Value) -> Pod {
        let mut whole = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        for (field, value) in spec.as_object().unwrap() {
            whole["spec"][field] = value.clone();
        }
        self.pods()
            .create(&PostParams::default(), &typed(whole))
            .await
            .unwrap()
    }

    async fn node_of(&self, name: &str) -> Option<String> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.pods().get(name).await.unwrap().spec.unwrap().node_name
    }

    async fn taints(&self, node: &str) -> Vec<(String, String)> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taints = self.nodes().get(node).await.unwrap().spec.unwrap().taints;
        taints
            .unwrap_or_default()
            .into_iter()
            .map(|taint| (taint.key, taint.effect))
            .collect()
    }

    /// Renews the Lease of a node now.
    async fn renew(&self, node: &str) {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let now = self.server.clock().now();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
            "spec": {"holderIdentity": node, "renewTime": format!("{}", k8s_openapi::jiff::Timestamp::from_millisecond(now.as_millis()).unwrap())}
        });
        api.patch(node, &PatchParams::apply("kubelet"), &Patch::Apply(lease))
            .await
            .unwrap();
    }
}

fn taint(key: &str, effect: &str) -> (String, String) {
    (format!("node.kubernetes.io/{key}"), effect.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_cordon_is_a_taint_and_an_uncordon_takes_it_away() {
    let world = World::new().await;
    world.nodes().cordon("n0").await.unwrap();
    assert_eq!(
        world.taints("n0").await,
        [taint("unschedulable", "NoSchedule")]
    );
    world.nodes().uncordon("n0").await.unwrap();
    assert!(world.taints("n0").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn selectors_taints_and_tolerations_decide_where_a_pod_goes() {
    let world = World::new().await;
    let tainted =
        json!({"spec": {"taints": [{"key": "only", "value": "x", "effect": "NoSchedule"}]}});
    world
        .nodes()
        .patch("n0", &PatchParams::default(), &Patch::Merge(tainted))
        .await
        .unwrap();
    world.pod("plain", json!({})).await;
    assert_eq!(world.node_of("plain").await.as_deref(), Some("n1"));
    world
        .pod(
            "zone",
            json!({"nodeSelector": {"topology.kubernetes.io/zone": "a"}}),
        )
        .await;
    assert_eq!(world.node_of("zone").await, None);
    let tolerations =
        json!([{"key": "only", "operator": "Equal", "value": "x", "effect": "NoSchedule"}]);
    let zone = json!({"topology.kubernetes.io/zone": "a"});
    world
        .pod(
            "tolerant",
            json!({"nodeSelector": zone, "tolerations": tolerations}),
        )
        .await;
    assert_eq!(world.node_of("tolerant").await.as_deref(), Some("n0"));
    // The waiting pod gets its node as soon as there is one.
    let free = json!({"spec": {"taints": null}});
    world
        .nodes()
        .patch("n0", &PatchParams::default(), &Patch::Merge(free))
        .await
        .unwrap();
    assert_eq!(world.node_of("zone").await.as_deref(), Some("n0"));
}

#[tokio::test(start_paused = true)]
async fn anti_affinity_keeps_pods_apart() {
    let world = World::new().await;
    let anti = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "x"}}}
    ]}}});
    for name in ["p", "q", "r"] {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}
        });
        pod["spec"]["affinity"] = anti["affinity"].clone();
        world
            .pods()
            .create(&PostParams::default(), &typed(pod))
            .await
            .unwrap();
    }
    let mut nodes = vec![
        world.node_of("p").await,
        world.node_of("q").await,
        world.node_of("r").await,
    ];
    nodes.sort();
    assert_eq!(nodes, [None, Some("n0".to_owned()), Some("n1".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_unknown_its_pods_are_not_ready_and_leave_when_their_patience_ends() {
    let world = World::new().await;
    world.renew("n0").await;
    kubelet::run(
        world.client.clone(),
        Duration::ZERO,
        Duration::from_hours(1),
    );
    world.pod("p", json!({"nodeName": "n0"})).await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(world.taints("n0").await.is_empty());
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(
        world.taints("n0").await,
        [
            taint("unreachable", "NoSchedule"),
            taint("unreachable", "NoExecute")
        ]
    );
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().unwrap().conditions.clone().unwrap();
        conditions
            .into_iter()
            .find(|one| one.type_ == "Ready")
            .unwrap()
            .status
    };
    assert_eq!(ready(&world.pods().get("p").await.unwrap()), "False");
    tokio::time::sleep(Duration::from_secs(290)).await;
    assert!(
        world
            .pods()
            .get("p")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(
        world
            .pods()
            .get("p")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_is_gone_are_collected_after_a_while() {
    let world = World::new().await;
    let pod = world.pod("p", json!({"nodeName": "n0"})).await;
    world
        .nodes()
        .delete("n0", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.pods().get("p").await.unwrap().uid(), pod.uid());
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(world.pods().get_opt("p").await.unwrap().is_none());
}
