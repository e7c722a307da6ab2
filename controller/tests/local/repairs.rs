//! What somebody else changed, took away or refuses is found by comparing everything, and put right part by part.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use e2e_cloud::engine::{
    Edit, Effect, Engine, Faults, Injection, Operation, Protocol, TargetState,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use onehop_core::crd::{LoadBalancer, NodeTargets};
use serde_json::json;

use crate::addresses::members_are_cared_for;
use crate::support::{FIRST, POOL, has_address, healthy, pod_mode, web_with_a_pod};
use crate::world::World;

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
async fn c13_i8_a_cloud_that_refuses_one_part_holds_up_no_other() {
    let world = World::start(POOL).await;
    let controller = web_with_a_pod(&world).await;
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
    let controller = web_with_a_pod(&world).await;
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
    let controller = web_with_a_pod(&world).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc09_fc97_a_cloud_that_breaks_off_after_each_step_keeps_what_was_made_and_it_is_made_once()
{
    let world = World::start(POOL).await;
    for operation in [
        Operation::CreateGroup,
        Operation::CreateLoadBalancer,
        Operation::RegisterTargets,
        Operation::PutListener,
    ] {
        let once = Injection {
            operations: [operation].into(),
            effect: Effect::LostAfter,
            times: 1,
            skip: 0,
        };
        world.cloud.with(|engine, _| engine.inject(once));
    }
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    let first = world.controller().working().await;
    let broken = async |w: &World| w.cloud.look(|engine| engine.injections().len()) < 4;
    world.eventually("an answer was lost", broken).await;
    // FC-9: whoever comes next finds everything that was made.
    let made = world.cloud.look(Engine::inventory);
    first.kill().await;
    let controller = world.controller();
    has_address(&world, "web", FIRST).await;
    healthy(&world, 1).await;
    let now = world.cloud.look(Engine::inventory);
    assert_eq!(
        (now.load_balancers.len(), now.groups.len()),
        (1, 1),
        "FC-97"
    );
    for (group, _) in &made.groups {
        assert!(
            now.groups.iter().any(|(of, _)| of.id == group.id),
            "FC-9: {made:?}"
        );
    }
    assert_eq!(world.cloud.violations(), Vec::<String>::new());
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l28_c10_a_load_balancer_that_is_lost_or_moved_comes_back_to_its_address_and_the_status_is_true()
 {
    let mut world = World::start(POOL).await;
    world.tune.sweep = Duration::from_millis(500);
    let controller = web_with_a_pod(&world).await;
    healthy(&world, 1).await;
    let id = |w: &World| w.cloud.look(Engine::inventory).load_balancers[0].id.clone();
    let edits = [
        Edit::DeleteLoadBalancer { id: id(&world) },
        Edit::ChangeLoadBalancer {
            id: "lb-000002".into(),
            addresses: Some(vec!["198.51.100.19".parse().unwrap()]),
            cross_zone: None,
            preserve_client_ip: None,
        },
    ];
    for edit in edits {
        world
            .cloud
            .with(|engine, now| engine.edit(now, &edit))
            .unwrap();
        let back = async |w: &World| {
            let inventory = w.cloud.look(Engine::inventory);
            let [lb] = &inventory.load_balancers[..] else {
                return false;
            };
            let at_home = lb.spec.addresses == [FIRST.parse::<IpAddr>().unwrap()];
            at_home && lb.listeners.len() == 1 && w.address("web").await.as_deref() == Some(FIRST)
        };
        world
            .eventually_within(Duration::from_mins(1), "L-28, C-10: it is back", back)
            .await;
    }
    controller.stop().await;
}
