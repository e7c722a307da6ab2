//! Addresses over the life of Services, pools and nodes (conventions.md section 3).

use std::collections::BTreeSet;
use std::net::IpAddr;

use e2e_cloud::engine::TargetState;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::addresses::members_are_cared_for;
use crate::support::{
    FIRST, POOL, delete, get, has_address, healthy, no_load_balancer, pod_mode, settled, told_of,
    web_with_a_pod, web_with_nodes,
};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c18_a_service_without_selector_is_served_like_any_other() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    let mut by_hand = pod_mode();
    by_hand["selector"] = Value::Null;
    world.endpoints("web", &[1], &[]).await;
    world.service("web", by_hand).await;
    has_address(&world, "web", FIRST).await;
    members_are_cared_for(&world, 1, 2).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c19_c29_one_that_leaves_a_shared_address_takes_nothing_from_the_other() {
    let world = World::start("198.51.100.10-198.51.100.10").await;
    let controller = world.controller();
    let key = json!({ "metadata": { "annotations": { "onehop.dev/allow-shared-ip": "k" } } });
    for (name, protocol) in [("tcp", "TCP"), ("udp", "UDP")] {
        let ports = json!([{ "name": "p", "port": 80, "protocol": protocol, "targetPort": 8080 }]);
        let quiet = json!({ "type": "ClusterIP", "loadBalancerClass": null, "ports": ports });
        world.service(name, quiet).await;
        world.patch(name, key.clone()).await;
        let on =
            json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local" } });
        world.patch(name, on).await;
        has_address(&world, name, FIRST).await;
    }
    delete(&world, "udp").await;
    assert_eq!(world.address("tcp").await.as_deref(), Some(FIRST), "C-19");
    assert_eq!(world.held(), [FIRST.parse::<IpAddr>().unwrap()], "C-19");
    world.service("late", json!({})).await;
    told_of(&world, "late", "AllocationFailed").await;
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "FC-100");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c16_c21_ct16_fresh_runs_give_the_same_addresses() {
    let mut runs = BTreeSet::new();
    for _ in 0..5 {
        let world = World::start("198.51.100.10-198.51.100.16").await;
        world
            .furnish_as("a", &["198.51.100.30-198.51.100.36"])
            .await;
        world
            .furnish_as("z", &["198.51.100.50-198.51.100.56"])
            .await;
        // All there at once: only age, which is in seconds, and name can decide.
        let names: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
        for name in &names {
            world.service(name, json!({})).await;
        }
        let controller = world.controller();
        let mut given = Vec::new();
        for name in &names {
            world
                .eventually("it has an address", async |w| {
                    w.address(name).await.is_some()
                })
                .await;
            given.push(world.address(name).await);
        }
        // C-16: and nothing of ours was added to what was created but the finalizer.
        let class = get(&world, "s00")
            .await
            .spec
            .and_then(|s| s.load_balancer_class);
        assert_eq!(class.as_deref(), Some("onehop.dev/local"), "C-16");
        runs.insert(given);
        controller.stop().await;
    }
    assert_eq!(runs.len(), 1, "C-T16, C-21: {runs:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c36_l04_l17_l24_a_pool_that_comes_cures_and_every_way_out_frees_the_address() {
    let world = World::without_crds().await;
    world.install_crds().await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    told_of(&world, "web", "AllocationFailed").await;
    world.furnish("198.51.100.10-198.51.100.10").await;
    has_address(&world, "web", FIRST).await;
    // L-04: the type changes; L-17, L-24: it is deleted; each time the next one gets the address.
    world.service("next", json!({})).await;
    let away = no_load_balancer();
    world.patch("web", away).await;
    has_address(&world, "next", FIRST).await;
    world.service("last", json!({})).await;
    let services = world.api::<Service>();
    services
        .delete("next", &DeleteParams::default())
        .await
        .unwrap();
    has_address(&world, "last", FIRST).await;
    assert_eq!(
        controller.metric("onehop_addresses_leaked").as_deref(),
        Some("0"),
        "C-35"
    );
    assert_eq!(
        controller.metric("onehop_addresses_in_use").as_deref(),
        Some("1"),
        "C-34"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c41_l10_a_node_that_joins_moves_no_address_and_costs_one_registration() {
    let world = World::start(POOL).await;
    let controller = web_with_nodes(&world).await;
    healthy(&world, 2).await;
    settled(&world).await;
    let (calls, held) = (world.all_writes(), world.held());
    let nodes: Api<Node> = Api::all(world.admin());
    let node = serde_json::from_value(json!({ "metadata": { "name": "node-3" } })).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": "10.0.1.3" }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    nodes
        .patch_status("node-3", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    healthy(&world, 3).await;
    assert_eq!(world.all_writes(), calls + 1, "C-41, L-10");
    assert_eq!(world.held(), held, "C-41");
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "C-41");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c31_ct18_a_second_family_comes_beside_the_first_and_one_that_goes_takes_only_its_own() {
    let world = World::start(POOL).await;
    world
        .furnish_as("six", &["2001:db8:100::10-2001:db8:100::20"])
        .await;
    let controller = web_with_a_pod(&world).await;
    let published = async |what: &str, wanted: &[&str]| {
        world
            .eventually(what, async |w| w.addresses("web").await == wanted)
            .await;
    };
    let families = |policy: &str, families: &[&str]| json!({ "spec": { "ipFamilyPolicy": policy, "ipFamilies": families } });
    let both = families("PreferDualStack", &["IPv4", "IPv6"]);
    world.patch("web", both).await;
    let six = "2001:db8:100::10";
    published("C-T18: the first is kept, a second added", &[FIRST, six]).await;
    healthy(&world, 1).await;
    let mut one = families("SingleStack", &["IPv4"]);
    let ips = get(&world, "web").await.spec.unwrap().cluster_ips.unwrap();
    one["spec"]["clusterIPs"] = json!([ips[0]]);
    world.patch("web", one).await;
    published("C-31: the family that is still valid stays", &[FIRST]).await;
    assert_eq!(world.held(), [FIRST.parse::<IpAddr>().unwrap()], "C-31");
    let gone = world.times_in_state(TargetState::Draining);
    assert!(gone.is_empty(), "C-31: no target has left: {gone:?}");
    controller.stop().await;
}
