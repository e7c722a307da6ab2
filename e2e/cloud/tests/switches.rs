//! The switches by which profiles differ, with real packets: what becomes of flows when targets fail or leave, of silent
//! flows, and of targets that call themselves. A profile is believed once the switches that it is made of are.
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
use std::time::Duration;

use common::{FRONT, lb, tcp_group};
use e2e_cloud::engine::{
    AllDown, Established, GroupSpec, Hairpin, HealthCheck, LostFlow, Profile, Protocol, TargetState,
};
use world::{PATIENCE, SILENCE, Talk, Target, World, ask, front};

/// Probes ten times a second of the wall at this speed.
fn group(speed: u32) -> GroupSpec {
    let mut spec = tcp_group("web");
    let quick = |check| HealthCheck {
        interval: Duration::from_millis(100) * speed,
        timeout: Duration::from_secs(1) * speed,
        ..check
    };
    spec.health = spec.health.map(quick);
    spec
}

/// UDP beside it, probed by the same TCP port.
fn udp_group() -> GroupSpec {
    GroupSpec {
        protocol: Protocol::Udp,
        ..group(1)
    }
}

async fn silent(world: &World) {
    let attempt = tokio::time::timeout(SILENCE, world.connect()).await;
    assert!(attempt.is_err(), "a new flow was answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct04_with_all_targets_down_new_flows_reach_all_or_none_and_old_ones_go_on() {
    // As an NLB: fail-open.
    let open = Profile {
        all_down: AllDown::FailOpen,
        ..Profile::local()
    };
    let world = World::of(open, 1);
    let (mut one, mut two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (_, id) = world
        .balance(group(1), lb("svc", &[FRONT]), &[&one, &two])
        .await;
    for target in [&mut one, &mut two] {
        target.stop();
        world.until(&id, target.at, TargetState::Unhealthy).await;
    }
    let path = world.cloud().look(|engine| {
        let path = engine.data_path(e2e_cloud::engine::NodeId(0));
        path.frontends.into_values().next().unwrap().targets
    });
    // FC-T04: all of them, though nothing listens there.
    assert_eq!(BTreeSet::from_iter(path), BTreeSet::from([one.at, two.at]));
    let refused = world.connect().await.err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct04_where_all_down_stops_an_open_stream_goes_on_and_udp_ends() {
    // As Azure.
    let stop = Profile {
        unhealthy_udp_flows: Established::Cut,
        ..Profile::local()
    };
    let world = World::of(stop, 1);
    let mut one = Target::new(&world, "one");
    let (id, tcp) = world.balance(group(1), lb("svc", &[FRONT]), &[&one]).await;
    let udp = world.cloud().with(|engine, now| {
        let udp = engine.create_group(now, "u", udp_group()).unwrap().id;
        let key = e2e_cloud::engine::ListenerKey {
            port: 80,
            protocol: Protocol::Udp,
        };
        engine.put_listener(now, &id, key, &udp).unwrap();
        udp
    });
    world.register(&udp, &[&one]);
    world.until(&udp, one.at, TargetState::Healthy).await;
    let mut stream = world.connect().await.unwrap();
    let socket = world.udp();
    assert!(ask(&socket, PATIENCE).await.is_some());
    one.stop_tcp();
    world.until(&tcp, one.at, TargetState::Unhealthy).await;
    world.until(&udp, one.at, TargetState::Unhealthy).await;
    // FC-T04
    silent(&world).await;
    stream.echo().await.unwrap();
    assert_eq!(
        ask(&socket, SILENCE).await,
        None,
        "its UDP server still runs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct06_fc64_a_target_that_turns_unhealthy_has_its_streams_reset_or_kept() {
    for (policy, kept) in [(Established::Cut, false), (Established::Keep, true)] {
        let profile = Profile {
            unhealthy_flows: policy,
            ..Profile::local()
        };
        let world = World::of(profile, 1);
        let mut one = Target::new(&world, "one");
        let (_, id) = world.balance(group(1), lb("svc", &[FRONT]), &[&one]).await;
        let mut stream = world.connect().await.unwrap();
        stream.echo().await.unwrap();
        one.stop();
        world.until(&id, one.at, TargetState::Unhealthy).await;
        // FC-T06, FC-64
        match stream.echo().await {
            Ok(()) => assert!(kept, "termination is on"),
            Err(error) => {
                assert!(!kept, "termination is off: {error}");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct09_a_target_that_calls_itself_is_answered_only_without_its_own_address() {
    let profile = Profile {
        hairpin: Hairpin::Itself,
        ..Profile::local()
    };
    for preserve in [true, false] {
        let world = World::of(profile.clone(), 1);
        let one = Target::new(&world, "one");
        let mut spec = lb("svc", &[FRONT]);
        spec.preserve_client_ip = preserve;
        world.balance(group(1), spec, &[&one]).await;
        let call = Talk::open(&one.net, front(80));
        // FC-T09
        match tokio::time::timeout(SILENCE, call).await {
            Err(_) => assert!(preserve, "no answer without preservation"),
            Ok(talk) => {
                assert!(!preserve, "answered with preservation");
                assert_eq!(
                    talk.unwrap().seen,
                    std::net::IpAddr::from(world.lb.address())
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct12_fc28_fc64_a_flow_that_was_idle_for_too_long_is_reset_or_meets_silence() {
    for (lost_flow, reset) in [(LostFlow::Reset, true), (LostFlow::Drop, false)] {
        // 350 s of the cloud in 3.5 s.
        let profile = Profile {
            lost_flow,
            ..Profile::local()
        };
        let world = World::of(profile, 100);
        let one = Target::new(&world, "one");
        world
            .balance(group(100), lb("svc", &[FRONT]), &[&one])
            .await;
        let mut stream = world.connect().await.unwrap();
        stream.echo().await.unwrap();
        world.until_forgotten(stream.client).await;
        // FC-T12, FC-28, FC-64
        let said = tokio::time::timeout(SILENCE, stream.echo()).await;
        match said {
            Ok(answer) => {
                assert!(reset, "no silence");
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
            Err(_) => assert!(!reset, "no reset"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fct13_fc49_a_udp_flow_stays_with_a_target_that_is_gone_until_it_is_idle() {
    let profile = Profile {
        drained_flows: Established::Keep,
        // Long against a machine under load, short against the test: 6 s of the wall.
        idle_udp: Duration::from_mins(2),
        ..Profile::local()
    };
    let world = World::of(profile, 20);
    let (one, two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let spec = GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        drain: Duration::from_secs(5),
        ..group(20)
    };
    let (_, id) = world.balance(spec, lb("svc", &[FRONT]), &[&one]).await;
    let socket = world.udp();
    assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "one");
    world.register(&id, &[&two]);
    world.deregister(&id, &one).await;
    world.until(&id, one.at, TargetState::Unused).await;
    // FC-T13: a datagram a minute.
    for _ in 0..3 {
        assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "one", "FC-49");
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "one", "FC-49");
    world.until_forgotten(socket.local_addr().unwrap()).await;
    assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "two");
}
