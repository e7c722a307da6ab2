//! Several replicas, and several installs, of the controller.

use std::time::Duration;

use axum::http::StatusCode;
use e2e_cloud::engine::{Operation, TargetState};
use onehop_controller::app::Phase;
use onehop_controller::http;

use crate::support::{FIRST, POOL, has_address, pod_mode};
use crate::world::World;

fn standby(phase: &Phase) -> bool {
    matches!(phase, Phase::Standby { leader } if leader == "a")
}

/// What `/readyz` answers.
async fn readiness(phase: tokio::sync::watch::Receiver<Phase>) -> (StatusCode, String) {
    let listener = http::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    let server = tokio::spawn(axum::serve(listener, http::health(phase)).into_future());
    let answer = reqwest::get(url).await.unwrap();
    let status = StatusCode::from_u16(answer.status().as_u16()).unwrap();
    let text = answer.text().await.unwrap();
    server.abort();
    (status, text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_c36_only_the_leader_writes_and_a_handover_repeats_nothing() {
    let world = World::start(POOL).await;
    let a = world.replica("one", "a").working().await;
    let b = world.replica("one", "b").reaches(standby).await;
    let (status, text) = readiness(b.phase()).await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::OK, "standby: a leads")
    );
    world.endpoints("web", &[1, 2], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    let created = world.writes(Operation::CreateLoadBalancer);
    assert_eq!(created, 1, "C-36: one writer");
    let healthy = async |w: &World| w.times_in_state(TargetState::Healthy).len() == 2;
    world.eventually("both targets are healthy", healthy).await;
    let before = world.all_writes();
    a.stop().await;
    let b = b.working().await;
    world.quiet(Duration::from_millis(500)).await;
    assert_eq!(world.all_writes(), before, "I9: nothing is repeated");
    assert_eq!(world.held().len(), 1, "C-40: one holder");
    assert_eq!(world.cloud.violations(), Vec::<String>::new(), "C-40");
    world.endpoints("web", &[2, 3], &[]).await;
    let moved = async |w: &World| w.writes(Operation::DeregisterTargets) == 1;
    world.eventually("the new leader works on", moved).await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_a_leader_that_dies_in_a_create_is_followed_by_the_standby() {
    let world = World::start(POOL).await;
    let a = world.replica("one", "a").working().await;
    let b = world.replica("one", "b").reaches(standby).await;
    world.endpoints("web", &[1, 2], &[]).await;
    world.service("web", pod_mode()).await;
    world.quiet(Duration::from_millis(15)).await;
    a.kill().await;
    let b = b.working().await;
    has_address(&world, "web", FIRST).await;
    assert_eq!(world.writes(Operation::CreateLoadBalancer), 1, "I6");
    assert_eq!(world.writes(Operation::RegisterTargets), 1, "I6");
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c121_an_install_with_overlapping_claims_writes_nothing_and_names_the_other() {
    let world = World::start(POOL).await;
    let one = world.replica("one", "a").working().await;
    let refused = |phase: &Phase| matches!(phase, Phase::Refused { .. });
    let two = world.replica("two", "b").reaches(refused).await;
    let (status, text) = readiness(two.phase()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "C-121");
    assert!(text.contains("install one"), "C-121: {text}");
    let told = async |w: &World| {
        let events = w.events("onehop-controller-two").await;
        events == ["ClaimsOverlap"]
    };
    world
        .eventually("an event names the other (C-121)", told)
        .await;
    world.endpoints("web", &[1], &[]).await;
    world.service("web", pod_mode()).await;
    has_address(&world, "web", FIRST).await;
    assert_eq!(world.writes(Operation::CreateLoadBalancer), 1, "L-26");
    one.stop().await;
    two.working().await.stop().await;
}
