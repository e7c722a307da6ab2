//! `EndpointSlices` as the real controller makes them.

use std::time::Duration;

use e2e_apiserver::{ApiServer, ControllerOptions, Controllers, Identity};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::kubelet;
use crate::support::{server, typed};

struct World {
    client: Client,
    _server: ApiServer,
    _controllers: Controllers,
}

impl World {
    async fn new() -> Self {
        let server = server();
        let options = ControllerOptions {
            without: vec!["scheduler".into()],
            ..ControllerOptions::default()
        };
        let controllers = server.run_controllers(&options);
        let client = server.client(&Identity::admin());
        kubelet::add_nodes(&client, 2).await;
        Self {
            client,
            _server: server,
            _controllers: controllers,
        }
    }

    async fn service(&self, spec: Value) -> Service {
        let api: Api<Service> = Api::default_namespaced(self.client.clone());
        let service =
            typed(json!({"metadata": {"name": "web", "labels": {"own": "label"}}, "spec": spec}));
        api.create(&PostParams::default(), &service).await.unwrap()
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// A running pod with label `app: web`; `ready` as told.
    async fn pod(&self, name: &str, address: &str, ready: bool, ports: Value) {
        let pod = typed(json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i", "ports": ports}]}
        }));
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        let ready = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:05Z"}]
        }});
        self.pods()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    async fn slices(&self) -> Vec<EndpointSlice> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let api: Api<EndpointSlice> = Api::default_namespaced(self.client.clone());
        let params = ListParams::default().labels("kubernetes.io/service-name=web");
        api.list(&params).await.unwrap().items
    }

    async fn endpoints(&self) -> Vec<Endpoint> {
        self.slices()
            .await
            .into_iter()
            .flat_map(|slice| slice.endpoints)
            .collect()
    }
}

fn spec() -> Value {
    json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]})
}

fn conditions(endpoint: &Endpoint) -> [Option<bool>; 3] {
    let conditions = endpoint.conditions.clone().unwrap();
    [conditions.ready, conditions.serving, conditions.terminating]
}

#[tokio::test(start_paused = true)]
async fn a_slice_names_pod_node_zone_and_port() {
    let world = World::new().await;
    let service = world.service(spec()).await;
    world.pod("p", "10.244.1.1", true, json!([])).await;
    let slices = world.slices().await;
    let [slice] = slices.as_slice() else {
        panic!("one slice: {slices:#?}")
    };
    let labels = serde_json::to_value(slice.labels()).unwrap();
    let expected = json!({
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": "web", "own": "label"
    });
    assert_eq!(labels, expected);
    assert_eq!(slice.owner_references()[0].uid, service.uid().unwrap());
    assert!(slice.name_any().starts_with("web-"));
    let port = &slice.ports.as_ref().unwrap()[0];
    assert_eq!(
        (port.name.as_deref(), port.port, port.protocol.as_deref()),
        (Some("http"), Some(8080), Some("TCP"))
    );
    let endpoint = &slice.endpoints[0];
    assert_eq!(endpoint.addresses, ["10.244.1.1"]);
    assert_eq!(
        (endpoint.node_name.as_deref(), endpoint.zone.as_deref()),
        (Some("n1"), Some("b"))
    );
    let target = endpoint.target_ref.as_ref().unwrap();
    let pod = world.pods().get("p").await.unwrap();
    assert_eq!(
        (target.name.as_deref(), target.uid.clone()),
        (Some("p"), pod.uid())
    );
    assert_eq!(conditions(endpoint), [Some(true), Some(true), Some(false)]);
}

#[tokio::test(start_paused = true)]
async fn readiness_and_termination_show_in_the_conditions() {
    let world = World::new().await;
    world.service(spec()).await;
    world.pod("p", "10.244.1.1", false, json!([])).await;
    assert_eq!(
        conditions(&world.endpoints().await[0]),
        [Some(false), Some(false), Some(false)]
    );
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    world
        .pods()
        .patch_status("p", &PatchParams::default(), &Patch::Merge(ready))
        .await
        .unwrap();
    assert_eq!(
        conditions(&world.endpoints().await[0]),
        [Some(true), Some(true), Some(false)]
    );
    world
        .pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(
        conditions(&world.endpoints().await[0]),
        [Some(false), Some(true), Some(true)]
    );
    world
        .pods()
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(world.endpoints().await.is_empty());
    // A Service without endpoints keeps one empty slice.
    assert_eq!(world.slices().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn unready_addresses_are_published_as_ready_where_the_service_asks_for_it() {
    let world = World::new().await;
    let mut spec = spec();
    spec["publishNotReadyAddresses"] = true.into();
    world.service(spec).await;
    world.pod("p", "10.244.1.1", false, json!([])).await;
    assert_eq!(
        conditions(&world.endpoints().await[0]),
        [Some(true), Some(false), Some(false)]
    );
}

#[tokio::test(start_paused = true)]
async fn pods_whose_named_port_differs_are_in_different_slices() {
    let world = World::new().await;
    let mut spec = spec();
    spec["ports"][0]["targetPort"] = "web".into();
    world.service(spec).await;
    let port = |number: u16| json!([{"name": "web", "containerPort": number}]);
    world.pod("p", "10.244.1.1", true, port(8080)).await;
    world.pod("q", "10.244.1.2", true, port(9090)).await;
    let mut ports: Vec<i32> = world
        .slices()
        .await
        .iter()
        .map(|slice| slice.ports.as_ref().unwrap()[0].port.unwrap())
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [8080, 9090]);
}

#[tokio::test(start_paused = true)]
async fn a_slice_holds_a_hundred_endpoints_and_none_is_lost() {
    let world = World::new().await;
    world.service(spec()).await;
    for number in 0..105 {
        world
            .pod(
                &format!("p{number}"),
                &format!("10.244.1.{number}"),
                true,
                json!([]),
            )
            .await;
    }
    let mut sizes: Vec<usize> = world
        .slices()
        .await
        .iter()
        .map(|slice| slice.endpoints.len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes.iter().sum::<usize>(), 105);
    assert_eq!(sizes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn slices_go_with_their_service() {
    let world = World::new().await;
    world.service(spec()).await;
    assert_eq!(world.slices().await.len(), 1);
    let services: Api<Service> = Api::default_namespaced(world.client.clone());
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    assert!(world.slices().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_headless_service_is_labelled_and_one_without_selector_has_no_slice() {
    let world = World::new().await;
    let mut headless = spec();
    headless["clusterIP"] = "None".into();
    world.service(headless).await;
    assert!(
        world.slices().await[0]
            .labels()
            .contains_key("service.kubernetes.io/headless")
    );
    let bare = typed(json!({"metadata": {"name": "bare"}, "spec": {"ports": [{"port": 80}]}}));
    let services: Api<Service> = Api::default_namespaced(world.client.clone());
    services
        .create(&PostParams::default(), &bare)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let slices: Api<EndpointSlice> = Api::default_namespaced(world.client.clone());
    assert_eq!(
        slices
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn traffic_distribution_gives_hints() {
    let world = World::new().await;
    let mut spec = spec();
    spec["trafficDistribution"] = "PreferSameZone".into();
    world.service(spec).await;
    world.pod("p", "10.244.1.1", true, json!([])).await;
    let hints = world.endpoints().await[0].hints.clone().unwrap();
    assert_eq!(hints.for_zones.unwrap()[0].name, "b");
}
