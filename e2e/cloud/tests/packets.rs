//! The LB node with real packets: who gets a new flow, who keeps an old one, and what clients hear.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;
#[path = "common/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use common::{FRONT, lb, tcp_group};
use e2e_cloud::engine::{Choice, GroupSpec, HealthCheck, ListenerKey, Protocol, TargetState};
use world::{PATIENCE, SILENCE, Talk, Target, World, ask, front};

const HTTP: ListenerKey = ListenerKey {
    port: 80,
    protocol: Protocol::Tcp,
};

/// A TCP group that probes ten times a second and drains for one second.
fn quick_group() -> GroupSpec {
    let mut spec = tcp_group("web");
    let quick = |check| HealthCheck {
        interval: Duration::from_millis(100),
        ..check
    };
    spec.health = spec.health.map(quick);
    spec.drain = Duration::from_secs(1);
    spec
}

fn udp_group() -> GroupSpec {
    GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        ..quick_group()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc60_fc63_new_flows_reach_all_healthy_targets_with_the_clients_address() {
    let world = World::new();
    let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (_, group) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one, &two])
        .await;
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let talk = world.connect().await.unwrap();
        // FC-60, FC-63: end to end, and the source is the client's.
        assert_eq!(talk.seen, IpAddr::from(world.client.address()));
        seen.insert(talk.target);
    }
    assert_eq!(seen, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
    assert_eq!(world.state(&group, one.at), TargetState::Healthy);
    assert!(world.cloud().violations().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc26_fc27_a_client_stays_with_a_target_where_the_choice_depends_on_addresses_only() {
    for choice in [Choice::Addresses, Choice::AddressesAndProtocol] {
        let world = World::new();
        let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
        let sticky = |group| GroupSpec { choice, ..group };
        let (_, group) = world
            .balance(sticky(quick_group()), lb("svc", &[FRONT]), &[&one, &two])
            .await;
        let mut seen = BTreeSet::new();
        for _ in 0..20 {
            seen.insert(world.connect().await.unwrap().target);
        }
        assert_eq!(seen.len(), 1, "{choice:?}: {seen:?}");
        // Off again, new connections spread.
        world.update(&group, quick_group()).await;
        for _ in 0..40 {
            seen.insert(world.connect().await.unwrap().target);
        }
        assert_eq!(seen.len(), 2, "{choice:?}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc29_without_preservation_the_target_sees_the_lb_node() {
    let world = World::new();
    let one = Target::new(&world, "one");
    let mut spec = lb("svc", &[FRONT]);
    spec.preserve_client_ip = false;
    world.balance(quick_group(), spec, &[&one]).await;
    let mut talk = world.connect().await.unwrap();
    // FC-29
    assert_eq!(talk.seen, IpAddr::from(world.lb.address()));
    talk.echo().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc30_a_target_reaches_itself_through_the_load_balancer_in_local() {
    let world = World::new();
    let one = Target::new(&world, "one");
    world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let talk = Talk::open(&one.net, front(80)).await.unwrap();
    // FC-30
    assert_eq!(talk.target, "one");
    assert_eq!(talk.seen, IpAddr::from(world.lb.address()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc21_nothing_usable_and_unknown_ports_are_silence() {
    let world = World::new();
    let mut one = Target::new(&world, "one");
    let (_, group) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let timed_out = |port| {
        let (client, to) = (world.client.clone(), front(port));
        async move {
            let attempt = tokio::time::timeout(SILENCE, Talk::open(&client, to)).await;
            assert!(attempt.is_err(), "port {port} answered");
        }
    };
    // Port 8080 is open at the target, but is no port of the load balancer.
    timed_out(8080).await;
    one.stop();
    world.until(&group, one.at, TargetState::Unhealthy).await;
    // FC-21: local stops.
    timed_out(80).await;
    one.start();
    world.until(&group, one.at, TargetState::Healthy).await;
    world.connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc24_fc62_a_draining_target_keeps_its_flows_for_the_drain_time_and_gets_no_new_one() {
    let world = World::new();
    let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (_, group) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let mut old = world.connect().await.unwrap();
    world.register(&group, &[&two]);
    world.until(&group, two.at, TargetState::Healthy).await;
    world.deregister(&group, &one).await;
    for _ in 0..10 {
        assert_eq!(world.connect().await.unwrap().target, "two");
    }
    // FC-62: the flow stays where its first packet went.
    old.echo().await.unwrap();
    world.until(&group, one.at, TargetState::Unused).await;
    // FC-24: flows end; the next packet meets a reset.
    let ended = old.echo().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
    assert!(
        world
            .node
            .flows()
            .unwrap()
            .iter()
            .all(|flow| flow.target == two.at)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc23_an_unhealthy_target_keeps_its_flows_in_local() {
    let world = World::new();
    let mut one = Target::new(&world, "one");
    let (_, group) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let mut talk = world.connect().await.unwrap();
    one.stop();
    world.until(&group, one.at, TargetState::Unhealthy).await;
    // FC-23
    talk.echo().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_udp_flow_is_pinned_while_its_target_is_there_and_chooses_again_after() {
    let world = World::new();
    let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (_, group) = world
        .balance(udp_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let socket = world.udp();
    let client = IpAddr::from(world.client.address());
    assert_eq!(
        ask(&socket, world::PATIENCE).await,
        Some(("one".to_owned(), client))
    );
    world.register(&group, &[&two]);
    world.deregister(&group, &one).await;
    // Pinned: the flow is established, only new ones go to the other.
    for _ in 0..3 {
        assert_eq!(ask(&socket, world::PATIENCE).await.unwrap().0, "one");
    }
    assert_eq!(ask(&world.udp(), world::PATIENCE).await.unwrap().0, "two");
    world.until(&group, one.at, TargetState::Unused).await;
    assert_eq!(ask(&socket, world::PATIENCE).await.unwrap().0, "two");
    // The last target leaves: silence, also for the flow that was there.
    world.deregister(&group, &two).await;
    world.until(&group, two.at, TargetState::Unused).await;
    assert_eq!(ask(&socket, SILENCE).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_listener_ends_its_flows_and_a_removed_load_balancer_its_address() {
    let world = World::new();
    let one = Target::new(&world, "one");
    let (id, _) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&one])
        .await;
    let mut talk = world.connect().await.unwrap();
    world
        .cloud()
        .with(|engine, now| engine.delete_listener(now, &id, HTTP))
        .unwrap();
    world.driver.settled().await;
    assert_eq!(
        talk.echo().await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    assert_eq!(world.node.flows().unwrap(), []);
    world
        .cloud()
        .with(|engine, now| engine.delete_lb(now, &id))
        .unwrap();
    world.driver.settled().await;
    assert_eq!(
        world
            .fabric
            .router()
            .owner(FRONT.parse::<IpAddr>().unwrap()),
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc39c_probes_are_real_packets_and_http_needs_a_good_status() {
    use e2e_cloud::engine::{Outcome, ProbeProtocol, What};
    let world = World::new();
    let one = Target::new(&world, "one");
    let mut spec = quick_group();
    let http = |check| HealthCheck {
        protocol: ProbeProtocol::Http,
        ..check
    };
    spec.health = spec.health.map(http);
    let group = world
        .cloud()
        .with(|engine, now| engine.create_group(now, "g", spec).unwrap().id);
    world.register(&group, &[&one]);
    // FC-39c: the target greets and then echoes the request, which is no HTTP answer.
    world.until(&group, one.at, TargetState::Unhealthy).await;
    let outcomes = world.cloud().look(|engine| {
        let outcome = |event: &std::sync::Arc<e2e_cloud::engine::Event>| match &event.what {
            What::Probe { outcome, .. } => Some(outcome.clone()),
            _ => None,
        };
        engine
            .log()
            .after(0)
            .filter_map(outcome)
            .collect::<Vec<_>>()
    });
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Error(_))),
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_the_targets_under_load_loses_no_connection() {
    let world = World::new();
    let targets: Vec<_> = (0..6)
        .map(|at| Target::new(&world, &format!("t{at}")))
        .collect();
    let (_, group) = world
        .balance(
            quick_group(),
            lb("svc", &[FRONT]),
            &[&targets[0], &targets[1]],
        )
        .await;
    let stop = tokio_util::sync::CancellationToken::new();
    let load = tokio::spawn(load(world.client.clone(), stop.clone()));
    // As a rollout does it: the new one first, then the old one out.
    for at in 2..6 {
        world.register(&group, &[&targets[at]]);
        world
            .until(&group, targets[at].at, TargetState::Healthy)
            .await;
        world.deregister(&group, &targets[at - 2]).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    stop.cancel();
    let (good, failures) = load.await.unwrap();
    assert!(
        failures.is_empty(),
        "{} of {good} failed: {failures:?}",
        failures.len()
    );
    assert!(good > 100, "only {good} connections were made");
    assert_eq!(world.fabric.router().drops(), []);
}

/// A connection with one echo every 5 ms until stopped: how many went well, and what did not.
async fn load(
    client: e2e_fabric::ClientNet,
    stop: tokio_util::sync::CancellationToken,
) -> (usize, Vec<String>) {
    let mut open = tokio::task::JoinSet::new();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    while !stop.is_cancelled() {
        tick.tick().await;
        let client = client.clone();
        open.spawn(async move {
            let mut talk = Talk::open(&client, front(80)).await?;
            talk.echo().await
        });
    }
    let results = open.join_all().await;
    let failures = results
        .iter()
        .filter_map(|result| result.as_ref().err().map(ToString::to_string));
    let failures: Vec<_> = failures.collect();
    (results.len() - failures.len(), failures)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fc65_one_number_has_a_listener_for_tcp_and_one_for_udp_each_with_targets_of_its_own() {
    let world = World::new();
    let (tcp, udp) = (Target::new(&world, "tcp"), Target::new(&world, "udp"));
    let (id, _) = world
        .balance(quick_group(), lb("svc", &[FRONT]), &[&tcp])
        .await;
    let key = ListenerKey {
        port: 80,
        protocol: Protocol::Udp,
    };
    let group = world.cloud().with(|engine, now| {
        let group = engine.create_group(now, "dns", udp_group()).unwrap().id;
        engine.put_listener(now, &id, key, &group).unwrap();
        group
    });
    world.register(&group, &[&udp]);
    world.until(&group, udp.at, TargetState::Healthy).await;
    let socket = world.udp();
    for _ in 0..3 {
        // FC-65
        assert_eq!(world.connect().await.unwrap().target, "tcp");
        let answer = ask(&socket, PATIENCE).await.unwrap();
        assert_eq!(answer.0, "udp");
    }
}
