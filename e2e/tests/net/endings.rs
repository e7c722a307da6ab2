//! The checks at a world's end prove themselves: a world in which something went wrong, by hand or by a fault of the
//! cloud, does not end well, says what it was, and leaves a report that has everything to find out why.

use crate::lab::WITHIN;
use crate::support::{PodOnA, READY_WITHIN, world_with_pod_on_a};
use anyhow::{Context, Result};
use e2e_cloud::engine::{Engine, Faults, TargetState};
use nix::sys::signal::Signal;
use onehop_e2e::world::{Cluster, OnTerm, POD_PORT, ServiceManifest, eventually, pod};
use serde_json::{Value, json};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// Longer than a controller may take to act on a pod that is ready.
const NOTICED: Duration = Duration::from_secs(4);

async fn served_in_pod_mode() -> Result<(PodOnA, Ipv4Addr)> {
    let world = world_with_pod_on_a(Cluster::default()).await?;
    let web = ServiceManifest::load_balancer("web", "web").pod_mode();
    world.serve(web).await?;
    let (_, address) = world.pod_place("web").await?;
    Ok((world, address))
}

async fn new_pod(world: &PodOnA, name: &str) -> Result<()> {
    let manifest = pod(name, "web", "b", OnTerm::Exit);
    world.objects.create(manifest).await?;
    let ready = world.objects.pod_ready("default", name, READY_WITHIN);
    ready.await.map(drop)
}

/// Ends the world, which must not go well; what it said, and its report.
async fn ends_badly(world: PodOnA) -> Result<(String, Report)> {
    let report = Report(world.folder().to_owned());
    let Err(error) = world.end().await else {
        anyhow::bail!("the world ended well");
    };
    Ok((format!("{error:#}"), report))
}

/// The folder that a world leaves; removed when dropped.
struct Report(PathBuf);

impl Drop for Report {
    fn drop(&mut self) {
        // One that is not there was never made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Report {
    fn read(&self, file: impl AsRef<Path>) -> Result<String> {
        let path = self.0.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    /// The folder of the namespace with this role in its name.
    fn namespace(&self, role: &str) -> Result<PathBuf> {
        let all = std::fs::read_dir(self.0.join("namespaces"))?;
        let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut found = names.filter(|name| name.ends_with(role));
        let name = found
            .next()
            .with_context(|| format!("no namespace {role}"))?;
        Ok(Path::new("namespaces").join(name))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fc103_a_service_without_a_healthy_target_while_its_pod_is_ready_fails_its_world()
-> Result<()> {
    let (world, address) = served_in_pod_mode().await?;
    let target = SocketAddr::from((address, POD_PORT));
    let fault = Faults {
        failing_probes: [target].into(),
        ..Faults::default()
    };
    world
        .cloud
        .with(|engine, now| engine.set_faults(now, fault));
    eventually(&world.clock, "the target is down", WITHIN, async || {
        let states = world.cloud.target_states_at(target, world.clock.now());
        let mut states = states.into_values().map(|(state, _)| state);
        if states.any(|state| state == TargetState::Unhealthy) {
            Ok(())
        } else {
            Err("up".to_owned())
        }
    })
    .await?;
    world
        .cloud
        .with(|engine, now| engine.set_faults(now, Faults::default()));
    let (said, _report) = ends_badly(world).await?;
    assert!(said.contains("FC-103 (1): Service default/web"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fc103_a_target_deregistered_before_the_one_that_replaces_it_fails_its_world() -> Result<()>
{
    let (world, address) = served_in_pod_mode().await?;
    // One that stays, so that the Service is never without a target.
    new_pod(&world, "stays").await?;
    eventually(&world.clock, "two targets", WITHIN, async || {
        let inventory = world.cloud.look(Engine::inventory);
        let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        // Each for TCP and for UDP.
        match targets.filter(|t| t.state == TargetState::Healthy).count() {
            4 => Ok(()),
            other => Err(format!("{other} healthy targets")),
        }
    })
    .await?;
    world.controller.signal(Signal::SIGSTOP)?;
    new_pod(&world, "next").await?;
    world.clock.sleep(NOTICED).await;
    let groups = world.cloud_call("GET /v1/groups", &Value::Null)?;
    for group in groups["items"].as_array().context("groups")? {
        let group = group["id"].as_str().context("an id")?;
        let target = json!({"targets": [{"address": address, "port": POD_PORT}]});
        world.cloud_call(&format!("DELETE /v1/groups/{group}/targets"), &target)?;
    }
    world.controller.signal(Signal::SIGCONT)?;
    let (said, _report) = ends_badly(world).await?;
    assert!(said.contains("FC-103 (5)"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fc103_a_cloud_object_without_its_service_fails_its_world_which_leaves_its_report()
-> Result<()> {
    let (world, address) = served_in_pod_mode().await?;
    let orphan = json!({
        "name": "orphan", "protocol": "TCP", "mode": "pod",
        "tags": {"onehop.dev/install": "e2e", "onehop.dev/service": "default/nobody"},
    });
    world.cloud_call("POST /v1/groups", &orphan)?;
    let nodes = [0, 1].map(|node: usize| world.kubelets[node].node().name().to_owned());
    let lb = world.lb_address("web").await?.to_string();
    let (said, report) = ends_badly(world).await?;
    assert!(said.contains("FC-103 (7)"), "{said}");
    has_everything(&report, &nodes, &lb, &address.to_string())
}

/// Issue: topology, `nft list ruleset` of each node, conntrack, routes, objects, event logs on one time axis, packet
/// counters per hop, and the commands to enter each namespace.
fn has_everything(report: &Report, nodes: &[String], lb: &str, pod: &str) -> Result<()> {
    let readme = report.read("README")?;
    let topology = report.read("topology")?;
    for role in ["router", "mgmt", "client-client", "lb-zone-a-1"] {
        let place = report.namespace(role)?;
        let name = place
            .file_name()
            .and_then(|n| n.to_str())
            .context("a name")?;
        assert!(
            readme.contains(&format!("ip netns exec {name} ")),
            "{readme}"
        );
    }
    for node in nodes {
        let place = report.namespace(&format!("node-{node}"))?;
        assert!(
            report
                .read(place.join("ruleset"))?
                .contains("table ip onehop")
        );
        assert!(
            report.read(place.join("ruleset"))?.contains(lb),
            "the Service is programmed"
        );
        assert!(report.read(place.join("routes"))?.contains("default via"));
        report.read(place.join("conntrack"))?;
        assert!(topology.contains(&format!("node {node}")), "{topology}");
    }
    assert!(
        topology.contains(lb) && topology.contains(pod),
        "{topology}"
    );
    let hops = report.read("hops")?;
    let passed = [
        ("lb-zone-a-1", "eth0"),
        ("node-a", "eth0"),
        ("node-a", "eth1"),
        ("pod-a-default-web-", "eth0"),
    ];
    for (place, interface) in passed {
        let of = |line: &&str| line.contains(place) && line.contains(&format!(" {interface} "));
        let line = hops.lines().find(of);
        let line = line.with_context(|| format!("no {place} {interface} in\n{hops}"))?;
        let packets = line
            .split_whitespace()
            .filter_map(|word| word.parse::<u64>().ok());
        assert!(packets.max() > Some(0), "nothing passed {line}");
    }
    let objects: Value = serde_json::from_str(&report.read("objects.json")?)?;
    assert!(objects.to_string().contains("\"web\""));
    let timeline = report.read("timeline.jsonl")?;
    let lines: Vec<Value> = timeline
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let times = lines
        .iter()
        .map(|l| l["at"].as_str().unwrap_or_default().parse());
    let times: Vec<jiff::Timestamp> = times.collect::<Result<_, _>>()?;
    assert!(times.is_sorted(), "one time axis");
    for source in ["cloud", "kubelet"] {
        assert!(
            lines.iter().any(|l| l["source"] == source),
            "no line of {source}"
        );
    }
    assert!(!report.read("controller.log")?.is_empty());
    Ok(())
}
