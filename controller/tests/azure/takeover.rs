//! Load balancers of cloud-provider-azure on a cluster of one's own: looked at, taken over in place, given back (AZ-014,
//! AZ-017).

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use onehop_controller::cloud::azure::names;
use onehop_controller::cloud::azure::settings::{Kind, Layout, Settings};
use onehop_controller::cloud::azure::takeover::FINALIZER;
use onehop_controller::plan::custody::{PeerServices, Selection};
use onehop_controller::snapshot::Classless;
use onehop_core::crd::{
    LoadBalancer, RELEASE_ANNOTATION, SERVICE_FINALIZER, TakeOver, TakeOverStage,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::names as children;
use crate::world::{Controller, World};
use crate::writers::Foreign;

const QUIET: Duration = Duration::from_secs(3);
const NODE_PORT: u16 = 30080;

/// What the peer has.
struct Peer {
    address: String,
    ids: Vec<String>,
}

impl Peer {
    /// Makes the Service `theirs`, and in the cloud what cloud-provider-azure makes for it.
    async fn serves(world: &World) -> Self {
        let port = json!({"name": "http", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT});
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "theirs", "finalizers": [FINALIZER]},
            "spec": {"type": "LoadBalancer", "selector": {"app": "theirs"}, "ports": [port]},
        });
        let services = world.api::<Service>();
        let service = serde_json::from_value(service).unwrap();
        let service = services.create(&PostParams::default(), &service).await;
        let uid = service.unwrap().uid().unwrap();
        let base = names::base(&uid.as_str().into());
        let foreign = Foreign::new(world).await;
        let put = async |id: &str, body: &Value| {
            let (status, said) = foreign.send(Method::PUT, id, Some(body)).await;
            assert!(status.is_success(), "{said}");
        };
        let pip = world.place.public_ip_id(None, &format!("demo-{base}"));
        let tags = json!({"k8s-azure-service": "default/theirs", "k8s-azure-cluster-name": "demo"});
        put(&pip, &json!({"location": "westeurope", "sku": {"name": "Standard"}, "tags": tags, "odd": {"a": []},
            "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"}})).await;
        let address = world.azure.document(&pip).unwrap()["properties"]["ipAddress"].clone();
        let address = address.as_str().unwrap().to_owned();
        let out = world.place.public_ip_id(None, "aks-out");
        put(
            &out,
            &json!({"location": "westeurope", "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static"}}),
        )
        .await;
        let balancer = world.place.balancer_id(Kind::External);
        put(&balancer, &layout(world, &base, (&pip, &out))).await;
        let group = world
            .place
            .security_group_id(world.place.security_group.as_ref().unwrap());
        let (_, mut rules) = foreign.send(Method::GET, &group, None).await;
        let hash = names::rule_hash("Tcp", &["Internet".to_owned()], &["80".to_owned()]);
        let rules_of = rules["properties"]["securityRules"].as_array_mut().unwrap();
        rules_of[1] = json!({"name": format!("k8s-azure-lb_allow_IPv4_{hash}"), "properties": {
            "priority": 500, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "sourcePortRange": "*",
            "sourceAddressPrefix": "Internet", "destinationAddressPrefixes": [address], "destinationPortRanges": ["80"]}});
        put(&group, &rules).await;
        let ingress = json!([{"ip": address, "ipMode": "VIP"}]);
        let status = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        services
            .patch_status("theirs", &PatchParams::default(), &status)
            .await
            .unwrap();
        let ids = vec![pip, out, balancer, group];
        Self { address, ids }
    }

    /// Everything of it in the cloud.
    fn picture(&self, world: &World) -> Vec<Value> {
        let document = |id: &String| world.azure.document(id).unwrap();
        self.ids.iter().map(document).collect()
    }
}

/// The cluster's load balancer as the peer has it, with the outbound rule of AKS.
fn layout(world: &World, base: &str, (pip, out): (&str, &str)) -> Value {
    let balancer = world.place.balancer_id(Kind::External);
    let child = |list: &str, name: &str| json!({"id": format!("{balancer}/{list}/{name}")});
    let rule = format!("{base}-TCP-80");
    let member = |n: u8| json!({"name": format!("node-{n}"), "properties": {"ipAddress": format!("10.0.1.{n}")}});
    let pool = json!({"virtualNetwork": {"id": world.place.vnet_id()}, "loadBalancerBackendAddresses": [member(1), member(2)]});
    json!({"location": "westeurope", "sku": {"name": "Standard", "tier": "Regional"}, "properties": {
        "frontendIPConfigurations": [
            {"name": base, "properties": {"publicIPAddress": {"id": pip}, "odd": {"x": []}}},
            {"name": "aks-out", "properties": {"publicIPAddress": {"id": out}}},
        ],
        "backendAddressPools": [{"name": "demo", "properties": pool}, {"name": "aksOutboundBackendPool", "properties": {}}],
        "probes": [{"name": rule, "properties": {"protocol": "Tcp", "port": NODE_PORT, "intervalInSeconds": 5, "probeThreshold": 2}}],
        "loadBalancingRules": [{"name": rule, "properties": {
            "frontendIPConfiguration": child("frontendIPConfigurations", base), "backendAddressPool": child("backendAddressPools", "demo"),
            "probe": child("probes", &rule), "protocol": "Tcp", "frontendPort": 80, "backendPort": 80,
            "enableFloatingIP": true, "idleTimeoutInMinutes": 4, "enableTcpReset": true, "loadDistribution": "Default",
            "disableOutboundSnat": false, "enableConnectionTracking": true}}],
        "outboundRules": [{"name": "aksOutboundRule", "properties": {"protocol": "All",
            "backendAddressPool": child("backendAddressPools", "aksOutboundBackendPool"),
            "frontendIPConfigurations": [child("frontendIPConfigurations", "aks-out")]}}],
    }})
}

fn shared(settings: &mut Settings) {
    settings.layout = Layout::Shared;
}

fn taking(settings: &mut Settings) {
    shared(settings);
    settings.take_over.peer = PeerServices::Off;
    settings.take_over.of = Selection::read(&["default/theirs".to_owned()]).unwrap();
}

async fn said(world: &World) -> Option<TakeOver> {
    let object = world.api::<LoadBalancer>().get_opt("theirs").await.unwrap();
    object?.status?.take_over
}

async fn at_stage(world: &World, stage: TakeOverStage) -> TakeOver {
    let what = format!("it is {}", stage.as_str());
    world
        .eventually(&what, async |w| {
            said(w).await.is_some_and(|it| it.stage == stage)
        })
        .await;
    said(world).await.unwrap()
}

async fn finalizers(world: &World) -> Vec<String> {
    let service = world.api::<Service>().get("theirs").await.unwrap();
    service.finalizers().to_vec()
}

async fn taken(world: &World) -> Controller {
    let controller = world.controller_with(Classless::Claim, taking).await;
    world
        .eventually("the finalizer is ours", async |w| {
            finalizers(w).await == [SERVICE_FINALIZER]
        })
        .await;
    controller
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az014_az002_k05_what_the_peer_has_is_looked_at_until_it_is_said_to_be_off() {
    let world = World::start().await;
    let peer = Peer::serves(&world).await;
    let (before, writes) = (peer.picture(&world), world.writes());
    let service = world.api::<Service>().get("theirs").await.unwrap();
    let controller = world.controller_with(Classless::Claim, shared).await;
    let report = at_stage(&world, TakeOverStage::Observing).await;
    assert_eq!(
        report.differences, [""; 0],
        "AZ-014: by the peer's own recipes"
    );
    assert!(
        report.blocked[0].contains("service-lb-controller"),
        "AZ-014: {:?}",
        report.blocked
    );
    assert!(report.steps[0].contains(FINALIZER), "{:?}", report.steps);
    world.quiet(QUIET).await;
    assert_eq!(world.writes(), writes, "no write to Azure");
    assert_eq!(peer.picture(&world), before, "K-05");
    let now = world.api::<Service>().get("theirs").await.unwrap();
    assert_eq!(
        now.resource_version(),
        service.resource_version(),
        "no write to the Service"
    );
    controller.kill().await;
    // K-04: the claim goes, and with it our object alone.
    let _controller = world.controller_with(Classless::Ignore, shared).await;
    world
        .eventually("our object is gone", async |w| {
            let object = w.api::<LoadBalancer>().get_opt("theirs").await.unwrap();
            object.is_none()
        })
        .await;
    assert_eq!(peer.picture(&world), before, "K-04");
    assert_eq!(finalizers(&world).await, [FINALIZER], "K-04");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az014_az017_az010_az005_a_take_over_writes_the_finalizer_and_nothing_else_and_so_does_the_way_back()
 {
    let world = World::start().await;
    let peer = Peer::serves(&world).await;
    let (before, writes) = (peer.picture(&world), world.writes());
    let controller = taken(&world).await;
    world.quiet(QUIET).await;
    assert_eq!(
        world.writes(),
        writes,
        "AZ-014: {:#?}",
        world.azure.writes().last()
    );
    assert_eq!(peer.picture(&world), before, "AZ-014: byte for byte");
    assert_eq!(world.address("theirs").await.as_ref(), Some(&peer.address));
    // AZ-010, AZ-201: beside one of our class, each by its own names.
    world.vip("ours").await;
    let other = world.has_address("ours").await;
    let rule_with = |address: &str| {
        let rules = world.security_rules();
        let of = rules.iter().find(|rule| {
            rule["properties"]["destinationAddressPrefixes"]
                .to_string()
                .contains(address)
        });
        of.unwrap()["name"].as_str().unwrap().to_owned()
    };
    assert!(rule_with(&other).starts_with("onehop-"), "AZ-099");
    assert!(
        rule_with(&peer.address).starts_with("k8s-azure-lb_allow_IPv4_"),
        "AZ-091"
    );
    world.delete("ours").await;
    world
        .eventually("ours is gone", async |w| {
            w.azure.ids("publicIPAddresses").len() == 2
                && w.api::<Service>().get_opt("ours").await.unwrap().is_none()
        })
        .await;
    let same = |now: Vec<Value>, then: &[Value]| {
        let without = |of: &Value| {
            let mut of = of.clone();
            of.as_object_mut().unwrap().remove("etag");
            let text = of.to_string();
            // Each child has the version of its document.
            let parts = text.split("\"W/\\\"");
            parts
                .map(|part| part.split_once('"').map_or(part, |it| it.1).to_owned())
                .collect::<String>()
        };
        assert_eq!(
            now.iter().map(without).collect::<Vec<_>>(),
            then.iter().map(without).collect::<Vec<_>>(),
            "AZ-008"
        );
    };
    same(peer.picture(&world), &before);
    // AZ-130: it is ours to write now, and stays at its address.
    let (puts, pips) = (
        world.calls("PUT loadBalancers"),
        world.calls("PUT publicIPAddresses"),
    );
    world.node(3).await;
    world
        .eventually("the new node is in the peer's pool", async |w| {
            w.balancer().unwrap().to_string().contains("\"node-3\"")
        })
        .await;
    let port = json!([{"name": "http", "port": 81, "targetPort": 8080, "nodePort": NODE_PORT}]);
    world
        .patch("theirs", json!({"spec": {"ports": port}}))
        .await;
    world
        .eventually("the port is another one", async |w| {
            let rules = w.balancer().unwrap();
            children(&rules, "loadBalancingRules")[0].ends_with("-TCP-81")
        })
        .await;
    world.quiet(QUIET).await;
    assert_eq!(world.calls("PUT loadBalancers"), puts + 1, "AZ-141");
    assert_eq!(
        world.calls("PUT publicIPAddresses"),
        pips,
        "AZ-180: its tags stay the peer's"
    );
    assert_eq!(world.address("theirs").await.as_ref(), Some(&peer.address));
    // The way back.
    let writes = world.writes();
    let release = Patch::Merge(json!({"metadata": {"annotations": {RELEASE_ANNOTATION: "now"}}}));
    let objects = world.api::<LoadBalancer>();
    objects
        .patch("theirs", &PatchParams::default(), &release)
        .await
        .unwrap();
    at_stage(&world, TakeOverStage::Returned).await;
    assert_eq!(finalizers(&world).await, [FINALIZER], "AZ-005");
    controller.kill().await;
    let _controller = world.controller().await;
    world.quiet(QUIET).await;
    assert_eq!(world.writes(), writes, "AZ-014: hand-back is the inverse");
    assert_eq!(world.address("theirs").await.as_ref(), Some(&peer.address));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az006_az110_az082_a_service_that_was_taken_over_goes_with_everything_of_it_and_of_nobody_else()
 {
    let world = World::start().await;
    let peer = Peer::serves(&world).await;
    let _controller = taken(&world).await;
    world.delete("theirs").await;
    world
        .eventually("everything of it is gone", async |w| {
            let service = w.api::<Service>().get_opt("theirs").await.unwrap();
            let pips = w.azure.ids("publicIPAddresses");
            service.is_none() && pips == [peer.ids[1].clone()] && w.security_rules().len() == 1
        })
        .await;
    let left = world.balancer().unwrap();
    assert_eq!(
        children(&left, "frontendIPConfigurations"),
        ["aks-out"],
        "AZ-008"
    );
    assert_eq!(children(&left, "loadBalancingRules"), [""; 0]);
    assert_eq!(
        children(&left, "outboundRules"),
        ["aksOutboundRule"],
        "AZ-237"
    );
}
