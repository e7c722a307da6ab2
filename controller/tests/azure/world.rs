//! API server, fake Azure over HTTP, and the controller, in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e_apiserver::{ApiServer, Clock as ApiClock, Config as ApiConfig, Identity};
use e2e_cloud::azure::{Azure as FakeAzure, Setup};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Profile};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use onehop_controller::app::{App, Phase};
use onehop_controller::cloud::azure::Azure;
use onehop_controller::cloud::azure::client::{Access, Client as ArmClient, Credential};
use onehop_controller::cloud::azure::settings::{
    Layout, Place, SecurityGroup, Settings as AzureSettings, TakeOver,
};
use onehop_controller::cloud::local::resolve::NodeProxy;
use onehop_controller::lease::Lost;
use onehop_controller::node_targets::Ranges;
use onehop_controller::plan::{Bounds, Tails};
use onehop_controller::policy::Policies;
use onehop_controller::reconcile::{Orphans, Settings};
use onehop_controller::snapshot::{Claim, Classless};
use onehop_core::crd::TargetMode;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, Endpoint, read};

const START: Time = Time::from_millis(1_800_000_000_000);
const CLASS: &str = "onehop.dev/azure";
/// How long the fake cloud works on a write.
pub(crate) const OPERATION: Duration = Duration::from_secs(1);

/// Everything but the controller.
pub(crate) struct World {
    pub(crate) azure: FakeAzure,
    pub(crate) place: Place,
    server: ApiServer,
    client: Client,
    clock: Clock,
    pub(crate) url: String,
    secret: String,
    /// Of pods that were made.
    uids: Mutex<BTreeMap<u8, String>>,
    _driver: Driver,
    rest: JoinHandle<std::io::Result<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.rest.abort();
    }
}

/// How a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// It takes connections.
    Ready,
    /// It is going, and takes them still.
    Terminating,
}

/// A controller that runs.
pub(crate) struct Controller {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Lost>>,
    phase: watch::Receiver<Phase>,
    metrics: Metrics,
}

impl Controller {
    /// Waits until it reconciles.
    pub(crate) async fn working(mut self) -> Self {
        self.phase
            .wait_for(|phase| *phase == Phase::Working)
            .await
            .unwrap();
        self
    }

    /// What it says of itself: the value of a metric, by its name with labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let page = self.metrics.page();
        let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
        lines.find(|(known, _)| *known == name)?.1.parse().ok()
    }

    /// Ends it where it stands; operations already begun run on in the cloud.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.stop.cancel();
    }
}

fn place() -> Place {
    Place {
        subscription: "sub".to_owned(),
        resource_group: "rg".to_owned(),
        location: "westeurope".to_owned(),
        edge_zone: None,
        load_balancer: "lb".to_owned(),
        vnet_resource_group: "rg".to_owned(),
        vnet: "vnet".to_owned(),
        subnet: "nodes".to_owned(),
        security_group: Some(SecurityGroup {
            resource_group: "rg".to_owned(),
            name: "nsg".to_owned(),
        }),
        pod_security_group: None,
        node_resource_group: None,
    }
}

/// A security group with rules of somebody else, one of them cloud-provider-azure's.
pub(crate) fn foreign_rules() -> Value {
    let rule = |name: &str, priority: u32| {
        json!({"name": name, "more": {"x": []}, "properties": {
            "priority": priority, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "sourcePortRange": "*",
            "sourceAddressPrefix": "10.0.0.0/8", "destinationAddressPrefix": "*", "destinationPortRange": "22", "unknown": 1,
        }})
    };
    json!([
        rule("theirs", 100),
        rule("k8s-azure-lb_allow_IPv4_abc", 500)
    ])
}

impl World {
    /// Two nodes, and a subscription with a network and a security group.
    pub(crate) async fn start() -> Self {
        let clock = Clock::fixed(START);
        let both = ["10.96.0.0/16", "fd00:96::/112"].map(|range| range.parse().unwrap());
        let api = ApiConfig {
            service_cidrs: both.to_vec(),
            ..ApiConfig::default()
        };
        let server = ApiServer::start(ApiClock::fixed(START), api);
        let config = Config {
            profile: Profile::azure(),
            seed: 1,
            scale: Scale::new(START, 1),
            ranges: vec![],
        };
        let cloud = Cloud::new(config, clock);
        let driver = Driver::start(cloud.clone());
        let up = VirtualNode::new(|_: SocketAddr| true);
        driver.attach("a", [10, 0, 9, 1].into(), Arc::new(up));
        let place = place();
        let group = json!({"location": "westeurope", "properties": {"securityRules": foreign_rules(), "other": {"a": []}}});
        let group_id = place.security_group_id(&SecurityGroup {
            resource_group: "rg".to_owned(),
            name: "nsg".to_owned(),
        });
        let azure = FakeAzure::new(
            cloud,
            Setup {
                subscription: "sub".to_owned(),
                location: "westeurope".to_owned(),
                resource_groups: vec!["rg".to_owned()],
                clients: [("client".to_owned(), "secret".to_owned())].into(),
                public: "20.0.0.0/22".parse().unwrap(),
                zones: vec!["1".to_owned(), "2".to_owned()],
                subnets: [(place.subnet_id(None), "10.0.4.0/24".parse().unwrap())].into(),
                twin: |host| {
                    let [a, b, c, d] = host.octets().map(u16::from);
                    [0xfd00, 0, 0, 0, a, b, c, d].into()
                },
                documents: vec![(group_id, group)],
                pods: vec!["10.244.0.0/16".parse().unwrap()],
                actions: None,
                operation: OPERATION,
            },
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let rest = tokio::spawn(azure.clone().serve(listener));
        let client = server.client(&Identity::admin());
        let world = Self {
            azure,
            place,
            server,
            client,
            clock,
            url,
            secret: "secret".to_owned(),
            uids: Mutex::default(),
            _driver: driver,
            rest,
        };
        cluster::install_crds(&world.client).await;
        for n in 1..=2 {
            world.node(n).await;
        }
        world
    }

    /// Makes a node.
    pub(crate) async fn node(&self, n: u8) {
        let addresses = [format!("10.0.1.{n}"), format!("fd00::1:{n}")];
        cluster::node(&self.client, n, json!({}), &addresses).await;
    }

    /// Starts a controller, the only replica.
    pub(crate) async fn controller(&self) -> Controller {
        self.controller_with(Classless::Ignore, |_| {}).await
    }

    /// Starts one that is told more.
    pub(crate) async fn controller_with(
        &self,
        classless: Classless,
        tell: impl FnOnce(&mut AzureSettings),
    ) -> Controller {
        let install = onehop_core::id::InstallId::from("demo-azure");
        let mut settings = AzureSettings {
            install: install.clone(),
            cluster: "demo".to_owned(),
            proxy: NodeProxy::Beside,
            mode: TargetMode::Vip,
            place: self.place.clone(),
            pod_prefixes: vec!["10.244.0.0/16".parse().unwrap()],
            tags: BTreeMap::new(),
            disable_outbound_snat: false,
            system_tags: None,
            exclude_control_plane: true,
            others_pools: BTreeSet::new(),
            shared_probe: None,
            pool_size: 1000,
            switch_tail: Duration::from_secs(1),
            bounds: Bounds::with_tail(1),
            drain: Duration::from_secs(5),
            dns_grace: Duration::from_secs(8),
            membership: None,
            layout: Layout::Own,
            take_over: TakeOver::default(),
        };
        tell(&mut settings);
        let access = Access {
            endpoint: self.url.parse().unwrap(),
            authority: self.url.parse().unwrap(),
            ca: None,
            credential: Credential::Secret {
                tenant: "tenant".to_owned(),
                client: "client".to_owned(),
                secret: self.secret.clone(),
            },
        };
        let client = ArmClient::new(access, settings.clone(), self.clock, "test").unwrap();
        let identity = Identity::service_account("onehop-system", "controller");
        let client = client.with_leases(self.server.client(&identity));
        let metrics = Metrics::default();
        let client = client.with_metrics(&metrics);
        let app = App {
            provider: Azure::new(client, settings),
            client: self.server.client(&identity),
            clock: self.clock,
            seed: 7,
            settings: Settings {
                claim: Claim {
                    classes: [CLASS.to_owned()].into(),
                    classless,
                    install,
                },
                policies: Policies::default(),
                workers: 16,
                sweep: Duration::from_secs(15),
                second_look: Duration::from_mins(1),
                ranges: Ranges::default(),
                orphans: Orphans::Report,
                orphan_grace: Duration::ZERO,
                pod_health: None,
                proxy: NodeProxy::Beside,
                tails: Tails::default(),
                gates: None,
            },
            metrics: metrics.clone(),
            election: None,
            webhook: None,
        };
        let (sender, phase) = watch::channel(Phase::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(app.run(stop.clone(), sender));
        let controller = Controller {
            stop,
            task,
            phase,
            metrics,
        };
        controller.working().await
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        cluster::api(&self.client)
    }

    /// The API server, as its administrator.
    pub(crate) fn kube(&self) -> Client {
        self.client.clone()
    }

    /// Makes a Service of our class with one port; `extra` goes into its spec.
    pub(crate) async fn service(&self, name: &str, extra: Value, annotations: Value) -> Service {
        let mut object = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": CLASS, "selector": { "app": name },
                "allocateLoadBalancerNodePorts": false,
                "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
            },
        });
        if let Value::Object(fields) = extra {
            for (key, value) in fields {
                object["spec"][key] = value;
            }
        }
        self.api()
            .create(&PostParams::default(), &read(object))
            .await
            .unwrap()
    }

    /// A Service in mode `vip`.
    pub(crate) async fn vip(&self, name: &str) -> Service {
        self.service(name, json!({}), json!({ "onehop.dev/target": "vip" }))
            .await
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.api::<Service>()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api::<Service>()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Sets the endpoints of a Service: ready pods by the last octet of their address.
    pub(crate) async fn endpoints(&self, service: &str, ready: &[u8]) {
        let pods: Vec<_> = ready.iter().map(|n| (*n, Stands::Ready)).collect();
        self.pods(service, &pods).await;
    }

    /// The same, with pods that are going.
    pub(crate) async fn pods(&self, service: &str, pods: &[(u8, Stands)]) {
        let mut all = Vec::new();
        for (n, stands) in pods {
            all.push(Endpoint {
                n: *n,
                uid: self.pod(*n).await,
                terminating: *stands == Stands::Terminating,
            });
        }
        cluster::set_endpoints(&self.client, service, &all).await;
    }

    /// Removes a pod, as its kubelet does in the end.
    pub(crate) async fn pod_gone(&self, n: u8) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        let name = format!("pod-{n}");
        self.api::<Pod>().delete(&name, &params).await.unwrap();
    }

    async fn pod(&self, n: u8) -> String {
        let known = self.uids.lock().unwrap().get(&n).cloned();
        if let Some(known) = known {
            return known;
        }
        let uid = cluster::make_pod(&self.client, n).await;
        self.uids.lock().unwrap().insert(n, uid.clone());
        uid
    }

    /// The first published address of a Service.
    pub(crate) async fn address(&self, name: &str) -> Option<String> {
        self.addresses(name).await.into_iter().next()
    }

    /// All of them.
    pub(crate) async fn addresses(&self, name: &str) -> Vec<String> {
        let service = self.api::<Service>().get_opt(name).await.unwrap();
        let status = service.and_then(|service| service.status?.load_balancer?.ingress);
        let ingress = status.into_iter().flatten();
        ingress.filter_map(|ingress| ingress.ip).collect()
    }

    /// Another node, once it is in the load balancer's pool.
    pub(crate) async fn node_in_pool(&self, n: u8) {
        self.node(n).await;
        let name = format!("\"node-{n}\"");
        self.eventually("the new node is in the pool", async |w| {
            w.balancer().unwrap().to_string().contains(&name)
        })
        .await;
    }

    /// Waits until a Service has an address.
    pub(crate) async fn has_address(&self, name: &str) -> String {
        let what = format!("Service {name} has an address");
        self.eventually(&what, async |w| w.address(name).await.is_some())
            .await;
        self.address(name).await.unwrap()
    }

    /// Reasons and messages of the events about a Service.
    pub(crate) async fn told(&self, name: &str) -> Vec<(String, String)> {
        cluster::told(&self.client, name).await
    }

    /// How its load balancer stands, as the Service says.
    pub(crate) async fn condition(&self, name: &str) -> Option<Condition> {
        let service = self.api::<Service>().get(name).await.unwrap();
        let mut conditions = service.status?.conditions?.into_iter();
        conditions.find(|it| it.type_ == "onehop.dev/LoadBalancerReady")
    }

    /// The public load balancer.
    pub(crate) fn balancer(&self) -> Option<Value> {
        use onehop_controller::cloud::azure::settings::Kind;
        self.azure.document(&self.place.balancer_id(Kind::External))
    }

    /// Rules of the security group.
    pub(crate) fn security_rules(&self) -> Vec<Value> {
        let group = self.place.security_group.clone().unwrap();
        let document = self
            .azure
            .document(&self.place.security_group_id(&group))
            .unwrap();
        document["properties"]["securityRules"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Writes of a kind so far: `PUT loadBalancers`.
    pub(crate) fn calls(&self, call: &str) -> u64 {
        self.azure.calls().get(call).copied().unwrap_or_default()
    }

    /// How each write so far was answered.
    pub(crate) fn write_statuses(&self) -> Vec<u16> {
        let writes = self.azure.writes();
        writes.iter().map(|write| write.status).collect()
    }

    /// Writes that were refused: how, and of what.
    pub(crate) fn refused(&self) -> Vec<String> {
        let writes = self.azure.writes();
        let refused = writes.iter().filter(|write| write.status >= 400);
        refused
            .map(|write| format!("{} {} {}", write.status, write.method, write.id))
            .collect()
    }

    /// Waits until an event about a Service has this reason.
    pub(crate) async fn tells(&self, name: &str, wanted: &str) {
        let what = format!("{name} is told {wanted}");
        self.eventually(&what, async |w| {
            let told = w.told(name).await;
            told.iter().any(|(reason, _)| reason == wanted)
        })
        .await;
    }

    /// All writes so far.
    pub(crate) fn writes(&self) -> usize {
        self.azure.writes().len()
    }

    /// Waits until the check holds; fails with the state of everything after a while.
    pub(crate) async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        let deadline = self.clock.now() + Duration::from_mins(3);
        while !holds(self).await {
            if self.clock.now() > deadline {
                let services = self
                    .api::<Service>()
                    .list(&ListParams::default())
                    .await
                    .unwrap();
                let first: Vec<_> = services.items.iter().take(3).collect();
                panic!(
                    "never came true: {what}\ncalls: {:?}\nlast writes: {:#?}\n{}",
                    self.azure.calls(),
                    self.azure.writes().iter().rev().take(3).collect::<Vec<_>>(),
                    serde_json::to_string_pretty(&first).unwrap(),
                );
            }
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets time pass, to see that nothing happens.
    pub(crate) async fn quiet(&self, time: Duration) {
        self.clock.sleep(time).await;
    }
}
