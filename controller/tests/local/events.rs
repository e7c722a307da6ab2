//! What is said of a Service: events with the reasons that people look for, and conditions (conventions.md section 5).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use e2e_cloud::engine::{Faults, Operation};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use onehop_core::crd::{LoadBalancer, NodeTargets};
use serde_json::json;

use crate::support::{
    FIRST, POOL, annotated, get, has_address, healthy, settled, told_of, web_with_a_pod,
    web_with_nodes,
};
use crate::world::World;

const ADDRESSES: &str = "onehop.dev/loadBalancerIPs";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c100_c101_events_of_a_services_life_have_the_reasons_that_users_look_for_each_once() {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(500);
    let controller = web_with_nodes(&world).await;
    healthy(&world, 2).await;
    // Another group takes over, and the old one drains after its tail.
    world
        .patch("web", annotated(&[("onehop.dev/target", "pod")]))
        .await;
    told_of(&world, "web", "UpdatedLoadBalancer").await;
    told_of(&world, "web", "TargetsDraining").await;
    world
        .patch("web", annotated(&[(ADDRESSES, "192.0.2.1")]))
        .await;
    told_of(&world, "web", "AllocationFailed").await;
    world.cloud.with(|engine, now| {
        let mut faults = engine.faults().clone();
        faults.denied = [Operation::UpdateLoadBalancer].into();
        engine.set_faults(now, faults);
    });
    world
        .patch("web", annotated(&[(ADDRESSES, "198.51.100.15")]))
        .await;
    told_of(&world, "web", "SyncLoadBalancerFailed").await;
    // C-101: the address is not changed yet, and so nothing says that it is.
    let told = world.events("web").await;
    assert!(
        !told.contains(&"ClearAssignment".to_owned()),
        "C-101: {told:?}"
    );
    world
        .cloud
        .with(|engine, now| engine.set_faults(now, Faults::default()));
    has_address(&world, "web", "198.51.100.15").await;
    told_of(&world, "web", "ClearAssignment").await;
    settled(&world).await;
    let events = world.api::<Event>().list(&ListParams::default()).await;
    let about = events.unwrap().items.into_iter();
    let about = about.filter(|e| e.involved_object.name.as_deref() == Some("web"));
    let mut counts: BTreeMap<(String, String), i32> = BTreeMap::new();
    for event in about {
        let key = (
            event.reason.unwrap_or_default(),
            event.message.unwrap_or_default(),
        );
        *counts.entry(key).or_default() += event.count.unwrap_or(1);
    }
    let often: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(
        often.is_empty(),
        "C-100: one thing is said once: {often:#?}"
    );
    let reasons: BTreeSet<&str> = counts.keys().map(|(reason, _)| reason.as_str()).collect();
    for reason in [
        "EnsuringLoadBalancer",
        "IPAllocated",
        "TargetsRegistered",
        "EnsuredLoadBalancer",
        "UpdatedLoadBalancer",
        "TargetsDraining",
        "AllocationFailed",
        "SyncLoadBalancerFailed",
        "ClearAssignment",
    ] {
        assert!(reasons.contains(reason), "C-100: {reason} of {reasons:?}");
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c102_one_condition_of_ours_on_the_service_and_four_on_its_object_follow_each_generation() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    healthy(&world, 1).await;
    let all_said = async |status: [&str; 4]| {
        let wanted = ["Accepted", "Degraded", "Programmed", "TargetsReady"]
            .into_iter()
            .zip(status)
            .map(|(kind, status)| (kind.to_owned(), status.to_owned()))
            .collect::<BTreeMap<_, _>>();
        world
            .eventually("C-102: the object says how things stand", async |w| {
                let generation = get(w, "web").await.metadata.generation;
                let object = w.api::<LoadBalancer>().get("web").await.unwrap();
                let conditions = object.status.map(|s| s.conditions).unwrap_or_default();
                let said = conditions.iter();
                let said: BTreeMap<_, _> =
                    said.map(|c| (c.type_.clone(), c.status.clone())).collect();
                let newest = conditions
                    .iter()
                    .all(|c| c.observed_generation == generation);
                let reasons = conditions.iter().all(|c| !c.reason.is_empty());
                said == wanted && newest && reasons
            })
            .await;
    };
    all_said(["True", "False", "True", "True"]).await;
    world
        .patch("web", annotated(&[("onehop.dev/target", "pods")]))
        .await;
    told_of(&world, "web", "AnnotationInvalid").await;
    let ours = |all: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>| {
        let ours = all
            .into_iter()
            .filter(|c| c.type_.starts_with("onehop.dev/"));
        ours.map(|c| (c.type_, c.status, c.reason))
            .collect::<Vec<_>>()
    };
    // Event and status are two writes.
    let refused = [("onehop.dev/LoadBalancerReady", "False", "AnnotationInvalid")];
    let refused = refused.map(|(kind, status, reason)| (kind.into(), status.into(), reason.into()));
    world
        .eventually("C-102: one type of ours, which says why", async |w| {
            let status = get(w, "web").await.status.unwrap_or_default();
            ours(status.conditions.unwrap_or_default()) == refused
        })
        .await;
    world
        .patch(
            "web",
            json!({ "metadata": { "annotations": { "onehop.dev/target": null } } }),
        )
        .await;
    // A new generation, and all is well.
    world
        .patch("web", json!({ "spec": { "sessionAffinity": "ClientIP" } }))
        .await;
    all_said(["True", "False", "True", "True"]).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k22_many_changes_of_a_nodes_targets_are_few_writes_of_its_object() {
    const CHANGES: u8 = 60;
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
    settled(&world).await;
    let mut audit = world.server.audit();
    for last in 2..=CHANGES {
        let pods: Vec<u8> = (1..=last).collect();
        world.endpoints("web", &pods, &[]).await;
    }
    let targets: Api<NodeTargets> = Api::all(world.admin());
    world
        .eventually("K-22: the node is told of all", async |_| {
            let node = targets.get("node-1").await.unwrap();
            let installs = node.spec.installs.values();
            installs.map(|i| i.targets.len()).sum::<usize>() == usize::from(CHANGES)
        })
        .await;
    let mut times = Vec::new();
    while let Ok(record) = audit.try_recv() {
        if record.is_write() && record.resource == "nodetargets" && record.name == "node-1" {
            times.push(record.at);
        }
    }
    assert!(
        !times.is_empty() && times.len() < usize::from(CHANGES) / 2,
        "K-22: {}",
        times.len()
    );
    let first = times[0];
    let window = times[times.len() - 1].since(first);
    let most = window.as_millis() / 100 + 1;
    assert!(
        u128::try_from(times.len()).unwrap() <= most,
        "K-22: {} in {window:?}",
        times.len()
    );
    assert_eq!(world.address("web").await.as_deref(), Some(FIRST));
    controller.stop().await;
}
