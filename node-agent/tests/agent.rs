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
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sched::{CloneFlags, unshare};
use onehop_core::time::Time;
use onehop_node_agent::args::Args;
use onehop_node_agent::commit::{Features, Kernel};
use onehop_node_agent::run::{Parts, run};
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
        self.agent_on(Features::detect(), flags)
    }

    fn agent_on(&self, features: Features, flags: &[&str]) -> Agent {
        let always = [
            "onehop-node-agent",
            "--node-name",
            "n1",
            "--cluster-cidr",
            "10.244.0.0/16",
        ];
        let args = Args::try_parse_from(always.iter().chain(flags)).unwrap();
        let config = args.resolve().unwrap();
        let clock = self.clock;
        let now = Box::new(move || clock.now());
        let kernel = Kernel::open(&config.options(), features, now).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(Parts {
            config,
            client: self.client.clone(),
            registry: onehop_runtime::metrics::Metrics::default(),
            dataplane: Box::new(kernel.awaiting_ranges()),
            uplinks: None,
            clock,
            rng: SmallRng::seed_from_u64(1),
            stop: stop.clone(),
        }));
        Agent { task, stop }
    }

    /// Waits for an event with this reason.
    async fn event(&self, reason: &str) {
        let events: Api<Event> = Api::all(self.client.clone());
        let deadline = self.clock.now() + PATIENCE;
        loop {
            let all = events.list(&ListParams::default()).await.unwrap();
            if all
                .iter()
                .any(|event| event.reason.as_deref() == Some(reason))
            {
                return;
            }
            assert!(self.clock.now() < deadline, "no event {reason}");
            self.clock.sleep(Duration::from_millis(20)).await;
        }
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

        // S-03, DI-59: the label on the slice alone makes it headless.
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

/// Waits until the ruleset has (or has not) a text in it.
async fn ruleset(world: &World, text: &str, wanted: bool) {
    let deadline = world.clock.now() + PATIENCE;
    while tables().contains(text) != wanted {
        assert!(
            world.clock.now() < deadline,
            "{text}: {wanted}: {}",
            tables()
        );
        world.clock.sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn s123_s261_where_tables_cannot_be_owned_a_foreign_change_is_mended_at_once() {
    on_a_node(|world| async move {
        let (health, cluster_ip) = ports(&world.make_service("lb", ours()).await);
        world.make_slice("lb").await;
        let features = Features {
            owned_tables: false,
            ..Features::detect()
        };
        let agent = world.agent_on(features, &[]);
        world.answers(health, "/healthz", 200).await;
        // S-262: a second time within a minute it is a fight, and mended after a pause.
        for round in 0..2 {
            command("nft", &["delete", "table", "ip", "onehop"]);
            ruleset(&world, &cluster_ip, true).await;
            let all = metrics().await;
            let repairs = format!(
                "onehop_node_repairs_total{{cause=\"foreign\"}} {}",
                round + 1
            );
            assert!(all.contains(&repairs), "S-262: {all}");
        }
        agent.stop().await;
    });
}

async fn metrics() -> String {
    page("/metrics").await
}

/// A page of the metrics port.
async fn page(path: &str) -> String {
    let mut stream = TcpStream::connect("127.0.0.1:10349").await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn s125_beside_a_living_kube_proxy_the_only_proxy_refuses_and_says_so() {
    on_a_node(|world| async move {
        let (health, cluster_ip) = ports(&world.make_service("lb", ours()).await);
        world.make_slice("lb").await;
        let kube_proxy = std::net::TcpListener::bind("0.0.0.0:10256").unwrap();
        // On a thread of its own: the agent's first look at the port waits for the answer.
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = kube_proxy.accept() {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = std::io::Write::write_all(&mut stream, answer);
            }
        });
        let flags = [
            "--mode",
            "replace",
            "--healthz-bind-address",
            "0.0.0.0:10356",
        ];
        let agent = world.agent(&flags);
        world.answers(10356, "/healthz", 503).await;
        world.event("KubeProxyRunning").await;
        assert!(!tables().contains(&cluster_ip), "S-125");
        assert_eq!(get(10356, "/healthz").await, 503, "S-125");
        agent.stop().await;
        let agent = world.agent(&[&flags[..], &["--override-kube-proxy"]].concat());
        world.answers(health, "/healthz", 200).await;
        assert!(tables().contains(&cluster_ip), "S-125: overridden");
        agent.stop().await;
    });
}

#[test]
fn s26_the_only_proxy_follows_the_service_ranges_of_the_api() {
    on_a_node(|world| async move {
        let (_, cluster_ip) = ports(&world.make_service("plain", json!({})).await);
        let agent = world.agent(&["--mode", "replace"]);
        world.answers(10356, "/healthz", 200).await;
        assert!(
            tables().contains(&cluster_ip),
            "S-02: an unlabelled Service is ours"
        );
        assert!(
            !tables().contains("10.77.0.0/16"),
            "S-26: no range, no drop"
        );
        let cidrs: Api<ServiceCIDR> = Api::all(world.client.clone());
        let cidr: ServiceCIDR = object(json!({
            "metadata": {"name": "more"},
            "spec": {"cidrs": ["10.77.0.0/16"]},
        }));
        cidrs.create(&PostParams::default(), &cidr).await.unwrap();
        ruleset(&world, "ip daddr 10.77.0.0/16 drop", true).await;
        cidrs
            .delete("more", &DeleteParams::default())
            .await
            .unwrap();
        ruleset(&world, "10.77.0.0/16", false).await;
        agent.stop().await;
    });
}

#[test]
fn s310_s300_the_metrics_port_says_the_mode_and_upstreams_metrics() {
    on_a_node(|world| async move {
        let agent = world.agent(&[]);
        world.answers(10356, "/healthz", 200).await;
        assert!(
            page("/proxyMode").await.ends_with("\r\n\r\nnftables"),
            "S-310"
        );
        let configz = page("/configz").await;
        assert!(configz.contains("\"masqueradeBit\":14"), "S-310: {configz}");
        let all = metrics().await;
        for name in [
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "kubeproxy_proxy_healthz_total",
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
        ] {
            assert!(all.contains(name), "S-300: {name}: {all}");
        }
        agent.stop().await;
    });
}
