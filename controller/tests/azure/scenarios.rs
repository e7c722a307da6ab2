//! Scenario rows of the specification that need an API server: classes, types, statuses, a peer beside us.

use e2e_cloud::azure::Faults;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::World;
use crate::writers::Foreign;
use crate::{QUIET, all_gone, names};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za88_az001_az003_services_of_another_class_or_of_none_are_nothing_to_us() {
    let world = World::start().await;
    let _controller = world.controller().await;
    // The class cannot be changed later, so each is made as it is.
    for (name, class) in [("other", json!("example.org/lb")), ("none", Value::Null)] {
        let annotations = json!({"service.beta.kubernetes.io/azure-pip-name": "missing", "onehop.dev/target": "pod"});
        world
            .service(name, json!({"loadBalancerClass": class}), annotations)
            .await;
    }
    // Whoever comes later is served, so those were seen and passed over.
    world.vip("ours").await;
    world.has_address("ours").await;
    for name in ["other", "none"] {
        let service = world.api::<Service>().get(name).await.unwrap();
        assert!(service.finalizers().is_empty(), "ZA-88: {name}");
        assert_eq!(world.address(name).await, None);
        assert_eq!(world.told(name).await, [], "ZA-88: {name}");
    }
    assert_eq!(world.azure.ids("publicIPAddresses").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za92_az006_a_service_that_changes_its_type_is_cleaned_and_comes_back() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    let inward = json!({ "spec": { "type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null } });
    world.patch("web", inward).await;
    world
        .eventually("nothing is left but the Service", async |w| {
            let service = w.api::<Service>().get("web").await.unwrap();
            let empty = w.balancer().is_none() && w.azure.ids("publicIPAddresses").is_empty();
            empty && w.security_rules().len() == 2 && service.finalizers().is_empty()
        })
        .await;
    let outward = json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/azure", "allocateLoadBalancerNodePorts": false } });
    world.patch("web", outward).await;
    world.has_address("web").await;
    world.delete("web").await;
    all_gone(&world, "web").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zi46_az119_a_status_that_somebody_empties_comes_back_without_a_write_to_the_cloud() {
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    let address = world.has_address("web").await;
    let writes = world.writes();
    let empty = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": null } } }));
    let services = world.api::<Service>();
    services
        .patch_status("web", &PatchParams::default(), &empty)
        .await
        .unwrap();
    assert_eq!(world.has_address("web").await, address, "ZI-46");
    assert_eq!(world.writes(), writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za81_az103_of_many_edits_the_last_one_wins_and_few_are_written() {
    const EDITS: u16 = 30;
    let world = World::start().await;
    let _controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    let before = world.calls("PUT loadBalancers");
    for port in 1..=EDITS {
        let ports = json!({ "spec": { "ports": [{ "name": "http", "port": 1000 + port, "targetPort": 8080 }] } });
        world.patch("web", ports).await;
    }
    let last = format!("-TCP-{}", 1000 + EDITS);
    world
        .eventually("the last edit alone is there", async |w| {
            let balancer = w.balancer().unwrap();
            let rules = names(&balancer, "loadBalancingRules");
            rules.len() == 1 && rules[0].ends_with(&last)
        })
        .await;
    let writes = world.calls("PUT loadBalancers") - before;
    assert!(writes < u64::from(EDITS) / 2, "ZA-81: {writes} writes");
}

/// What cloud-provider-azure and AKS have in the resource group: its load balancer, a public IP and rules.
fn of_the_peer(world: &World) -> Vec<(String, Value)> {
    let id = |kind: &str, name: &str| world.place.network("rg", kind, name);
    let (pip, balancer) = (
        id("publicIPAddresses", "kubernetes-apeer"),
        id("loadBalancers", "kubernetes"),
    );
    let child = |list: &str, name: &str| json!({"id": format!("{balancer}/{list}/{name}")});
    let tags =
        json!({"k8s-azure-service": "default/theirs", "k8s-azure-cluster-name": "kubernetes"});
    let public = json!({"location": "westeurope", "sku": {"name": "Standard"}, "tags": tags, "odd": {"a": []},
        "properties": {"publicIPAllocationMethod": "Static", "upgradedToV2": null}});
    let shared = json!({"location": "westeurope", "sku": {"name": "Standard", "odd": 1}, "properties": {
        "scope": "Public",
        "frontendIPConfigurations": [{"name": "apeer", "properties": {"publicIPAddress": {"id": pip}, "ddosSettings": {"x": []}}}],
        "backendAddressPools": [{"name": "kubernetes", "properties": {"virtualNetwork": {"id": world.place.vnet_id()},
            "loadBalancerBackendAddresses": [{"name": "node-1", "properties": {"ipAddress": "10.0.1.1"}}]}}],
        "probes": [{"name": "apeer-TCP-80", "properties": {"protocol": "Tcp", "port": 30080, "intervalInSeconds": 5, "probeThreshold": 2}}],
        "loadBalancingRules": [{"name": "apeer-TCP-80", "properties": {
            "frontendIPConfiguration": child("frontendIPConfigurations", "apeer"),
            "backendAddressPool": child("backendAddressPools", "kubernetes"), "probe": child("probes", "apeer-TCP-80"),
            "protocol": "Tcp", "frontendPort": 80, "backendPort": 80, "enableFloatingIP": true, "enableConnectionTracking": true}}],
    }});
    vec![(pip, public), (balancer, shared)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za110_k05_az010_beside_a_running_peer_no_byte_of_it_changes_through_our_whole_life() {
    let world = World::start().await;
    let foreign = Foreign::new(&world).await;
    let objects = of_the_peer(&world);
    for (id, body) in &objects {
        let (status, said) = foreign.send(Method::PUT, id, Some(body)).await;
        assert!(status.is_success(), "{said}");
    }
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "theirs", "finalizers": ["service.kubernetes.io/load-balancer-cleanup"] },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": "web" } },
    });
    let services = world.api::<Service>();
    let theirs = serde_json::from_value(theirs).unwrap();
    services
        .create(&PostParams::default(), &theirs)
        .await
        .unwrap();
    let look = async |world: &World| {
        let service = world.api::<Service>().get("theirs").await.unwrap();
        let mut all = vec![serde_json::to_value(service).unwrap()];
        all.extend(
            objects
                .iter()
                .map(|(id, _)| world.azure.document(id).unwrap()),
        );
        let rules = world.security_rules().into_iter();
        all.extend(rules.filter(|rule| !rule["name"].as_str().unwrap().starts_with("onehop-")));
        all
    };
    // What the server adds to the group's rules it adds with their first write.
    let group = world
        .place
        .security_group_id(world.place.security_group.as_ref().unwrap());
    let (_, body) = foreign.send(Method::GET, &group, None).await;
    let (status, said) = foreign.send(Method::PUT, &group, Some(&body)).await;
    assert!(status.is_success(), "{said}");
    let before = look(&world).await;
    let controller = world.controller().await;
    world.vip("web").await;
    world.has_address("web").await;
    // ZA-110: names and tags of ours only.
    let pips = world.azure.ids("publicIPAddresses");
    let ours = pips.iter().find(|id| **id != objects[0].0).unwrap();
    let tags = world.azure.document(ours).unwrap()["tags"].clone();
    assert!(
        tags.as_object()
            .unwrap()
            .keys()
            .all(|key| key.starts_with("onehop-")),
        "AZ-005: {tags}"
    );
    let ports =
        json!({ "spec": { "ports": [{ "name": "http", "port": 81, "targetPort": 8080 }] } });
    world.patch("web", ports).await;
    world
        .eventually("the port is another one", async |w| {
            w.balancer().unwrap().to_string().contains("-TCP-81\"")
        })
        .await;
    controller.kill().await;
    let _again = world.controller().await;
    // AZ-043: one of the peer's is not to be had.
    let taken = json!({"onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-pip-name": "kubernetes-apeer"});
    world.service("greedy", json!({}), taken).await;
    world.tells("greedy", "PublicIPForeign").await;
    for name in ["web", "greedy"] {
        world.delete(name).await;
    }
    world
        .eventually("ours are gone", async |w| {
            w.balancer().is_none() && w.azure.ids("publicIPAddresses").len() == 1
        })
        .await;
    world.quiet(QUIET).await;
    assert_eq!(look(&world).await, before, "ZA-110");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za114_az018_az019_a_locked_security_group_is_told_at_start_and_internal_services_work() {
    let world = World::start().await;
    let group = world.place.security_group.clone().unwrap();
    let locked = (world.place.security_group_id(&group), "*/write".to_owned());
    // The first look fails: that is no answer, neither a right nor the want of one.
    world.azure.set_faults(Faults {
        deny_assignments: vec![locked],
        refuse: vec![("denyAssignments".to_owned(), 503, "ServiceUnavailable")],
        ..Faults::default()
    });
    let _controller = world.controller().await;
    world.vip("public").await;
    let internal = json!({
        "onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-load-balancer-internal": "true",
    });
    world.service("inside", json!({}), internal).await;
    world.has_address("inside").await;
    // C-135.
    world
        .eventually("the public one is told what denies what", async |w| {
            let told = w.told("public").await;
            told.iter().any(|(reason, message)| {
                reason == "SecurityGroupLocked"
                    && message.contains("lockdown")
                    && message.contains("networkSecurityGroups/write")
            })
        })
        .await;
    let of_public = world
        .azure
        .writes()
        .into_iter()
        .filter(|write| !write.id.ends_with("lb-internal"));
    assert_eq!(of_public.count(), 0, "AZ-018: before any write");
    assert!(world.azure.ids("publicIPAddresses").is_empty());
    // The lock goes: what waited is made, without a restart.
    world.azure.set_faults(Faults::default());
    world.has_address("public").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az020_an_address_of_the_peer_is_taken_over_once_it_is_a_users_and_outlives_us() {
    let world = World::start().await;
    let foreign = Foreign::new(&world).await;
    let objects = of_the_peer(&world);
    for (id, body) in &objects {
        let (status, said) = foreign.send(Method::PUT, id, Some(body)).await;
        assert!(status.is_success(), "{said}");
    }
    let (pip, balancer) = (&objects[0].0, &objects[1].0);
    let held = |world: &World| world.azure.document(pip).unwrap();
    let address = held(&world)["properties"]["ipAddress"]
        .as_str()
        .unwrap()
        .to_owned();
    let _controller = world.controller().await;
    // Step 1: the address is pinned. It is the peer's still, by its tag.
    let pinned = json!({"onehop.dev/target": "vip", "service.beta.kubernetes.io/azure-load-balancer-ipv4": address});
    world.service("moved", json!({}), pinned).await;
    world.tells("moved", "PublicIPForeign").await;
    assert_eq!(
        world.writes(),
        objects.len(),
        "AZ-034: nothing was written for it"
    );
    // Step 2: without the peer's tag it is a user's; step 4: the peer's frontend lets it go.
    let mut untagged = held(&world);
    untagged["tags"] = json!({"team": "edge"});
    let (status, said) = foreign.send(Method::PUT, pip, Some(&untagged)).await;
    assert!(status.is_success(), "{said}");
    let (status, said) = foreign.send(Method::DELETE, balancer, None).await;
    assert!(status.is_success(), "{said}");
    assert_eq!(world.has_address("moved").await, address, "AZ-020");
    assert_eq!(
        held(&world)["tags"],
        json!({"team": "edge"}),
        "AZ-180: never tagged"
    );
    world.delete("moved").await;
    world
        .eventually("ours is gone", async |w| w.balancer().is_none())
        .await;
    world.quiet(QUIET).await;
    assert_eq!(
        held(&world)["properties"]["ipAddress"],
        json!(address),
        "ZA-61: never deleted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn za64_az044_az175_a_new_address_is_of_the_prefix_that_is_asked_for_and_in_all_zones() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let prefix = world
        .place
        .network("rg", "publicIPPrefixes", "allowed-outside");
    let body = json!({"location": "westeurope", "properties": {"prefixLength": 30}});
    world.azure.put(&prefix, &body).unwrap();
    let annotation = "service.beta.kubernetes.io/azure-pip-prefix-id";
    let wish = json!({"onehop.dev/target": "vip", annotation: prefix});
    world.service("listed", json!({}), wish).await;
    let address = world.has_address("listed").await;
    let range = world.azure.document(&prefix).unwrap()["properties"]["ipPrefix"].clone();
    let range: ipnet::Ipv4Net = range.as_str().unwrap().parse().unwrap();
    assert!(
        range.contains(&address.parse::<std::net::Ipv4Addr>().unwrap()),
        "ZA-64: {address} is not of {range}"
    );
    let ids = world.azure.ids("publicIPAddresses");
    let [id] = &ids[..] else {
        panic!("{ids:?}");
    };
    assert!(id.ends_with("-allowed-outside"), "ZA-64: {id}");
    let zones = world.azure.document(id).unwrap()["zones"].clone();
    assert_eq!(zones, json!(["1", "2"]), "AZ-175");
}

/// Azure takes both frontends in one document, and the address that goes is held until the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az113_az262_az044_a_former_address_serves_beside_the_new_one_and_goes_at_the_end() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let annotation = "service.beta.kubernetes.io/azure-pip-prefix-id";
    let prefix = |name: &str| world.place.network("rg", "publicIPPrefixes", name);
    let body = json!({"location": "westeurope", "properties": {"prefixLength": 30}});
    for name in ["first", "second"] {
        world.azure.put(&prefix(name), &body).unwrap();
    }
    world.endpoints("web", &[1, 2]).await;
    let wish = json!({"onehop.dev/target": "pod", annotation: prefix("first")});
    world.service("web", json!({}), wish).await;
    let former = world.has_address("web").await;
    let moved = json!({"metadata": {"annotations": {annotation: prefix("second")}}});
    world.patch("web", moved).await;
    world.tells("web", "FormerAddressServes").await;
    world
        .eventually("the new one is published", async |w| {
            w.address("web").await.is_some_and(|new| new != former)
        })
        .await;
    let balancer = world.balancer().unwrap();
    assert_eq!(names(&balancer, "frontendIPConfigurations").len(), 2);
    let pools = balancer["properties"]["backendAddressPools"].clone();
    let members = |pool: &Value| {
        let list = pool["properties"]["loadBalancerBackendAddresses"].as_array();
        let one = |it: &Value| it["properties"]["ipAddress"].to_string();
        list.unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let members: Vec<_> = pools.as_array().unwrap().iter().map(members).collect();
    assert_eq!(members.len(), 2, "AZ-262: a pool for each");
    assert_eq!((&members[0], members[0].len()), (&members[1], 2), "AZ-113");
    let rules = balancer["properties"]["loadBalancingRules"].clone();
    let on = |rule: &Value| rule["properties"]["frontendIPConfiguration"].to_string();
    let fronts: Vec<String> = rules.as_array().unwrap().iter().map(on).collect();
    assert!(fronts.len() == 2 && fronts[0] != fronts[1], "{fronts:?}");
    world
        .eventually("the former one is gone, and its address", async |w| {
            let fronts = w.balancer();
            let fronts = fronts.map_or(0, |it| names(&it, "frontendIPConfigurations").len());
            fronts == 1 && w.azure.ids("publicIPAddresses").len() == 1
        })
        .await;
    let refused = world.refused();
    assert_eq!(refused, [""; 0], "AZ-262, AZ-367: nobody else writes here");
    world
        .eventually("so is its pool", async |w| {
            names(&w.balancer().unwrap(), "backendAddressPools").len() == 1
        })
        .await;
    let writes = world.writes();
    world.quiet(QUIET).await;
    assert_eq!(world.writes(), writes, "AZ-104");
    world.delete("web").await;
    all_gone(&world, "web").await;
}
