//! How the program starts, and what it says where it cannot (docs/bad-input.md): the real binary in a network namespace of
//! the test's own, against the embedded API server without our kinds. Needs root, and setpriv.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

#[path = "../../e2e/src/documented.rs"]
mod documented;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use e2e_apiserver::{ApiServer, Config as ApiConfig, Identity, Serving};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onehop_nft::Socket;
use onehop_node_agent::startup;
use onehop_node_agent::table::layout::{Detector, Options};
use onehop_runtime::clock::Clock;
use serde_json::json;

const BINARY: &str = env!("CARGO_BIN_EXE_onehop-node-agent");
const NODE: &str = "10.0.1.1";
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the test on a thread in a fresh network namespace whose loopback has the node's address.
fn on_a_node<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace needs root");
        run("ip", &["link", "set", "lo", "up"]);
        run(
            "ip",
            &["address", "add", &format!("{NODE}/32"), "dev", "lo"],
        );
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async { test(World::new().await).await });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
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
    clock: Clock,
    folder: PathBuf,
    kubeconfig: PathBuf,
    _serving: Serving,
}

/// A process of the agent; killed when it is dropped.
struct Agent {
    child: Child,
    log: PathBuf,
    socket: String,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl World {
    async fn new() -> Self {
        let clock = Clock::system();
        let server = ApiServer::start(clock, ApiConfig::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let serving = server.serve_tls(listener, &[]).unwrap();
        let identity = Identity::service_account("onehop-system", "node-agent");
        let url = format!("https://{}", serving.address());
        let kubeconfig = server.kubeconfig(&url, &identity).unwrap();
        let thread = format!("{:?}", std::thread::current().id());
        let name = format!("onehop-start-{}-{thread}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("kubeconfig");
        std::fs::write(&path, kubeconfig).unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
        }))
        .unwrap();
        let nodes = Api::all(server.client(&Identity::admin()));
        nodes.create(&PostParams::default(), &node).await.unwrap();
        Self {
            server,
            clock,
            folder,
            kubeconfig: path,
            _serving: serving,
        }
    }

    fn agent(&self, name: &str, socket: &str) -> Agent {
        let log = self.folder.join(name);
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(BINARY)
            .args([
                "--node-name",
                "n1",
                "--log-format",
                "text",
                "--ready-socket",
                socket,
            ])
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .stderr(file.try_clone().unwrap())
            .stdout(file)
            .spawn()
            .unwrap();
        Agent {
            child,
            log,
            socket: socket.to_owned(),
        }
    }

    async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = self.clock.now() + PATIENCE;
        while !holds().await {
            assert!(self.clock.now() < deadline, "never came true: {what}");
            self.clock.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until an agent's log has the documented message.
    async fn says(&self, agent: &Agent, case: &str) {
        let text = documented::text(case);
        let parts: Vec<&str> = text.split('…').collect();
        let said = |line: &str| parts.iter().all(|part| line.contains(part));
        let what = format!("{}: {text}", agent.log.display());
        self.eventually(&what, async || read(&agent.log).lines().any(said))
            .await;
    }

    async fn ready(&self, agent: &Agent) {
        let what = format!("{} is in sync: {}", agent.socket, read(&agent.log));
        self.eventually(&what, async || ready(&agent.socket) == "in sync")
            .await;
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// What the exec probe says on a socket.
fn ready(socket: &str) -> String {
    let output = Command::new(BINARY)
        .args(["ready", "--ready-socket", socket])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[test]
fn s314_without_the_privilege_it_ends_with_status_3_and_says_what_is_missing() {
    on_a_node(|world| async move {
        let settings = || {
            let names = ["tcp_migrate_req", "ip_local_reserved_ports"];
            names.map(|name| read(&Path::new("/proc/sys/net/ipv4").join(name)))
        };
        let before = settings();
        let output = Command::new("setpriv")
            .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", BINARY])
            .args(["--node-name", "n1", "--kubeconfig"])
            .arg(&world.kubeconfig)
            .stdin(Stdio::null())
            .output()
            .expect("setpriv of util-linux");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(i32::from(startup::EXIT)),
            "S-314: {said}"
        );
        assert!(
            said.contains(&documented::text("no-net-admin")),
            "S-314: {said}"
        );
        assert_eq!(run("nft", &["list", "tables"]), "", "nothing was written");
        // Root may change settings of the kernel without the privilege.
        assert_eq!(settings(), before, "S-98, S-314: nothing was changed");
    });
}

#[test]
fn a_kernel_that_has_everything_passes_and_nothing_of_the_check_stays() {
    on_a_node(|_| async {
        let options = Options {
            masquerade_mark: 0x4000,
            masquerade_all: false,
            masquerade_ports: Vec::new(),
            detector: Detector::Ranges(vec![
                "10.244.0.0/16".parse().unwrap(),
                "fd00:10:244::/56".parse().unwrap(),
            ]),
            beside_kube_proxy: false,
            before_iptables: false,
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        };
        let mut socket = Socket::open().unwrap();
        startup::check(&mut socket, &options).unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), "");
    });
}

#[test]
fn k26_k55_a_second_agent_stands_by_and_takes_over_when_the_first_ends() {
    on_a_node(|world| async move {
        let socket = "@onehop-start-first";
        let first = world.agent("first", socket);
        world.ready(&first).await;
        world.says(&first, "crds-missing-agent").await;
        // K-55: with a readiness socket of its own, as the chart gives each pod one.
        let second = world.agent("second", "@onehop-start-second");
        world.says(&second, "two-agents").await;
        world
            .eventually("it is in standby", async || {
                ready(&second.socket) == "standby"
            })
            .await;
        // And one that was given the same socket: it waits for that too, and does not end.
        let third = world.agent("third", socket);
        world.says(&third, "two-agents").await;
        world.says(&third, "readiness-socket").await;
        let rules = run("nft", &["list", "ruleset"]);
        assert!(rules.contains("table ip onehop"), "K-55: {rules}");
        let pid = Pid::from_raw(i32::try_from(first.child.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        world
            .eventually("K-55: one of the others has them", async || {
                [&second.socket, &third.socket]
                    .iter()
                    .any(|s| ready(s) == "in sync")
            })
            .await;
        assert_eq!(
            run("nft", &["list", "ruleset"]),
            rules,
            "K-55, S-121: the same rules"
        );
    });
}

/// Asks without a pause until it is told to stop: how often, and each time that there was no answer of 200.
fn probe(to: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<(usize, Vec<String>)> {
    let ask = move || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    };
    std::thread::spawn(move || {
        let (mut asked, mut missed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            asked += 1;
            match ask() {
                Ok(status) if status == "HTTP/1.1 200 OK" => {}
                other => missed.push(format!("question {asked}: {other:?}")),
            }
        }
        (asked, missed)
    })
}

#[test]
fn zd36_k55_probes_find_somebody_while_one_agent_follows_another() {
    const HEALTH: u16 = 30_034;
    on_a_node(|world| async move {
        make_local(&world, "lb", HEALTH).await;
        let mut old = world.agent("agent-0", "@onehop-start-follow-0");
        world.ready(&old).await;
        let doors = [(NODE, HEALTH), ("127.0.0.1", 10356)];
        let doors = doors.map(|(address, port)| SocketAddr::new(address.parse().unwrap(), port));
        for door in doors {
            world
                .eventually("it answers", async || {
                    tokio::net::TcpStream::connect(door).await.is_ok()
                })
                .await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let probes = doors.map(|door| probe(door, stop.clone()));
        for number in 1..=3 {
            let name = format!("agent-{number}");
            let new = world.agent(&name, &format!("@onehop-start-follow-{number}"));
            world
                .eventually("it is in standby", async || ready(&new.socket) == "standby")
                .await;
            let pid = Pid::from_raw(i32::try_from(old.child.id()).unwrap());
            kill(pid, Signal::SIGTERM).unwrap();
            world
                .eventually("the old one has ended by itself", async || {
                    old.child.try_wait().unwrap().is_some()
                })
                .await;
            assert_eq!(ready(&new.socket), "in sync", "ZD-36: it ends last");
            old = new;
        }
        stop.store(true, Ordering::Relaxed);
        for (door, probe) in doors.iter().zip(probes) {
            let (asked, missed) = probe.join().unwrap();
            assert!(asked > 0, "{door}");
            assert_eq!(missed, [""; 0], "ZD-36: {door}, of {asked} questions");
        }
    });
}

#[test]
fn s129_a_port_of_its_own_that_is_taken_is_said_and_everything_else_works() {
    on_a_node(|world| async move {
        let taken = TcpListener::bind("127.0.0.1:10349").unwrap();
        let agent = world.agent("agent", "@onehop-start-ports");
        world.ready(&agent).await;
        world.says(&agent, "agent-port-taken").await;
        drop(taken);
        world
            .eventually("S-129: it is opened once it is free", async || {
                tokio::net::TcpStream::connect("127.0.0.1:10349")
                    .await
                    .is_ok()
            })
            .await;
    });
}

#[test]
fn s105_a_health_check_node_port_that_another_process_has_is_an_event_and_opened_once_it_is_free() {
    on_a_node(|world| async move {
        let client = world.server.client(&Identity::admin());
        let services: Api<Service> = Api::default_namespaced(client.clone());
        // Of the ports that are never given to somebody who asked for none, as its own node port.
        let taken = TcpListener::bind(format!("{NODE}:30034")).unwrap();
        let service = serde_json::from_value(json!({
            "metadata": {"name": "lb", "labels": {"service.kubernetes.io/service-proxy-name": "onehop"}},
            "spec": {
                "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30034,
                "ports": [{"port": 80, "targetPort": 8080}],
            },
        }))
        .unwrap();
        services
            .create(&PostParams::default(), &service)
            .await
            .unwrap();
        let agent = world.agent("agent", "@onehop-start-health");
        world.ready(&agent).await;
        let events: Api<Event> = Api::default_namespaced(client);
        let row = documented::row("health-port-taken");
        world
            .eventually(&row.text, async || {
                let all = events.list(&ListParams::default()).await.unwrap();
                all.items.iter().any(|event| {
                    let message = event.message.as_deref().unwrap_or_default();
                    event.reason == row.reason && documented::says("health-port-taken", message)
                })
            })
            .await;
        drop(taken);
        world
            .eventually("S-105: it is opened by a timer", async || {
                tokio::net::TcpStream::connect((NODE, 30034)).await.is_ok()
            })
            .await;
    });
}

/// A LoadBalancer Service with policy Local and this health port, and a ready endpoint on this node.
async fn make_local(world: &World, name: &str, port: u16) {
    let client = world.server.client(&Identity::admin());
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"service.kubernetes.io/service-proxy-name": "onehop"}},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port,
            // Node ports of its own would be given from the same numbers.
            "allocateLoadBalancerNodePorts": false,
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    }))
    .unwrap();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.244.1.5"], "nodeName": "n1", "conditions": {"ready": true}}],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }))
    .unwrap();
    let params = PostParams::default();
    let services: Api<Service> = Api::default_namespaced(client.clone());
    services.create(&params, &service).await.unwrap();
    let slices: Api<EndpointSlice> = Api::default_namespaced(client);
    slices.create(&params, &slice).await.unwrap();
}

fn descriptors(agent: &Agent) -> usize {
    let folder = format!("/proc/{}/fd", agent.child.id());
    std::fs::read_dir(folder).unwrap().count()
}

/// Health ports come and go by the hundred, with connections open that nobody closes: every descriptor is given back.
#[test]
fn s105_health_ports_that_come_and_go_leave_no_descriptor_behind() {
    const PORTS: std::ops::Range<u16> = 30_100..30_160;
    const ROUNDS: usize = 4;
    // Connections to the API server, of which a client keeps some.
    const FEW: usize = 6;
    on_a_node(|world| async move {
        let client = world.server.client(&Identity::admin());
        let services: Api<Service> = Api::default_namespaced(client.clone());
        let slices: Api<EndpointSlice> = Api::default_namespaced(client);
        let agent = world.agent("agent", "@onehop-start-descriptors");
        world.ready(&agent).await;
        let before = descriptors(&agent);
        for round in 0..ROUNDS {
            let mut open = Vec::new();
            for port in PORTS {
                make_local(&world, &format!("lb-{port}"), port).await;
            }
            for port in PORTS {
                let what = format!("S-105, round {round}: {port} is open");
                world
                    .eventually(&what, async || {
                        let connected = tokio::net::TcpStream::connect((NODE, port)).await;
                        open.extend(connected);
                        open.len() > usize::from(port - PORTS.start)
                    })
                    .await;
            }
            let most = descriptors(&agent);
            assert!(
                most >= before + PORTS.len(),
                "{before} before, {most} with all of them"
            );
            for port in PORTS {
                let (name, params) = (format!("lb-{port}"), DeleteParams::default());
                services.delete(&name, &params).await.unwrap();
                slices.delete(&name, &params).await.unwrap();
            }
            // The clients never close: a port that goes takes its connections along.
            let what = format!("S-105, round {round}: about {before} descriptors again");
            world
                .eventually(&what, async || descriptors(&agent) <= before + FEW)
                .await;
            drop(open);
        }
    });
}

fn asked(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(BINARY).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The commands for people on a node, as in `kubectl exec`.
#[test]
fn s207_s312_what_is_programmed_is_printed_and_verified_on_the_node() {
    on_a_node(|world| async move {
        let nobody = asked(&["dump"]);
        assert!(
            !nobody.0 && nobody.1.contains("no agent answers"),
            "{nobody:?}"
        );
        make_local(&world, "lb", 30_200).await;
        let agent = world.agent("agent", "@onehop-start-dump");
        world.ready(&agent).await;
        world
            .eventually("the metrics port is open", async || asked(&["dump"]).0)
            .await;
        for arguments in [&["dump"][..], &["dump", "default/lb"]] {
            let (good, text) = asked(arguments);
            let served = "10.244.1.5:8080";
            assert!(
                good && text.starts_with("default/lb\n") && text.contains(served),
                "S-207: {text}"
            );
        }
        let (good, text) = asked(&["verify", "--from", "127.0.0.1:10349"]);
        assert!(
            good && text == "the kernel holds what it should\n",
            "S-312, S-264: {text}"
        );
        let wrong = asked(&["dump", "lb"]);
        assert!(!wrong.0 && wrong.1.contains("NAMESPACE/NAME"), "{wrong:?}");
    });
}
