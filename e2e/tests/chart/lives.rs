//! An installed release under load: upgraded from an earlier commit's chart, restarted by a change of values, rolled back,
//! and uninstalled. No connection fails, no load balancer finds a target unhealthy, and nothing is left behind.

use crate::{
    install::earlier,
    installed::{AGENT, Installed, WITHIN, values},
    rights::rights,
    user::said,
};
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{TargetState, What};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use onehop_core::crd::{AddressPool, INSTALL_LABEL};
use onehop_e2e::{
    chart::{Chart, NAMESPACE},
    controlplane::Refused,
    scenario::Rollout,
    world::{Programs, ServiceManifest, World, eventually, http_get},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// How the accounts of the release begin.
const ACCOUNTS: &str = "system:serviceaccount:onehop-system:";
/// Between two questions for health.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// The chart of the commit before the last one that changed it. Without history (a shallow clone) a copy of this one with
/// another version and other object types, and that is said.
fn earlier_commit(folder: &Path) -> Result<String> {
    let git = |args: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new("git")
            .current_dir(Chart::folder())
            .args(args)
            .output()
            .context("run git")?;
        ensure!(output.status.success(), "git {args:?}: {}", said(&output));
        Ok(output.stdout)
    };
    let found = git(&["log", "-n", "1", "--skip=1", "--format=%H", "--", "."]);
    let commit = String::from_utf8(found.unwrap_or_default())?;
    let commit = commit.trim();
    if commit.is_empty() {
        eprintln!("no earlier commit is at hand: upgrading from a copy of this chart");
        return earlier(folder);
    }
    eprintln!("upgrading from the chart of {commit}");
    let archive = folder.join("chart.tar");
    std::fs::write(&archive, git(&["archive", commit, "."])?)?;
    let to = folder.join("of-commit");
    std::fs::create_dir_all(&to)?;
    let status = Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&to)
        .status()?;
    ensure!(status.success(), "tar: {status}");
    Ok(to.display().to_string())
}

/// What a node answered.
#[derive(Debug, Default)]
struct Answers {
    asked: usize,
    missed: Vec<String>,
}

/// Asks every node for its health all the time.
struct HealthWatch {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Answers>>,
}

impl HealthWatch {
    fn start(world: &World, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for node in &world.nodes {
            let to = SocketAddr::from((node.address(), port));
            let (netns, stop) = (world.lb_node().netns().clone(), Arc::clone(&stop));
            threads.push(std::thread::spawn(move || {
                let mut answers = Answers::default();
                while !stop.load(Ordering::Relaxed) {
                    answers.asked += 1;
                    match http_get(&netns, to, "/healthz") {
                        Ok(answer) if answer.status == 200 => {}
                        other => answers.missed.push(format!("{other:?}")),
                    }
                    std::thread::sleep(ASK_EVERY);
                }
                answers
            }));
        }
        Self { stop, threads }
    }

    /// What each node answered.
    fn end(self) -> Result<Vec<Answers>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(std::thread::JoinHandle::join);
        ended
            .map(|answers| answers.map_err(|_| anyhow::anyhow!("it panicked")))
            .collect()
    }
}

/// A request in the API server's log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logged {
    verb: String,
    user: LoggedUser,
    object_ref: Option<LoggedObject>,
}

#[derive(Deserialize)]
struct LoggedUser {
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct LoggedObject {
    resource: String,
    #[serde(default)]
    name: String,
    subresource: Option<String>,
}

/// By node, the pods that wrote the status of its NodeTargets, in the order of their writes, each as often as it took turns.
fn writers(world: &World) -> Result<BTreeMap<String, Vec<String>>> {
    let log = std::fs::read_to_string(world.folder().join("audit.log"))?;
    let mut turns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in log.lines() {
        let logged: Logged = serde_json::from_str(line)?;
        let Some(object) = logged
            .object_ref
            .filter(|o| o.resource == "nodetargets" && o.subresource.as_deref() == Some("status"))
        else {
            continue;
        };
        let pod = logged
            .user
            .extra
            .get("authentication.kubernetes.io/pod-name");
        let pod = pod
            .and_then(|names| names.first())
            .context("a pod's token")?;
        ensure!(logged.verb == "patch", "{}", logged.verb);
        let of_node = turns.entry(object.name).or_default();
        if of_node.last() != Some(pod) {
            of_node.push(pod.clone());
        }
    }
    Ok(turns)
}

/// The tables of ours on a node.
fn tables(world: &World, node: &str) -> Result<Vec<String>> {
    let all = world.on_node(node, "nft", &["list", "tables"])?;
    let ours = all.lines().filter(|line| line.contains("onehop"));
    Ok(ours.map(str::to_owned).collect())
}

/// C-69, C-82, C-84, K-55, ZD-36: the whole life of a release, under load, controller first and agent first. No minor version
/// is published yet: the chart is that of an earlier commit, the programs are of this build.
#[tokio::test(flavor = "multi_thread")]
async fn c69_c82_c84_k55_a_release_lives_and_goes_under_load() -> Result<()> {
    let home = tempfile()?;
    let earlier = earlier_commit(&home)?;
    let chart = Chart::folder().display().to_string();
    let installed = Installed::start(&earlier).await?;
    let world = &installed.world;
    installed.pods_of_users().await?;
    let to = installed
        .serve(ServiceManifest::load_balancer("cluster", "web"))
        .await?;
    let pods = ServiceManifest::load_balancer("pods", "web").pod_mode();
    let pods = installed.serve(pods).await?;
    let before = installed.pods(AGENT).await?;
    let health = HealthWatch::start(world, world.cluster.proxy.health_port());
    let restarted = |controller: &str, agent: &str| {
        let mut values = values();
        values["podAnnotations"] = json!({"onehop.dev/test": controller});
        values["agent"]["podAnnotations"] = json!({"onehop.dev/test": agent});
        values
    };
    let wait = |args: &[&'static str]| [args, &["--wait"]].concat();
    let change = async || {
        let mut upgrade: Vec<&str> = wait(&["upgrade", "onehop"]);
        upgrade.insert(2, &chart);
        // The controller first; both back at once; the agents first.
        for (controller, agent) in [("1", "0"), ("1", "1")] {
            let values = restarted(controller, agent);
            installed.helm(&upgrade, &values).await?;
        }
        installed
            .helm(&wait(&["rollback", "onehop", "1"]), &values())
            .await?;
        for (controller, agent) in [("0", "2"), ("2", "2")] {
            let values = restarted(controller, agent);
            installed.helm(&upgrade, &values).await?;
        }
        Ok(())
    };
    let to_nodes = Rollout { world, address: to };
    let to_pods = Rollout {
        world,
        address: pods,
    };
    let done = Arc::new(tokio::sync::Notify::new());
    let (first, second) = tokio::join!(
        to_nodes.during(async || {
            let changed = change().await;
            done.notify_one();
            changed
        }),
        to_pods.during(async || {
            done.notified().await;
            Ok(())
        }),
    );
    let answers = health.end()?;
    for (mode, report) in [("node", first?), ("pod", second?)] {
        eprintln!(
            "{mode}: {} connections, {} datagrams, {} failed, {} SYN sent again, {} ms",
            report.connections, report.datagrams, report.failed, report.syn_retx, report.rollout_ms
        );
        assert_eq!(report.failed, 0, "C-84: {mode}: {:#?}", report.failures);
        assert!(report.kept_rate > 0.9, "{mode}: {}", report.kept_rate);
        assert!(report.connections > 500, "{mode}: {}", report.connections);
    }
    for of_node in &answers {
        assert!(of_node.asked > 200, "{answers:?}");
        assert_eq!(
            of_node.missed, [""; 0],
            "ZD-36: of {} questions",
            of_node.asked
        );
    }
    let mut turned = world.cloud.events_after(0, usize::MAX);
    turned.retain(|event| {
        let unhealthy = TargetState::Unhealthy;
        matches!(event.what, What::TargetState { state, .. } if state == unhealthy)
    });
    assert!(turned.is_empty(), "ZD-36: {turned:?}");

    // Each node had agents one after the other, of which none wrote again once the next one had.
    let after: BTreeSet<String> = installed.pods(AGENT).await?.into_keys().collect();
    assert!(before.keys().all(|pod| !after.contains(pod)), "{after:?}");
    for (node, turns) in writers(world)? {
        let once: BTreeSet<&String> = turns.iter().collect();
        assert_eq!(once.len(), turns.len(), "K-55: node {node}: {turns:?}");
        assert!(turns.len() > 1, "node {node}: {turns:?}");
    }

    refused_while_services_are_left(&installed).await?;
    for name in ["cluster", "pods"] {
        world.objects.delete_service(name).await?;
        world.service_gone(name).await?;
    }
    assert_eq!(world.refused()?, [], "C-53: as long as it was installed");
    installed
        .helm(&["uninstall", "onehop", "--wait"], &Value::Null)
        .await?;
    left_behind(&installed).await?;
    // Helm takes rights away while the pods that had them still end.
    let last = world.refused()?;
    let own = |refused: &Refused| refused.request.user.starts_with(ACCOUNTS);
    assert!(last.iter().all(own), "C-53: {last:#?}");
    installed.end().await?;
    std::fs::remove_dir_all(home)?;
    Ok(())
}

/// C-53: of the rights that are there after an uninstall only, all were used. A patch is for entries beside those of other
/// installs, of which there are none here (`c82_k21_node_targets_go_with_the_last_install_that_has_an_entry`).
fn clean_up_needs_its_rights(world: &World) -> Result<()> {
    let name = "onehop-uninstall-clean-up";
    let rendered = Chart::of_this_build()?.render(&values())?;
    let mut given = rights(rendered.object("ClusterRole", name)?)?;
    given.extend(rights(rendered.object("Role", name)?)?);
    let user = format!("{ACCOUNTS}{name}");
    let asked = world.asked()?;
    let used = asked
        .iter()
        .filter(|one| one.user == user && one.code < 300);
    let used: BTreeSet<String> = used.map(|one| one.right.clone()).collect();
    let unused: Vec<&String> = given.difference(&used).collect();
    assert_eq!(unused, ["onehop.dev/nodetargets patch"], "C-53");
    Ok(())
}

fn tempfile() -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("onehop-lives-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// C-80: by the chart's own Job, in a pod.
async fn refused_while_services_are_left(installed: &Installed) -> Result<()> {
    let uninstall = ["uninstall", "onehop", "--wait"];
    let refused = installed.try_helm(&uninstall, &Value::Null).await?;
    assert!(!refused.status.success(), "C-80");
    let log = [
        "-n",
        NAMESPACE,
        "get",
        "pods",
        "-l",
        "app.kubernetes.io/component=uninstall-check",
    ];
    let log = [&log[..], &["-o", "jsonpath={.items[*].status.phase}"]].concat();
    assert_eq!(installed.kubectl(&log).await?, "Failed", "C-80");
    Ok(())
}

/// Nothing of the release and no finalizer of ours; and once the clean-up was asked for, as the guide
/// says, no rule either (C-82).
async fn left_behind(installed: &Installed) -> Result<()> {
    let world = &installed.world;
    let kinds = "deployments,daemonsets,replicasets,pods,services,serviceaccounts,roles,rolebindings,clusterroles,\
                 clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,jobs,\
                 poddisruptionbudgets,configmaps";
    let left = [
        "get",
        kinds,
        "-A",
        "-l",
        "app.kubernetes.io/instance=onehop",
        "-o",
        "name",
    ];
    eventually(
        &world.clock,
        "nothing is left",
        WITHIN,
        async || match installed.kubectl(&left).await {
            Ok(names) if names.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    let services: Api<Service> = Api::all(world.kube());
    for service in services.list(&ListParams::default()).await? {
        let ours = service
            .finalizers()
            .iter()
            .any(|f| f.contains("onehop.dev"));
        assert!(!ours, "{:?}", service.metadata);
    }
    for kind in ["nodetargets.onehop.dev", "loadbalancers.onehop.dev"] {
        let left = installed
            .kubectl(&["get", kind, "-A", "-o", "name"])
            .await?;
        assert_eq!(left, "", "C-82: nobody is left who has an entry");
    }
    let leases = ["get", "leases", "-A", "-l", INSTALL_LABEL, "-o", "name"];
    assert_eq!(installed.kubectl(&leases).await?, "", "C-82: no Lease");
    let pools: Api<AddressPool> = Api::all(world.kube());
    pools.delete("pool", &DeleteParams::default()).await?;
    assert!(
        pools.get_opt("pool").await?.is_none(),
        "no finalizer holds it"
    );
    let agent = Programs::of_this_build()?.path("onehop-node-agent")?;
    let agent = agent.to_str().context("a path in UTF-8")?;
    for node in &world.nodes {
        let node = node.name();
        assert!(
            !tables(world, node)?.is_empty(),
            "C-82: rules go by an explicit clean-up only"
        );
        world.on_node(node, agent, &["--node-name", node, "--cleanup"])?;
        assert_eq!(tables(world, node)?, Vec::<String>::new(), "C-82");
    }
    clean_up_needs_its_rights(world)
}
