//! Plans as they are printed.

use std::fmt::Write;

use super::model::{Cloud, converged, planned};
use super::*;

#[test]
fn create() {
    let ports = vec![
        http(TargetMode::Pod),
        port("dns", Protocol::Udp, 53, TargetMode::Pod),
    ];
    let intent = intent(
        ports,
        &[(1, State::Ready), (2, State::Ready), (3, State::NotReady)],
    );
    insta::assert_snapshot!(planned(Some(&intent), &Cloud::default(), NOW));
}

#[test]
fn one_endpoint_swapped() {
    let before = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let (mut cloud, now) = converged(&before);
    let dying = State::Terminating {
        serving: Serving::Yes,
        since: Some(now),
    };
    let pods = [(1, dying), (2, State::Ready), (3, State::Ready)];
    let after = intent(vec![http(TargetMode::Pod)], &pods);
    let mut text = planned(Some(&after), &cloud, now);
    // The same after the pod has gone, in the one pass in which both are news.
    let gone = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Gone), (3, State::Ready)],
    );
    cloud.seen.groups[0]
        .targets
        .retain(|key, _| key.address == IpAddr::from([10, 244, 1, 1]));
    text += "--- the only one is gone\n";
    text += &planned(Some(&gone), &cloud, now);
    insta::assert_snapshot!(text);
}

/// The switch of mode, plan by plan, each carried out before the next is made.
#[test]
fn group_replaced() {
    let node = intent(
        vec![http(TargetMode::Node)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let (mut cloud, mut now) = converged(&node);
    let pod = intent(
        vec![http(TargetMode::Pod)],
        &[(1, State::Ready), (2, State::Ready)],
    );
    let mut text = String::new();
    for _ in 0..12 {
        let plan = plan(&settings(), &service(), Some(&pod), &cloud.seen, now);
        if plan.is_empty() {
            let look = next_look(&settings(), std::slice::from_ref(&pod), &cloud.seen, now);
            let Some(look) = look else { break };
            writeln!(text, "--- looks again after {:?}", look.since(now)).unwrap();
            now = look;
            cloud.settle();
            continue;
        }
        text += &plan.to_string();
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                writeln!(text, "=> runs: {}", group.id).unwrap();
                group.steps.iter().for_each(|step| cloud.execute(step));
            }
        }
    }
    insta::assert_snapshot!(text);
    let group = &cloud.seen.groups[0];
    assert_eq!(
        (cloud.seen.groups.len(), group.spec.mode),
        (1, TargetMode::Pod)
    );
}

#[test]
fn delete() {
    let intent = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let (mut cloud, mut now) = converged(&intent);
    insta::assert_snapshot!(planned(None, &cloud, now));
    cloud.converge(None, &mut now);
    assert!(cloud.seen.is_empty());
}
