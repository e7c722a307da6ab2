//! Whose is what (conventions.md section 2): what users wrote stays as they wrote it, what others own is not touched, and
//! what we own is kept as it should be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use e2e_cloud::engine::{Edit, Engine, Faults, LbSpec, Operation, Protocol, TargetState};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use onehop_controller::policy::Policies;
use onehop_controller::reconcile::Orphans;
use onehop_core::crd::{LoadBalancer, NodeTargets, SERVICE_FINALIZER};
use serde_json::{Value, json};

use crate::addresses::members_are_cared_for;
use crate::world::World;
use crate::{FIRST, POOL, has_address, pod_mode};

const SECOND: &str = "198.51.100.11";

/// What users own of a Service.
fn users(service: &Service) -> Value {
    let meta = &service.metadata;
    json!({ "spec": service.spec, "labels": meta.labels, "annotations": meta.annotations })
}

async fn get(world: &World, name: &str) -> Service {
    world.api::<Service>().get(name).await.unwrap()
}

async fn healthy(world: &World, count: usize) {
    world
        .eventually("targets are healthy", async |w| {
            w.times_in_state(TargetState::Healthy).len() == count
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c01_c02_c03_l31_l34_i7_nothing_that_a_user_wrote_is_ever_changed() {
    let world = World::start(POOL).await;
    let mut audit = world.server.audit();
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world
        .service("web", json!({ "externalTrafficPolicy": "Local" }))
        .await;
    has_address(&world, "web", FIRST).await;
    let set = |pairs: Value| json!({ "metadata": { "annotations": pairs } });
    let edits = [
        set(json!({ "onehop.dev/target": "pod", "example.com/mine": "x" })),
        set(json!({ "onehop.dev/target": "pods" })),
        set(json!({ "onehop.dev/target": null, "onehop.dev/loadBalancerIPs": "198.51.100.15" })),
        // C-02: the ports that are allocated stay, whatever the flag says.
        json!({ "spec": { "allocateLoadBalancerNodePorts": false } }),
        json!({ "spec": { "externalTrafficPolicy": "Cluster" }, "metadata": { "labels": { "a": "b" } } }),
    ];
    for edit in edits {
        world.patch("web", edit.clone()).await;
        let written = users(&get(&world, "web").await);
        let calls = world.all_writes();
        world.endpoints("web", &[1], &[]).await;
        world
            .eventually("it was looked at", async |w| {
                let generation = get(w, "web").await.metadata.generation;
                let object = w.api::<LoadBalancer>().get("web").await.unwrap();
                let conditions = object.status.map(|s| s.conditions).unwrap_or_default();
                !conditions.is_empty()
                    && conditions
                        .iter()
                        .all(|c| c.observed_generation == generation)
                    || w.all_writes() > calls
            })
            .await;
        world.quiet(Duration::from_millis(300)).await;
        assert_eq!(
            users(&get(&world, "web").await),
            written,
            "I7, C-01, C-03: {edit}"
        );
    }
    controller.stop().await;
    let mut parts = BTreeSet::new();
    while let Ok(record) = audit.try_recv() {
        let ours = record.user.contains("onehop-system");
        if ours && record.is_write() && record.resource == "services" {
            parts.insert((record.verb, record.part));
        }
    }
    let allowed = [("patch", String::new()), ("patch", "status".to_owned())];
    assert_eq!(
        parts,
        allowed.into(),
        "C-04: the finalizer by patch, all else by status"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c04_c10_c39_l26_l51_conditions_and_finalizers_of_others_stay_and_ingress_is_never_half() {
    let world = World::start(POOL).await;
    world.service("web", json!({})).await;
    world
        .patch(
            "web",
            json!({ "metadata": { "finalizers": ["example.com/mine"] } }),
        )
        .await;
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "status": { "conditions": [{
            "type": "example.com/Checked", "status": "True", "reason": "Fine", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    });
    let services = world.api::<Service>();
    let params = PatchParams::apply("somebody");
    services
        .patch_status("web", &params, &Patch::Apply(theirs))
        .await
        .unwrap();
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    // Every state that anybody could have read on the way.
    world
        .eventually("it has its address", async |w| {
            let status = get(w, "web").await.status.unwrap_or_default();
            let ingress = status
                .load_balancer
                .and_then(|l| l.ingress)
                .unwrap_or_default();
            let whole = ingress
                .iter()
                .all(|i| i.ip.as_deref().is_some_and(|ip| !ip.is_empty()));
            assert!(whole, "C-10, L-51: {ingress:?}");
            !ingress.is_empty()
        })
        .await;
    let kinds = |service: Service| -> Vec<Condition> {
        service
            .status
            .and_then(|s| s.conditions)
            .unwrap_or_default()
    };
    let all = kinds(get(&world, "web").await);
    let has = |kind: &str| all.iter().any(|c| c.type_ == kind);
    assert!(
        has("example.com/Checked") && has("onehop.dev/LoadBalancerReady"),
        "C-04: {all:?}"
    );
    world
        .patch(
            "web",
            json!({ "spec": {
        "type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null,
    } }),
        )
        .await;
    world
        .eventually("what is ours is gone", async |w| {
            get(w, "web").await.finalizers() == ["example.com/mine"]
        })
        .await;
    let left = get(&world, "web").await;
    assert_eq!(world.address("web").await, None, "C-34");
    assert_eq!(
        kinds(left).len(),
        1,
        "C-06: only what we wrote is taken back"
    );
    controller.stop().await;
}

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
    let away = json!({ "spec": {
        "type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null,
    } });
    world.patch("peer", away).await;
    let before = get(&world, "peer").await;
    world.quiet(Duration::from_millis(500)).await;
    assert_eq!(get(&world, "peer").await, before, "C-T41, K-04");
    assert!(world.events("peer").await.is_empty(), "C-T41");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_c85_ct13_i4_twenty_services_at_rest_cost_no_write_through_resyncs_and_a_restart() {
    let mut world = World::start("198.51.100.10-198.51.100.40").await;
    world.tune.sweep = Duration::from_millis(500);
    let controller = world.controller();
    let names: Vec<String> = (0..20).map(|n| format!("s{n}")).collect();
    world.endpoints("s0", &[1], &[]).await;
    for name in &names {
        world.service(name, json!({})).await;
    }
    for name in &names {
        world
            .eventually("it has an address", async |w| {
                w.address(name).await.is_some()
            })
            .await;
    }
    settled(&world).await;
    let state = |w: &World| (w.all_writes(), w.server.resource_version());
    let before = state(&world);
    world.quiet(Duration::from_secs(2)).await;
    assert_eq!(
        state(&world),
        before,
        "C-T13, C-11: three resyncs, no write"
    );
    assert_eq!(
        controller.metric("onehop_addresses_leaked").as_deref(),
        Some("0"),
        "C-35"
    );
    controller.stop().await;
    let controller = world.controller().working().await;
    world.quiet(Duration::from_secs(1)).await;
    assert_eq!(state(&world), before, "C-85, C-25: nor by a restart");
    assert_eq!(
        controller.metric("onehop_addresses_in_use").as_deref(),
        Some("20"),
        "C-25"
    );
    controller.stop().await;
}

/// Waits until nothing has been written for a second.
pub(crate) async fn settled(world: &World) {
    let mut last = 0;
    let mut since = 0;
    world
        .eventually_within(
            Duration::from_secs(40),
            "nothing is written any more",
            async |w| {
                let now = w.server.resource_version();
                since = if now == last { since + 1 } else { 0 };
                last = now;
                since > 50
            },
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_c12_c37_ct10_l23_every_field_that_can_change_is_followed_on_a_live_service() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    healthy(&world, 1).await;
    let ports = json!([
        { "name": "http", "port": 81, "targetPort": 8080 },
        { "name": "more", "port": 82, "targetPort": 8080 },
    ]);
    world
        .patch("web", json!({ "spec": { "ports": ports } }))
        .await;
    let listeners = |w: &World| -> BTreeSet<u16> {
        let inventory = w.cloud.look(Engine::inventory);
        let all = inventory
            .load_balancers
            .iter()
            .flat_map(|lb| lb.listeners.keys());
        all.map(|key| key.port).collect()
    };
    world
        .eventually("C-37, C-12: ports", async |w| {
            listeners(w) == [81, 82].into()
        })
        .await;
    let set = |pairs: Value| json!({ "metadata": { "annotations": pairs } });
    world
        .patch(
            "web",
            set(json!({ "onehop.dev/loadBalancerIPs": "198.51.100.15" })),
        )
        .await;
    has_address(&world, "web", "198.51.100.15").await;
    let field = json!({
        "spec": { "loadBalancerIP": "198.51.100.16" },
        "metadata": { "annotations": { "onehop.dev/loadBalancerIPs": null } },
    });
    world.patch("web", field).await;
    has_address(&world, "web", "198.51.100.16").await;
    world
        .eventually("L-23: events tell what has happened", async |w| {
            let told = w.told("web").await;
            let given = told
                .iter()
                .filter(|(reason, _)| reason == "ClearAssignment");
            given.count() >= 2
        })
        .await;
    world
        .patch("web", set(json!({ "onehop.dev/target": "node" })))
        .await;
    world
        .eventually("K-50: no node ports, so it is refused", async |w| {
            w.events("web")
                .await
                .iter()
                .any(|r| r == "TargetModeImpossible")
        })
        .await;
    let calls = world.all_writes();
    // C-07: removing it is the default again, which is what there is.
    world
        .patch("web", set(json!({ "onehop.dev/target": null })))
        .await;
    world
        .eventually("C-T10: all is well", async |w| {
            w.condition("web").await.is_some_and(|c| c.status == "True")
        })
        .await;
    assert_eq!(world.all_writes(), calls, "C-T10: address and targets stay");
    assert_eq!(
        world.address("web").await.as_deref(),
        Some("198.51.100.16"),
        "C-T10"
    );
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_l29_what_somebody_changed_in_the_cloud_is_found_by_comparing_everything() {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(500);
    let controller = world.controller();
    world.endpoints("web", &[1, 2], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    healthy(&world, 2).await;
    let inventory = world.cloud.look(Engine::inventory);
    let id = inventory.groups[0].0.id.clone();
    let balancer = inventory.load_balancers[0].id.clone();
    let edits = [
        Edit::AddTargets {
            id: id.clone(),
            targets: vec!["10.244.9.9:8080".parse().unwrap()],
        },
        Edit::RemoveTargets {
            id,
            targets: vec!["10.244.1.1:8080".parse().unwrap()],
        },
        Edit::DeleteListener {
            id: balancer,
            port: 80,
            protocol: Protocol::Tcp,
        },
    ];
    for edit in &edits {
        world
            .cloud
            .with(|engine, now| engine.edit(now, edit))
            .unwrap();
    }
    world
        .eventually_within(
            Duration::from_mins(1),
            "C-14, L-29: it is put right",
            async |w| {
                let inventory = w.cloud.look(Engine::inventory);
                let (_, targets) = &inventory.groups[0];
                let serving: BTreeSet<IpAddr> = targets
                    .iter()
                    .filter(|t| t.state == TargetState::Healthy)
                    .map(|t| t.target.ip())
                    .collect();
                let wanted = ["10.244.1.1", "10.244.1.2"].map(|a| a.parse().unwrap());
                serving == wanted.into() && inventory.load_balancers[0].listeners.len() == 1
            },
        )
        .await;
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
        floating: false,
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
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let old = get(&world, "web").await.uid().unwrap();
    let services = world.api::<Service>();
    services
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    world
        .eventually("it is gone", async |_| {
            services.get_opt("web").await.unwrap().is_none()
        })
        .await;
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
    let services = world.api::<Service>();
    services
        .delete("udp", &DeleteParams::default())
        .await
        .unwrap();
    world
        .eventually("one is gone", async |_| {
            services.get_opt("udp").await.unwrap().is_none()
        })
        .await;
    assert_eq!(world.address("tcp").await.as_deref(), Some(FIRST), "C-19");
    assert_eq!(world.held(), [FIRST.parse::<IpAddr>().unwrap()], "C-19");
    world.service("late", json!({})).await;
    world
        .eventually("C-33: the address is still in use", async |w| {
            w.events("late")
                .await
                .iter()
                .any(|r| r == "AllocationFailed")
        })
        .await;
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
    world
        .eventually("C-36: it waits", async |w| {
            w.events("web")
                .await
                .iter()
                .any(|r| r == "AllocationFailed")
        })
        .await;
    world.furnish("198.51.100.10-198.51.100.10").await;
    has_address(&world, "web", FIRST).await;
    // L-04: the type changes; L-17, L-24: it is deleted; each time the next one gets the address.
    world.service("next", json!({})).await;
    let away = json!({ "spec": {
        "type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null,
    } });
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
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
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
async fn c120_ct40_k02_two_installs_of_two_classes_run_side_by_side_each_with_objects_of_its_own() {
    let world = World::start(POOL).await;
    let one = world.replica("one", "a").working().await;
    let two = world
        .replica_of_class("two", "b", "example.com/two")
        .working()
        .await;
    for (name, class) in [("first", "onehop.dev/local"), ("second", "example.com/two")] {
        world.endpoints(name, &[1], &[]).await;
        let mut spec = json!({ "loadBalancerClass": class });
        spec["allocateLoadBalancerNodePorts"] = json!(false);
        world.service(name, spec).await;
    }
    has_address(&world, "first", FIRST).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c13_i8_a_cloud_that_refuses_one_part_holds_up_no_other() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    healthy(&world, 1).await;
    world.cloud.with(|engine, now| {
        let mut faults = engine.faults().clone();
        faults.denied = [Operation::UpdateLoadBalancer, Operation::PutListener].into();
        engine.set_faults(now, faults);
    });
    let wish =
        json!({ "metadata": { "annotations": { "onehop.dev/loadBalancerIPs": "198.51.100.15" } } });
    world.patch("web", wish).await;
    world
        .eventually("C-13: the part that fails is named", async |w| {
            let object = w.api::<LoadBalancer>().get("web").await.unwrap();
            object
                .status
                .and_then(|s| s.last_error)
                .is_some_and(|e| e.part == "shape")
        })
        .await;
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(
        world.address("web").await.as_deref(),
        Some(FIRST),
        "C-10: published while it is true"
    );
    world
        .cloud
        .with(|engine, now| engine.set_faults(now, Faults::default()));
    has_address(&world, "web", "198.51.100.15").await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c124_of_two_groups_with_the_same_tags_one_wins_and_the_other_goes() {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(300);
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    healthy(&world, 1).await;
    let id = world.cloud.look(Engine::inventory).groups[0].0.id.clone();
    let twice = Edit::DuplicateGroup { id };
    world
        .cloud
        .with(|engine, now| engine.edit(now, &twice))
        .unwrap();
    assert_eq!(world.cloud.look(Engine::inventory).groups.len(), 2);
    world
        .eventually_within(
            Duration::from_mins(1),
            "C-124: nobody has to intervene",
            async |w| {
                let inventory = w.cloud.look(Engine::inventory);
                let [(group, targets)] = &inventory.groups[..] else {
                    return false;
                };
                let listener = inventory.load_balancers[0].listeners.values().next();
                listener == Some(&group.id)
                    && targets.iter().any(|t| t.state == TargetState::Healthy)
            },
        )
        .await;
    let generation =
        &world.cloud.look(Engine::inventory).groups[0].0.spec.tags["onehop.dev/generation"];
    assert!(generation.parse::<u32>().is_ok(), "C-124: {generation}");
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST));
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_k20_what_nodes_are_told_comes_back_when_somebody_deletes_or_edits_it() {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(300);
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let targets: Api<NodeTargets> = Api::all(world.admin());
    let told = async || {
        let node = targets.get_opt("node-1").await.unwrap()?;
        Some(node.spec.installs.values().next()?.targets.len())
    };
    let listed = async |_: &World| told().await == Some(1);
    world.eventually("K-20: it is listed", listed).await;
    targets
        .delete("node-1", &DeleteParams::default())
        .await
        .unwrap();
    world.eventually("C-14: it is there again", listed).await;
    let emptied = json!({ "spec": { "installs": { "demo-local": { "targets": [] } } } });
    targets
        .patch("node-1", &PatchParams::default(), &Patch::Merge(emptied))
        .await
        .unwrap();
    world.eventually("C-14: and as it was", listed).await;
    controller.stop().await;
}
