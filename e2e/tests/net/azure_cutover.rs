//! A Service of cloud-provider-azure on a cluster of one's own is taken over in place: its address, its packets and its
//! flows go on (AZ-014).

use crate::azure::{asked, world_on};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use onehop_e2e::{
    traffic::LongFlow,
    world::{CloudKind, OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer},
};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const OURS: &str = "onehop.dev/load-balancer";
const NODE_PORT: u16 = 30080;
const WITHIN: Duration = Duration::from_mins(2);

/// Names and addresses of the nodes, as members of the peer's pool.
async fn members(world: &World) -> Result<Vec<Value>> {
    let nodes: Api<Node> = Api::all(world.kube());
    let nodes = nodes.list(&ListParams::default()).await?;
    let member = |node: &Node| {
        let addresses = node.status.as_ref()?.addresses.as_ref()?;
        let internal = addresses.iter().find(|it| it.type_ == "InternalIP")?;
        Some(json!({"name": node.name_any(), "properties": {"ipAddress": internal.address}}))
    };
    Ok(nodes.items.iter().filter_map(member).collect())
}

/// What cloud-provider-azure makes for a Service with this UID; gives its address.
async fn peer_makes(world: &World, uid: &str) -> Result<String> {
    let base: String = format!("a{}", uid.replace('-', ""))
        .chars()
        .take(32)
        .collect();
    let put = |id: &str, body: &Value| {
        let put = world.azure()?.put(id, body);
        put.map_err(|said| anyhow::anyhow!("{id}: {said}"))
    };
    let pip_name = format!("e2e-{base}");
    let pip = World::azure_id("publicIPAddresses", &pip_name);
    let tags = json!({"k8s-azure-service": "default/web", "k8s-azure-cluster-name": "e2e"});
    put(
        &pip,
        &json!({"location": "westeurope", "sku": {"name": "Standard"}, "tags": tags,
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}}),
    )?;
    settled(world, "publicIPAddresses", &pip_name).await?;
    let document = world.azure_document("publicIPAddresses", &pip_name)?;
    let address = document.context("it was made")?["properties"]["ipAddress"].clone();
    let address = address.as_str().context("it has an address")?.to_owned();
    let balancer = World::azure_id("loadBalancers", "onehop-lb");
    let child = |list: &str, name: &str| json!({"id": format!("{balancer}/{list}/{name}")});
    let rule = format!("{base}-TCP-80");
    let vnet = json!({"id": World::azure_id("virtualNetworks", "vnet")});
    let body = json!({"location": "westeurope", "sku": {"name": "Standard", "tier": "Regional"}, "properties": {
        "frontendIPConfigurations": [{"name": base, "properties": {"publicIPAddress": {"id": pip}}}],
        "backendAddressPools": [{"name": "e2e", "properties": {
            "virtualNetwork": vnet, "loadBalancerBackendAddresses": members(world).await?}}],
        "probes": [{"name": rule, "properties": {"protocol": "Tcp", "port": NODE_PORT, "intervalInSeconds": 5, "probeThreshold": 2}}],
        "loadBalancingRules": [{"name": rule, "properties": {
            "frontendIPConfiguration": child("frontendIPConfigurations", &base),
            "backendAddressPool": child("backendAddressPools", "e2e"), "probe": child("probes", &rule), "protocol": "Tcp",
            "frontendPort": 80, "backendPort": 80, "enableFloatingIP": true, "idleTimeoutInMinutes": 4, "enableTcpReset": true,
            "loadDistribution": "Default", "disableOutboundSnat": false}}],
    }});
    put(&balancer, &body)?;
    settled(world, "loadBalancers", "onehop-lb").await?;
    let group = world.azure_document("networkSecurityGroups", "nodes")?;
    let mut group = group.context("there is a security group")?;
    let rules = group["properties"]["securityRules"].as_array_mut();
    // The hash of `Tcp_Internet_80` (AZ-091).
    rules.context("it has rules")?.push(json!({
        "name": "k8s-azure-lb_allow_IPv4_d39272f7f57ed937951650d93992ad77", "properties": {
            "priority": 501, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "sourcePortRange": "*",
            "sourceAddressPrefix": "Internet", "destinationAddressPrefixes": [address], "destinationPortRanges": ["80"]}}));
    put(&World::azure_id("networkSecurityGroups", "nodes"), &group)?;
    Ok(address)
}

async fn settled(world: &World, kind: &str, name: &str) -> Result<()> {
    let what = format!("{name} is made");
    eventually(&world.clock, &what, WITHIN, async || {
        let document = world
            .azure_document(kind, name)
            .map_err(|e| e.to_string())?;
        let state = document.unwrap_or_default()["properties"]["provisioningState"].clone();
        if state == "Succeeded" {
            Ok(())
        } else {
            Err(state.to_string())
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn az014_az017_a_cutover_from_the_peers_layout_keeps_address_and_flows() -> Result<()> {
    let world = world_on(
        WorldConfig {
            cloud: CloudKind::Azure,
            controller_flags: vec![
                "--claim-classless",
                "--azure-share-load-balancer",
                "--azure-service-controller-disabled",
                "--take-over=default/web",
            ],
            ..WorldConfig::default()
        },
        OnTerm::Exit,
    )
    .await?;
    // Nobody's while the peer makes what it makes: a Service of another type.
    let port = json!([{"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": NODE_PORT}]);
    let inside = ServiceManifest::cluster_ip("web", "web")
        .with("type", json!("NodePort"))
        .with("ports", port);
    world.objects.apply(inside.json()).await?;
    let services: Api<Service> = Api::namespaced(world.kube(), "default");
    let uid = services.get("web").await?.uid().context("it has a UID")?;
    let ip = peer_makes(&world, &uid).await?;
    let params = PatchParams::default();
    let outward =
        json!({"metadata": {"finalizers": [FINALIZER]}, "spec": {"type": "LoadBalancer"}});
    services
        .patch("web", &params, &Patch::Merge(outward))
        .await?;
    let published = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}}});
    let status = Patch::Merge(published);
    services.patch_status("web", &params, &status).await?;
    let writes = world.azure()?.writes().len();
    let address = SocketAddr::new(ip.parse()?, 80);
    first_answer(&world, address).await?;
    let every = Duration::from_millis(200);
    let flow = LongFlow::open(&world.sockets, address, every, world.clock).await;
    let flow = flow.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
    // A controller that starts, with the peer's load balancer there.
    world.controller.kill()?;
    eventually(&world.clock, "the finalizer is ours", WITHIN, async || {
        asked(&world, address).await.map_err(|e| e.to_string())?;
        let service = services.get("web").await.map_err(|e| e.to_string())?;
        match service.finalizers() {
            [one] if one == OURS => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let now = world.azure()?.writes();
    ensure!(now.len() == writes, "AZ-014: {:?}", now.last());
    // Ours to change: one more port, at the same address, beside the flow.
    let ports = json!({"spec": {"ports": [
        {"name": "tcp", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": NODE_PORT},
        {"name": "more", "port": 81, "protocol": "TCP", "targetPort": 8080},
    ]}});
    services.patch("web", &params, &Patch::Merge(ports)).await?;
    first_answer(&world, SocketAddr::new(address.ip(), 81)).await?;
    for _ in 0..8 {
        asked(&world, address).await?;
    }
    let service = services.get("web").await?;
    let ingress = service.status.and_then(|it| it.load_balancer?.ingress);
    let published: Vec<_> = ingress
        .into_iter()
        .flatten()
        .filter_map(|it| it.ip)
        .collect();
    assert_eq!(published, [ip], "AZ-014: the address stays");
    let end = flow.end().await.context("the flow tells how it ended")?;
    ensure!(end.cut.is_none(), "AZ-014: {end:?}");
    services.delete("web", &DeleteParams::default()).await?;
    world.service_gone("web").await?;
    let left = [
        world.azure()?.ids("loadBalancers"),
        world.azure()?.ids("publicIPAddresses"),
    ];
    assert_eq!(left.concat(), [""; 0], "AZ-006");
    world.end().await
}
