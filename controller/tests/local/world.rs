//! API server, fake cloud with its REST API over HTTP, and the controller, in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e_apiserver::{ApiServer, Clock as ApiClock, Config as ApiConfig, Identity, Serving};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, LbSpec, Operation, Profile, Seq, TargetState, What};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver, rest};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use onehop_controller::app::{App, Phase};
use onehop_controller::cloud::local::client::Client as CloudClient;
use onehop_controller::cloud::local::{Local, plan, resolve::NodeProxy};
use onehop_controller::lease::{Election, Lost, Timing};
use onehop_controller::node_targets::Ranges;
use onehop_controller::plan::Tails;
use onehop_controller::policy::Policies;
use onehop_controller::reconcile::{Gates, Orphans, PodHealth, Settings};
use onehop_controller::snapshot::{Claim, Classless};
use onehop_controller::webhook::{Times, Webhook};
use onehop_core::crd::{AddressPool, LoadBalancer};
use onehop_core::id::InstallId;
use onehop_core::node::EXCLUDE_LABEL;
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, Endpoint, read};
use crate::witness::{ToNodes, Witness};

const START: Time = Time::from_millis(1_800_000_000_000);
const CLASS: &str = "onehop.dev/local";

/// Everything but the controller.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) cloud: Cloud,
    client: Client,
    clock: Clock,
    url: String,
    /// How the controllers behave that are started from now on.
    pub(crate) tune: Tune,
    witness: Witness,
    down: Down,
    _driver: Driver,
    rest: JoinHandle<std::io::Result<()>>,
}

/// Targets that do not answer.
type Down = Arc<Mutex<BTreeSet<IpAddr>>>;

impl Drop for World {
    fn drop(&mut self) {
        self.rest.abort();
    }
}

/// What tests change of a controller.
#[derive(Clone)]
pub(crate) struct Tune {
    pub(crate) policies: Policies,
    pub(crate) sweep: Duration,
    pub(crate) orphans: Orphans,
    pub(crate) orphan_grace: Duration,
    pub(crate) pod_health: Option<PodHealth>,
    /// How far tails that agents have seen shorten those of Services.
    pub(crate) tails: Tails,
    /// Where its webhook listens, if it has one.
    pub(crate) webhook: Arc<Mutex<Option<std::net::TcpListener>>>,
    /// How long gates wait.
    pub(crate) gate_limit: Duration,
    /// How long what it writes to nodes is on its way.
    pub(crate) to_nodes: ToNodes,
    /// Its clock.
    pub(crate) clock: Clock,
}

/// A controller that runs.
pub(crate) struct Controller {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Lost>>,
    phase: watch::Receiver<Phase>,
    metrics: Metrics,
}

impl Controller {
    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        let page = self.metrics.page();
        let line = page
            .lines()
            .find(|line| line.split(' ').next() == Some(name))?;
        Some(line.rsplit(' ').next()?.to_owned())
    }

    /// Waits until it reconciles.
    pub(crate) async fn working(self) -> Self {
        self.reaches(|phase| *phase == Phase::Working).await
    }

    /// Waits until it is in a phase.
    pub(crate) async fn reaches(mut self, wanted: impl Fn(&Phase) -> bool) -> Self {
        self.phase.wait_for(wanted).await.unwrap();
        self
    }

    /// What its readiness says.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }

    /// Stops it as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it where it stands; calls already made run on in the cloud.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        // Lanes are tasks of their own: without the fence they would go on.
        self.stop.cancel();
    }
}

/// The program, running as a process.
pub(crate) struct Program {
    child: Child,
    kubeconfig: PathBuf,
    log: PathBuf,
    address: SocketAddr,
    serving: Option<Serving>,
}

impl Program {
    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Takes the API server away from it: connections end, and nobody listens.
    pub(crate) async fn without_api_server(&mut self, world: &World) {
        self.serving = None;
        let address = self.address;
        world
            .eventually("the API server is away", async |_| {
                tokio::net::TcpStream::connect(address).await.is_err()
            })
            .await;
    }

    /// Gives it back.
    pub(crate) fn with_api_server(&mut self, world: &World) {
        let listener = std::net::TcpListener::bind(self.address).unwrap();
        self.serving = Some(world.server.serve_tls(listener, &[]).unwrap());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
        let _ = std::fs::remove_file(&self.log);
    }
}

impl World {
    /// Two nodes, one pool with these addresses, and a cloud whose targets are all up.
    pub(crate) async fn start(pool: &str) -> Self {
        let world = Self::without_crds().await;
        world.install_crds().await;
        world.furnish(pool).await;
        world
    }

    /// As [`World::start`], with an API server that does not know our kinds, and so without a pool.
    pub(crate) async fn without_crds() -> Self {
        let clock = Clock::fixed(START);
        let api = ApiConfig {
            service_cidrs: ["10.96.0.0/16", "2001:db8:96::/112"]
                .map(|range| range.parse().unwrap())
                .into(),
            ..ApiConfig::default()
        };
        let server = ApiServer::start(ApiClock::fixed(START), api);
        let config = Config {
            profile: Profile::local(),
            seed: 1,
            scale: Scale::new(START, 1),
            ranges: ["198.51.100.0/24", "2001:db8:100::/64"]
                .map(|range| range.parse().unwrap())
                .into(),
        };
        let cloud = Cloud::new(config, clock);
        let driver = Driver::start(cloud.clone());
        let down: Down = Arc::default();
        let of_all = Arc::clone(&down);
        let up = move |at: SocketAddr| !of_all.lock().unwrap().contains(&at.ip());
        let up = VirtualNode::new(up);
        driver.attach("a", [10, 0, 9, 1].into(), Arc::new(up));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let client = server.client(&Identity::admin());
        let witness = Witness::new(client.clone());
        let rest = witness.over(rest::router(cloud.clone()));
        let rest = tokio::spawn(axum::serve(listener, rest).into_future());
        let world = Self {
            server,
            cloud,
            client,
            clock,
            url,
            tune: Tune {
                policies: Policies::default(),
                sweep: Duration::from_mins(1),
                orphans: Orphans::Report,
                orphan_grace: Duration::ZERO,
                pod_health: None,
                tails: Tails::default(),
                webhook: Arc::default(),
                gate_limit: Duration::from_mins(10),
                to_nodes: ToNodes::AtOnce,
                clock,
            },
            witness,
            down,
            _driver: driver,
            rest,
        };
        world.nodes().await;
        world
    }

    /// Makes our kinds known.
    pub(crate) async fn install_crds(&self) {
        cluster::install_crds(&self.client).await;
    }

    /// Makes the pool `default`.
    pub(crate) async fn furnish(&self, pool: &str) {
        self.furnish_as("default", &[pool]).await;
    }

    /// Makes a pool.
    pub(crate) async fn furnish_as(&self, name: &str, addresses: &[&str]) {
        let pools: Api<AddressPool> = Api::all(self.client.clone());
        let object = read(json!({
            "apiVersion": "onehop.dev/v1alpha1", "kind": "AddressPool",
            "metadata": { "name": name }, "spec": { "addresses": addresses },
        }));
        pools.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn nodes(&self) {
        for n in 1..=2 {
            cluster::node(&self.client, n, json!({}), &[format!("10.0.1.{n}")]).await;
        }
    }

    /// Puts the label on a node that excludes it from load balancers, or takes it off.
    pub(crate) async fn exclude(&self, node: &str, excluded: bool) {
        self.label(node, EXCLUDE_LABEL, excluded.then_some(""))
            .await;
    }

    /// Gives a node a label, or takes it off.
    pub(crate) async fn label(&self, node: &str, key: &str, value: Option<&str>) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = json!({ "metadata": { "labels": { key: value } } });
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Starts a controller, the only replica.
    pub(crate) fn controller(&self) -> Controller {
        self.start_controller("demo-local", CLASS, None)
    }

    /// Starts a replica of an install.
    pub(crate) fn replica(&self, install: &str, identity: &str) -> Controller {
        self.replica_of_class(install, identity, CLASS)
    }

    /// Starts a replica of an install that owns another class.
    pub(crate) fn replica_of_class(
        &self,
        install: &str,
        identity: &str,
        class: &str,
    ) -> Controller {
        let (lease, ms) = (Duration::from_secs(3), Duration::from_millis);
        let election = Election {
            identity: identity.to_owned(),
            namespace: "default".to_owned(),
            name: Election::lease_name(&install.into()),
            timing: Timing::new(lease, ms(2000), ms(100)).unwrap(),
        };
        self.start_controller(install, class, Some(election))
    }

    fn webhook(&self) -> Option<Webhook> {
        let listener = self.tune.webhook.lock().unwrap().take()?;
        listener.set_nonblocking(true).unwrap();
        Some(Webhook {
            listener: tokio::net::TcpListener::from_std(listener).unwrap(),
            namespace: "default".to_owned(),
            name: "onehop-webhook".to_owned(),
            times: Times::default(),
        })
    }

    fn start_controller(
        &self,
        install: &str,
        class: &str,
        election: Option<Election>,
    ) -> Controller {
        let install = InstallId::from(install);
        let caller = election.as_ref().map_or("only", |e| e.identity.as_str());
        let url = self.url.parse().unwrap();
        let client = CloudClient::new(url, install.clone(), caller).unwrap();
        let local = plan::Settings {
            install: install.clone(),
            switch_tail: Duration::from_secs(1),
        };
        let identity = Identity::service_account("onehop-system", "controller");
        let metrics = Metrics::default();
        let app = App {
            provider: Local::new(client, local, NodeProxy::Beside),
            client: self
                .tune
                .to_nodes
                .client(&self.server, &identity, self.clock),
            clock: self.tune.clock,
            seed: 7,
            settings: Settings {
                claim: Claim {
                    classes: [class.to_owned()].into(),
                    classless: Classless::Ignore,
                    install,
                },
                policies: self.tune.policies.clone(),
                workers: 4,
                sweep: self.tune.sweep,
                second_look: Duration::from_mins(1),
                ranges: Ranges::default(),
                orphans: self.tune.orphans,
                orphan_grace: self.tune.orphan_grace,
                pod_health: self.tune.pod_health,
                proxy: NodeProxy::Beside,
                tails: self.tune.tails,
                gates: Some(Gates {
                    limit: Some(self.tune.gate_limit),
                    nobodys_after: Duration::from_secs(1),
                }),
            },
            metrics: metrics.clone(),
            election,
            webhook: self.webhook(),
        };
        let (sender, phase) = watch::channel(Phase::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(app.run(stop.clone(), sender));
        Controller {
            stop,
            task,
            phase,
            metrics,
        }
    }

    /// Starts the program itself, over TLS, as a process that can be killed.
    pub(crate) fn program(&self) -> Program {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let serving = self.server.serve_tls(listener, &[]).unwrap();
        let url = format!("https://{}", serving.address());
        let identity = Identity::service_account("onehop-system", "controller");
        let config = self.server.kubeconfig(&url, &identity).unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("onehop-controller-{}-{number}.yaml", std::process::id());
        let kubeconfig = std::env::temp_dir().join(name);
        std::fs::write(&kubeconfig, config).unwrap();
        let log = kubeconfig.with_extension("log");
        let child = self
            .command()
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .env("ONEHOP_LOG", "warn")
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Program {
            child,
            kubeconfig,
            log,
            address: serving.address(),
            serving: Some(serving),
        }
    }

    /// Serves the API server to programs; gives the server, which ends with it, and a kubeconfig with every right.
    pub(crate) fn serve(&self, name: &str) -> (Serving, PathBuf) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let serving = self.server.serve_tls(listener, &[]).unwrap();
        let url = format!("https://{}", serving.address());
        let config = self.server.kubeconfig(&url, &Identity::admin()).unwrap();
        let path = std::env::temp_dir().join(format!("{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, config).unwrap();
        (serving, path)
    }

    /// How the program ended with these flags, and what it said.
    pub(crate) async fn ended(&self, flags: &[&str]) -> (Option<i32>, String) {
        let ended = self.command().args(flags).kill_on_drop(true).output();
        // It ends by itself.
        let ended = tokio::time::timeout(Duration::from_mins(1), ended).await;
        let output = ended.unwrap().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onehop-controller"));
        command
            .args(["--provider", "local", "--install-id", "demo-local"])
            .args(["--local-endpoint", &self.url, "--switch-tail-seconds", "1"])
            // There are no agents here.
            .args(["--pod-health-port", "0"])
            // One replica after the other: the next one need not wait for the Lease of the last.
            .arg("--leader-elect=false")
            .env("ONEHOP_METRICS_ADDRESS", "127.0.0.1:0")
            .env("ONEHOP_HEALTH_ADDRESS", "127.0.0.1:0");
        command
    }

    /// A client with every right.
    pub(crate) fn admin(&self) -> Client {
        self.client.clone()
    }

    /// A namespaced API of the namespace that all tests use.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        cluster::api(&self.client)
    }

    /// Makes a Service of our class with one port; `extra` goes into its spec.
    pub(crate) async fn service(&self, name: &str, extra: Value) -> Service {
        let mut object = json!({
            "metadata": { "name": name },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": CLASS, "selector": { "app": name },
                "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
            },
        });
        json_patch_merge(&mut object["spec"], extra);
        self.api()
            .create(&PostParams::default(), &read(object))
            .await
            .unwrap()
    }

    /// Makes a namespace with these labels.
    pub(crate) async fn namespace(&self, name: &str, labels: Value) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let object = read(json!({ "metadata": { "name": name, "labels": labels } }));
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    /// Changes labels of a namespace.
    pub(crate) async fn label_namespace(&self, name: &str, labels: Value) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        namespaces
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The UID of a pod, which is made if it is not there.
    async fn pod(&self, n: u8) -> String {
        let there = self.api::<Pod>().get_opt(&format!("pod-{n}")).await;
        match there.unwrap().and_then(|pod| pod.metadata.uid) {
            Some(uid) => uid,
            None => cluster::make_pod(&self.client, n).await,
        }
    }

    /// Sets the endpoints of a Service: pods by the last octet of their address.
    pub(crate) async fn endpoints(&self, service: &str, ready: &[u8], terminating: &[u8]) {
        let ready = ready.iter().map(|n| (*n, false));
        let going = terminating.iter().map(|n| (*n, true));
        let mut pods = Vec::new();
        for (n, terminating) in ready.chain(going) {
            let uid = self.pod(n).await;
            pods.push(Endpoint {
                n,
                uid,
                terminating,
            });
        }
        cluster::set_endpoints(&self.client, service, &pods).await;
    }

    /// Merges a patch into a Service.
    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.api::<Service>()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The published address of a Service.
    pub(crate) async fn address(&self, name: &str) -> Option<String> {
        let service = self.api::<Service>().get_opt(name).await.unwrap()?;
        service.status?.load_balancer?.ingress?.first()?.ip.clone()
    }

    /// All published addresses of a Service.
    pub(crate) async fn addresses(&self, name: &str) -> Vec<String> {
        let service = self.api::<Service>().get(name).await.unwrap();
        let ingress = service.status.and_then(|s| s.load_balancer?.ingress);
        ingress.into_iter().flatten().filter_map(|i| i.ip).collect()
    }

    /// Reasons of the events about a Service.
    pub(crate) async fn events(&self, name: &str) -> Vec<String> {
        let told = self.told(name).await;
        told.into_iter().map(|(reason, _)| reason).collect()
    }

    /// Reasons and messages of the events about a Service.
    pub(crate) async fn told(&self, name: &str) -> Vec<(String, String)> {
        cluster::told(&self.client, name).await
    }

    /// Our condition on a Service.
    pub(crate) async fn condition(&self, name: &str) -> Option<Condition> {
        let service = self.api::<Service>().get(name).await.unwrap();
        let conditions = service.status?.conditions?;
        conditions
            .into_iter()
            .find(|c| c.type_ == "onehop.dev/LoadBalancerReady")
    }

    /// Whether the target at an address answers from now on.
    pub(crate) fn answers(&self, address: IpAddr, answers: bool) {
        let mut down = self.down.lock().unwrap();
        if answers {
            down.remove(&address);
        } else {
            down.insert(address);
        }
    }

    /// Somebody else makes a load balancer with this address.
    pub(crate) fn foreign_balancer(&self, address: &str) {
        let spec = LbSpec {
            name: "theirs".to_owned(),
            tags: BTreeMap::new(),
            addresses: vec![address.parse().unwrap()],
            zones: Vec::new(),
            cross_zone: true,
            preserve_client_ip: true,
            sharing_key: None,
        };
        self.cloud
            .with(|engine, now| engine.create_lb(now, address, spec))
            .unwrap();
    }

    /// The addresses of every load balancer in the cloud.
    pub(crate) fn held(&self) -> Vec<IpAddr> {
        let inventory = self.cloud.look(e2e_cloud::engine::Engine::inventory);
        let balancers = inventory.load_balancers.into_iter();
        balancers.flat_map(|lb| lb.spec.addresses).collect()
    }

    /// How often each target got into this state, by the cloud's log.
    pub(crate) fn times_in_state(&self, wanted: TargetState) -> BTreeMap<String, u32> {
        let mut times = BTreeMap::new();
        for event in self.cloud.events_after(Seq::default(), usize::MAX) {
            if let What::TargetState { target, state, .. } = &event.what
                && *state == wanted
            {
                *times.entry(target.ip().to_string()).or_default() += 1;
            }
        }
        times
    }

    /// The targets of all groups.
    pub(crate) fn registered(&self) -> BTreeSet<IpAddr> {
        let inventory = self.cloud.look(e2e_cloud::engine::Engine::inventory);
        let targets = inventory
            .groups
            .into_iter()
            .flat_map(|(_, targets)| targets);
        let registered = targets.filter(|t| t.state != TargetState::Draining);
        registered.map(|t| t.target.ip()).collect()
    }

    /// Pods that were registered before their nodes were told of them.
    pub(crate) fn untold(&self) -> Vec<IpAddr> {
        self.witness.untold()
    }

    /// How often the cloud was asked to change something, by operation.
    pub(crate) fn writes(&self, operation: Operation) -> u64 {
        self.cloud.calls().get(&operation).copied().unwrap_or(0)
    }

    /// All of them.
    pub(crate) fn all_writes(&self) -> u64 {
        use Operation as O;
        let all = [
            O::CreateLoadBalancer,
            O::UpdateLoadBalancer,
            O::DeleteLoadBalancer,
            O::PutListener,
            O::DeleteListener,
            O::CreateGroup,
            O::UpdateGroup,
            O::DeleteGroup,
            O::RegisterTargets,
            O::DeregisterTargets,
        ];
        all.into_iter()
            .map(|operation| self.writes(operation))
            .sum()
    }

    /// Waits until the check holds; fails with the state of everything after twenty seconds.
    pub(crate) async fn eventually(&self, what: &str, holds: impl AsyncFnMut(&Self) -> bool) {
        self.eventually_within(Duration::from_secs(20), what, holds)
            .await;
    }

    /// As [`World::eventually`], for what takes longer.
    pub(crate) async fn eventually_within(
        &self,
        time: Duration,
        what: &str,
        mut holds: impl AsyncFnMut(&Self) -> bool,
    ) {
        let deadline = self.clock.now() + time;
        while !holds(self).await {
            if self.clock.now() > deadline {
                self.fail(what).await;
            }
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Lets time pass, to see that nothing happens.
    pub(crate) async fn quiet(&self, time: Duration) {
        self.clock.sleep(time).await;
    }

    async fn fail(&self, what: &str) {
        let services = self
            .api::<Service>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let objects = self
            .api::<LoadBalancer>()
            .list(&ListParams::default())
            .await
            .unwrap();
        panic!(
            "never came true: {what}\ncalls: {:?}\n{}\n{}",
            self.cloud.calls(),
            serde_json::to_string_pretty(&services.items).unwrap(),
            serde_json::to_string_pretty(&objects.items).unwrap(),
        );
    }
}

fn json_patch_merge(into: &mut Value, from: Value) {
    if let Value::Object(fields) = from {
        for (key, value) in fields {
            into[key] = value;
        }
    }
}
