//! At rest: who goes on writing although nothing changes is found, whatever a scenario is about, since each world's end looks
//! for it; and a cloud is what it was after its users were restarted.

use anyhow::Result;
use e2e_cloud::engine::{Engine, Inventory};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use onehop_e2e::world::{
    OnTerm, ServiceManifest, World, WorldConfig, eventually, first_answer, pod,
};
use serde_json::json;
use std::time::Duration;

use crate::support::READY_WITHIN;

/// Between two changes: less than a world has to be quiet for.
const EVERY: Duration = Duration::from_millis(200);
/// How long a world may take to come to rest, where it never will.
const NEVER: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn fc103_writes_that_go_on_while_nothing_changes_fail_a_world() -> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    let web = pod("web", "web", "a", OnTerm::Exit);
    world.objects.create(web).await?;
    world
        .objects
        .pod_ready("default", "web", READY_WITHIN)
        .await?;
    world
        .objects
        .apply(ServiceManifest::load_balancer("web", "web").json())
        .await?;
    world.lb_address("web").await?;
    world.at_rest(READY_WITHIN).await?;
    // Somebody else writes to the cloud, and what is written makes no difference.
    let group = json!({"name": "by-hand", "protocol": "TCP", "mode": "pod"});
    let group = world.cloud_call("POST /v1/groups", &group)?;
    let id = group["id"].as_str().unwrap_or_default();
    let put = format!("PUT /v1/groups/{id}");
    let same = json!({"name": "by-hand", "protocol": "TCP", "mode": "pod"});
    let busy = async {
        loop {
            if let Err(error) = world.cloud_call(&put, &same) {
                return error;
            }
            world.clock.sleep(EVERY).await;
        }
    };
    let found = tokio::select! {
        error = busy => return Err(error),
        found = world.at_rest(NEVER) => found,
    };
    let found = found.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(
        found.contains("FC-103 (6)") && found.contains("UpdateGroup"),
        "FC-103: {found:?}"
    );
    world.cloud_call(&format!("DELETE /v1/groups/{id}"), &json!(null))?;
    world.at_rest(READY_WITHIN).await?;
    // The controller is made to write to the API server again and again.
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let services = world.objects.api::<Service>();
    let busy = async {
        loop {
            if let Err(error) = services.patch("web", &PatchParams::default(), &none).await {
                return error;
            }
            world.clock.sleep(EVERY).await;
        }
    };
    let found = tokio::select! {
        error = busy => return Err(error.into()),
        found = world.at_rest(NEVER) => found,
    };
    let found = found.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(
        found.contains("FC-103 (6)") && found.contains("services"),
        "FC-103: {found:?}"
    );
    world.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn fc09_the_cloud_is_what_it_was_after_a_restart_of_the_controller_and_every_agent()
-> Result<()> {
    let world = World::start(WorldConfig::default()).await?;
    let web = pod("web", "web", "a", OnTerm::Exit);
    world.objects.create(web).await?;
    world
        .objects
        .pod_ready("default", "web", READY_WITHIN)
        .await?;
    world
        .objects
        .apply(ServiceManifest::load_balancer("web", "web").json())
        .await?;
    let address = (world.lb_address("web").await?, 80).into();
    first_answer(&world, address).await?;
    world.at_rest(READY_WITHIN).await?;
    let before = world.cloud.look(Engine::inventory);
    assert_eq!(before.load_balancers.len(), 1);
    world.controller.kill()?;
    for node in ["a", "b"] {
        world.kill_agent(node)?;
        world.agent_restarted(node, READY_WITHIN).await?;
    }
    world.proxies_ready().await?;
    first_answer(&world, address).await?;
    // A health answer may have been missed while an agent was away.
    eventually(
        &world.clock,
        "FC-9: everything is there, as it was",
        READY_WITHIN,
        async || {
            let now = world.cloud.look(Engine::inventory);
            let states = |of: &Inventory| {
                let targets = of.groups.iter().flat_map(|(group, targets)| {
                    targets
                        .iter()
                        .map(move |t| (group.id.clone(), t.target, t.state))
                });
                targets.collect::<Vec<_>>()
            };
            let same =
                now.load_balancers == before.load_balancers && states(&now) == states(&before);
            same.then_some(()).ok_or_else(|| format!("{now:#?}"))
        },
    )
    .await?;
    world.end().await
}
