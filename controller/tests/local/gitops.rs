//! Whose is what (conventions.md section 2): what users wrote stays as they wrote it, what others own is not touched, and
//! what we own is kept as it should be.

use std::collections::BTreeSet;
use std::time::Duration;

use e2e_cloud::engine::Engine;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use onehop_core::crd::LoadBalancer;
use serde_json::{Value, json};

use crate::support::{
    FIRST, POOL, get, has_address, healthy, no_load_balancer, settled, told_of, web_with_a_pod,
};
use crate::world::World;

/// What users own of a Service.
fn users(service: &Service) -> Value {
    let meta = &service.metadata;
    json!({ "spec": service.spec, "labels": meta.labels, "annotations": meta.annotations })
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
    world.patch("web", no_load_balancer()).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_c12_c37_ct10_l23_every_field_that_can_change_is_followed_on_a_live_service() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
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
    told_of(&world, "web", "TargetModeImpossible").await;
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
