//! Provider azure over the fake cloud's Resource Manager: from a Service manifest to a byte that came back through the
//! emulated Standard Load Balancer.

use crate::{azure_rules, support::READY_WITHIN};
use anyhow::{Context, Result, ensure};
use e2e_cloud::engine::{Engine, TargetState};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, api::DeleteParams};
use onehop_e2e::{
    traffic::{Answer, LongFlow, ask_tcp, ask_udp},
    world::{
        CloudKind, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
        sockets_of,
    },
};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

const PREFIX: &str = "service.beta.kubernetes.io/azure-";
const GONE_WITHIN: Duration = Duration::from_mins(1);

pub(crate) fn web() -> ServiceManifest {
    ServiceManifest::load_balancer("web", "web")
        .with("loadBalancerClass", json!("onehop.dev/azure"))
}

/// A world on Azure with a pod `web` on node `a`.
pub(crate) async fn world() -> Result<World> {
    world_with(OnTerm::Exit).await
}

async fn world_with(on_term: OnTerm) -> Result<World> {
    let config = WorldConfig {
        cloud: CloudKind::Azure,
        ..WorldConfig::default()
    };
    world_on(config, on_term).await
}

/// One that is started otherwise.
pub(crate) async fn world_on(config: WorldConfig, on_term: OnTerm) -> Result<World> {
    let world = World::start(config).await?;
    ready_pod(&world, ("web", "a"), on_term).await?;
    Ok(world)
}

async fn ready_pod(world: &World, (name, node): (&str, &str), on_term: OnTerm) -> Result<()> {
    let pod = pod(name, "web", node, on_term);
    world.objects.create(pod).await?;
    let objects = &world.objects;
    objects.pod_ready("default", name, READY_WITHIN).await?;
    Ok(())
}

/// Applies a Service and waits until a client outside gets an answer through its load balancer, and every target has a
/// verdict that load balancer nodes follow.
pub(crate) async fn serve(world: &World, service: ServiceManifest) -> Result<SocketAddr> {
    world.objects.apply(service.json()).await?;
    let address = SocketAddr::from((world.lb_address("web").await?, 80));
    first_answer(world, address).await?;
    let what = "every target is judged";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let inventory = world.cloud.look(Engine::inventory);
        let targets = inventory.groups.iter().flat_map(|(_, targets)| targets);
        let states: Vec<_> = targets.map(|t| (t.target, t.state)).collect();
        let open = |state: &TargetState| *state == TargetState::Initial;
        if states.iter().any(|(_, state)| open(state)) {
            Err(format!("{states:?}"))
        } else {
            Ok(())
        }
    })
    .await?;
    world.cloud_settled().await;
    Ok(address)
}

pub(crate) async fn asked(world: &World, address: SocketAddr) -> Result<Answer> {
    let answer = ask_tcp(&world.sockets, address).await;
    let (answer, _) = answer.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    Ok(answer)
}

/// Deletes the Service and waits until nothing that was made for it is left.
pub(crate) async fn remove(world: &World) -> Result<()> {
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    services.delete("web", &DeleteParams::default()).await?;
    let what = "load balancer, public IP, rules and finalizer go";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let azure = world.azure().map_err(|e| e.to_string())?;
        let left = [azure.ids("loadBalancers"), azure.ids("publicIPAddresses")].concat();
        let rules = rules(world).map_err(|e| e.to_string())?;
        let there = services.get_opt("web").await.map_err(|e| e.to_string())?;
        if left.is_empty() && rules.len() == 1 && there.is_none() {
            Ok(())
        } else {
            Err(format!("{left:?} {rules:?}"))
        }
    })
    .await
}

/// Names of the rules of the security group, of which one is somebody else's.
fn rules(world: &World) -> Result<Vec<String>> {
    let group = world.azure_document("networkSecurityGroups", "nodes")?;
    let group = group.context("there is a security group")?;
    let rules = group["properties"]["securityRules"].as_array().cloned();
    let rules = rules.unwrap_or_default();
    Ok(rules
        .iter()
        .filter_map(|rule| rule["name"].as_str().map(str::to_owned))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn az130_az137_za60_vip_keeps_the_clients_address_under_local_for_tcp_and_udp_and_all_of_it_goes()
-> Result<()> {
    let world = world().await?;
    let manifest = web()
        .vip_mode()
        .with("externalTrafficPolicy", json!("Local"));
    let address = serve(&world, manifest).await?;
    let client = world.client.address();
    for _ in 0..8 {
        assert_eq!(asked(&world, address).await?.peer.ip(), client, "AZ-264");
    }
    let (udp, _) = ask_udp(&world.sockets, address)
        .await
        .map_err(|f| anyhow::anyhow!("{f:?}"))?;
    assert_eq!(udp.peer.ip(), client, "ZA-60");
    assert_eq!(rules(&world)?.len(), 3, "TCP and UDP, and somebody else's");
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az130_za69_nodes_by_their_node_ports_where_floating_ip_is_off() -> Result<()> {
    let world = world().await?;
    let off = format!("{PREFIX}disable-load-balancer-floating-ip");
    let address = serve(&world, web().annotated(&off, "true")).await?;
    for _ in 0..8 {
        asked(&world, address).await?;
    }
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az130_az131_az264_the_clients_address_in_every_mode_and_under_both_policies() -> Result<()>
{
    let world = world().await?;
    let off = format!("{PREFIX}disable-load-balancer-floating-ip");
    let vip = ServiceManifest::vip_mode;
    let node = |service: ServiceManifest| service.annotated(&off, "true");
    let pod = ServiceManifest::pod_mode;
    // Under Cluster a node may send it on to another one, which has to send the reply back.
    let rows = [
        ("vip", "Cluster", vip(web()), false),
        ("node", "Cluster", node(web()), false),
        ("node", "Local", node(web()), true),
        ("pod", "Local", pod(web()), true),
    ];
    let client = world.client.address();
    for (mode, policy, service, seen) in rows {
        let service = service.with("externalTrafficPolicy", json!(policy));
        let address = serve(&world, service).await?;
        for _ in 0..8 {
            let peer = asked(&world, address).await?.peer.ip();
            assert_eq!(peer == client, seen, "AZ-264: {mode} {policy}: {peer}");
        }
        remove(&world).await?;
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az131_az264_za89_c135_pods_see_the_client_and_no_node_port_is_needed() -> Result<()> {
    let world = world().await?;
    let address = serve(&world, web().pod_mode()).await?;
    let client = world.client.address();
    for _ in 0..8 {
        assert_eq!(asked(&world, address).await?.peer.ip(), client, "AZ-264");
    }
    // ZA-85 and AZ-291: a pod that is replaced; no attempt fails, register before Down.
    ready_pod(&world, ("second", "b"), OnTerm::Exit).await?;
    let before = world.azure()?.calls();
    let pods: Api<Pod> = Api::namespaced(world.kube(), "default");
    pods.delete("web", &DeleteParams::default()).await?;
    let what = "the new pod alone answers";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let answer = asked(&world, address).await.map_err(|e| e.to_string())?;
        let pools = world.azure().map_err(|e| e.to_string())?.writes();
        let last = pools
            .iter()
            .rev()
            .find(|w| w.id.contains("backendAddressPools"));
        let one = last.is_some_and(|write| {
            let members = &write.body["properties"]["loadBalancerBackendAddresses"];
            members.as_array().is_some_and(|members| members.len() == 1)
        });
        if one && answer.pod == "second" {
            Ok(())
        } else {
            Err(format!("{} {last:?}", answer.pod))
        }
    })
    .await?;
    let after = world.azure()?.calls();
    let count = |call: &str| after.get(call).unwrap_or(&0) - before.get(call).unwrap_or(&0);
    ensure!(count("PUT loadBalancers") == 0, "AZ-106: {after:?}");
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az040_za30_an_internal_frontend_has_an_address_of_the_subnet_and_needs_no_rule()
-> Result<()> {
    let world = world().await?;
    let internal = format!("{PREFIX}load-balancer-internal");
    let manifest = web().vip_mode().annotated(&internal, "true");
    let address = serve(&world, manifest).await?;
    asked(&world, address).await?;
    assert!(world.azure()?.ids("publicIPAddresses").is_empty());
    assert_eq!(rules(&world)?, ["theirs"], "ZA-30");
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az310_s10_both_families_reach_nodes_and_pods_and_see_a_client_of_their_own() -> Result<()>
{
    let world = world().await?;
    let modes: [fn(ServiceManifest) -> ServiceManifest; 2] =
        [ServiceManifest::vip_mode, ServiceManifest::pod_mode];
    for mode in modes {
        let manifest = mode(web())
            .with("ipFamilyPolicy", json!("RequireDualStack"))
            .with("ipFamilies", json!(["IPv4", "IPv6"]));
        serve(&world, manifest).await?;
        let services: Api<Service> = Api::namespaced(world.kube(), "default");
        let what = "an address of each family is published";
        let addresses = eventually(&world.clock, what, GONE_WITHIN, async || {
            let service = services.get("web").await.map_err(|e| e.to_string())?;
            let ingress = service.status.and_then(|s| s.load_balancer?.ingress);
            let ips = ingress.into_iter().flatten().filter_map(|i| i.ip);
            let ips: Vec<std::net::IpAddr> = ips.filter_map(|ip| ip.parse().ok()).collect();
            match ips.as_slice() {
                [four, six] if four.is_ipv4() && six.is_ipv6() => Ok(ips),
                _ => Err(format!("{ips:?}")),
            }
        })
        .await?;
        for address in addresses {
            let to = SocketAddr::new(address, 80);
            first_answer(&world, to).await?;
            for _ in 0..4 {
                let seen = asked(&world, to).await?.peer.ip();
                assert_eq!(seen.is_ipv4(), address.is_ipv4(), "AZ-310: {to}");
            }
        }
        remove(&world).await?;
    }
    world.end().await
}

/// Applies the Service and waits until the security group's rules name this source.
async fn ruled(world: &World, service: ServiceManifest, source: &str) -> Result<()> {
    let service = service.json();
    let deny = service.to_string().contains("deny-all");
    world.objects.apply(service).await?;
    let what = format!("the rules name {source}");
    eventually(&world.clock, &what, GONE_WITHIN, async || {
        let group = world.azure_document("networkSecurityGroups", "nodes");
        let group = group.map_err(|e| e.to_string())?.unwrap_or_default();
        let rules = group["properties"]["securityRules"].to_string();
        if rules.contains(source) && rules.contains("deny-all") == deny {
            Ok(())
        } else {
            Err(rules)
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn za72_az052_az053_az205_source_ranges_hold_on_packets_and_deny_all_keeps_out_the_network_too()
-> Result<()> {
    let world = world().await?;
    let client = format!("{}/32", world.client.address());
    let ranges = format!("{PREFIX}allowed-ip-ranges");
    let deny = format!("{PREFIX}deny-all-except-load-balancer-source-ranges");
    let cluster: IpNet = "10.0.0.0/8".parse()?;
    // The client is a machine of the Internet, or one of the virtual network.
    let (outside, inside) = (vec![cluster], vec![cluster, client.parse()?]);
    let modes: [fn(ServiceManifest) -> ServiceManifest; 2] =
        [ServiceManifest::vip_mode, ServiceManifest::pod_mode];
    for mode in modes {
        let open = mode(web());
        let address = serve(&world, open.clone()).await?;
        azure_rules::enforce(&world, &outside).await?;
        asked(&world, address)
            .await
            .context("AZ-205: the Internet comes in")?;
        ruled(
            &world,
            open.clone().annotated(&ranges, &client),
            &world.client.address().to_string(),
        )
        .await?;
        azure_rules::enforce(&world, &outside).await?;
        asked(&world, address)
            .await
            .context("who is listed comes in")?;
        let others = open.clone().annotated(&ranges, "192.0.2.0/24");
        ruled(&world, others.clone(), "192.0.2.0/24").await?;
        azure_rules::enforce(&world, &outside).await?;
        ensure!(
            asked(&world, address).await.is_err(),
            "who is not listed stays out"
        );
        azure_rules::enforce(&world, &inside).await?;
        asked(&world, address)
            .await
            .context("the network lets itself in")?;
        ruled(&world, others.annotated(&deny, "true"), "192.0.2.0/24").await?;
        azure_rules::enforce(&world, &inside).await?;
        ensure!(
            asked(&world, address).await.is_err(),
            "AZ-053: nor does the network"
        );
        azure_rules::enforce(&world, &["0.0.0.0/0".parse()?]).await?;
        remove(&world).await?;
    }
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn za116_az113_after_a_flip_clients_that_know_the_former_address_are_served_until_the_end()
-> Result<()> {
    let world = world().await?;
    let former = serve(&world, web().vip_mode()).await?;
    let internal = format!("{PREFIX}load-balancer-internal");
    let flipped = web().vip_mode().annotated(&internal, "true");
    world.objects.apply(flipped.json()).await?;
    let what = "the new address is published before the former one";
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    let new = eventually(&world.clock, what, GONE_WITHIN, async || {
        let service = services.get("web").await.map_err(|e| e.to_string())?;
        let ingress = service.status.and_then(|s| s.load_balancer?.ingress);
        let ips: Vec<String> = ingress.into_iter().flatten().filter_map(|i| i.ip).collect();
        match ips.as_slice() {
            [new, old] if *old == former.ip().to_string() => Ok(new.clone()),
            _ => Err(format!("{ips:?}")),
        }
    })
    .await?;
    let new = SocketAddr::new(new.parse()?, 80);
    first_answer(&world, new).await?;
    for _ in 0..4 {
        asked(&world, former)
            .await
            .context("AZ-113: the former address")?;
        asked(&world, new).await.context("AZ-040: the new one")?;
    }
    // A deletion has no grace.
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az263_zi10_pods_are_reached_at_the_number_that_their_port_has() -> Result<()> {
    let world = world().await?;
    // `tcp` is what the pod calls its port.
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": "tcp" }]);
    let address = serve(&world, web().pod_mode().with("ports", ports)).await?;
    let client = world.client.address();
    assert_eq!(asked(&world, address).await?.peer.ip(), client, "AZ-264");
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn az290_az298_a_member_that_is_set_down_keeps_its_established_flows() -> Result<()> {
    let world = world_with(OnTerm::ServeSeconds(40)).await?;
    let address = serve(&world, web().pod_mode()).await?;
    let every = Duration::from_millis(200);
    let flow = LongFlow::open(&world.sockets, address, every, world.clock).await;
    let flow = flow.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    assert_eq!(flow.first.pod, "web");
    ready_pod(&world, ("second", "b"), OnTerm::Exit).await?;
    let pods: Api<Pod> = Api::namespaced(world.kube(), "default");
    pods.delete("web", &DeleteParams::default()).await?;
    let what = "its member is set Down";
    eventually(&world.clock, what, GONE_WITHIN, async || {
        let writes = world.azure().map_err(|e| e.to_string())?.writes();
        let down = writes
            .iter()
            .any(|write| write.body.to_string().contains("\"Down\""));
        if down {
            Ok(())
        } else {
            Err(format!("{:?}", writes.last()))
        }
    })
    .await?;
    world.cloud_settled().await;
    for _ in 0..8 {
        assert_eq!(
            asked(&world, address).await?.pod,
            "second",
            "AZ-290: no new flow"
        );
    }
    let end = flow.end().await.context("the flow tells how it ended")?;
    ensure!(end.cut.is_none(), "AZ-298: {end:?}");
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn zi45_az267_clients_inside_reach_the_address_from_nodes_without_a_pod_under_local()
-> Result<()> {
    let world = world().await?;
    let other = pod("other", "other", "b", OnTerm::Exit);
    world.objects.create(other).await?;
    let objects = &world.objects;
    objects.pod_ready("default", "other", READY_WITHIN).await?;
    let manifest = web()
        .vip_mode()
        .with("externalTrafficPolicy", json!("Local"));
    let address = serve(&world, manifest).await?;
    // On the node without a pod, and beside the pod itself, which Azure would never send back to itself.
    for client in ["other", "web"] {
        let (netns, _) = world.pod_place(client).await?;
        let sockets = sockets_of(&netns, std::net::Ipv4Addr::UNSPECIFIED);
        let what = format!("pod {client} reaches {address}");
        eventually(&world.clock, &what, READY_WITHIN, async || {
            let asked = ask_tcp(&sockets, address).await;
            asked.map(drop).map_err(|failure| format!("{failure:?}"))
        })
        .await?;
    }
    remove(&world).await?;
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn za67_az171_two_services_share_an_address_and_one_goes_without_the_other() -> Result<()> {
    let world = world().await?;
    let first = serve(&world, web().vip_mode()).await?;
    let key = format!("{PREFIX}load-balancer-ipv4");
    let more = ServiceManifest::load_balancer("more", "web")
        .with("loadBalancerClass", json!("onehop.dev/azure"))
        .with(
            "ports",
            json!([{ "name": "tcp", "port": 81, "targetPort": "tcp" }]),
        )
        .vip_mode()
        .annotated(&key, &first.ip().to_string());
    world.objects.apply(more.json()).await?;
    let shared = SocketAddr::new(world.lb_address("more").await?, 81);
    assert_eq!(shared.ip(), first.ip(), "AZ-042");
    first_answer(&world, shared).await?;
    asked(&world, first).await.context("ZA-67: beside it")?;
    assert_eq!(world.azure()?.ids("publicIPAddresses").len(), 1, "AZ-171");
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    services.delete("web", &DeleteParams::default()).await?;
    world.service_gone("web").await?;
    world.cloud_settled().await;
    asked(&world, shared)
        .await
        .context("AZ-173: the other stays")?;
    ensure!(
        asked(&world, first).await.is_err(),
        "the port of the first is gone"
    );
    services.delete("more", &DeleteParams::default()).await?;
    world.service_gone("more").await?;
    assert_eq!(world.azure()?.ids("publicIPAddresses").len(), 0, "ZA-43");
    world.end().await
}
