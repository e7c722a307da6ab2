use onehop_core::crd::TargetMode;
use onehop_core::id::Protocol;

use super::*;

const START: Time = Time::from_millis(1_800_000_000_000);

fn at(seconds: u64) -> Time {
    START + Duration::from_secs(seconds)
}

fn one(last: u8, state: TargetState, seen: Option<CloudState>) -> Listed {
    Listed {
        port: PortKey::new("http", Protocol::Tcp),
        mode: TargetMode::Pod,
        key: TargetKey {
            address: [10, 244, 0, last].into(),
            port: 8080,
        },
        state,
        seen,
        health_port: None,
        verdict: None,
    }
}

fn judged(mut listed: Listed, action: Action, reason: Reason) -> Listed {
    listed.verdict = Some(Verdict { action, reason });
    listed
}

fn looked(standing: &mut Standing, listed: &[Listed], seconds: u64) -> Vec<Turn> {
    standing.look(listed, |_| None, at(seconds))
}

#[test]
fn zd121_the_time_from_registration_to_healthy_is_measured_once() {
    let active = |seen| [one(1, TargetState::Active, seen)];
    let mut standing = Standing::default();
    let mut look = |seen, seconds| looked(&mut standing, &active(seen), seconds);
    assert_eq!(look(None, 0), []);
    assert_eq!(look(Some(CloudState::Initial), 5), []);
    let took = Turn::Healthy(Duration::from_secs(90));
    assert_eq!(look(Some(CloudState::Healthy), 90), [took], "ZD-121");
    assert_eq!(look(Some(CloudState::Unhealthy), 100), []);
    assert_eq!(look(Some(CloudState::Healthy), 110), [], "ZD-121: once");
    assert_eq!(look(Some(CloudState::Draining), 120), [], "it comes back");
    let again = Turn::Healthy(Duration::from_secs(10));
    assert_eq!(look(Some(CloudState::Healthy), 130), [again], "ZD-121");
    // One that another process had registered: nobody knows when.
    let mut standing = Standing::default();
    let mut look = |seen, seconds| looked(&mut standing, &active(seen), seconds);
    assert_eq!(look(Some(CloudState::Initial), 0), []);
    assert_eq!(look(Some(CloudState::Healthy), 9), [], "ZD-121");
}

#[test]
fn zd121_a_hold_ends_for_one_of_a_few_causes_and_its_time_is_measured() {
    let healthy = Some(CloudState::Healthy);
    let held = |last| {
        let held = one(last, TargetState::Held, healthy);
        judged(held, Action::Hold, Reason::BelowFloor)
    };
    let then =
        |last, action, reason| judged(one(last, TargetState::Active, healthy), action, reason);
    let mut standing = Standing::default();
    let all: Vec<Listed> = (1..=6).map(held).collect();
    assert_eq!(looked(&mut standing, &all, 0), [Turn::Held; 6], "ZD-121");
    assert_eq!(looked(&mut standing, &all, 5), [], "said once");
    assert_eq!(standing.held(), 6);
    let after = [
        then(1, Action::Drain, Reason::Terminating),
        then(2, Action::Keep, Reason::Ready),
        then(3, Action::Drain, Reason::HoldMaximum),
        then(4, Action::Release, Reason::AddressReused),
        then(5, Action::Release, Reason::Gone),
    ];
    let turns = looked(&mut standing, &after, 30);
    let causes: Vec<Turn> = Cause::ALL
        .map(|cause| Turn::Let(cause, Duration::from_secs(30)))
        .into();
    assert_eq!(turns, causes, "ZD-121: by cause");
    assert_eq!(standing.held(), 0);
    assert_eq!(looked(&mut standing, &after, 31), [], "said once");
}

#[test]
fn zd121_zd81_a_hold_that_an_earlier_process_began_is_measured_from_its_begin() {
    let held = one(1, TargetState::Held, Some(CloudState::Healthy));
    let mut standing = Standing::default();
    let turns = standing.look(&[held], |_| Some(at(0)), at(40));
    assert_eq!(turns, [], "ZD-81: nothing new");
    let gone = looked(&mut standing, &[], 100);
    let ended = Turn::Let(Cause::Removed, Duration::from_secs(100));
    assert_eq!(gone, [ended], "ZD-81, ZD-121");
}
