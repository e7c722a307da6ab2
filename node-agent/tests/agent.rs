//! The whole agent against the embedded API server and a real kernel: what it asks for, what it
//! leaves alone, and that it follows. Needs root; each test has a network namespace of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use e2e_apiserver::{ApiServer, Config as ApiConfig, Identity};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sched::{CloneFlags, unshare};
use onehop_core::time::Time;
use onehop_node_agent::args::Args;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::run::{Parts, run};
use onehop_node_agent::table::layout::Options;
use onehop_runtime::clock::Clock;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(10);
const NODE: &str = "10.0.1.1";

/// Runs the test in a fresh network namespace whose loopback has the node's address.
fn on_a_node<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        command("ip", &["link", "set", "lo", "up"]);
        command(
            "ip",
            &["address", "add", &format!("{NODE}/32"), "dev", "lo"],
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async { test(World::new().await).await });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect(program);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

struct World {
    server: ApiServer,
    client: Client,
    clock: Clock,
}

struct Agent {
    task: JoinHandle<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::fixed(Time::EPOCH);
        let server = ApiServer::start(clock, ApiConfig::default());
        let client = server.client(&Identity::admin());
        let world = Self {
            server,
            client,
            clock,
        };
        let node: Node = object(json!({
            "metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
        }));
        Api::all(world.client.clone())
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
        world
    }

    fn agent(&self, flags: &[&str]) -> Agent {
        let always = [
            "onehop-node-agent",
            "--node-name",
            "n1",
            "--cluster-cidr",
            "10.244.0.0/16",
        ];
        let args = Args::try_parse_from(always.iter().chain(flags)).unwrap();
        let config = args.resolve().unwrap();
        let options = Options {
            masquerade_mark: config.masquerade_mark,
            masquerade_all: false,
            pod_cidrs: config.pod_cidrs.clone(),
            beside_kube_proxy: true,
            service_cidrs: Vec::new(),
        };
        let clock = self.clock;
        let now = Box::new(move || clock.now());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(Parts {
            config,
            client: self.client.clone(),
            dataplane: Box::new(Kernel::open(&options, Features::detect(), now).unwrap()),
            uplinks: None,
            clock,
            rng: SmallRng::seed_from_u64(1),
            stop: stop.clone(),
        }));
        Agent { task, stop }
    }

    fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::default_namespaced(self.client.clone())
    }

    async fn make_service(&self, name: &str, labels: Value) -> Service {
        let service: Service = object(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "ports": [{"port": 80, "targetPort": 8080}],
            },
        }));
        self.services()
            .create(&PostParams::default(), &service)
            .await
            .unwrap()
    }

    async fn make_slice(&self, service: &str) {
        let slice: EndpointSlice = object(json!({
            "metadata": {
                "name": format!("{service}-1"),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": "n1", "conditions": {"ready": true}}],
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        }));
        self.slices()
            .create(&PostParams::default(), &slice)
            .await
            .unwrap();
    }

    async fn label_slice(&self, name: &str, labels: Value) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.slices()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn label_service(&self, name: &str, labels: Value) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.services()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Waits until the port answers so; 0 stands for a refused connection.
    async fn answers(&self, port: u16, path: &str, wanted: u16) {
        let deadline = self.clock.now() + PATIENCE;
        loop {
            let seen = get(port, path).await;
            if seen == wanted {
                return;
            }
            assert!(
                self.clock.now() < deadline,
                "{path} on {port}: {seen}, not {wanted}"
            );
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Agent {
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Status code of a GET at the node's address; 0 if nobody listens.
async fn get(port: u16, path: &str) -> u16 {
    let to: SocketAddr = format!("{NODE}:{port}").parse().unwrap();
    let Ok(mut stream) = TcpStream::connect(to).await else {
        return 0;
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // A port that is being closed may cut the answer; then it is asked again.
    let _ = stream.read_to_string(&mut answer).await;
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

fn ports(service: &Service) -> (u16, String) {
    let spec = service.spec.as_ref().unwrap();
    let health = u16::try_from(spec.health_check_node_port.unwrap()).unwrap();
    (health, spec.cluster_ip.clone().unwrap())
}

fn tables() -> String {
    command("nft", &["list", "ruleset"])
}

fn ours() -> Value {
    json!({"service.kubernetes.io/service-proxy-name": "onehop"})
}

#[test]
fn s02_s03_follows_labels_and_lets_others_alone() {
    on_a_node(|world| async move {
        let (health, cluster_ip) = ports(&world.make_service("ours", ours()).await);
        let (other_health, other_ip) = ports(&world.make_service("other", json!({})).await);
        world.make_slice("ours").await;
        world.make_slice("other").await;
        let agent = world.agent(&[]);
        world.answers(health, "/healthz", 200).await;
        assert!(tables().contains(&format!(
            "{cluster_ip} . tcp . 80 . 0x00000000 : 10.244.1.5 . 8080"
        )));
        assert!(!tables().contains(&other_ip));
        assert_eq!(get(other_health, "/healthz").await, 0);

        // S-03: the label on the slice alone makes it headless.
        world
            .label_slice("ours-1", json!({"service.kubernetes.io/headless": ""}))
            .await;
        world.answers(health, "/healthz", 503).await;
        world
            .label_slice("ours-1", json!({"service.kubernetes.io/headless": null}))
            .await;
        world.answers(health, "/healthz", 200).await;

        // S-02: the label moves Services live, in both directions.
        world
            .label_service(
                "ours",
                json!({"service.kubernetes.io/service-proxy-name": null}),
            )
            .await;
        world.label_service("other", ours()).await;
        world.answers(health, "/healthz", 0).await;
        world.answers(other_health, "/healthz", 200).await;
        assert!(tables().contains(&other_ip) && !tables().contains(&cluster_ip));
        agent.stop().await;
    });
}

#[test]
fn s122_rules_outlive_the_agent_and_the_next_one_follows_what_changed_meanwhile() {
    on_a_node(|world| async move {
        let (health, cluster_ip) = ports(&world.make_service("lb", ours()).await);
        world.make_slice("lb").await;
        let agent = world.agent(&[]);
        world.answers(health, "/healthz", 200).await;
        agent.stop().await;
        world.answers(health, "/healthz", 0).await;
        assert!(tables().contains(&cluster_ip), "S-122");

        let removed = ports(&world.make_service("gone", ours()).await).1;
        world
            .services()
            .delete("lb", &DeleteParams::default())
            .await
            .unwrap();
        let agent = world.agent(&["--healthz-bind-address", "0.0.0.0:10356"]);
        world.answers(10356, "/healthz", 200).await;
        assert!(tables().contains(&removed) && !tables().contains(&cluster_ip));
        agent.stop().await;
    });
}

#[test]
fn i1_watches_that_end_and_expire_lose_nothing() {
    on_a_node(|world| async move {
        let (health, cluster_ip) = ports(&world.make_service("lb", ours()).await);
        world.make_slice("lb").await;
        let agent = world.agent(&[]);
        world.answers(health, "/healthz", 200).await;
        // Everything that a watch could go on from is forgotten: 410 Gone, and a new list.
        world.server.drop_watches();
        world
            .slices()
            .delete("lb-1", &DeleteParams::default())
            .await
            .unwrap();
        world.server.compact();
        world.answers(health, "/healthz", 503).await;
        assert!(tables().contains(&cluster_ip), "the Service is still there");
        world.make_slice("lb").await;
        world.answers(health, "/healthz", 200).await;
        world
            .services()
            .delete("lb", &DeleteParams::default())
            .await
            .unwrap();
        world.answers(health, "/healthz", 0).await;
        agent.stop().await;
    });
}

#[test]
fn s129_a_port_that_is_taken_ends_the_agent_only_if_asked_to() {
    on_a_node(|world| async move {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:10349")
            .await
            .unwrap();
        let strict = world.agent(&["--bind-address-hard-fail"]);
        let error = strict.task.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:10349"), "{error}");
        let agent = world.agent(&[]);
        world.answers(10356, "/healthz", 200).await;
        agent.stop().await;
        drop(taken);
    });
}
