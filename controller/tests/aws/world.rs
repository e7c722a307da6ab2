//! API server, fake AWS over HTTP, and the controller, in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use e2e_apiserver::{ApiServer, Config as ApiConfig, Identity, Serving};
use e2e_cloud::aws::{Aws as FakeAws, Interface, Machine, Setup, SubnetSetup};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, Lag, Profile};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use onehop_controller::app::{App, Phase};
use onehop_controller::cloud::aws::Aws;
use onehop_controller::cloud::aws::client::{Access, Client as AwsClient, Limits};
use onehop_controller::cloud::aws::settings::{PeerServices, Selection, Settings as AwsSettings};
use onehop_controller::cloud::local::resolve::NodeProxy;
use onehop_controller::lease::{Election, Lost, Timing};
use onehop_controller::node_targets::Ranges;
use onehop_controller::plan::Tails;
use onehop_controller::policy::Policies;
use onehop_controller::reconcile::{Gates, Orphans, Settings};
use onehop_controller::snapshot::{Claim, Classless};
use onehop_core::crd::LoadBalancer;
use onehop_runtime::clock::Clock;
use onehop_runtime::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{self, Endpoint, read};

pub(crate) const CLUSTER: &str = "my-cluster";
pub(crate) const INSTALL: &str = "my-install";
pub(crate) const OWN_CLASS: &str = "onehop.dev/aws";
pub(crate) const PEER_CLASS: &str = "service.k8s.aws/nlb";
const KEY: (&str, &str) = ("AKIATEST", "secret");
const NODES: u8 = 3;

/// Everything but the controller.
pub(crate) struct World {
    pub(crate) aws: FakeAws,
    pub(crate) cloud: Cloud,
    pub(crate) clock: Clock,
    client: Client,
    server: ApiServer,
    url: String,
    _driver: Driver,
    rest: JoinHandle<std::io::Result<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.rest.abort();
    }
}

/// A controller that runs.
pub(crate) struct Controller {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Lost>>,
    phase: watch::Receiver<Phase>,
    metrics: Metrics,
}

impl Controller {
    /// Its metrics as they are scraped.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.page()
    }

    async fn working(mut self) -> Self {
        self.phase
            .wait_for(|phase| *phase == Phase::Working)
            .await
            .unwrap();
        self
    }

    /// Ends it where it stands.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.stop.cancel();
    }
}

/// How a controller is started.
#[derive(Clone, Debug)]
pub(crate) struct Flags {
    pub(crate) classes: Vec<&'static str>,
    pub(crate) peer: PeerServices,
    pub(crate) take_over: Vec<String>,
    pub(crate) accepted: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) orphans: Orphans,
    /// How long a leader lives on without a word; longer where time passes faster than calls are answered.
    pub(crate) lease: Duration,
}

impl Default for Flags {
    /// A take-over's values, before anything is chosen.
    fn default() -> Self {
        Self {
            classes: vec![OWN_CLASS, PEER_CLASS],
            peer: PeerServices::Off,
            take_over: vec![],
            accepted: vec![],
            limits: Limits::default(),
            orphans: Orphans::Report,
            lease: Duration::from_secs(3),
        }
    }
}

impl Flags {
    /// For [`World::pass_time`].
    pub(crate) fn patient() -> Self {
        Self {
            lease: Duration::from_mins(30),
            ..Self::default()
        }
    }

    pub(crate) fn taking(services: &str) -> Self {
        Self {
            take_over: vec![services.to_owned()],
            ..Self::default()
        }
    }
}

fn tags(pairs: &[(&str, &str)]) -> e2e_cloud::engine::Tags {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

impl World {
    /// Three nodes, and an account with a network and their machines, in a cloud that runs twenty times faster.
    pub(crate) async fn start() -> Self {
        Self::at_speed(20).await
    }

    /// The same in a cloud of another speed.
    pub(crate) async fn at_speed(speed: u32) -> Self {
        Self::of(Profile::nlb(), speed).await
    }

    /// The same where a load balancer is provisioning for so long, by the cloud's clock.
    pub(crate) async fn provisioning(lag: Lag) -> Self {
        let mut profile = Profile::nlb();
        profile.lags.provisioning = lag;
        Self::of(profile, 20).await
    }

    async fn of(profile: Profile, speed: u32) -> Self {
        let clock = Clock::system();
        let server = ApiServer::start(clock, ApiConfig::default());
        let config = Config {
            profile,
            seed: 1,
            scale: Scale::new(clock.now(), speed),
            ranges: vec![],
        };
        let cloud = Cloud::new(config, clock);
        let driver = Driver::start(cloud.clone());
        let up = VirtualNode::new(|_: SocketAddr| true);
        driver.attach("a", [10, 0, 9, 1].into(), Arc::new(up));
        let roles = [
            ("kubernetes.io/role/elb", "1"),
            ("kubernetes.io/role/internal-elb", "1"),
        ];
        let machine = |n: u8| Machine {
            id: machine(n),
            address: [10, 0, 1, n].into(),
            zone: "a".to_owned(),
            security_groups: Vec::new(),
        };
        let of_nodes = tags(&[(&format!("kubernetes.io/cluster/{CLUSTER}"), "owned")]);
        let aws = FakeAws::new(
            cloud.clone(),
            Setup {
                region: "eu-central-1".to_owned(),
                keys: [(KEY.0.to_owned(), KEY.1.to_owned())].into(),
                vpc: "vpc-1".to_owned(),
                ranges: vec!["10.0.0.0/8".parse().unwrap()],
                subnets: vec![SubnetSetup {
                    id: "subnet-1".to_owned(),
                    zone: "a".to_owned(),
                    range: "10.0.9.0/24".parse().unwrap(),
                    tags: tags(&roles),
                }],
                machines: (1..=NODES).map(machine).collect(),
                security_groups: [("sg-0000nodes".to_owned(), of_nodes)].into(),
                addresses: "198.51.100.0/24".parse().unwrap(),
            },
        );
        // As the CNI does: addresses of pods are of a range of some machine's interface.
        aws.set_interfaces(vec![Interface {
            id: "eni-pods".to_owned(),
            addresses: Vec::new(),
            prefixes: vec!["10.244.1.0/24".parse().unwrap()],
            security_groups: vec!["sg-0000nodes".to_owned()],
        }]);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let rest = tokio::spawn(aws.clone().serve(listener));
        let client = server.client(&Identity::admin());
        let world = Self {
            aws,
            cloud,
            client,
            server,
            clock,
            url,
            _driver: driver,
            rest,
        };
        cluster::install_crds(&world.client).await;
        let crds: Api<CustomResourceDefinition> = Api::all(world.client.clone());
        crds.create(&PostParams::default(), &crate::peer::bindings_kind())
            .await
            .unwrap();
        for n in 1..=NODES {
            let spec = json!({ "providerID": format!("aws:///a/{}", self::machine(n)) });
            cluster::node(&world.client, n, spec, &[format!("10.0.1.{n}")]).await;
        }
        world
    }

    /// A client of the account as the controller has one.
    pub(crate) async fn aws_client(&self) -> AwsClient {
        self.aws_client_at(self.clock).await
    }

    /// The same on a machine with another clock.
    pub(crate) async fn aws_client_at(&self, clock: Clock) -> AwsClient {
        self.limited(Limits::default(), clock).await
    }

    async fn limited(&self, limits: Limits, clock: Clock) -> AwsClient {
        let install = onehop_core::id::InstallId::from(INSTALL);
        let credentials = Credentials::new(KEY.0, KEY.1, None, None, "test");
        let access = Access {
            region: Some("eu-central-1".to_owned()),
            vpc: "vpc-1".to_owned(),
            elb: Some(self.url.clone()),
            ec2: Some(self.url.clone()),
            credentials: Some(SharedCredentialsProvider::new(credentials)),
            target_group_tags: tags(&[]),
            limits,
        };
        let client = AwsClient::connect(access, install, CLUSTER.to_owned(), clock);
        Box::pin(client).await.unwrap()
    }

    /// Starts a controller, the only replica.
    pub(crate) async fn controller(&self, flags: Flags) -> Controller {
        let install = onehop_core::id::InstallId::from(INSTALL);
        let mut settings = AwsSettings::new(install.clone(), CLUSTER);
        settings.take_over.peer = flags.peer;
        settings.take_over.of = Selection::read(&flags.take_over).unwrap();
        settings.take_over.accepted = Selection::read(&flags.accepted).unwrap();
        settings.take_over.settle = Duration::from_secs(1);
        let client = self.limited(flags.limits, self.clock).await;
        let identity = Identity::service_account("onehop-system", "controller");
        let metrics = Metrics::default();
        let lease = flags.lease;
        let election = Election {
            // Another one for each: the Lease of one that was killed is waited for.
            identity: format!("replica-{:x}", self.clock.now().as_millis()),
            namespace: "default".to_owned(),
            name: Election::lease_name(&install),
            timing: Timing::new(lease, lease * 2 / 3, Duration::from_millis(100)).unwrap(),
        };
        let app = App {
            provider: Aws::new(client, settings),
            client: self.server.client(&identity),
            clock: self.clock,
            seed: 7,
            settings: Settings {
                claim: Claim {
                    classes: flags.classes.iter().map(|c| (*c).to_owned()).collect(),
                    classless: Classless::Ignore,
                    install,
                },
                policies: Policies::default(),
                workers: 16,
                sweep: Duration::from_mins(1),
                second_look: Duration::from_mins(1),
                ranges: Ranges::default(),
                orphans: flags.orphans,
                orphan_grace: Duration::ZERO,
                pod_health: None,
                proxy: NodeProxy::Beside,
                tails: Tails::default(),
                gates: Some(Gates {
                    limit: None,
                    nobodys_after: Duration::from_secs(1),
                }),
            },
            metrics: metrics.clone(),
            election: Some(election),
            webhook: None,
        };
        let (sender, phase) = watch::channel(Phase::default());
        let stop = CancellationToken::new();
        let task = tokio::spawn(Box::pin(app.run(stop.clone(), sender)));
        Controller {
            stop,
            task,
            phase,
            metrics,
        }
        .working()
        .await
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        cluster::api(&self.client)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Makes a Service with one port; `extra` goes into its spec.
    pub(crate) async fn service(&self, name: &str, class: &str, annotations: Value) -> Service {
        let object = json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": class, "selector": { "app": name },
                "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
            },
        });
        self.api()
            .create(&PostParams::default(), &read(object))
            .await
            .unwrap()
    }

    /// Sets the endpoints of a Service: pods by the last octet of their address.
    pub(crate) async fn endpoints(&self, service: &str, ready: &[u8]) {
        let mut pods = Vec::new();
        for n in ready {
            pods.push(Endpoint {
                n: *n,
                uid: self.pod(*n).await,
                terminating: false,
            });
        }
        cluster::set_endpoints(&self.client, service, &pods).await;
    }

    async fn pod(&self, n: u8) -> String {
        let there = self.api::<Pod>().get_opt(&format!("pod-{n}")).await;
        match there.unwrap().and_then(|pod| pod.metadata.uid) {
            Some(uid) => uid,
            None => cluster::make_pod(&self.client, n).await,
        }
    }

    /// Serves the API server to programs; gives the server, which ends with it, and a kubeconfig with every right.
    pub(crate) fn serve(&self, name: &str) -> (Serving, PathBuf) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let serving = self.server.serve_tls(listener, &[]).unwrap();
        let url = format!("https://{}", serving.address());
        let config = self.server.kubeconfig(&url, &Identity::admin()).unwrap();
        let name = format!("{name}-{}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, config).unwrap();
        (serving, path)
    }

    /// A Service as it is.
    pub(crate) async fn get(&self, name: &str) -> Service {
        self.api::<Service>().get(name).await.unwrap()
    }

    /// The object of ours about a Service.
    pub(crate) async fn balancer(&self, name: &str) -> Option<LoadBalancer> {
        self.api::<LoadBalancer>().get_opt(name).await.unwrap()
    }

    /// Takes our object of a Service away for good.
    pub(crate) async fn forget_balancer(&self, name: &str) {
        let objects = self.api::<LoadBalancer>();
        let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        objects
            .patch(name, &PatchParams::default(), &none)
            .await
            .unwrap();
        objects
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Reasons and messages of the events about a Service.
    pub(crate) async fn told(&self, name: &str) -> Vec<(String, String)> {
        cluster::told(&self.client, name).await
    }

    /// Waits until the check holds; fails with the state of everything after a while.
    pub(crate) async fn eventually(&self, what: &str, holds: impl AsyncFnMut(&Self) -> bool) {
        self.within(Duration::from_mins(1), what, holds).await;
    }

    /// The same, for what takes longer.
    pub(crate) async fn within(
        &self,
        limit: Duration,
        what: &str,
        mut holds: impl AsyncFnMut(&Self) -> bool,
    ) {
        let deadline = self.clock.now() + limit;
        while !holds(self).await {
            if self.clock.now() > deadline {
                let services = self.api::<Service>().list(&ListParams::default()).await;
                let balancers = self
                    .api::<LoadBalancer>()
                    .list(&ListParams::default())
                    .await;
                let events = self
                    .api::<Event>()
                    .list(&ListParams::default())
                    .await
                    .unwrap();
                let told: Vec<_> = events
                    .items
                    .iter()
                    .map(|e| (&e.reason, &e.message))
                    .collect();
                panic!(
                    "never came true: {what}\nwrites: {:?}\ntold: {told:#?}\n{}\n{}",
                    self.aws.writes(),
                    serde_json::to_string_pretty(&services.unwrap().items).unwrap(),
                    serde_json::to_string_pretty(&balancers.unwrap().items).unwrap(),
                );
            }
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets time pass without waiting for it, in steps that are short for what is under way. On a runtime of one thread
    /// only.
    pub(crate) async fn pass_time(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(250);
        let until = self.clock.now() + time;
        while self.clock.now() < until {
            tokio::time::pause();
            tokio::time::advance(STEP).await;
            tokio::time::resume();
            self.clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets time pass, to see that nothing happens.
    pub(crate) async fn quiet(&self, time: Duration) {
        self.clock.sleep(time).await;
    }
}

/// Id of a node's machine.
pub(crate) fn machine(n: u8) -> String {
    format!("i-{n:017x}")
}
