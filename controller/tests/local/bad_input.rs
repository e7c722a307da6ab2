//! What people and machines do wrong (docs/bad-input.md): each time the controller says what that page promises, nothing
//! in the cloud changes, and the Service's targets are still cared for.

use std::time::Duration;

use e2e_cloud::engine::{Operation, TargetState};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use onehop_controller::app::Phase;
use onehop_controller::http;
use onehop_controller::policy::Policies;
use onehop_core::crd::{AddressPool, LoadBalancer, SERVICE_FINALIZER};
use onehop_core::time::Time;
use onehop_runtime::clock::Clock;
use serde_json::{Value, json};

use crate::addresses::{members_are_cared_for, pool_status};
use crate::documented;
use crate::support::{
    FIRST, POOL, SECOND, annotated, delete, has_address, healthy, pod_mode, settled, told_of,
    web_with_a_pod, web_with_nodes,
};
use crate::world::World;

const DAY: Duration = Duration::from_hours(24);

/// Waits for the documented event, and for the condition where the page promises one.
async fn says(world: &World, service: &str, case: &str) {
    let row = documented::row(case);
    let what = format!("Service {service} is told {row:?}");
    world
        .eventually(&what, async |w| {
            let told = w.told(service).await;
            let event = told.iter().any(|(reason, text)| {
                Some(reason) == row.reason.as_ref() && documented::says(case, text)
            });
            let condition = w.condition(service).await;
            let explained = condition.is_some_and(|c| {
                Some(&c.reason) == row.reason.as_ref() && c.message.starts_with(&prefix(&row.text))
            });
            event && (explained || !row.place.contains("condition"))
        })
        .await;
}

/// What stands before the first part that differs.
fn prefix(text: &str) -> String {
    text.split('…').next().unwrap_or_default().to_owned()
}

async fn accepted(world: &World, service: &str) {
    world
        .eventually("all is well again", async |w| {
            let condition = w.condition(service).await;
            condition.is_some_and(|c| c.status == "True")
        })
        .await;
}

/// The patch that takes away what another one has set: every leaf becomes null.
fn undone(patch: &Value) -> Value {
    match patch {
        Value::Object(fields) => fields.iter().map(|(k, v)| (k.clone(), undone(v))).collect(),
        _ => Value::Null,
    }
}

const LABEL: &str = "service.kubernetes.io/service-proxy-name";
const ADDRESSES: &str = "onehop.dev/loadBalancerIPs";

/// A case of the page and the edit that brings it about on a Service in pod mode with the address `SECOND`.
fn edits() -> Vec<(&'static str, Value)> {
    let port = |protocol: &str| json!([{ "name": "http", "port": 80, "targetPort": 8080, "protocol": protocol }]);
    let mut elsewhere = annotated(&[("onehop.dev/target", "vip")]);
    elsewhere["metadata"]["labels"] = json!({ LABEL: "cilium" });
    let mut twice = annotated(&[(ADDRESSES, "198.51.100.12")]);
    twice["spec"] = json!({ "loadBalancerIP": "198.51.100.12" });
    vec![
        (
            "unknown-annotation",
            annotated(&[("onehop.dev/tagret", "pod")]),
        ),
        ("bad-value", annotated(&[("onehop.dev/target", "pods")])),
        (
            "bad-addresses",
            annotated(&[(ADDRESSES, "198.51.100.12,198.51.100.13")]),
        ),
        ("two-wishes", twice),
        // L-49: it works with no node port, and only what needs one is refused.
        (
            "impossible-mode",
            annotated(&[("onehop.dev/target", "node")]),
        ),
        ("foreign-proxy", elsewhere),
        ("outside-pools", annotated(&[(ADDRESSES, "192.0.2.1")])),
        (
            "no-such-pool",
            annotated(&[("onehop.dev/address-pool", "silver")]),
        ),
        ("policy", annotated(&[("onehop.dev/address-pool", "gold")])),
        // L-48
        ("taken", annotated(&[(ADDRESSES, FIRST)])),
        (
            "port-clash",
            annotated(&[(ADDRESSES, FIRST), ("onehop.dev/allow-shared-ip", "k")]),
        ),
        ("sctp", json!({ "spec": { "ports": port("SCTP") } })),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c08_c22_c29_c101_ct11_ct42_i10_k50_k60_a_wish_that_cannot_be_met_changes_nothing_and_is_explained()
 {
    let mut world = World::start(POOL).await;
    world.tune.policies =
        Policies::parse(r#"[{"name": "red", "addressPools": ["default", "silver"]}]"#).unwrap();
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("other", json!({})).await;
    has_address(&world, "other", FIRST).await;
    world
        .patch("other", annotated(&[("onehop.dev/allow-shared-ip", "k")]))
        .await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", SECOND).await;
    let healthy = async |w: &World| {
        w.times_in_state(TargetState::Healthy)
            .contains_key("10.244.1.1")
    };
    world.eventually("web serves", healthy).await;
    accepted(&world, "other").await;
    world
        .eventually("the cloud has the key of other", async |w| {
            w.writes(Operation::UpdateLoadBalancer) == 1
        })
        .await;
    let calls = world.all_writes();
    for (case, edit) in edits() {
        world.patch("web", edit.clone()).await;
        says(&world, "web", case).await;
        assert_eq!(
            world.address("web").await.as_deref(),
            Some(SECOND),
            "{case}"
        );
        assert_eq!(
            world.address("other").await.as_deref(),
            Some(FIRST),
            "{case}"
        );
        assert_eq!(world.all_writes(), calls, "C-08, I10: {case}");
        let kept = world.condition("web").await.unwrap().message;
        assert!(
            kept.ends_with("; the last good state is kept"),
            "C-08: {kept}"
        );
        if case == "sctp" {
            let tcp =
                json!([{ "name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP" }]);
            world
                .patch("web", json!({ "spec": { "ports": tcp } }))
                .await;
        } else {
            world.patch("web", undone(&edit)).await;
        }
        accepted(&world, "web").await;
    }
    assert_eq!(
        world.all_writes(),
        calls,
        "C-07: what was asked for in vain leaves no trace"
    );
    // I8: while a wish is refused, targets come and go as ever.
    world
        .patch("web", annotated(&[("onehop.dev/target", "pods")]))
        .await;
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(world.cloud.violations(), Vec::<String>::new());
    controller.stop().await;
}

/// Another cluster uses the same cloud, and pools that overlap with ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c33_l54_an_address_that_somebody_outside_has_is_not_fought_over() {
    let world = World::start(POOL).await;
    for address in [FIRST, "198.51.100.15"] {
        world.foreign_balancer(address);
    }
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", SECOND).await;
    world
        .patch("web", annotated(&[(ADDRESSES, "198.51.100.15")]))
        .await;
    says(&world, "web", "taken-in-cloud").await;
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(
        world.address("web").await.as_deref(),
        Some(SECOND),
        "C-33, I8"
    );
    let calls = world.all_writes();
    world.quiet(Duration::from_secs(1)).await;
    assert_eq!(
        world.all_writes(),
        calls,
        "C-11: it is not asked for again and again"
    );
    world
        .patch("web", annotated(&[(ADDRESSES, "198.51.100.16")]))
        .await;
    has_address(&world, "web", "198.51.100.16").await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c38_c107_l15_a_service_that_gets_no_address_says_why_until_a_pool_has_one() {
    let world = World::start("198.51.100.10-198.51.100.10").await;
    let controller = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    world.service("late", json!({})).await;
    says(&world, "late", "exhausted").await;
    let text = world.condition("late").await.unwrap().message;
    assert!(
        text.ends_with("; nothing is made until this is put right"),
        "C-107: {text}"
    );
    settled(&world).await;
    let before = (world.all_writes(), world.server.resource_version());
    world.quiet(Duration::from_secs(2)).await;
    let after = (world.all_writes(), world.server.resource_version());
    assert_eq!(before, after, "L-21, C-11: nothing flaps while it waits");
    world
        .furnish_as("more", &["198.51.100.30-198.51.100.20", "198.51.100.40/32"])
        .await;
    has_address(&world, "late", "198.51.100.40").await;
    // C-17, L-15: nothing is refused at admission: what of the pool cannot be read is in its status; the rest of it serves.
    world
        .eventually("C-17: the pool says so", async |w| {
            let status = pool_status(w, "more").await.unwrap_or_default();
            matches!(&status.problems[..], [one] if documented::says("bad-pool", one))
        })
        .await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_ct21_keys_of_metallb_are_followed_and_each_event_comes_once() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world
        .service(
            "web",
            json!({ "type": "ClusterIP", "loadBalancerClass": null }),
        )
        .await;
    let pairs = [
        ("metallb.io/loadBalancerIPs", "198.51.100.15"),
        ("metallb.io/address-pool", "nowhere"),
        ("onehop.dev/address-pool", "default"),
    ];
    world.patch("web", annotated(&pairs)).await;
    let label = json!({ "metadata": { "labels": { "onehop.dev/allow-shared-ip": "k" } } });
    world.patch("web", label).await;
    let on = json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "onehop.dev/local" } });
    world.patch("web", on).await;
    has_address(&world, "web", "198.51.100.15").await;
    says(&world, "web", "peer-key").await;
    world
        .eventually("C-09: what is ignored is said", async |w| {
            let told = w.told("web").await;
            let ignored = told
                .into_iter()
                .find(|(reason, _)| reason == "AnnotationIgnored");
            let cases = ["peer-key-ignored", "sharing-label"];
            ignored
                .is_some_and(|(_, text)| cases.iter().all(|c| text.contains(&documented::text(c))))
        })
        .await;
    // C-T21: once, also when other things change.
    world.endpoints("web", &[1], &[]).await;
    world
        .patch("web", json!({ "spec": { "sessionAffinity": "ClientIP" } }))
        .await;
    world.quiet(Duration::from_millis(500)).await;
    let told = world.told("web").await;
    let deprecated = told
        .iter()
        .filter(|(reason, _)| reason == "AnnotationDeprecated");
    assert_eq!(deprecated.count(), 1, "C-T21, L-14: {told:?}");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_c15_a_service_made_anew_with_another_class_is_left_to_its_owner_and_nothing_of_the_old_one_stays()
 {
    let world = World::start("198.51.100.10-198.51.100.10").await;
    let controller = web_with_nodes(&world).await;
    let services = world.api::<Service>();
    delete(&world, "web").await;
    says_of_gone(&world, "class-changed").await;
    let peers = world
        .service("web", json!({ "loadBalancerClass": "example.com/lb" }))
        .await;
    world.service("next", json!({})).await;
    has_address(&world, "next", FIRST).await;
    let now = services.get("web").await.unwrap();
    assert_eq!(now.resource_version(), peers.resource_version(), "C-06");
    assert_eq!(world.held().len(), 1, "C-15: {:?}", world.held());
    controller.stop().await;
}

async fn says_of_gone(world: &World, case: &str) {
    let row = documented::row(case);
    world
        .eventually(&row.text, async |w| {
            let told = w.told("web").await;
            told.iter()
                .any(|(reason, text)| Some(reason) == row.reason.as_ref() && *text == row.text)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k03_a_finalizer_that_was_removed_by_hand_comes_back_and_is_told_of() {
    let world = World::start(POOL).await;
    let controller = web_with_nodes(&world).await;
    let object = async |w: &World| {
        w.api::<LoadBalancer>()
            .get_opt("web")
            .await
            .unwrap()
            .is_some()
    };
    world.eventually("the object is there", object).await;
    let calls = world.all_writes();
    world
        .patch(
            "web",
            json!({ "metadata": { "finalizers": ["example.com/mine"] } }),
        )
        .await;
    says(&world, "web", "finalizer-removed").await;
    let now = world.api::<Service>().get("web").await.unwrap();
    assert_eq!(
        now.finalizers(),
        ["example.com/mine", SERVICE_FINALIZER],
        "K-03: others' stay"
    );
    assert_eq!(world.all_writes(), calls, "I4");
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST));
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_our_kinds_readiness_names_them_and_work_begins_once_they_are_there() {
    let world = World::without_crds().await;
    let listing = |phase: &Phase| matches!(phase, Phase::Listing { .. });
    let controller = world.controller().reaches(listing).await;
    let (status, text) = http::standing(&controller.phase().borrow());
    assert_eq!(status.as_u16(), 503);
    assert_eq!(text, documented::text("crds-missing"));
    world.endpoints("web", &[1], &[]).await;
    let before = world.service("web", json!({})).await;
    world.quiet(Duration::from_millis(500)).await;
    let now = world.api::<Service>().get("web").await.unwrap();
    assert_eq!(now.resource_version(), before.resource_version(), "I1");
    world.install_crds().await;
    world.furnish(POOL).await;
    let controller = controller.working().await;
    has_address(&world, "web", FIRST).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_i8_i10_kinds_that_are_deleted_under_it_take_no_address_and_no_target_with_them() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    let object = async |w: &World| {
        w.api::<LoadBalancer>()
            .get_opt("web")
            .await
            .unwrap()
            .is_some()
    };
    world.eventually("the object is there", object).await;
    let crds: Api<CustomResourceDefinition> = Api::all(world.admin());
    for kind in [
        "loadbalancers.onehop.dev",
        "addresspools.onehop.dev",
        "nodetargets.onehop.dev",
    ] {
        crds.delete(kind, &DeleteParams::default()).await.unwrap();
    }
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "I10");
    assert_eq!(world.writes(Operation::DeleteLoadBalancer), 0, "I10");
    assert_eq!(world.writes(Operation::DeleteGroup), 0, "I10");
    world
        .eventually("the kinds are gone or wait for their objects", async |_| {
            let all = crds.list(&kube::api::ListParams::default()).await.unwrap();
            all.items
                .iter()
                .all(|crd| crd.metadata.deletion_timestamp.is_some())
        })
        .await;
    for crd in onehop_core::crd::definitions() {
        // One that still waits for the end of its objects is made again once it is gone.
        let name = crd.name_any();
        world
            .eventually("the kind is there again", async |_| {
                crds.create(&PostParams::default(), &crd).await.is_ok()
                    || crds
                        .get_opt(&name)
                        .await
                        .unwrap()
                        .is_some_and(|c| c.metadata.deletion_timestamp.is_none())
            })
            .await;
    }
    world
        .eventually("the object comes back", async |w| {
            let object = w.api::<LoadBalancer>().get_opt("web").await;
            object
                .ok()
                .flatten()
                .is_some_and(|o| o.metadata.deletion_timestamp.is_none())
        })
        .await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "C-27");
    assert_eq!(world.writes(Operation::CreateLoadBalancer), 1, "I10");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i8_a_service_with_a_thousand_ports_is_served_and_holds_up_nobody() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    let port = |n: u16| json!({ "name": format!("p{n}"), "port": n, "targetPort": 8080 });
    let ports: Vec<_> = (1..=1000).map(port).collect();
    let mut wide = pod_mode();
    wide["ports"] = json!(ports);
    wide["selector"] = json!({ "app": "web" });
    world.service("wide", wide).await;
    world
        .eventually("it is begun", async |w| {
            w.writes(Operation::CreateGroup) > 1
        })
        .await;
    // Amid the thousand calls and looks.
    members_are_cared_for(&world, 1, 2).await;
    let all_there = async |w: &World| w.writes(Operation::PutListener) == 1001;
    world
        .eventually_within(
            Duration::from_mins(2),
            "every port has its listener",
            all_there,
        )
        .await;
    world
        .eventually_within(Duration::from_mins(1), "it is told", async |w| {
            let told = w.told("wide").await;
            let row = documented::row("thousand-ports");
            told.iter().any(|(reason, text)| {
                Some(reason) == row.reason.as_ref() && documented::says("thousand-ports", text)
            })
        })
        .await;
    assert_eq!(world.writes(Operation::CreateGroup), 1001, "I4: each once");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_a_pool_edited_away_under_an_address_moves_nothing_and_says_so() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    let pools: Api<AddressPool> = Api::all(world.admin());
    let away = json!({ "spec": { "addresses": ["198.51.100.15-198.51.100.20"] } });
    pools
        .patch("default", &PatchParams::default(), &Patch::Merge(away))
        .await
        .unwrap();
    says(&world, "web", "pool-gone").await;
    // Killed at that moment, and with a second edit while nobody looks.
    controller.kill().await;
    let none =
        json!({ "spec": { "addresses": ["198.51.100.10-198.51.100.11"], "autoAssign": false } });
    pools
        .patch("default", &PatchParams::default(), &Patch::Merge(none))
        .await
        .unwrap();
    let controller = world.controller();
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "C-27");
    world.service("late", json!({})).await;
    told_of(&world, "late", "AllocationFailed").await;
    assert_eq!(world.writes(Operation::UpdateLoadBalancer), 0, "C-24");
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c44_zd73_labels_that_exclude_every_node_leave_the_last_that_serve_and_a_warning() {
    let world = World::start(POOL).await;
    let controller = web_with_nodes(&world).await;
    healthy(&world, 2).await;
    world.exclude("node-1", true).await;
    let draining = async |w: &World| {
        w.times_in_state(TargetState::Draining)
            .contains_key("10.0.1.1")
    };
    world.eventually("one is out", draining).await;
    accepted(&world, "web").await;
    let told = world.events("web").await;
    assert!(!told.contains(&"LastTargetsKept".to_owned()), "{told:?}");
    world.exclude("node-2", true).await;
    says(&world, "web", "all-excluded").await;
    world.quiet(Duration::from_millis(500)).await;
    let gone = world.times_in_state(TargetState::Draining);
    assert!(!gone.contains_key("10.0.1.2"), "C-44, ZD-73: {gone:?}");
    // Another one can serve again: now it goes.
    world.exclude("node-1", false).await;
    let replaced = async |w: &World| {
        w.times_in_state(TargetState::Draining)
            .contains_key("10.0.1.2")
    };
    world
        .eventually("C-44: the label is followed", replaced)
        .await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c100_c107_a_limit_of_the_cloud_is_named_and_what_serves_goes_on() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    let quotas = |listeners| {
        world.cloud.with(|engine, now| {
            let mut faults = engine.faults().clone();
            faults.quotas.listeners_per_load_balancer = listeners;
            engine.set_faults(now, faults);
        });
    };
    quotas(Some(1));
    let ports = json!([
        { "name": "http", "port": 80, "targetPort": 8080 },
        { "name": "more", "port": 81, "targetPort": 8080 },
    ]);
    world
        .patch("web", json!({ "spec": { "ports": ports } }))
        .await;
    says(&world, "web", "quota").await;
    members_are_cared_for(&world, 1, 2).await;
    let told = world.told("web").await;
    let said = told.iter().filter(|(reason, _)| reason == "QuotaExceeded");
    assert_eq!(said.count(), 1, "C-100: {told:?}");
    quotas(None);
    // It is tried again slowly: half a minute to a whole one the first time.
    world
        .eventually_within(Duration::from_mins(2), "it is tried again", async |w| {
            w.condition("web").await.is_some_and(|c| c.status == "True")
        })
        .await;
    controller.stop().await;
}

/// A process dates what it writes by its own clock, which may be wrong or have been set; the next one must not be misled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_wrong_by_a_day_mislead_nobody() {
    let row = documented::row("clock-jumps");
    assert_eq!(row.text, "", "nothing is said of it");
    let mut world = World::start(POOL).await;
    let right = world.tune.clock;
    world.tune.clock = Clock::fixed(right.now() + DAY);
    world.endpoints("web", &[1], &[]).await;
    let ahead = world.controller();
    world.service("web", json!({})).await;
    has_address(&world, "web", FIRST).await;
    let pods = json!({ "metadata": { "annotations": { "onehop.dev/target": "pod" } } });
    world.patch("web", pods).await;
    let retired = async |w: &World| w.writes(Operation::UpdateGroup) == 1;
    world
        .eventually("the old group is dated, a day ahead", retired)
        .await;
    ahead.kill().await;
    world.tune.clock = right;
    let controller = world.controller();
    let deleted = async |w: &World| w.writes(Operation::DeleteGroup) == 1;
    world
        .eventually_within(
            Duration::from_secs(40),
            "the old group goes after its tail, not in a day",
            deleted,
        )
        .await;
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST), "ZD-28");
    controller.stop().await;
    world.tune.clock = Clock::fixed(Time::EPOCH);
    let behind = world.controller().working().await;
    let calls = world.all_writes();
    members_are_cared_for(&world, 1, 2).await;
    assert_eq!(world.all_writes(), calls + 2, "one in, one out");
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_while_the_api_server_is_away_the_cloud_stays_as_it_is_and_afterwards_it_is_followed() {
    let world = World::start(POOL).await;
    world.endpoints("web", &[1], &[]).await;
    let mut program = world.program();
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let healthy = async |w: &World| w.times_in_state(TargetState::Healthy).len() == 1;
    world.eventually("it serves", healthy).await;
    let calls = world.all_writes();
    program.without_api_server(&world).await;
    world.endpoints("web", &[2], &[1]).await;
    world
        .eventually("it is said", async |_| {
            program.log().contains(&documented::text("api-server-away"))
        })
        .await;
    world.quiet(Duration::from_secs(1)).await;
    assert_eq!(
        world.all_writes(),
        calls,
        "I1: nothing is done on an old view"
    );
    program.with_api_server(&world);
    world
        .eventually_within(
            Duration::from_mins(1),
            "what changed meanwhile is found",
            async |w| {
                w.times_in_state(TargetState::Healthy)
                    .contains_key("10.244.1.2")
                    && w.times_in_state(TargetState::Draining)
                        .contains_key("10.244.1.1")
            },
        )
        .await;
    program.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_cannot_start_says_why_and_ends_with_the_documented_status() {
    let world = World::start(POOL).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, said) = world.ended(&["--metrics-address", &address]).await;
    assert_eq!(status, Some(1));
    assert!(
        said.lines().any(|l| said_in("controller-port-taken", l)),
        "{said}"
    );
    let (status, said) = world.ended(&["--policies", "red: yes"]).await;
    assert_eq!(status, Some(1));
    assert!(said.lines().any(|l| said_in("bad-policies", l)), "{said}");
    let (status, _) = world.ended(&["--no-such-flag"]).await;
    assert_eq!(status, Some(2));
}

fn said_in(case: &str, line: &str) -> bool {
    let line = line.strip_prefix("Error: ").unwrap_or(line);
    documented::says(case, line)
}

/// Each row of the page is asserted by a test somewhere: a row that nobody holds is a promise of nobody.
#[test]
fn every_row_of_the_page_is_held_by_a_test() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = [
        "controller/tests/local/bad_input.rs",
        "node-agent/src/startup.rs",
        "node-agent/tests/start.rs",
        "e2e/tests/net/bad_input.rs",
    ];
    let tests: String = files
        .map(|file| std::fs::read_to_string(root.join(file)).unwrap())
        .concat();
    let rows = documented::rows();
    assert!(rows.len() > 30, "{}", rows.len());
    for row in rows {
        assert!(tests.contains(&format!("\"{}\"", row.id)), "{row:?}");
    }
}
