//! Provider aws over the fake cloud's `ELBv2` and EC2 APIs: from a Service manifest to a byte that came back through the
//! emulated Network Load Balancer.

use crate::support::READY_WITHIN;
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{Engine, TargetState};
use k8s_openapi::api::core::v1::{Event, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use onehop_e2e::{
    traffic::{ask_tcp, ask_udp},
    world::{
        CloudKind, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
    },
};
use serde_json::json;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
const GONE_WITHIN: Duration = Duration::from_secs(30);
/// The backend security group is shared and stays for the next Service.
pub(crate) const OURS_LEFT: (usize, usize, usize) = (0, 0, 1);

pub(crate) fn web() -> ServiceManifest {
    web_of("web")
}

fn web_of(name: &str) -> ServiceManifest {
    let quick = [
        ("healthcheck-interval", "5"),
        ("healthcheck-timeout", "2"),
        ("healthcheck-healthy-threshold", "2"),
    ];
    let manifest = ServiceManifest::load_balancer(name, "web")
        .with("loadBalancerClass", json!("onehop.dev/aws"))
        .annotated(&format!("{PREFIX}scheme"), "internet-facing");
    quick.iter().fold(manifest, |manifest, (key, value)| {
        manifest.annotated(&format!("{PREFIX}{key}"), value)
    })
}

/// A world on AWS with a pod `web` on node `a`.
pub(crate) async fn world() -> Result<World> {
    let config = WorldConfig {
        cloud: CloudKind::Aws,
        ..WorldConfig::default()
    };
    let world = World::start(config).await?;
    world
        .objects
        .create(pod("web", "web", "a", OnTerm::Exit))
        .await?;
    world
        .objects
        .pod_ready("default", "web", READY_WITHIN)
        .await?;
    Ok(world)
}

/// Applies a Service and waits until a client outside gets an answer through its load balancer.
pub(crate) async fn serve(world: &World, service: ServiceManifest) -> Result<SocketAddr> {
    world.objects.apply(service.json()).await?;
    let host = world.lb_host("web").await?;
    ensure!(
        host == host.to_lowercase() && host.contains(".elb."),
        "AWS-800: {host}"
    );
    let address = *world
        .aws()?
        .resolve(&host)
        .first()
        .context("the name resolves")?;
    let address = SocketAddr::new(address, 80);
    first_answer(world, address).await?;
    Ok(address)
}

/// Waits until the load balancer has a verdict on every target: before, it sends to all of them (fail-open).
async fn judged(world: &World) -> Result<()> {
    eventually(
        &world.clock,
        "every target is judged",
        GONE_WITHIN,
        async || {
            let inventory = world.cloud.look(Engine::inventory);
            let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
            let states: Vec<_> = targets.map(|t| (t.target, t.state)).collect();
            let known = |state| matches!(state, TargetState::Healthy | TargetState::Unhealthy);
            let healthy = states
                .iter()
                .any(|(_, state)| *state == TargetState::Healthy);
            if healthy && states.iter().all(|(_, state)| known(*state)) {
                Ok(())
            } else {
                Err(format!("{states:?}"))
            }
        },
    )
    .await?;
    // What the cloud knows its nodes follow a moment later.
    world.cloud_settled().await;
    Ok(())
}

/// Deletes the Service and waits until only so many load balancers, groups and security groups are left.
pub(crate) async fn remove(world: &World, left: (usize, usize, usize)) -> Result<()> {
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    services.delete("web", &DeleteParams::default()).await?;
    let what = "load balancer, groups, security group and finalizer go";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let counts = world.aws().map_err(|e| e.to_string())?.counts();
        let there = services.get_opt("web").await.map_err(|e| e.to_string())?;
        if counts == left && there.is_none() {
            Ok(())
        } else {
            let finalizers = there.and_then(|s| s.metadata.finalizers);
            Err(format!(
                "load balancers, groups, security groups: {counts:?}; {finalizers:?}"
            ))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws601_aws645_pods_behind_a_network_load_balancer_answer_tcp_and_udp_and_all_of_it_goes()
-> Result<()> {
    let world = world().await?;
    let manifest = web()
        .with("allocateLoadBalancerNodePorts", json!(false))
        .annotated(&format!("{PREFIX}nlb-target-type"), "ip")
        // AWS-081: TCP and UDP on one port are one listener.
        .annotated(&format!("{PREFIX}enable-tcp-udp-listener"), "true");
    let address = serve(&world, manifest).await?;
    let client = world.client.address();
    for transport in ["TCP", "UDP"] {
        let answer = match transport {
            "TCP" => ask_tcp(&world.sockets, address).await,
            _ => ask_udp(&world.sockets, address).await,
        };
        let (answer, _) = answer.map_err(|failure| anyhow::anyhow!("{transport}: {failure:?}"))?;
        // AWS-771: TCP_UDP keeps the client's address whatever the targets are.
        assert_eq!(answer.peer.ip(), client, "{transport}");
    }
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws771_ip_targets_of_tcp_see_the_load_balancer_unless_the_attribute_keeps_the_client()
-> Result<()> {
    let world = world().await?;
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    let manifest = || {
        web()
            .with("ports", ports.clone())
            .with("allocateLoadBalancerNodePorts", json!(false))
            .annotated(&format!("{PREFIX}nlb-target-type"), "ip")
    };
    let address = serve(&world, manifest()).await?;
    let client = world.client.address();
    let (answer, _) = ask_tcp(&world.sockets, address)
        .await
        .map_err(|f| anyhow::anyhow!("{f:?}"))?;
    assert_ne!(answer.peer.ip(), client, "the load balancer node's address");
    let key = format!("{PREFIX}target-group-attributes");
    let kept = manifest().annotated(&key, "preserve_client_ip.enabled=true");
    world.objects.apply(kept.json()).await?;
    eventually(
        &world.clock,
        "pods see the client",
        GONE_WITHIN,
        async || match ask_tcp(&world.sockets, address).await {
            Ok((answer, _)) if answer.peer.ip() == client => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws404_nodes_are_targets_by_their_machines_and_policy_local_shows_the_client() -> Result<()>
{
    let world = world().await?;
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    let manifest = web()
        .with("ports", ports)
        .with("externalTrafficPolicy", json!("Local"));
    let address = serve(&world, manifest).await?;
    judged(&world).await?;
    for _ in 0..8 {
        let (answer, _) = ask_tcp(&world.sockets, address)
            .await
            .map_err(|f| anyhow::anyhow!("{f:?}"))?;
        assert_eq!(answer.peer.ip(), world.client.address());
    }
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws430_aws951_ai17_a_machine_that_is_gone_keeps_no_other_out_and_is_named() -> Result<()> {
    let world = world().await?;
    let gone = world.machine("b")?;
    world.aws()?.terminate(&gone);
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    let address = serve(&world, web().with("ports", ports)).await?;
    judged(&world).await?;
    ask_tcp(&world.sockets, address)
        .await
        .map_err(|f| anyhow::anyhow!("{f:?}"))?;
    let events: Api<Event> = Api::namespaced(world.kube(), "default");
    let what = "an event names the target that was refused";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let all = events.list(&ListParams::default()).await;
        let all = all.map_err(|e| e.to_string())?.items.into_iter();
        let said: Vec<_> = all
            .map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
            .collect();
        let named = |(reason, text): &(String, String)| {
            reason == "TargetInvalid" && text.contains(&gone) && text.contains("InvalidTarget")
        };
        if said.iter().any(named) {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    })
    .await?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}

/// Calls since `before`, by name.
fn spent(world: &World, before: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>> {
    let now = world.aws()?.calls().into_iter();
    let spent = now.map(|(call, n)| {
        let n = n - before.get(&call).unwrap_or(&0);
        (call, n)
    });
    Ok(spent.filter(|(_, n)| *n > 0).collect())
}

/// Waits until the controller calls nothing for longer than it waits between two polls.
async fn at_rest(world: &World) -> Result<()> {
    let mut last = world.aws()?.calls();
    let what = "Services at rest cost no call";
    eventually(&world.clock, what, Duration::from_mins(2), async || {
        world.clock.sleep(Duration::from_secs(6)).await;
        let spent = spent(world, &last).map_err(|e| e.to_string())?;
        last = world.aws().map_err(|e| e.to_string())?.calls();
        if spent.is_empty() {
            Ok(())
        } else {
            Err(format!("{spent:?}"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws701_aws953_a_restart_writes_nothing_and_reads_twice_for_each_service() -> Result<()> {
    const SERVICES: u64 = 6;
    let world = world().await?;
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    let name = |n: u64| format!("web-{n}");
    for n in 0..SERVICES {
        let manifest = web_of(&name(n)).with("ports", ports.clone());
        let manifest = manifest.with("allocateLoadBalancerNodePorts", json!(false));
        let manifest = manifest.annotated(&format!("{PREFIX}nlb-target-type"), "ip");
        world.objects.apply(manifest.json()).await?;
    }
    for n in 0..SERVICES {
        world.lb_host(&name(n)).await?;
    }
    at_rest(&world).await?;
    let before = world.aws()?.calls();
    world.controller.kill()?;
    let what = "the new controller lists what there is";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let spent = spent(&world, &before).map_err(|e| e.to_string())?;
        let health = spent.get("elasticloadbalancing:DescribeTargetHealth");
        if health.is_some_and(|n| *n >= SERVICES) {
            Ok(())
        } else {
            Err(format!("{spent:?}"))
        }
    })
    .await?;
    at_rest(&world).await?;
    let spent = spent(&world, &before)?;
    let (reads, writes): (Vec<_>, Vec<_>) = spent
        .iter()
        .partition(|(call, _)| call.contains(":Describe") || call.as_str() == "ec2:DryRun");
    assert!(writes.is_empty(), "AWS-953: {spent:?}");
    // One page of each kind of object, and their tags.
    let pages = 7;
    // AWS-844: one of each read that is in use, and the dry runs.
    let rights = 8 + 8;
    let reads: u64 = reads.into_iter().map(|(_, n)| n).sum();
    assert!(reads <= 2 * SERVICES + pages + rights, "AWS-701: {spent:?}");
    for n in 0..SERVICES {
        world.objects.delete_service(&name(n)).await?;
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn aws700_aws703_aws841_a_service_costs_few_calls_and_none_at_rest_within_the_charts_policy()
-> Result<()> {
    let world = world().await?;
    for name in ["web-2", "web-3"] {
        world
            .objects
            .create(pod(name, "web", "b", OnTerm::Exit))
            .await?;
        world
            .objects
            .pod_ready("default", name, READY_WITHIN)
            .await?;
    }
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]);
    let manifest = web()
        .with("ports", ports)
        .with("allocateLoadBalancerNodePorts", json!(false))
        .annotated(&format!("{PREFIX}nlb-target-type"), "ip");
    let before = world.aws()?.calls();
    serve(&world, manifest).await?;
    judged(&world).await?;
    let spent = spent(&world, &before)?;
    let polls = spent
        .get("elasticloadbalancing:DescribeTargetHealth")
        .copied()
        .unwrap_or(0);
    let others: u64 = spent.values().sum::<u64>() - polls;
    assert!(others <= 12, "AWS-703: {spent:?}");
    assert_eq!(
        spent.get("elasticloadbalancing:DescribeLoadBalancers"),
        None,
        "AWS-701: {spent:?}"
    );
    // The last poll that sees the verdicts is allowed; then a Service at rest costs nothing.
    at_rest(&world).await?;
    remove(&world, OURS_LEFT).await?;
    world.end().await
}
