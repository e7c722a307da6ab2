//! Provider aws over the fake cloud's `ELBv2` and EC2 APIs: from a Service manifest to a byte that came back through the
//! emulated Network Load Balancer.

use crate::support::READY_WITHIN;
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{Engine, TargetState};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::DeleteParams};
use onehop_e2e::{
    traffic::{ask_tcp, ask_udp},
    world::{
        CloudKind, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
    },
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
const GONE_WITHIN: Duration = Duration::from_secs(30);

fn web() -> ServiceManifest {
    let quick = [
        ("healthcheck-interval", "5"),
        ("healthcheck-timeout", "2"),
        ("healthcheck-healthy-threshold", "2"),
    ];
    let manifest = ServiceManifest::load_balancer("web", "web")
        .with("loadBalancerClass", json!("onehop.dev/aws"))
        .annotated(&format!("{PREFIX}scheme"), "internet-facing");
    quick.iter().fold(manifest, |manifest, (key, value)| {
        manifest.annotated(&format!("{PREFIX}{key}"), value)
    })
}

/// A world on AWS with a pod `web` on node `a`.
async fn world() -> Result<World> {
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
async fn serve(world: &World, service: ServiceManifest) -> Result<SocketAddr> {
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

/// Deletes the Service and waits until nothing that was made for it is left.
async fn remove(world: &World) -> Result<()> {
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    services.delete("web", &DeleteParams::default()).await?;
    let what = "load balancer, groups, security group and finalizer go";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let counts = world.aws().map_err(|e| e.to_string())?.counts();
        let there = services.get_opt("web").await.map_err(|e| e.to_string())?;
        // The backend group is shared and stays for the next Service.
        if counts == (0, 0, 1) && there.is_none() {
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
    remove(&world).await?;
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
    remove(&world).await?;
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
    remove(&world).await?;
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
    let since = |now: &std::collections::BTreeMap<String, u64>| {
        let spent = now
            .iter()
            .map(|(call, n)| (call.clone(), n - before.get(call).unwrap_or(&0)));
        spent
            .filter(|(_, n)| *n > 0)
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let spent = since(&world.aws()?.calls());
    let polls = spent
        .get("elasticloadbalancing:DescribeTargetHealth")
        .copied()
        .unwrap_or(0);
    let others: u64 = spent.values().sum::<u64>() - polls;
    assert!(others <= 11, "AWS-703: {spent:?}");
    assert_eq!(
        spent.get("elasticloadbalancing:DescribeLoadBalancers"),
        None,
        "AWS-701: {spent:?}"
    );
    // The last poll that sees the verdicts is allowed; then a Service at rest costs nothing.
    let mut last = world.aws()?.calls();
    eventually(
        &world.clock,
        "a Service at rest costs no call",
        GONE_WITHIN,
        async || {
            world.clock.sleep(Duration::from_secs(6)).await;
            let now = world.aws().map_err(|e| e.to_string())?.calls();
            let quiet = now == last;
            last = now;
            if quiet {
                Ok(())
            } else {
                Err(format!("{:?}", since(&last)))
            }
        },
    )
    .await?;
    remove(&world).await?;
    world.end().await
}
