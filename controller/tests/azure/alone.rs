//! What Azure changes by itself when we write: the `ETag` of a public IP that a frontend takes or lets go, that of a load
//! balancer whose child is written (AZ-367). Where nobody else writes, none of it makes a write be refused, and nothing is
//! written twice.

use serde_json::{Value, json};

use crate::world::World;
use crate::{QUIET, all_gone};

const PREFIX: &str = "service.beta.kubernetes.io/azure-";

async fn annotate(world: &World, name: &str, key: &str, value: Value) {
    let key = format!("{PREFIX}{key}");
    let patch = json!({"metadata": {"annotations": {key: value}}});
    world.patch(name, patch).await;
}

/// Waits until nothing is written any more.
async fn at_rest(world: &World) {
    let mut before = usize::MAX;
    while world.writes() != before {
        before = world.writes();
        world.quiet(QUIET).await;
    }
}

#[tokio::test(start_paused = true)]
async fn az367_az113_az370_changes_of_ours_alone_are_never_refused_and_written_once() {
    let world = World::start().await;
    let _controller = world.controller().await;
    let prefix = |name: &str| world.place.network("rg", "publicIPPrefixes", name);
    let body = json!({"location": "westeurope", "properties": {"prefixLength": 30}});
    for name in ["first", "second"] {
        world.azure.put(&prefix(name), &body).unwrap();
    }
    let key = format!("{PREFIX}pip-prefix-id");
    let wish = json!({"onehop.dev/target": "vip", key: prefix("first")});
    world.service("web", json!({}), wish).await;
    world.has_address("web").await;
    at_rest(&world).await;
    let kinds = |from: usize| {
        let writes = world.azure.writes();
        let kind = |id: &str| id.rsplit('/').nth(1).unwrap().to_owned();
        let all = writes[from..].iter();
        all.map(|it| format!("{} {}", it.method, kind(&it.id)))
            .collect::<Vec<_>>()
    };
    // Another address on the same load balancer, until its grace is over.
    let begun = world.writes();
    annotate(&world, "web", "pip-prefix-id", json!(prefix("second"))).await;
    world
        .eventually("the new address is beside the former one", async |w| {
            w.azure.ids("publicIPAddresses").len() == 2
        })
        .await;
    world
        .eventually("the former address is gone", async |w| {
            w.azure.ids("publicIPAddresses").len() == 1
        })
        .await;
    at_rest(&world).await;
    assert_eq!(
        kinds(begun),
        [
            "PUT publicIPAddresses",
            "PUT loadBalancers",
            "PUT networkSecurityGroups",
            // Until when is said on both.
            "PUT publicIPAddresses",
            "PUT publicIPAddresses",
            // The end.
            "PUT loadBalancers",
            "PUT networkSecurityGroups",
            "PUT publicIPAddresses",
            "DELETE publicIPAddresses",
        ],
        "AZ-367"
    );
    // To the other load balancer and back.
    for internal in [json!("true"), Value::Null] {
        let before = world.address("web").await;
        annotate(&world, "web", "load-balancer-internal", internal).await;
        world
            .eventually("it has another address", async |w| {
                w.addresses("web").await.len() == 1 && w.address("web").await != before
            })
            .await;
        at_rest(&world).await;
    }
    // A second Service at the same address, and the first one goes.
    let pip = world.azure.ids("publicIPAddresses").remove(0);
    let name = pip.rsplit('/').next().unwrap();
    let ports = json!({"ports": [{"name": "more", "port": 443, "targetPort": 8443}]});
    let shared = json!({"onehop.dev/target": "vip", format!("{PREFIX}pip-name"): name});
    world.service("second", ports, shared).await;
    world.has_address("second").await;
    let dual =
        json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}});
    world.vip("both").await;
    world.has_address("both").await;
    world.patch("both", dual).await;
    world.node_in_pool(3).await;
    at_rest(&world).await;
    for name in ["web", "both", "second"] {
        world.delete(name).await;
        at_rest(&world).await;
    }
    all_gone(&world, "second").await;
    assert_eq!(world.refused(), [""; 0], "AZ-370: nobody else writes here");
}
