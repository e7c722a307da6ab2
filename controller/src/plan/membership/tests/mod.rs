//! Tests of the policy: rules one by one, and against a tiny model.

mod model;

use std::net::IpAddr;
use std::time::Duration;

use onehop_core::id::PodUid;

use super::*;

const POLICY: Policy = Policy {
    kind: Kind::ZeroDrop,
    floor_percent: 100,
    hold_max: Duration::from_mins(10),
    readiness: Readiness::ByHealth,
    mass_percent: 50,
    at_most_healthy: None,
};
const NOW: Time = Time::from_millis(1_000_000);
const DYING: State = State::Terminating {
    serving: Serving::Yes,
    since: Some(NOW),
};

fn key(n: u8) -> TargetKey {
    TargetKey {
        address: IpAddr::from([10, 244, 0, n]),
        port: 8080,
    }
}

fn member(n: u8, state: State) -> Member {
    let owner = Owner::Pod(PodUid::new(n.to_string()));
    Member {
        key: key(n),
        owner,
        state,
        guard: Guard::Absent,
        held_since: None,
    }
}

fn run(policy: &Policy, members: &[(u8, State)], seen: &[(u8, CloudState)]) -> Vec<String> {
    let members: Vec<_> = members
        .iter()
        .map(|(n, state)| member(*n, *state))
        .collect();
    let seen = seen.iter().map(|(n, state)| (key(*n), *state)).collect();
    let decision = decide(policy, &members, &seen, View::Watched, NOW);
    let verdicts = decision.verdicts.iter();
    verdicts
        .map(|(k, v)| format!("{} {:?} {:?}", k.address, v.action, v.reason))
        .collect()
}

use CloudState::{Draining, Healthy, Initial, Unhealthy, Unjudged};
use State::{Gone, NotReady, Ready, Reused, Unexplained, Withdrawn};

#[test]
fn zd20_a_pod_becomes_a_target_when_it_is_ready() {
    let verdicts = run(&POLICY, &[(1, Ready), (2, NotReady), (3, DYING)], &[]);
    assert_eq!(verdicts, ["10.244.0.1 Register Ready"], "ZD-20");
}

#[test]
fn zd21_a_terminating_pod_is_held_until_something_else_is_healthy() {
    let pods = [(1, DYING), (2, Ready)];
    let held = "10.244.0.1 Hold LastServing";
    assert_eq!(
        run(&POLICY, &pods, &[(1, Healthy)]),
        [held, "10.244.0.2 Register Ready"],
        "ZD-21"
    );
    let waiting = run(&POLICY, &pods, &[(1, Healthy), (2, Initial)]);
    assert_eq!(waiting, [held, "10.244.0.2 Keep Ready"]);
    let ready = run(&POLICY, &pods, &[(1, Healthy), (2, Healthy)]);
    assert_eq!(
        ready,
        ["10.244.0.1 Drain Terminating", "10.244.0.2 Keep Ready"]
    );
}

#[test]
fn zd24_without_a_guard_a_gone_pod_leaves_at_once_but_the_set_is_not_emptied() {
    let verdicts = run(
        &POLICY,
        &[(1, Gone), (2, Ready)],
        &[(1, Healthy), (2, Initial)],
    );
    assert_eq!(
        verdicts,
        ["10.244.0.1 Release Gone", "10.244.0.2 Keep Ready"],
        "ZD-24"
    );
    let last = run(&POLICY, &[(1, Gone), (2, Ready)], &[(1, Healthy)]);
    let expected = ["10.244.0.1 Drain Gone", "10.244.0.2 Register Ready"];
    assert_eq!(
        last, expected,
        "ZD-02: out only after the registration was accepted"
    );
    let zero = run(&POLICY, &[(1, Gone)], &[(1, Healthy)]);
    assert_eq!(zero, ["10.244.0.1 Release Gone"]);
}

#[test]
fn zd22_with_a_guard_the_whole_floor_has_to_be_healthy_first() {
    let mut guarded = member(1, DYING);
    guarded.guard = Guard::Present;
    let members = [guarded, member(2, Ready), member(3, Ready)];
    let mut seen: BTreeMap<_, _> = [(key(1), Healthy), (key(2), Healthy), (key(3), Initial)].into();
    let action = |seen: &BTreeMap<_, _>| {
        decide(&POLICY, &members, seen, View::Watched, NOW).verdicts[&key(1)].action
    };
    assert_eq!(action(&seen), Action::Hold, "ZD-22");
    seen.insert(key(3), Healthy);
    assert_eq!(action(&seen), Action::Drain, "ZD-22");
}

/// ZD-23, ZD-T26: what is healthy in another zone does not let a target go; a zone that is left for good is no reason to stay.
#[test]
fn zd23_where_zones_stand_alone_each_keeps_its_own_healthy_targets() {
    let zones = |list: &[(u8, &'static str)]| -> BTreeMap<IpAddr, Zone> {
        let of = list
            .iter()
            .map(|(n, zone)| (key(*n).address, Zone::from(*zone)));
        of.collect()
    };
    let mut leaves = member(1, DYING);
    leaves.guard = Guard::Present;
    // Pod 2 is its successor in zone a, pod 3 is in zone b.
    let members = [leaves, member(2, Ready), member(3, Ready)];
    let action = |successor, zones: &BTreeMap<IpAddr, Zone>| {
        let seen = [(key(1), Healthy), (key(2), successor), (key(3), Healthy)].into();
        let policy = Policy {
            floor_percent: 50,
            ..POLICY
        };
        let decision = decide_in_zones(&policy, &members, (&seen, zones), View::Watched, NOW);
        decision.verdicts[&key(1)].action
    };
    let apart = zones(&[(1, "a"), (2, "a"), (3, "b")]);
    assert_eq!(
        action(Initial, &zones(&[])),
        Action::Drain,
        "one of two is enough"
    );
    assert_eq!(
        action(Initial, &apart),
        Action::Hold,
        "ZD-23: none in its zone"
    );
    assert_eq!(action(Healthy, &apart), Action::Drain, "ZD-23");
    let left = zones(&[(1, "c"), (2, "a"), (3, "b")]);
    assert_eq!(
        action(Healthy, &left),
        Action::Drain,
        "ZD-T27: the zone is left"
    );
}

#[test]
fn zd26_the_longest_hold_ends_in_a_drain_down_to_one() {
    let old = State::Terminating {
        serving: Serving::Yes,
        since: Some(NOW - POLICY.hold_max),
    };
    let pods = [(1, old), (2, old), (3, Ready)];
    let verdicts = run(
        &POLICY,
        &pods,
        &[(1, Healthy), (2, Healthy), (3, Unhealthy)],
    );
    let both = [
        "10.244.0.1 Drain HoldMaximum",
        "10.244.0.2 Drain HoldMaximum",
    ];
    assert_eq!(verdicts[..2], both, "ZD-26");
    let alone = run(&POLICY, &[(1, old)], &[(1, Healthy)]);
    assert_eq!(
        alone,
        ["10.244.0.1 Hold LastServing"],
        "ZD-26: the last one stays"
    );
}

#[test]
fn zd82_a_readiness_flap_changes_membership_only_where_no_health_check_tells() {
    let seen = [(1, Healthy), (2, Healthy)];
    let flap = run(&POLICY, &[(1, NotReady), (2, Ready)], &seen);
    assert_eq!(
        flap,
        ["10.244.0.1 Keep NotReady", "10.244.0.2 Keep Ready"],
        "ZD-82"
    );
    let unprobed = Policy {
        readiness: Readiness::ByMembership,
        ..POLICY
    };
    let out = run(&unprobed, &[(1, NotReady), (2, Ready)], &seen);
    assert_eq!(out[0], "10.244.0.1 Drain NotReady");
    let last = run(&unprobed, &[(1, NotReady)], &[(1, Unjudged)]);
    assert_eq!(last, ["10.244.0.1 Hold LastServing"]);
}

#[test]
fn zd85_a_reused_address_goes_first_whatever_else_there_is() {
    let verdicts = run(
        &POLICY,
        &[(1, Reused), (2, Ready)],
        &[(1, Healthy), (2, Initial)],
    );
    assert_eq!(verdicts[0], "10.244.0.1 Release AddressReused", "ZD-85");
}

#[test]
fn zd73_an_excluded_node_drains_but_never_the_last_one() {
    let seen = [(1, Healthy), (2, Healthy)];
    let one = run(&POLICY, &[(1, Withdrawn), (2, Ready)], &seen);
    assert_eq!(
        one,
        ["10.244.0.1 Drain Withdrawn", "10.244.0.2 Keep Ready"],
        "ZD-73"
    );
    let all = run(&POLICY, &[(1, Withdrawn), (2, Withdrawn)], &seen);
    assert!(
        all.iter().all(|v| v.ends_with("Hold LastServing")),
        "ZD-73: {all:?}"
    );
}

#[test]
fn k33_a_mass_removal_without_a_known_reason_needs_a_second_look() {
    let members: Vec<_> = (1..=4)
        .map(|n| member(n, Unexplained))
        .chain([member(9, Ready)])
        .collect();
    let seen: BTreeMap<_, _> = (1..=4).chain([9]).map(|n| (key(n), Healthy)).collect();
    let first = decide(&POLICY, &members, &seen, View::Watched, NOW);
    assert_eq!(
        first.mass_removal,
        Some(MassRemoval {
            leaving: 4,
            registered: 5
        }),
        "K-33"
    );
    assert_eq!(first.with(Action::Drain).count(), 0, "K-33");
    let second = decide(&POLICY, &members, &seen, View::Confirmed, NOW);
    assert_eq!(
        (second.mass_removal, second.with(Action::Drain).count()),
        (None, 4),
        "K-33"
    );
    let dying: Vec<_> = (1..=4)
        .map(|n| member(n, DYING))
        .chain([member(9, Ready)])
        .collect();
    let known = decide(&POLICY, &dying, &seen, View::Watched, NOW);
    assert_eq!(
        known.mass_removal, None,
        "K-33: terminating pods are no bad view"
    );
}

#[test]
fn k31_compat_takes_the_peers_timing_and_keeps_the_last_that_serves() {
    let compat = Policy {
        kind: Kind::Compat,
        ..POLICY
    };
    let seen = [(1, Healthy), (2, Healthy), (3, Initial)];
    let verdicts = run(&compat, &[(1, DYING), (2, NotReady), (3, Ready)], &seen);
    let held = ["10.244.0.1 Hold LastServing", "10.244.0.2 Hold LastServing"];
    assert_eq!(verdicts[..2], held, "K-31");
    let seen = [(1, Healthy), (2, Healthy), (3, Healthy)];
    let verdicts = run(&compat, &[(1, DYING), (2, NotReady), (3, Ready)], &seen);
    assert_eq!(
        verdicts[..2],
        ["10.244.0.1 Drain Terminating", "10.244.0.2 Drain NotReady"]
    );
}

#[test]
fn k41_with_compat_and_another_selector_one_that_serves_stays_until_a_new_one_is_healthy() {
    let compat = Policy {
        kind: Kind::Compat,
        ..POLICY
    };
    // The old pods run on, and no list names them any more.
    let members = [(1, Unexplained), (2, Unexplained), (3, Ready), (4, Ready)];
    let old = [(1, Healthy), (2, Healthy)];
    let serving = |verdicts: &[String]| {
        let old = verdicts
            .iter()
            .filter(|v| v.starts_with("10.244.0.1 ") || v.starts_with("10.244.0.2 "));
        old.filter(|v| v.contains(" Hold ") || v.contains(" Keep "))
            .count()
    };
    let first = run(&compat, &members, &old);
    assert!(serving(&first) >= 1, "K-41: {first:?}");
    let new = |state| [old[0], old[1], (3, state), (4, state)];
    let judged = run(&compat, &members, &new(Initial));
    assert!(serving(&judged) >= 1, "K-41: {judged:?}");
    let healthy = run(&compat, &members, &new(Healthy));
    assert_eq!(serving(&healthy), 0, "K-41: {healthy:?}");
}

#[test]
fn i2_what_still_serves_comes_back_when_nothing_else_does() {
    let verdicts = run(
        &POLICY,
        &[(1, DYING), (2, Gone)],
        &[(1, Draining), (2, Healthy)],
    );
    assert_eq!(
        verdicts,
        ["10.244.0.1 Register LastServing", "10.244.0.2 Drain Gone"]
    );
}

#[test]
fn zd26_what_was_held_for_the_longest_time_does_not_come_back() {
    let long_ago = State::Terminating {
        serving: Serving::Yes,
        since: Some(Time::from_millis(0)),
    };
    // A pod that is not ready stays registered; the one that ends is let go, and stays away.
    let members = [(1, long_ago), (2, NotReady)];
    let first = run(&POLICY, &members, &[(1, Healthy), (2, Unhealthy)]);
    assert_eq!(
        first,
        ["10.244.0.1 Drain HoldMaximum", "10.244.0.2 Keep NotReady"]
    );
    let then = run(&POLICY, &members, &[(1, Draining), (2, Unhealthy)]);
    assert_eq!(then, ["10.244.0.2 Keep NotReady"]);
}

#[test]
fn zd22a_zd26_a_gone_pod_is_held_by_the_guard_to_the_hold_maximum() {
    let mut gone = member(1, Gone);
    gone.guard = Guard::Present;
    let decided = |gone: &Member, now| {
        let seen = [(key(1), Healthy)].into();
        decide(
            &POLICY,
            std::slice::from_ref(gone),
            &seen,
            View::Watched,
            now,
        )
    };
    let verdict = |decision: &Decision| decision.verdicts[&key(1)];
    let first = decided(&gone, NOW);
    assert_eq!(
        verdict(&first).action,
        Action::Hold,
        "ZD-22a: nobody is ready"
    );
    gone.held_since = Some(NOW);
    let later = decided(&gone, NOW + Duration::from_mins(9));
    assert_eq!(verdict(&later).action, Action::Hold);
    assert_eq!(later.next_look, Some(NOW + POLICY.hold_max));
    let over = decided(&gone, NOW + POLICY.hold_max);
    let wanted = Verdict {
        action: Action::Drain,
        reason: Reason::HoldMaximum,
    };
    assert_eq!(verdict(&over), wanted, "ZD-26");
}

#[test]
fn zd121_a_target_that_is_let_go_below_the_floor_is_counted() {
    let members = [
        member(1, DYING),
        member(2, Ready),
        Member {
            guard: Guard::Present,
            ..member(3, DYING)
        },
    ];
    let seen = [(key(1), Healthy), (key(2), Initial), (key(3), Healthy)].into();
    let mut decision = decide(&POLICY, &members, &seen, View::Watched, NOW);
    assert_eq!(decision.below_floor, 0, "ZD-121: it decides none");
    let zones = BTreeMap::new();
    let group = Tally::new(&POLICY, &members, &seen, &zones);
    for n in [1, 3] {
        let wrong = Verdict {
            action: Action::Drain,
            reason: Reason::Terminating,
        };
        decision.verdicts.insert(key(n), wrong);
    }
    assert_eq!(group.below_floor(&decision), 2, "ZD-121");
    for verdict in decision.verdicts.values_mut() {
        verdict.reason = Reason::HoldMaximum;
    }
    assert_eq!(group.below_floor(&decision), 0, "ZD-26: these may");
}

/// ZD-25: each is let go for itself, and among those that could go the ones that nobody can reach any more go first.
#[test]
fn zd25_targets_leave_in_the_order_in_which_they_serve_least() {
    let order = [
        Reused,
        Gone,
        State::Terminating {
            serving: Serving::No,
            since: None,
        },
        Unexplained,
        NotReady,
        DYING,
        Withdrawn,
        Ready,
    ];
    // Of two that would both leave at once the better one stays, as the last that serves.
    for pair in order.windows(2) {
        let ranks = [rank(pair[0]), rank(pair[1])];
        assert!(ranks[0] > ranks[1], "ZD-25: {pair:?}");
    }
    let reused = run(
        &POLICY,
        &[(1, Reused), (2, DYING)],
        &[(1, Healthy), (2, Healthy)],
    );
    let wanted = [
        "10.244.0.1 Release AddressReused",
        "10.244.0.2 Hold LastServing",
    ];
    assert_eq!(reused, wanted, "ZD-25: a reused address first");
    // Without a guard there, a pod that is gone goes before one that terminates.
    let gone = run(
        &POLICY,
        &[(1, Gone), (2, DYING)],
        &[(1, Healthy), (2, Healthy)],
    );
    let wanted = ["10.244.0.1 Release Gone", "10.244.0.2 Hold LastServing"];
    assert_eq!(gone, wanted, "ZD-25: agent absent before terminating");
    // A held target is usable and yet not healthy: it replaces nobody.
    let held = Member {
        guard: Guard::Present,
        ..member(1, Gone)
    };
    let members = [held, member(2, DYING), member(3, Ready)];
    let seen = [(key(1), Healthy), (key(2), Healthy), (key(3), Initial)].into();
    let decision = decide(&POLICY, &members, &seen, View::Watched, NOW);
    let holds: Vec<_> = decision.with(Action::Hold).map(|(key, _)| key).collect();
    assert_eq!(holds, [key(1), key(2)], "ZD-25");
}
