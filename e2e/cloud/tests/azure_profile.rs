//! Load balancers that behave as Azure's, with real packets: all that AZ-497 lists, and where probes come from.
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
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{FRONT, Sim, lb, tcp_group};
use e2e_cloud::datapath::NetNode;
use e2e_cloud::engine::{
    GroupId, GroupSpec, HealthCheck, Lags, LbId, ListenerKey, LostFlow, NodeId, Outcome,
    ProbeProtocol, Profile, Protocol, TargetState, What,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use world::{PATIENCE, SILENCE, Talk, Target, World, ask, front};

/// Probes ten times a second of the wall at this speed, two equal results in a row decide.
fn group(speed: u32) -> GroupSpec {
    let mut spec = tcp_group("web");
    let quick = |check| HealthCheck {
        interval: Duration::from_millis(100) * speed,
        timeout: Duration::from_secs(1) * speed,
        healthy: 2,
        unhealthy: 2,
        ..check
    };
    spec.health = spec.health.map(quick);
    // As long as the flows last: what `adminState` Down says (AZ-290).
    spec.drain = Duration::from_hours(1);
    spec
}

/// What a target answers to HTTP, and whom it has seen.
#[derive(Clone, Debug)]
struct Answers {
    status: Arc<Mutex<u16>>,
    peers: Arc<Mutex<BTreeSet<IpAddr>>>,
}

fn http(target: &Target) -> (SocketAddr, Answers) {
    let at = SocketAddr::new(target.at.ip(), 8081);
    let listener = target.net.netns().tcp_listener(at).unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let answers = Answers {
        status: Arc::new(Mutex::new(200)),
        peers: Arc::default(),
    };
    let said = answers.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            said.peers.lock().unwrap().insert(peer.ip());
            let status = *said.status.lock().unwrap();
            tokio::spawn(async move {
                let mut request = [0; 500];
                let _ = stream.read(&mut request).await?;
                let answer = format!("HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await
            });
        }
    });
    (at, answers)
}

/// Nodes whose probes of late ended so.
fn probed(world: &World, ended: impl Fn(&Outcome) -> bool) -> BTreeSet<NodeId> {
    world.cloud().look(|engine| {
        let events = engine.log().after(0);
        let nodes = events.filter_map(|event| match &event.what {
            What::Probe { node, outcome, .. } if ended(outcome) => Some(*node),
            _ => None,
        });
        nodes.collect()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az151_fc38_probes_of_every_lb_node_come_from_one_address_and_200_alone_is_healthy() {
    let world = World::of(Profile::azure(), 1);
    let second = world.fabric.add_lb_node("b").unwrap();
    let router = world.fabric.router().clone();
    let (second, _packets) = NetNode::attach(second, router, &world.driver).unwrap();
    let one = Target::new(&world, "one");
    let (at, answers) = http(&one);
    let mut spec = group(1);
    spec.health = spec.health.map(|check| HealthCheck {
        protocol: ProbeProtocol::Http,
        port: Some(at.port()),
        path: "/healthz".to_owned(),
        ..check
    });
    let (_, id) = world.balance(spec, lb("svc", &[FRONT]), &[&one]).await;
    let both = BTreeSet::from([NodeId(0), second]);
    let good = async {
        while probed(&world, |outcome| *outcome == Outcome::Ok) != both {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, good).await.unwrap();
    let source: IpAddr = [168, 63, 129, 16].into();
    assert_eq!(
        *answers.peers.lock().unwrap(),
        BTreeSet::from([source]),
        "AZ-151, FC-38: whichever node asks"
    );
    for (status, state) in [
        (204, TargetState::Unhealthy),
        (200, TargetState::Healthy),
        (301, TargetState::Unhealthy),
        (200, TargetState::Healthy),
    ] {
        *answers.status.lock().unwrap() = status;
        world.until(&id, one.at, state).await;
    }
    // What a policy of the network lets in for Azure is this address, and no other of a load balancer.
    let flow = world.connect().await.unwrap();
    assert_eq!(flow.seen, IpAddr::from(world.client.address()), "FC-29");
}

#[test]
fn az151_az438_the_threshold_counts_failures_and_recoveries_and_an_http_probe_has_30_s() {
    let profile = Profile::azure();
    assert_eq!(profile.probe.timeout, Duration::from_secs(30), "AZ-438");
    let mut sim = Sim::new(profile, 1, &["a"]);
    let at: SocketAddr = "10.0.3.11:8080".parse().unwrap();
    let mut spec = tcp_group("web");
    spec.health = spec.health.map(|check| HealthCheck {
        interval: Duration::from_secs(5),
        healthy: 3,
        unhealthy: 3,
        ..check
    });
    let (_, id) = sim.balanced_group(spec);
    sim.up.insert(at);
    sim.register(&id, &[at]);
    sim.run_secs(60);
    for (up, from, to) in [
        (false, TargetState::Healthy, TargetState::Unhealthy),
        (true, TargetState::Unhealthy, TargetState::Healthy),
    ] {
        if up {
            sim.up.insert(at);
        } else {
            sim.up.remove(&at);
        }
        // Two results of the other kind, and one that begins the count anew: flapping takes longer.
        sim.run_secs(10);
        assert_eq!(sim.state(&id, at).0, from, "AZ-151");
        sim.run_secs(10);
        assert_eq!(sim.state(&id, at).0, to, "AZ-151");
    }
}

/// A listener for UDP beside that for TCP, probed by the same TCP port.
fn beside(world: &World, lb: &LbId) -> GroupId {
    world.cloud().with(|engine, now| {
        let spec = GroupSpec {
            protocol: Protocol::Udp,
            ..group(1)
        };
        let udp = engine.create_group(now, "u", spec).unwrap().id;
        let key = ListenerKey {
            port: 80,
            protocol: Protocol::Udp,
        };
        engine.put_listener(now, lb, key, &udp).unwrap();
        udp
    })
}

async fn nothing_new(world: &World) {
    let attempt = tokio::time::timeout(SILENCE, world.connect()).await;
    assert!(attempt.is_err(), "AZ-497: a new flow was answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az497_az290_az298_who_is_down_or_set_down_keeps_tcp_flows_and_udp_flows_move() {
    let world = World::of(Profile::azure(), 1);
    let (mut one, mut two) = (Target::new(&world, "one"), Target::new(&world, "two"));
    let (lb, tcp) = world.balance(group(1), lb("svc", &[FRONT]), &[&one]).await;
    let udp = beside(&world, &lb);
    world.register(&udp, &[&one]);
    world.until(&udp, one.at, TargetState::Healthy).await;
    let mut stream = world.connect().await.unwrap();
    let socket = world.udp();
    assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "one");
    for id in [&tcp, &udp] {
        world.register(id, &[&two]);
        world.until(id, two.at, TargetState::Healthy).await;
    }
    // As `adminState` Down does.
    for id in [&tcp, &udp] {
        world.deregister(id, &one).await;
    }
    stream.echo().await.unwrap();
    assert_eq!(ask(&socket, PATIENCE).await.unwrap().0, "two", "AZ-290");
    for _ in 0..20 {
        assert_eq!(world.connect().await.unwrap().target, "two", "AZ-290");
    }
    // Down by its probe, and nobody left: closed, but for what is established.
    let mut last = world.connect().await.unwrap();
    two.stop_tcp();
    for id in [&tcp, &udp] {
        world.until(id, two.at, TargetState::Unhealthy).await;
    }
    nothing_new(&world).await;
    for stream in [&mut stream, &mut last] {
        stream.echo().await.unwrap();
    }
    assert_eq!(ask(&socket, SILENCE).await, None, "AZ-298: UDP ends");
    // Taken out: no drain.
    world.cloud().with(|engine, now| {
        let out = BTreeSet::from([one.at]);
        engine.cut(now, &tcp, &out).unwrap();
    });
    world.driver.settled().await;
    assert!(stream.echo().await.is_err(), "AZ-497: no drain on removal");
    last.echo().await.unwrap();
    one.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az497_az267_a_target_does_not_reach_itself() {
    let world = World::of(Profile::azure(), 1);
    let one = Target::new(&world, "one");
    world.balance(group(1), lb("svc", &[FRONT]), &[&one]).await;
    let call = tokio::time::timeout(SILENCE, Talk::open(&one.net, front(80))).await;
    assert!(call.is_err(), "AZ-497, AZ-267");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn az497_az439_fct12_a_silent_flow_ends_with_a_reset_or_without_a_word_as_its_rule_says() {
    const SPEED: u32 = 100;
    for (lost_flow, reset) in [(LostFlow::Drop, false), (LostFlow::Reset, true)] {
        let world = World::of(Profile::azure(), SPEED);
        let one = Target::new(&world, "one");
        let spec = GroupSpec {
            lost_flow: Some(lost_flow),
            ..group(SPEED)
        };
        world.balance(spec, lb("svc", &[FRONT]), &[&one]).await;
        let mut stream = world.connect().await.unwrap();
        stream.echo().await.unwrap();
        world.until_forgotten(stream.client).await;
        match tokio::time::timeout(SILENCE, stream.echo()).await {
            Ok(answer) => {
                assert!(reset, "AZ-497: no silence");
                assert_eq!(answer.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
            Err(_) => assert!(!reset, "AZ-497: no reset"),
        }
    }
}

#[test]
fn az497_fc40_fc48_a_new_member_lives_5_to_15_s_after_its_put() {
    let profile = Profile {
        lags: Lags::azure(),
        ..Profile::azure()
    };
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let mut sim = Sim::new(profile.clone(), seed, &["a"]);
        let at: SocketAddr = "10.0.3.11:8080".parse().unwrap();
        let mut spec = tcp_group("web");
        spec.health = None;
        let (_, id) = sim.balanced_group(spec);
        sim.up.insert(at);
        sim.register(&id, &[at]);
        let mut seconds = 0;
        while !sim.front().targets.contains(&at) {
            seconds += 1;
            assert!(seconds <= 15, "AZ-497: seed {seed}");
            sim.run_secs(1);
        }
        assert!(seconds >= 5, "AZ-497: seed {seed}: {seconds}");
        seen.insert(seconds);
    }
    assert!(seen.len() > 3, "FC-06: {seen:?}");
}
