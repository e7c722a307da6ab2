//! Which target a client's flow chose, and when, whatever became of the flow: told to who asks, and logged.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;
#[path = "common/world.rs"]
mod world;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use common::{FRONT, lb, tcp_group};
use e2e_cloud::engine::{GroupSpec, HealthCheck, Protocol, TargetState, What};
use world::{PATIENCE, Target, World, front, frontend};

/// Probes so seldom that a target which stops listening stays healthy for the test.
fn slow_group() -> GroupSpec {
    let mut spec = tcp_group("web");
    spec.health = spec.health.map(|check| HealthCheck {
        interval: Duration::from_mins(1),
        ..check
    });
    spec
}

/// Stops the target and waits until its port is closed. The cloud goes on to think it healthy.
async fn close(world: &World, target: &mut Target) {
    target.stop();
    let closed = async { while world.connect().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, closed).await.unwrap();
}

/// A connection to `FRONT`:80 that is refused; the client's own socket address, which has this port, so that no two of a
/// test's connections are one flow.
fn refused(world: &World, port: u16) -> SocketAddr {
    let local = SocketAddr::new(world.client.address().into(), port);
    let netns = world.client.netns();
    let socket = netns.tcp_socket(Some(local), local.ip()).unwrap();
    let local = socket.local_addr().unwrap().as_socket();
    let error = socket
        .connect_timeout(&front(80).into(), PATIENCE)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    local.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc67_fc83_the_target_of_a_flow_and_its_state_when_chosen_can_be_told() {
    let world = World::new();
    let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (_, group) = world
        .balance(slow_group(), lb("svc", &[FRONT]), &[&one, &two])
        .await;
    let talk = world.connect().await.unwrap();
    let chosen_at = world.cloud().clock().now();
    let flows = world.node.flows_of(talk.client).unwrap();
    // FC-67
    assert_eq!(flows.len(), 1, "{flows:?}");
    assert_eq!(flows[0].frontend, frontend(Protocol::Tcp));
    let expected = if talk.target == "one" { &one } else { &two };
    assert_eq!(
        world.node.flow_target(talk.client).unwrap(),
        Some(expected.at)
    );
    assert_eq!(world.node.flow_target(front(1)).unwrap(), None);
    world.deregister(&group, expected).await;
    // FC-83: the state then, not the state now.
    let states = world.cloud().target_states_at(expected.at, chosen_at);
    assert_eq!(states[&group].0, TargetState::Healthy);
    assert_eq!(world.state(&group, expected.at), TargetState::Draining);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc83_a_refused_connection_has_its_target_and_the_time_of_its_choice() {
    let world = World::new();
    let mut one = Target::new(&world, "one");
    let (_, group) = world
        .balance(slow_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    close(&world, &mut one).await;
    // FC-83: the reset is back at the client, and has ended the entry of the table.
    let before = world.cloud().clock().now();
    let clients: Vec<_> = (20_001..=20_020)
        .map(|port| refused(&world, port))
        .collect();
    let flows = world.node.flows().unwrap();
    let left = flows.iter().filter(|flow| clients.contains(&flow.client));
    assert_eq!(left.count(), 0, "{flows:?}");
    for client in clients {
        let chosen = world.node.chosen(Protocol::Tcp, client).unwrap();
        assert_eq!((chosen.target, chosen.source), (one.at, client));
        let now = world.cloud().clock().now();
        assert!((before..=now).contains(&chosen.at), "{chosen:?}");
        let states = world.cloud().target_states_at(one.at, chosen.at);
        assert_eq!(states[&group].0, TargetState::Healthy);
        assert_eq!(world.node.flow_target(client).unwrap(), Some(one.at));
        let flows = world.node.flows_of(client).unwrap();
        assert_eq!(flows.len(), 1, "{flows:?}");
        assert_eq!(flows[0].frontend, frontend(Protocol::Tcp));
        // Its ports in the other protocol are other flows.
        assert_eq!(world.node.chosen(Protocol::Udp, client), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc83_without_preservation_the_source_that_the_target_saw_is_told() {
    let world = World::new();
    let one = Target::new(&world, "one");
    let mut spec = lb("svc", &[FRONT]);
    spec.preserve_client_ip = false;
    world.balance(slow_group(), spec, &[&one]).await;
    let talk = world.connect().await.unwrap();
    // FC-83
    let chosen = world.node.chosen(Protocol::Tcp, talk.client).unwrap();
    assert_eq!(chosen.target, one.at);
    assert_eq!(chosen.source.ip(), talk.seen);
    assert_eq!(chosen.source.ip(), world.lb.address());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc102_flows_are_logged_from_their_start_to_their_end_with_their_target() {
    let world = World::new();
    let mut one = Target::new(&world, "one");
    world
        .balance(slow_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    close(&world, &mut one).await;
    let client = refused(&world, 20_001);
    let of_client = |what: &What| match what {
        What::FlowStarted {
            client: from,
            frontend: to,
            target,
            ..
        } if *from == client => Some(("started", *to, *target)),
        What::FlowEnded {
            client: from,
            frontend: to,
            target,
            ..
        } if *from == client => Some(("ended", *to, *target)),
        _ => None,
    };
    let mut turns = world.cloud().turns();
    let logged = async {
        loop {
            turns.borrow_and_update();
            let events = world.cloud().events_after(0, usize::MAX);
            let lines: Vec<_> = events.iter().filter_map(|e| of_client(&e.what)).collect();
            if lines.len() == 2 {
                return lines;
            }
            turns.changed().await.unwrap();
        }
    };
    let lines = tokio::time::timeout(PATIENCE, logged).await.unwrap();
    // FC-102
    let to = frontend(Protocol::Tcp);
    assert_eq!(lines, [("started", to, one.at), ("ended", to, one.at)]);
    let log = world.cloud().look(|engine| engine.log().json_lines());
    let line = log.lines().rfind(|line| line.contains("flow_started"));
    let line: serde_json::Value = serde_json::from_str(line.unwrap()).unwrap();
    assert_eq!(line["kind"], "flow_started");
    assert_eq!(line["client"], client.to_string());
    assert_eq!(line["frontend"]["address"], FRONT);
    assert_eq!(line["frontend"]["port"], 80);
    assert_eq!(line["target"], one.at.to_string());
}
