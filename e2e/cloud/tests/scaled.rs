//! One scenario in virtual time, ten times faster and as fast as the wall (FC-03, FC-04).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{START, check, lb, target, tcp_group};
use e2e_cloud::driver::VirtualNode;
use e2e_cloud::engine::{Config, GroupSpec, Lag, ListenerKey, Profile, Protocol, TargetSpec, What};
use e2e_cloud::scale::Speeds;
use e2e_cloud::{Cloud, Driver};
use onehop_runtime::clock::Clock;

fn profile() -> Profile {
    let mut profile = Profile::local();
    profile.lags.registration = Lag::Fixed(Duration::from_millis(500));
    profile.lags.unhealthy_tail = Lag::Fixed(Duration::from_millis(500));
    profile
}

/// What happened to targets, without times.
async fn scenario(speed: u32) -> Vec<String> {
    let clock = Clock::fixed(START);
    let config = Config {
        profile: profile(),
        seed: 1,
        scale: Speeds::all(speed).scale(START).unwrap(),
        ranges: vec![],
    };
    let cloud = Cloud::new(config, clock);
    let driver = Driver::start(cloud.clone());
    let first_up = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&first_up);
    let up = move |at: SocketAddr| at != target(1) || seen.load(Ordering::SeqCst);
    driver.attach("a", [10, 0, 9, 1].into(), Arc::new(VirtualNode::new(up)));
    let pass = async |millis| {
        let time = cloud.scale().wall_duration(Duration::from_millis(millis));
        cloud.clock().sleep(time).await;
    };
    let spec = GroupSpec {
        health: Some(check(1, 1, 2)),
        drain: Duration::from_secs(1),
        ..tcp_group("web")
    };
    let group = cloud.with(|engine, now| engine.create_group(now, "g", spec));
    let group = group.unwrap().id;
    let lb = cloud.with(|engine, now| engine.create_lb(now, "l", lb("web", &[common::FRONT])));
    let key = ListenerKey {
        port: 80,
        protocol: Protocol::Tcp,
    };
    let lb = lb.unwrap().id;
    cloud
        .with(|engine, now| engine.put_listener(now, &lb, key, &group))
        .unwrap();
    let register = |last| {
        let spec = TargetSpec {
            target: target(last),
            zone: None,
        };
        let made = cloud.with(|engine, now| engine.register(now, &group, vec![spec]));
        made.unwrap();
    };
    register(1);
    pass(250).await;
    register(2);
    pass(1_200).await;
    first_up.store(false, Ordering::SeqCst);
    pass(2_900).await;
    cloud
        .with(|engine, now| engine.deregister(now, &group, &[target(1)]))
        .unwrap();
    pass(1_700).await;
    let events = cloud.events_after(0, usize::MAX);
    let line = |event: &Arc<e2e_cloud::engine::Event>| match &event.what {
        What::TargetState { target, state, .. } => Some(format!("{target} {state}")),
        What::Verdict {
            target, verdict, ..
        } => Some(format!("{target} verdict {verdict:?}")),
        What::TailStarted { target, .. } => Some(format!("{target} tail starts")),
        What::TailEnded { target, .. } => Some(format!("{target} tail ends")),
        _ => None,
    };
    events.iter().filter_map(line).collect()
}

fn run(speed: u32, paused: bool) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .unwrap();
    runtime.block_on(scenario(speed))
}

#[test]
fn fct20_the_order_of_events_is_the_same_in_virtual_time_at_a_tenth_and_at_one() {
    let virtually = run(1, true);
    let end = virtually.last().unwrap();
    assert_eq!(*end, format!("{} unused", target(1)), "{virtually:#?}");
    assert!(virtually.len() >= 9, "{virtually:#?}");
    // FC-T20, FC-03
    assert_eq!(run(10, true), virtually);
    assert_eq!(run(10, false), virtually);
    assert_eq!(run(1, false), virtually);
}

#[test]
fn fct20_fc04_a_run_with_pod_grace_left_unscaled_is_refused() {
    let partly = Speeds {
        pod_grace: 1,
        ..Speeds::all(10)
    };
    // FC-04
    let refused = partly.scale(START).unwrap_err().to_string();
    assert!(refused.contains("pod grace 1"), "{refused}");
    let conntrack = Speeds {
        conntrack: 1,
        product: 2,
        ..Speeds::all(10)
    };
    let refused = conntrack.scale(START).unwrap_err().to_string();
    assert!(refused.contains("conntrack time-outs 1, product bounds 2"));
    assert_eq!(Speeds::all(10).scale(START).unwrap().speed(), 10);
}
