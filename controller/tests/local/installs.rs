//! Several installs, peers and what is left of Services that are gone (conventions.md section 2): whose is what in the
//! cloud and in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use e2e_cloud::engine::{Engine, LbSpec, Operation};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use onehop_controller::policy::Policies;
use onehop_controller::reconcile::Orphans;
use onehop_core::crd::{LoadBalancer, NodeTargets, SERVICE_FINALIZER};
use serde_json::json;

use crate::support::{
    FIRST, POOL, SECOND, delete, get, has_address, no_load_balancer, pod_mode, web_with_a_pod,
};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_c120_ct41_k04_what_a_peer_has_marked_is_untouched_all_its_life() {
    let world = World::start(POOL).await;
    let controller = world.controller().working().await;
    world
        .service(
            "peer",
            json!({ "loadBalancerClass": "service.k8s.aws/nlb" }),
        )
        .await;
    let marks = json!({ "metadata": {
        "finalizers": ["service.k8s.aws/resources"], "annotations": { "onehop.dev/target": "nonsense" },
    } });
    world.patch("peer", marks).await;
    let services = world.api::<Service>();
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": FIRST }] } } });
    services
        .patch_status("peer", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    let before = get(&world, "peer").await;
    world.service("web", json!({})).await;
    has_address(&world, "web", SECOND).await;
    assert_eq!(get(&world, "peer").await, before, "C-06, K-05");
    let away = no_load_balancer();
    world.patch("peer", away).await;
    let before = get(&world, "peer").await;
    world.quiet(Duration::from_millis(500)).await;
    assert_eq!(get(&world, "peer").await, before, "C-T41, K-04");
    assert!(world.events("peer").await.is_empty(), "C-T41");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_c123_ct44_what_has_no_service_is_reported_first_and_deleted_only_where_that_is_allowed()
 {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(300);
    let spec = |name: &str, install: &str, address: &str| LbSpec {
        name: name.to_owned(),
        tags: BTreeMap::from([
            ("onehop.dev/install".to_owned(), install.to_owned()),
            ("onehop.dev/service".to_owned(), format!("default/{name}")),
            ("onehop.dev/service-uid".to_owned(), "long-gone".to_owned()),
        ]),
        addresses: vec![address.parse().unwrap()],
        zones: Vec::new(),
        cross_zone: true,
        preserve_client_ip: true,
        sharing_key: None,
    };
    for spec in [
        spec("lost", "demo-local", FIRST),
        spec("others", "another", SECOND),
    ] {
        let name = spec.name.clone();
        world
            .cloud
            .with(|engine, now| engine.create_lb(now, &name, spec))
            .unwrap();
    }
    let made = world.all_writes();
    let controller = world.controller();
    world
        .eventually("C-123: it is counted", async |_| {
            controller.metric("onehop_orphans").as_deref() == Some("1")
        })
        .await;
    world.service("web", json!({})).await;
    has_address(&world, "web", "198.51.100.12").await;
    assert_eq!(
        world.writes(Operation::DeleteLoadBalancer),
        0,
        "C-123: reported and kept"
    );
    assert!(made > 0);
    controller.stop().await;
    world.tune.orphans = Orphans::Delete;
    world.tune.orphan_grace = Duration::from_hours(1);
    let controller = world.controller().working().await;
    world.quiet(Duration::from_secs(1)).await;
    assert_eq!(
        world.writes(Operation::DeleteLoadBalancer),
        0,
        "C-123: within the grace"
    );
    controller.stop().await;
    world.tune.orphan_grace = Duration::from_millis(600);
    let controller = world.controller();
    let deleted = async |w: &World| w.writes(Operation::DeleteLoadBalancer) == 1;
    world
        .eventually("C-T44: deleted after the grace", deleted)
        .await;
    world
        .eventually("C-34: and its address is free", async |_| {
            controller.metric("onehop_orphans").as_deref() == Some("0")
        })
        .await;
    let left = world.held();
    assert!(
        left.contains(&SECOND.parse().unwrap()),
        "C-05, I5: foreign: {left:?}"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c15_a_service_made_anew_has_objects_of_its_own_uid_only() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    let old = get(&world, "web").await.uid().unwrap();
    delete(&world, "web").await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let inventory = world.cloud.look(Engine::inventory);
    let uid = get(&world, "web").await.uid().unwrap();
    assert_ne!(uid, old);
    let tags = inventory.load_balancers.iter().map(|lb| &lb.spec.tags);
    let tags: Vec<_> = tags
        .chain(inventory.groups.iter().map(|(g, _)| &g.spec.tags))
        .collect();
    assert_eq!(tags.len(), 2, "C-15: {tags:?}");
    assert!(
        tags.iter().all(|t| t["onehop.dev/service-uid"] == uid),
        "C-15: {tags:?}"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c120_ct40_k02_two_installs_of_two_classes_run_side_by_side_each_with_objects_of_its_own() {
    let world = World::start(POOL).await;
    let one = world.replica("one", "a").working().await;
    let two = world
        .replica_of_class("two", "b", "example.com/two")
        .working()
        .await;
    let serve = async |name: &str, class: &str| {
        world.endpoints(name, &[1], &[]).await;
        let mut spec = pod_mode();
        spec["loadBalancerClass"] = json!(class);
        world.service(name, spec).await;
    };
    // One after the other: each install knows what the other has published.
    serve("first", "onehop.dev/local").await;
    has_address(&world, "first", FIRST).await;
    serve("second", "example.com/two").await;
    has_address(&world, "second", SECOND).await;
    for (name, install) in [("first", "one"), ("second", "two")] {
        let object = world.api::<LoadBalancer>().get(name).await.unwrap();
        assert_eq!(
            object.labels()["onehop.dev/install"],
            install,
            "C-120, K-02"
        );
        let inventory = world.cloud.look(Engine::inventory);
        let tag = format!("default/{name}");
        let of = inventory
            .load_balancers
            .iter()
            .find(|lb| lb.spec.tags["onehop.dev/service"] == tag);
        assert_eq!(
            of.unwrap().spec.tags["onehop.dev/install"],
            install,
            "C-120"
        );
    }
    let targets: Api<NodeTargets> = Api::all(world.admin());
    world
        .eventually("C-120: one entry for each install", async |_| {
            let node = targets.get_opt("node-1").await.unwrap();
            node.is_some_and(|n| n.spec.installs.len() == 2)
        })
        .await;
    // Both at once: neither knows what the other is about to take, and the cloud gives it to one of them.
    serve("third", "onehop.dev/local").await;
    serve("fourth", "example.com/two").await;
    let mut given = BTreeSet::new();
    for name in ["third", "fourth"] {
        world
            .eventually("C-120: each has an address", async |w| {
                w.address(name).await.is_some()
            })
            .await;
        given.insert(world.address(name).await.unwrap());
    }
    assert_eq!(given.len(), 2, "C-33: {given:?}");
    // Each has seen all of the other's by now, in every state: when one is deleted, its own install is who cleans up.
    delete(&world, "third").await;
    world.quiet(Duration::from_millis(500)).await;
    for name in ["first", "second", "fourth"] {
        let service = get(&world, name).await;
        assert_eq!(service.finalizers(), [SERVICE_FINALIZER], "C-06: {name}");
        assert!(world.address(name).await.is_some(), "C-06: {name}");
    }
    let told: Vec<_> = world.events("first").await;
    assert!(
        !format!("{told:?}").contains("DeletedLoadBalancer"),
        "C-06: {told:?}"
    );
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c30_k60_namespaces_share_an_address_where_the_policy_and_both_sides_agree() {
    let mut world = World::start(POOL).await;
    let rules = json!([{
        "name": "sharing", "namespaceSelector": { "matchLabels": { "share": "yes" } }, "sharingAcrossNamespaces": true,
    }]);
    world.tune.policies = Policies::parse(&rules.to_string()).unwrap();
    let controller = world.controller();
    world.namespace("shop", json!({ "share": "yes" })).await;
    world.namespace("dns", json!({ "share": "yes" })).await;
    world.namespace("alone", json!({})).await;
    let annotations = json!({
        "onehop.dev/allow-shared-ip": "k", "onehop.dev/allow-shared-ip-namespaces": "shop, dns",
        "onehop.dev/loadBalancerIPs": FIRST,
    });
    let service = |name: &str, port: u16| {
        json!({
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local", "selector": { "app": "x" },
                "ports": [{ "name": "p", "port": port, "targetPort": 8080 }],
            },
        })
    };
    for (namespace, name, port) in [
        ("shop", "web", 80),
        ("dns", "dns", 53),
        ("alone", "lone", 25),
    ] {
        let services: Api<Service> = Api::namespaced(world.admin(), namespace);
        let object = serde_json::from_value(service(name, port)).unwrap();
        services
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
    let status = async |namespace: &str, name: &str| {
        let services: Api<Service> = Api::namespaced(world.admin(), namespace);
        services.get(name).await.unwrap().status.unwrap_or_default()
    };
    for (namespace, name) in [("shop", "web"), ("dns", "dns")] {
        world
            .eventually("C-30: both have it", async |_| {
                let ingress = status(namespace, name)
                    .await
                    .load_balancer
                    .and_then(|l| l.ingress);
                ingress.is_some_and(|i| i.iter().any(|i| i.ip.as_deref() == Some(FIRST)))
            })
            .await;
    }
    world
        .eventually("K-60: the third is refused, and the policy named", async |_| {
            let conditions = status("alone", "lone").await.conditions.unwrap_or_default();
            conditions.iter().any(|c| {
                c.reason == "PolicyRefused" && c.message.starts_with(
                    "onehop.dev/allow-shared-ip-namespaces is refused by policy \"default\", which allows no sharing \
                     between namespaces",
                )
            })
        })
        .await;
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "FC-100");
    // The label that the rule asks for comes later.
    world
        .label_namespace("alone", json!({ "share": "yes" }))
        .await;
    world
        .eventually(
            "K-60: it is looked at again, and clashes by consent now",
            async |_| {
                let conditions = status("alone", "lone").await.conditions.unwrap_or_default();
                conditions
                    .iter()
                    .any(|c| c.message.contains("they are of two namespaces"))
            },
        )
        .await;
    let finalizers = Api::<Service>::namespaced(world.admin(), "alone")
        .get("lone")
        .await
        .unwrap();
    assert!(
        !finalizers
            .finalizers()
            .iter()
            .any(|f| f == SERVICE_FINALIZER),
        "K-03: nothing was made"
    );
    controller.stop().await;
}
