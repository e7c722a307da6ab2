//! Health of pods answered by agents: who waits for whom, and for how long (K-24).

use std::time::Duration;

use e2e_cloud::engine::Operation;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use onehop_controller::reconcile::PodHealth;
use onehop_core::crd::{HealthBy, HealthCheck, LoadBalancer, NodeTargets, TargetHealth};
use onehop_core::service::{AGENT_PROXY_NAME, PROXY_NAME_LABEL};
use serde_json::json;

use crate::world::World;
use crate::{FIRST, POOL, has_address, pod_mode};

async fn world(wait: Duration) -> World {
    let mut world = World::start(POOL).await;
    world.tune.pod_health = Some(PodHealth { port: 10290, wait });
    world
}

/// The agent of `node-1` says that it answers for pods.
pub(crate) async fn agent_answers(world: &World) {
    let objects: Api<NodeTargets> = Api::all(world.admin());
    let object = json!({ "metadata": { "name": "node-1" }, "spec": {} });
    let object = serde_json::from_value(object).unwrap();
    // The controller may have made it, to tell the agent of targets.
    if let Err(error) = objects.create(&PostParams::default(), &object).await {
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 409),
            "{error}"
        );
    }
    let said = json!({ "status": { "features": ["guard", "podHealth", "serviceProxy"] } });
    let params = PatchParams::default();
    objects
        .patch_status("node-1", &params, &Patch::Merge(said))
        .await
        .unwrap();
}

async fn check(world: &World) -> HealthCheck {
    let object = world.api::<LoadBalancer>().get("web").await.unwrap();
    object.spec.ports[0].health.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k24_a_pod_is_registered_once_an_agent_answers_for_it() {
    let world = world(Duration::from_hours(1)).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    let said = async |w: &World| {
        let object = w.api::<LoadBalancer>().get_opt("web").await.unwrap();
        let status = object.and_then(|object| object.status);
        let mut conditions = status.into_iter().flat_map(|s| s.conditions);
        conditions.any(|c| c.reason == "AgentAbsent" && c.message.contains("node-1"))
    };
    world
        .eventually("K-24, ZD-13: a condition names the node", said)
        .await;
    assert_eq!(
        world.writes(Operation::RegisterTargets),
        0,
        "K-24, ZD-13: pods there wait"
    );
    agent_answers(&world).await;
    let registered = async |w: &World| w.writes(Operation::RegisterTargets) == 1;
    world.eventually("it is registered", registered).await;
    has_address(&world, "web", FIRST).await;
    let check = check(&world).await;
    assert_eq!((check.by, check.port), (HealthBy::Agent, Some(10290)));
    let path = check.path.unwrap();
    assert_eq!(path, "/t/demo-local/default/web/http", "K-28");
    let told = async |w: &World| {
        let objects: Api<NodeTargets> = Api::all(w.admin());
        let object = objects.get("node-1").await.unwrap();
        let mut targets = object.spec.installs.values().flat_map(|i| &i.targets);
        targets.any(|target| target.health == TargetHealth::Agent)
    };
    world.eventually("the agent is told", told).await;
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k24_where_no_agent_comes_pods_are_asked_themselves_and_k40_that_stays_so() {
    let world = world(Duration::from_secs(1)).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    let registered = async |w: &World| w.writes(Operation::RegisterTargets) > 0;
    world.eventually("K-24: it is registered", registered).await;
    has_address(&world, "web", FIRST).await;
    let alone = async |w: &World| w.writes(Operation::DeleteGroup) == 1;
    world
        .eventually("the group with the agents' check is gone", alone)
        .await;
    assert_eq!(check(&world).await.by, HealthBy::Traffic, "K-24, ZD-13");
    agent_answers(&world).await;
    world.endpoints("web", &[1, 2], &[]).await;
    let both = async |w: &World| {
        let object = w.api::<LoadBalancer>().get("web").await.unwrap();
        object.status.is_some_and(|s| s.ports[0].registered == 2)
    };
    world.eventually("the second one is registered", both).await;
    assert_eq!(check(&world).await.by, HealthBy::Traffic, "K-40");
    controller.stop().await;
}

/// C-131 and K-24: nobody waits for an agent where there can be none; the group's check is that of its creation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c131_k24_pods_on_fargate_are_asked_themselves_from_the_start() {
    let world = world(Duration::from_hours(1)).await;
    let fargate = Some("fargate");
    world
        .label("node-1", "eks.amazonaws.com/compute-type", fargate)
        .await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    assert_eq!(check(&world).await.by, HealthBy::Traffic, "K-24");
    let groups = |operation| world.writes(operation);
    assert_eq!(
        (
            groups(Operation::CreateGroup),
            groups(Operation::DeleteGroup)
        ),
        (1, 0),
        "C-131"
    );
    let said = async |w: &World| {
        let told = w.told("web").await;
        told.iter()
            .any(|(reason, text)| reason == "AgentAbsent" && text.contains("node-1 (Fargate)"))
    };
    world
        .eventually("C-131: an event names the node", said)
        .await;
    let object = world.api::<LoadBalancer>().get("web").await.unwrap();
    let conditions = object.status.unwrap().conditions;
    let mut degraded = conditions.iter().filter(|c| c.type_ == "Degraded");
    assert!(degraded.all(|c| c.status == "False"), "{conditions:?}");
    controller.stop().await;
}

/// C-132: on a Windows node nobody forwards for a Service that is handed to the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c132_a_service_for_the_agent_is_told_of_nodes_that_cannot_have_one() {
    let world = World::start(POOL).await;
    let controller = world.controller();
    world.endpoints("web", &[1], &[]).await;
    world.endpoints("plain", &[2], &[]).await;
    world.service("web", pod_mode()).await;
    // Of two made within a second the first by name is the older one.
    has_address(&world, "web", FIRST).await;
    world.service("plain", pod_mode()).await;
    let label = json!({ "metadata": { "labels": { PROXY_NAME_LABEL: AGENT_PROXY_NAME } } });
    let services = world.api::<Service>();
    services
        .patch("web", &PatchParams::default(), &Patch::Merge(label))
        .await
        .unwrap();
    world
        .label("node-2", "kubernetes.io/os", Some("windows"))
        .await;
    let said = async |w: &World| {
        let told = w.told("web").await;
        told.iter()
            .any(|(reason, text)| reason == "ProxyAbsent" && text.contains("node-2 (Windows)"))
    };
    world.eventually("an event names the node", said).await;
    let others = world.events("plain").await;
    assert!(!others.iter().any(|r| r == "ProxyAbsent"), "{others:?}");
    controller.stop().await;
}
