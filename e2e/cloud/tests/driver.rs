//! The driver over a paused clock: time, scale, retries, and the newest state wins.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{FRONT, START, lb, target, tcp_group};
use e2e_cloud::driver::{LbNode, VirtualNode};
use e2e_cloud::engine::{
    Config, DataPathState, GroupId, ListenerKey, Outcome, ProbeOrder, Profile, Protocol,
    TargetSpec, TargetState,
};
use e2e_cloud::scale::Scale;
use e2e_cloud::{Cloud, Driver};
use futures::FutureExt;
use futures::future::BoxFuture;
use onehop_runtime::clock::Clock;

fn start(speed: u32) -> Driver {
    let config = Config {
        profile: Profile::local(),
        seed: 1,
        scale: Scale::new(START, speed),
        ranges: vec![],
    };
    Driver::start(Cloud::new(config, Clock::fixed(START)))
}

/// One target behind `FRONT`:80.
fn balance(driver: &Driver) -> GroupId {
    driver.cloud().with(|engine, now| {
        let key = ListenerKey {
            port: 80,
            protocol: Protocol::Tcp,
        };
        let group = engine.create_group(now, "g", tcp_group("web")).unwrap().id;
        let lb = engine.create_lb(now, "lb", lb("svc", &[FRONT])).unwrap().id;
        engine.put_listener(now, &lb, key, &group).unwrap();
        let spec = TargetSpec {
            target: target(1),
            zone: None,
        };
        engine.register(now, &group, vec![spec]).unwrap();
        group
    })
}

fn state(driver: &Driver, group: &GroupId) -> TargetState {
    let one = [target(1)];
    driver
        .cloud()
        .with(|engine, now| engine.targets(now, group, &one))
        .unwrap()[0]
        .state
}

/// An LB node that refuses its first programs and remembers what it was given.
#[derive(Clone, Default)]
struct Stubborn {
    refusals: Arc<AtomicUsize>,
    given: Arc<Mutex<Vec<Arc<DataPathState>>>>,
}

impl LbNode for Stubborn {
    fn probe(&self, _: &ProbeOrder, timeout: Duration) -> BoxFuture<'static, Outcome> {
        async move {
            tokio::time::sleep(timeout).await;
            Outcome::Timeout
        }
        .boxed()
    }

    fn program(&self, state: Arc<DataPathState>) -> BoxFuture<'static, Result<usize, String>> {
        self.given.lock().unwrap().push(state);
        let left = self.refusals.load(Ordering::Relaxed);
        self.refusals
            .store(left.saturating_sub(1), Ordering::Relaxed);
        std::future::ready(if left > 0 {
            Err("no".to_owned())
        } else {
            Ok(0)
        })
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn fc03_fc04_a_cloud_ten_times_faster_does_everything_in_a_tenth_of_the_time() {
    for (speed, drain) in [(1, 10_000), (10, 1_000)] {
        let driver = start(speed);
        driver.attach(
            "a",
            [10, 0, 9, 1].into(),
            Arc::new(VirtualNode::new(|_| true)),
        );
        let group = balance(&driver);
        driver.settled().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(state(&driver, &group), TargetState::Healthy);
        driver
            .cloud()
            .with(|engine, now| engine.deregister(now, &group, &[target(1)]))
            .unwrap();
        // FC-03, FC-04: cloud lags are divided by the factor.
        tokio::time::sleep(Duration::from_millis(drain - 1)).await;
        assert_eq!(
            state(&driver, &group),
            TargetState::Draining,
            "speed {speed}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(state(&driver, &group), TargetState::Unused, "speed {speed}");
        // Reports are in unscaled cloud time, with the wall's beside it.
        let last = driver.cloud().look(|engine| {
            let unused = |line: &&str| line.contains(r#""state":"unused""#);
            engine
                .log()
                .json_lines()
                .lines()
                .rev()
                .find(unused)
                .map(str::to_owned)
        });
        let last: serde_json::Value = serde_json::from_str(&last.unwrap()).unwrap();
        let passed = |field: &str| {
            let time: onehop_core::time::Time = last[field].as_str().unwrap().parse().unwrap();
            time.since(START).as_millis()
        };
        assert_eq!(passed("wallTime"), u128::from(drain) + 1);
        assert_eq!(passed("cloudTime"), 10_000 + u128::from(speed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_state_is_tried_again_and_the_newest_one_wins() {
    let driver = start(1);
    let node = Stubborn::default();
    node.refusals.store(2, Ordering::Relaxed);
    driver.attach("a", [10, 0, 9, 1].into(), Arc::new(node.clone()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    balance(&driver);
    driver.settled().await;
    let given = node.given.lock().unwrap().clone();
    assert_eq!(
        given.len(),
        3,
        "one state refused, the newer refused, the newer taken"
    );
    assert!(given[0].addresses.is_empty());
    assert!(given[1].forwards_as(&given[2]) && !given[2].addresses.is_empty());
    let failures = driver.cloud().look(|engine| {
        engine
            .log()
            .json_lines()
            .matches("data_path_failed")
            .count()
    });
    assert_eq!(failures, 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_not_programmed_again_when_nothing_that_it_forwards_has_changed() {
    let driver = start(1);
    let node = Stubborn::default();
    driver.attach("a", [10, 0, 9, 1].into(), Arc::new(node.clone()));
    let group = balance(&driver);
    driver.settled().await;
    let before = node.given.lock().unwrap().len();
    // Probes time out and the target becomes unhealthy, which nobody chooses either way.
    tokio::time::sleep(Duration::from_secs(10)).await;
    driver.settled().await;
    assert_eq!(state(&driver, &group), TargetState::Unhealthy);
    assert_eq!(node.given.lock().unwrap().len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_driver_stops_the_time() {
    let driver = start(1);
    driver.attach(
        "a",
        [10, 0, 9, 1].into(),
        Arc::new(VirtualNode::new(|_| true)),
    );
    balance(&driver);
    driver.settled().await;
    let cloud = driver.cloud().clone();
    drop(driver);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let before = cloud.look(|engine| engine.log().last());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(cloud.look(|engine| engine.log().last()), before);
}
