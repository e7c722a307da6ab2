//! A world in which Helm has installed the chart: its pods run as a container runtime runs them, with the rights, arguments,
//! mounts and security context that were rendered, and carry packets.

use crate::user::{User, said};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use onehop_e2e::{
    chart::{Chart, NAMESPACE},
    controlplane::{BackEnd, OnLoopback},
    traffic::{Answer, Failure, Transport, ask_tcp, ask_udp},
    world::{
        Cluster, HttpAnswer, Install, OnTerm, ServiceManifest, World, WorldConfig, address_pool,
        chart_values, deployment, eventually,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    process::Output,
    time::Duration,
};

pub(crate) const WITHIN: Duration = Duration::from_mins(1);
pub(crate) const CONTROLLER: &str = "controller";
pub(crate) const AGENT: &str = "node-agent";
const NET_ADMIN: u64 = 1 << 12;

/// A world and those who administer it.
pub(crate) struct Installed {
    pub(crate) world: World,
    user: User,
    _open: OnLoopback,
    /// What Helm said at the end.
    notes: String,
}

/// Values for such a world. The controller, too, finds the API server without a Service: nobody proxies that one here.
pub(crate) fn values() -> Value {
    let mut values = chart_values("beside");
    let server = values["agent"]["apiServer"].clone();
    let text = |value: &Value| value.to_string().trim_matches('"').to_owned();
    values["env"] = json!([
        {"name": "KUBERNETES_SERVICE_HOST", "value": text(&server["host"])},
        {"name": "KUBERNETES_SERVICE_PORT", "value": text(&server["port"])},
    ]);
    values
}

impl Installed {
    /// Two nodes, the chart of a folder installed, and addresses to give.
    pub(crate) async fn start(chart: &str) -> Result<Self> {
        Self::start_with(chart, &values()).await
    }

    /// The same with these values.
    pub(crate) async fn start_with(chart: &str, values: &Value) -> Result<Self> {
        let world = World::start(WorldConfig {
            cluster: Cluster::on(BackEnd::Real),
            install: Install::ByHelm,
            ..WorldConfig::default()
        })
        .await?;
        let (open, kubeconfig) = world.on_loopback()?;
        let home = world.folder().join("user");
        std::fs::create_dir_all(&home)?;
        let mut installed = Self {
            world,
            user: User { kubeconfig, home },
            _open: open,
            notes: String::new(),
        };
        let install = ["install", "onehop", chart, "--create-namespace", "--wait"];
        installed.notes = installed.helm(&install, values).await?;
        installed
            .world
            .objects
            .create(address_pool("pool", "198.51.100.0/24"))
            .await?;
        Ok(installed)
    }

    /// Runs Helm with these values, which has to succeed.
    pub(crate) async fn helm(&self, args: &[&str], values: &Value) -> Result<String> {
        let output = self.try_helm(args, values).await?;
        ensure!(output.status.success(), "helm {args:?}: {}", said(&output));
        Ok(said(&output))
    }

    pub(crate) async fn try_helm(&self, args: &[&str], values: &Value) -> Result<Output> {
        let mut args = [args, &["--namespace", NAMESPACE, "--timeout", "90s"]].concat();
        // Only what renders reads values.
        let renders = matches!(args[0], "install" | "upgrade");
        if renders {
            args.extend(["--values", "-"]);
        }
        let input = if renders {
            values.to_string()
        } else {
            String::new()
        };
        self.user.run("helm", &args, &input).await
    }

    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.user.kubectl(args, &[]).await
    }

    /// The pods of a component that run, by name.
    pub(crate) async fn pods(&self, component: &str) -> Result<BTreeMap<String, Pod>> {
        let all: Api<Pod> = Api::namespaced(self.world.kube(), NAMESPACE);
        let of_it = format!("app.kubernetes.io/component={component}");
        let pods = all.list(&ListParams::default().labels(&of_it)).await?;
        Ok(pods
            .items
            .into_iter()
            .map(|pod| (pod.name_any(), pod))
            .collect())
    }

    /// Process ids of a component.
    pub(crate) async fn processes(&self, component: &str) -> Result<Vec<u32>> {
        let pods = self.pods(component).await?;
        let kubelets = &self.world.kubelets;
        let of_pod = |pod: &String| {
            let pids = kubelets.iter().map(|kubelet| kubelet.pids(NAMESPACE, pod));
            pids.flat_map(BTreeMap::into_values).collect::<Vec<u32>>()
        };
        Ok(pods.keys().flat_map(of_pod).collect())
    }

    /// Two replicas of `web`, and one of `local` for policy Local.
    pub(crate) async fn pods_of_users(&self) -> Result<()> {
        let objects = &self.world.objects;
        for (name, replicas) in [("web", 2), ("local", 1)] {
            objects
                .create(deployment(name, replicas, OnTerm::Exit))
                .await?;
        }
        for name in ["web", "local"] {
            objects.rolled_out(name, WITHIN).await?;
        }
        Ok(())
    }

    /// Serves a Service; its address once a client outside is answered.
    pub(crate) async fn serve(&self, service: ServiceManifest) -> Result<SocketAddr> {
        let service = service.json();
        let name = service["metadata"]["name"]
            .as_str()
            .context("a name")?
            .to_owned();
        self.world.objects.create(service).await?;
        let to = SocketAddr::from((self.world.lb_address(&name).await?, 80));
        let what = format!("{name} answers at {to}");
        eventually(&self.world.clock, &what, WITHIN, async || {
            let answer = self.ask(Transport::Tcp, to).await;
            answer.map(drop).map_err(|e| format!("{e:?}"))
        })
        .await?;
        Ok(to)
    }

    pub(crate) async fn ask(&self, over: Transport, to: SocketAddr) -> Result<Answer, Failure> {
        let sockets = &self.world.sockets;
        let answer = match over {
            Transport::Tcp => ask_tcp(sockets, to).await,
            Transport::Udp => ask_udp(sockets, to).await,
        };
        answer.map(|(answer, _)| answer)
    }

    /// Which client the pods see over both transports, in some tries.
    async fn seen(&self, to: SocketAddr) -> Result<Vec<IpAddr>> {
        let mut seen = Vec::new();
        for over in [Transport::Tcp, Transport::Udp].repeat(6) {
            let answer = self.ask(over, to).await;
            let answer = answer.map_err(|e| anyhow::anyhow!("{over:?} to {to}: {e:?}"))?;
            seen.push(answer.peer.ip());
        }
        seen.sort();
        seen.dedup();
        Ok(seen)
    }

    pub(crate) fn health(&self, node: usize, port: u16) -> Result<HttpAnswer> {
        let to = SocketAddr::from((self.world.nodes[node].address(), port));
        self.world.http_get(to, "/healthz")
    }
}

/// A field of `/proc/<pid>/status`.
fn status(pid: u32, field: &str) -> Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    Ok(line
        .context("a field")?
        .trim_start_matches(':')
        .trim()
        .to_owned())
}

/// What the kernel says of a process is what was rendered.
fn judged(pid: u32, args: &[String], user: u32, capabilities: u64) -> Result<()> {
    let ids = status(pid, "Uid")?;
    assert!(
        ids.split_whitespace().all(|id| id == user.to_string()),
        "C-53: {ids}"
    );
    for set in ["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"] {
        let most = match set {
            "CapInh" | "CapAmb" => 0,
            _ => capabilities,
        };
        let has = u64::from_str_radix(&status(pid, set)?, 16)?;
        assert_eq!(has, most, "C-53: {set} of {args:?}");
    }
    assert_eq!(status(pid, "NoNewPrivs")?, "1", "C-53");
    let filtered = status(pid, "Seccomp")?;
    assert_eq!(filtered, "2", "C-53: the runtime's default profile");
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    for point in ["/", "/proc/sys"] {
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(4) == Some(point));
        let options = line.and_then(|line| line.split(' ').nth(5));
        let locked = options.is_some_and(|all| all.split(',').any(|one| one == "ro"));
        assert!(locked, "C-53: {point}: {line:?}");
    }
    let words = std::fs::read(format!("/proc/{pid}/cmdline"))?;
    let words: Vec<_> = words
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    assert_eq!(words[1..words.len() - 1], *args);
    Ok(())
}

/// Ports that the page on threats gives a program, each with its purpose.
fn ports_with_a_purpose(component: &str) -> Result<BTreeSet<u16>> {
    let page = Chart::folder().join("../../docs/threat-model.md");
    let page = std::fs::read_to_string(page)?;
    let (_, table) = page.split_once("## Ports").context("a heading")?;
    let who = component.trim_start_matches("node-");
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (ports, whose) = (cells.next()?, cells.next()?);
        (whose == who).then_some(ports)
    });
    let numbers = rows.flat_map(|ports| ports.split(|c: char| !c.is_ascii_digit()));
    Ok(numbers.filter_map(|number| number.parse().ok()).collect())
}

/// TCP ports on which somebody listens in the network namespace of a process.
fn listening(pid: u32) -> Result<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // The fourth is the state.
            if words.get(3) == Some(&"0A") {
                let port = words[1].rsplit(':').next().context("a port")?;
                ports.insert(u16::from_str_radix(port, 16)?);
            }
        }
    }
    Ok(ports)
}

/// C-53, C-69, S-314, K-25: installed by Helm, with nothing but what it rendered, both modes and both policies serve.
#[tokio::test(flavor = "multi_thread")]
async fn c53_c69_s314_k25_the_installed_chart_carries_packets() -> Result<()> {
    let installed = Installed::start(&Chart::folder().display().to_string()).await?;
    notes(&installed.notes);
    let rendered = Chart::of_this_build()?.render(&values())?;
    for (component, program, user, capabilities) in [
        (CONTROLLER, rendered.controller()?, 65532, 0),
        (AGENT, rendered.agent()?, 0, NET_ADMIN),
    ] {
        let pids = installed.processes(component).await?;
        assert_eq!(pids.len(), 2, "{component}: one a node, or two replicas");
        for pid in pids {
            judged(pid, &program.args()?, user, capabilities)?;
            let open = listening(pid)?;
            let known = ports_with_a_purpose(component)?;
            assert!(!open.is_empty() && open.is_subset(&known), "C-53: {open:?}");
        }
    }

    installed.pods_of_users().await?;
    let world = &installed.world;
    let nodes: Vec<IpAddr> = world
        .nodes
        .iter()
        .map(|node| node.address().into())
        .collect();
    let client = IpAddr::from(world.client.address());
    let cluster = installed
        .serve(ServiceManifest::load_balancer("cluster", "web"))
        .await?;
    let masqueraded = installed.seen(cluster).await?;
    assert!(
        masqueraded
            .iter()
            .all(|one| !one.is_loopback() && *one != client),
        "S-62: {masqueraded:?}"
    );
    let pods = ServiceManifest::load_balancer("pods", "web").pod_mode();
    let pods = installed.serve(pods).await?;
    assert_eq!(installed.seen(pods).await?, [client], "pod mode");
    let local = ServiceManifest::load_balancer("local", "local")
        .with("externalTrafficPolicy", json!("Local"));
    let local = installed.serve(local).await?;
    assert_eq!(installed.seen(local).await?, [client], "S-63");

    // S-101: the node with the pod, and it alone, says that it has one.
    let answer = installed
        .ask(Transport::Tcp, local)
        .await
        .map_err(|e| anyhow::anyhow!("{e:?}"))?;
    let spec = world
        .objects
        .service("local")
        .await?
        .spec
        .context("a spec")?;
    let port = u16::try_from(spec.health_check_node_port.context("a health port")?)?;
    for (index, node) in world.nodes.iter().enumerate() {
        let wanted = if node.name() == answer.node { 200 } else { 503 };
        assert_eq!(
            installed.health(index, port)?.status,
            wanted,
            "S-101: {}",
            node.name()
        );
    }
    assert_eq!(nodes.len(), 2);

    // S-406: a strict filter of the way to the pods is loosened, though no container writes files of the kernel.
    for node in &world.nodes {
        let path = "/proc/sys/net/ipv4/conf/eth1/rp_filter";
        let what = format!("{path} of node {}", node.name());
        eventually(&world.clock, &what, WITHIN, async || {
            match world.on_node(node.name(), "cat", &[path]) {
                Ok(text) if text.trim() == "2" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
    }

    for name in ["cluster", "pods", "local"] {
        world.objects.delete_service(name).await?;
        world.service_gone(name).await?;
    }
    logs_say_whose_they_are(&installed).await?;
    installed.end().await
}

/// C-66 and C-83: what was installed, how it stands, and how to go without Services that hang.
fn notes(said: &str) {
    for part in [
        "Install id: e2e (provider local)",
        "runs beside kube-proxy",
        "kubectl get loadbalancers.onehop.dev -A",
        "kubectl -n onehop-system get pods",
        "delete the Services of these classes first",
        "kubectl onehop uninstall --install-id e2e -A",
        "helm -n onehop-system uninstall onehop",
        "kubectl delete crd addresspools.onehop.dev loadbalancers.onehop.dev nodetargets.onehop.dev",
    ] {
        assert!(said.contains(part), "C-66: {part}: {said}");
    }
}

/// C-113: JSON, an object a line; the controller's with its install, the agent's with its node; what is about a Service
/// names it.
async fn logs_say_whose_they_are(installed: &Installed) -> Result<()> {
    for (component, container, field) in [
        (CONTROLLER, "controller", "install"),
        (AGENT, "agent", "node"),
    ] {
        let mut of_services = 0;
        for (name, pod) in installed.pods(component).await? {
            let uid = pod.uid().context("a UID")?;
            let folder = installed
                .world
                .folder()
                .join(format!("{NAMESPACE}_{name}_{uid}"));
            let log = std::fs::read_to_string(folder.join(format!("{container}.log")))?;
            let node = pod.spec.and_then(|spec| spec.node_name);
            let whose = if field == "node" {
                node.context("a node")?
            } else {
                "e2e".to_owned()
            };
            for line in log.lines() {
                let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
                assert_eq!(line[field], json!(whose), "C-113: {line}");
                of_services += usize::from(line["service"] == "default/cluster");
                if line["message"] == "cloud call" {
                    let shard = line["shard"].as_str().unwrap_or_default();
                    assert!(shard.starts_with("default/"), "C-113: {line}");
                    assert_eq!(line["service"], line["shard"], "C-113: {line}");
                }
            }
            assert!(log.lines().count() > 0, "C-113: {name}");
        }
        assert!(of_services > 0 || component == AGENT, "C-113: {component}");
    }
    Ok(())
}

impl Installed {
    pub(crate) async fn end(self) -> Result<()> {
        self.world.end().await
    }
}
