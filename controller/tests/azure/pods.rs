//! Pods that the load balancer cannot reach, and pods in a subnet with a security group of its own.

use e2e_cloud::azure::Faults;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use onehop_controller::cloud::azure::settings::{SecurityGroup, Settings};
use onehop_controller::snapshot::Classless;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::World;
use crate::writers::Foreign;
use crate::{all_gone, names};

/// The one endpoint of a Service is on this node from now on.
async fn moves(world: &World, service: &str, node: &str) {
    let slices = world.api::<EndpointSlice>();
    let name = format!("{service}-1");
    let mut slice = slices.get(&name).await.unwrap();
    for endpoint in &mut slice.endpoints {
        endpoint.node_name = Some(node.to_owned());
    }
    let params = PostParams::default();
    slices.replace(&name, &params, &slice).await.unwrap();
}

/// Names of the members of a pool.
fn members(world: &World, pool: &str) -> Vec<String> {
    let balancer = world.balancer().unwrap();
    let pools = balancer["properties"]["backendAddressPools"].as_array();
    let pool = pools
        .unwrap()
        .iter()
        .find(|it| it["name"].as_str().unwrap().ends_with(pool));
    let Some(pool) = pool else {
        return Vec::new();
    };
    let members = pool["properties"]["loadBalancerBackendAddresses"].as_array();
    let name = |it: &Value| {
        let down = if it["properties"]["adminState"] == "Down" {
            " Down"
        } else {
            ""
        };
        format!("{}{down}", it["name"].as_str().unwrap())
    };
    members.into_iter().flatten().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az254_az132_nodes_that_stand_in_for_pods_are_those_that_host_ready_ones() {
    let world = World::start().await;
    let overlay = |settings: &mut Settings| settings.pod_prefixes.clear();
    let controller = world.controller_with(Classless::Ignore, overlay).await;
    world.endpoints("web", &[1]).await;
    world.service("web", json!({}), json!({})).await;
    world.has_address("web").await;
    world.tells("web", "TargetModeFallback").await;
    let balancer = world.balancer().unwrap();
    let rule = &balancer["properties"]["loadBalancingRules"][0]["properties"];
    assert_eq!(rule["enableFloatingIP"], json!(true), "AZ-132");
    assert_eq!(rule["backendPort"], rule["frontendPort"], "AZ-132");
    let pools = names(&balancer, "backendAddressPools");
    assert!(
        pools.len() == 1 && pools[0].ends_with("-nodes-1"),
        "AZ-254: {pools:?}"
    );
    assert_eq!(
        members(&world, "-nodes-1"),
        ["node-1"],
        "AZ-254: not node-2"
    );
    // The pod moves: its new node comes before the former one goes.
    let seen = world.writes();
    moves(&world, "web", "node-2").await;
    world
        .eventually("the other node alone is a member", async |w| {
            members(w, "-nodes-1") == ["node-2"]
        })
        .await;
    let writes = world.azure.writes();
    let bodies = writes[seen..].iter().map(|write| write.body.to_string());
    let has = |body: &String, n: u8| body.contains(&format!("\"10.0.1.{n}\""));
    let all: Vec<(bool, bool)> = bodies.map(|body| (has(&body, 1), has(&body, 2))).collect();
    assert!(
        all.iter().all(|(_, new)| *new) && all.first() == Some(&(true, true)),
        "AZ-109, ZD-21: {all:?}"
    );
    // A restart knows which pool it is, and writes nothing.
    let before = world.writes();
    controller.kill().await;
    let _again = world.controller_with(Classless::Ignore, overlay).await;
    world.quiet(crate::QUIET).await;
    assert_eq!(world.writes(), before, "AZ-105");
    world.delete("web").await;
    all_gone(&world, "web").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az216_az100_the_pods_subnet_has_rules_of_its_own_by_a_writer_of_its_own() {
    let world = World::start().await;
    let group = SecurityGroup {
        resource_group: "rg".to_owned(),
        name: "pods".to_owned(),
    };
    let id = world.place.security_group_id(&group);
    let theirs = json!({"name": "theirs", "properties": {
        "priority": 100, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "sourcePortRange": "*",
        "sourceAddressPrefix": "10.0.0.0/8", "destinationAddressPrefix": "*", "destinationPortRange": "22"}});
    let body = json!({"location": "westeurope", "properties": {"securityRules": [theirs], "odd": {"a": []}}});
    let foreign = Foreign::new(&world).await;
    let (status, said) = foreign.send(Method::PUT, &id, Some(&body)).await;
    assert!(status.is_success(), "{said}");
    world.azure.set_faults(Faults {
        need_if_match: true,
        ..Faults::default()
    });
    let _controller = world
        .controller_with(Classless::Ignore, |settings| {
            settings.place.pod_security_group = Some(group.clone());
        })
        .await;
    let rules = |world: &World| -> Vec<String> {
        let group = world.azure.document(&id).unwrap();
        let rules = group["properties"]["securityRules"].as_array().unwrap();
        let ours = rules.iter().filter(|rule| rule["name"] != "theirs");
        let to = |rule: &Value| {
            let p = &rule["properties"];
            format!(
                "{} {}",
                p["destinationAddressPrefixes"], p["destinationPortRanges"]
            )
        };
        ours.map(to).collect()
    };
    world.endpoints("web", &[1]).await;
    world.service("web", json!({}), json!({})).await;
    world.has_address("web").await;
    world
        .eventually("the pods' group lets them in", async |w| {
            rules(w) == [r#"["10.244.0.0/16"] ["8080"]"#]
        })
        .await;
    assert_eq!(
        world.security_rules().len(),
        2,
        "AZ-216: nothing at the nodes"
    );
    // Those of nodes go into the nodes' group, and nothing is written twice.
    world.vip("nodes").await;
    world.has_address("nodes").await;
    assert_eq!(world.security_rules().len(), 3);
    assert_eq!(rules(&world).len(), 1);
    let of_group = |world: &World| {
        let writes = world.azure.writes();
        writes.iter().filter(|write| write.id == id).count()
    };
    assert_eq!(of_group(&world), 2, "theirs, and ours once");
    for name in ["web", "nodes"] {
        world.delete(name).await;
    }
    for name in ["web", "nodes"] {
        all_gone(&world, name).await;
    }
    assert_eq!(rules(&world), [""; 0], "AZ-212");
    let left = world.azure.document(&id).unwrap();
    assert_eq!(left["properties"]["odd"], json!({"a": []}), "AZ-008");
}
