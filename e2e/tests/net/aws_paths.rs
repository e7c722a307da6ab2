//! Which targets a Network Load Balancer sends to, whom they see, and that a change of group or load balancer loses no
//! connection; all of it asked for in manifests and seen on packets.

use crate::aws::{OURS_LEFT, remove, serve, web, world};
use crate::support::READY_WITHIN;
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{Engine, TargetState};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use onehop_e2e::{
    scenario::Rollout,
    traffic::{Answer, ask_tcp},
    world::{
        CloudKind, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
    },
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub(crate) const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
pub(crate) const WITHIN: Duration = Duration::from_mins(1);
/// Enough that of two targets each is chosen but for once in many million runs.
const FLOWS: usize = 24;

fn tcp_only() -> Value {
    json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}])
}

/// A Service with one TCP port whose targets are pods.
pub(crate) fn of_pods() -> ServiceManifest {
    web()
        .with("ports", tcp_only())
        .with("allocateLoadBalancerNodePorts", json!(false))
        .annotated(&format!("{PREFIX}nlb-target-type"), "ip")
}

/// The same whose targets are nodes with local pods.
pub(crate) fn of_nodes() -> ServiceManifest {
    web()
        .with("ports", tcp_only())
        .with("externalTrafficPolicy", json!("Local"))
        .annotated(&format!("{PREFIX}nlb-target-type"), "instance")
}

pub(crate) async fn ask(world: &World, address: SocketAddr) -> Result<Answer, String> {
    let answer = ask_tcp(&world.sockets, address).await;
    answer
        .map(|(answer, _)| answer)
        .map_err(|failure| format!("{failure:?}"))
}

/// State of each target that is registered, by its address.
pub(crate) fn states(world: &World) -> BTreeMap<IpAddr, TargetState> {
    let inventory = world.cloud.look(Engine::inventory);
    let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
    let targets = targets.filter(|target| target.state != TargetState::Draining);
    targets.map(|t| (t.target.ip(), t.state)).collect()
}

async fn states_are(world: &World, wanted: &[(IpAddr, TargetState)]) -> Result<()> {
    let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
    let what = format!("targets are {wanted:?}");
    eventually(&world.clock, &what, WITHIN, async || {
        let have = states(world);
        if have == wanted {
            Ok(())
        } else {
            Err(format!("{have:?}"))
        }
    })
    .await?;
    // What the cloud knows its nodes follow a moment later.
    world.cloud_settled().await;
    Ok(())
}

async fn another_pod(world: &World, name: &str, node: &str) -> Result<IpAddr> {
    let objects = &world.objects;
    objects.create(pod(name, "web", node, OnTerm::Exit)).await?;
    objects.pod_ready("default", name, READY_WITHIN).await?;
    Ok(world.pod_place(name).await?.1.into())
}

async fn delete_pod(world: &World, name: &str) -> Result<()> {
    let pods = world.objects.api::<Pod>();
    pods.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// The addresses of the pods that answer.
async fn who_answers(world: &World, address: SocketAddr) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for _ in 0..FLOWS {
        let answer = ask(world, address).await.map_err(anyhow::Error::msg)?;
        all.insert(answer.uid);
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn aws771_fc29_whom_targets_see_by_their_type_and_the_attribute() -> Result<()> {
    let world = world().await?;
    let client = world.client.address();
    let key = format!("{PREFIX}target-group-attributes");
    let kept = |manifest: ServiceManifest, value: &str| {
        manifest.annotated(&key, &format!("preserve_client_ip.enabled={value}"))
    };
    let address = serve(&world, of_pods()).await?;
    let cases = [
        ("pods, as it is", of_pods(), false),
        ("pods, kept", kept(of_pods(), "true"), true),
        ("pods, not kept", kept(of_pods(), "false"), false),
        ("nodes, as it is", of_nodes(), true),
        ("nodes, not kept", kept(of_nodes(), "false"), false),
        ("nodes, kept", kept(of_nodes(), "true"), true),
    ];
    for (case, manifest, sees_client) in cases {
        world.objects.apply(manifest.json()).await?;
        let what = format!("AWS-771: {case}: targets see the client: {sees_client}");
        eventually(&world.clock, &what, WITHIN, async || {
            let answer = ask(&world, address).await?;
            if (answer.peer.ip() == client) == sees_client {
                Ok(())
            } else {
                Err(format!("{}", answer.peer))
            }
        })
        .await?;
    }
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws092_aws404_ai22_nodes_are_targets_once_they_have_a_pod_and_their_health_check_drives_them()
-> Result<()> {
    let world = world().await?;
    let node = |name: &str| -> Result<IpAddr> { Ok(world.kubelet(name)?.node().address().into()) };
    let (a, b) = (node("a")?, node("b")?);
    let address = serve(&world, of_nodes()).await?;
    let (up, down) = (TargetState::Healthy, TargetState::Unhealthy);
    // AI-22: the other node would take flows until its first failed check.
    states_are(&world, &[(a, up)]).await?;
    let first = who_answers(&world, address).await?;
    ensure!(first.len() == 1, "AWS-092: {first:?}");
    another_pod(&world, "web-2", "b").await?;
    states_are(&world, &[(a, up), (b, up)]).await?;
    let both = who_answers(&world, address).await?;
    ensure!(both.len() == 2, "AWS-092: {both:?}");
    delete_pod(&world, "web").await?;
    // AWS-404: it stays for a while, so that a pod that comes back costs no registration.
    states_are(&world, &[(a, down), (b, up)]).await?;
    let second = who_answers(&world, address).await?;
    ensure!(
        second.len() == 1 && second.is_disjoint(&first),
        "AWS-092: {second:?}"
    );
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws410_aws411_targets_that_are_pods_follow_the_endpoints() -> Result<()> {
    let world = world().await?;
    let first: IpAddr = world.pod_place("web").await?.1.into();
    let address = serve(&world, of_pods()).await?;
    states_are(&world, &[(first, TargetState::Healthy)]).await?;
    let second = another_pod(&world, "web-2", "b").await?;
    let both = [
        (first, TargetState::Healthy),
        (second, TargetState::Healthy),
    ];
    states_are(&world, &both).await?;
    let answers = who_answers(&world, address).await?;
    ensure!(answers.len() == 2, "AWS-410: {answers:?}");
    delete_pod(&world, "web").await?;
    states_are(&world, &[(second, TargetState::Healthy)]).await?;
    let answers = who_answers(&world, address).await?;
    ensure!(answers.len() == 1, "AWS-410: {answers:?}");
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws053_fc31_a_zone_without_targets_serves_only_across_zones() -> Result<()> {
    let config = WorldConfig {
        cloud: CloudKind::Aws,
        zones: vec!["zone-a", "zone-b"],
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    let pod = another_pod(&world, "web", "a").await?;
    let near = serve(&world, of_pods()).await?;
    states_are(&world, &[(pod, TargetState::Healthy)]).await?;
    let addresses = world.aws()?.resolve(&world.lb_host("web").await?);
    let of_zone = |zone: &str| {
        let zone = Some(zone.to_owned());
        let found = addresses.iter().find(|a| world.zone_of(**a) == zone);
        found.map(|address| SocketAddr::new(*address, near.port()))
    };
    let here = of_zone("zone-a").context("an address in the zone of the pod")?;
    let there = of_zone("zone-b").context("an address in the other zone")?;
    ask(&world, here).await.map_err(anyhow::Error::msg)?;
    let answer = ask(&world, there).await;
    ensure!(answer.is_err(), "FC-31: off by default: {answer:?}");
    let key = format!("{PREFIX}attributes");
    let across = of_pods().annotated(&key, "load_balancing.cross_zone.enabled=true");
    world.objects.apply(across.json()).await?;
    let what = "AWS-052: across zones every address serves";
    eventually(&world.clock, what, WITHIN, async || {
        ask(&world, there).await.map(drop)
    })
    .await?;
    ask(&world, here).await.map_err(anyhow::Error::msg)?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

/// Both transports, on one listener.
fn both_transports() -> ServiceManifest {
    web()
        .with("allocateLoadBalancerNodePorts", json!(false))
        .annotated(&format!("{PREFIX}nlb-target-type"), "ip")
        .annotated(&format!("{PREFIX}enable-tcp-udp-listener"), "true")
}

#[tokio::test(flavor = "multi_thread")]
async fn aws620_aws950_another_target_group_takes_over_without_a_failed_connection() -> Result<()> {
    let world = world().await?;
    another_pod(&world, "web-2", "b").await?;
    let address = serve(&world, both_transports()).await?;
    let groups = || -> BTreeSet<String> {
        let inventory = world.cloud.look(Engine::inventory);
        let balancers = inventory.load_balancers.iter();
        let used = balancers.flat_map(|lb| lb.listeners.values());
        used.map(ToString::to_string).collect()
    };
    let before = groups();
    let load = Rollout {
        world: &world,
        address,
    };
    let report = load
        .during(async || {
            // AWS-091: another check is another group.
            let other =
                both_transports().annotated(&format!("{PREFIX}healthcheck-protocol"), "tcp");
            world.objects.apply(other.json()).await?;
            let what = "AWS-620: the listener sends to the new group alone";
            eventually(&world.clock, what, WITHIN, async || {
                let now = groups();
                if now.is_disjoint(&before) {
                    Ok(())
                } else {
                    Err(format!("{before:?}, now {now:?}"))
                }
            })
            .await
        })
        .await?;
    ensure!(report.failed == 0, "AWS-620: {:#?}", report.failures);
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws630_aws632_aws950_another_scheme_costs_no_connection() -> Result<()> {
    let world = world().await?;
    let address = serve(&world, both_transports()).await?;
    let host = world.lb_host("web").await?;
    let load = Rollout {
        world: &world,
        address,
    };
    let mut after = String::new();
    let report = load
        .during(async || {
            let inside = both_transports().annotated(&format!("{PREFIX}scheme"), "internal");
            world.objects.apply(inside.json()).await?;
            let what = "AWS-630: the other load balancer's name is published";
            eventually(&world.clock, what, WITHIN, async || {
                after = world.lb_host("web").await.map_err(|e| e.to_string())?;
                if after == host {
                    Err(after.clone())
                } else {
                    Ok(())
                }
            })
            .await?;
            let new = world.aws()?.resolve(&after);
            let new = *new.first().context("the new name resolves")?;
            // Who asks for the name now is served as well, at once.
            ask(&world, SocketAddr::new(new, address.port()))
                .await
                .map_err(anyhow::Error::msg)?;
            Ok(())
        })
        .await?;
    ensure!(report.failed == 0, "AWS-630: {:#?}", report.failures);
    let counts = world.aws()?.counts();
    ensure!(counts.0 == 2, "AWS-630: the old one serves on: {counts:?}");
    first_answer(&world, address).await?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}
