//! The policy against a tiny model of pods and of a group, with registrations that fail now and then.

use std::net::IpAddr;
use std::time::Duration;

use onehop_core::id::PodUid;
use proptest::prelude::*;

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

/// What happens to the model.
#[derive(Clone, Copy, Debug)]
enum Event {
    Start(u8),
    Flap(u8),
    Terminate(u8),
    End(u8),
    /// The cloud judges every target by what it is.
    Probe,
    /// The next registrations are refused, or accepted again.
    Refuse(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..6u8;
    prop_oneof![
        3 => pod.clone().prop_map(Event::Start),
        1 => pod.clone().prop_map(Event::Flap),
        2 => pod.clone().prop_map(Event::Terminate),
        2 => pod.prop_map(Event::End),
        3 => Just(Event::Probe),
        1 => any::<bool>().prop_map(Event::Refuse),
    ]
}

#[derive(Default)]
struct Model {
    pods: BTreeMap<u8, State>,
    group: BTreeMap<TargetKey, CloudState>,
    refuses: bool,
}

fn state_of(pods: &BTreeMap<u8, State>, target: &TargetKey) -> State {
    let pod = pods.iter().find(|(n, _)| key(**n) == *target);
    pod.map_or(Gone, |(_, state)| *state)
}

impl Model {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(n) => {
                let pod = self.pods.entry(n).or_insert(Ready);
                if *pod == Gone {
                    *pod = Ready;
                }
            }
            Event::Flap(n) => {
                if let Some(pod) = self.pods.get_mut(&n) {
                    *pod = match *pod {
                        Ready => NotReady,
                        NotReady => Ready,
                        other => other,
                    };
                }
            }
            Event::Terminate(n) => {
                if let Some(pod) = self.pods.get_mut(&n).filter(|p| **p == Ready) {
                    *pod = DYING;
                }
            }
            Event::End(n) => {
                if let Some(pod) = self.pods.get_mut(&n) {
                    *pod = Gone;
                }
            }
            Event::Probe => {
                self.group.retain(|_, state| *state != Draining);
                let pods = self.pods.clone();
                for (target, state) in &mut self.group {
                    let answers =
                        matches!(state_of(&pods, target), Ready | State::Terminating { .. });
                    *state = if answers { Healthy } else { Unhealthy };
                }
            }
            Event::Refuse(refuses) => self.refuses = refuses,
        }
    }

    fn state(&self, key: &TargetKey) -> State {
        state_of(&self.pods, key)
    }

    fn decide(&self) -> Decision {
        let members: Vec<_> = self
            .pods
            .iter()
            .map(|(n, state)| member(*n, *state))
            .collect();
        decide(&POLICY, &members, &self.group, View::Watched, NOW)
    }

    /// Carries a decision out as the executor does; returns whether anything changed.
    fn apply(&mut self, decision: &Decision) -> bool {
        let before = self.group.clone();
        let wanted: Vec<_> = decision
            .with(Action::Register)
            .map(|(key, _)| key)
            .collect();
        let accepted = !self.refuses || wanted.is_empty();
        if accepted {
            self.group
                .extend(wanted.into_iter().map(|key| (key, Initial)));
        }
        for (action, run) in [(Action::Release, true), (Action::Drain, accepted)] {
            for (key, _) in decision.with(action).filter(|_| run) {
                self.group.insert(key, Draining);
            }
        }
        before != self.group
    }

    fn registered(&self) -> impl Iterator<Item = &TargetKey> {
        self.group
            .iter()
            .filter(|(_, s)| s.registered())
            .map(|(k, _)| k)
    }
}

proptest! {
    #[test]
    fn i2_the_group_is_never_emptied_while_something_that_is_in_it_can_serve(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut model = Model::default();
        for event in events {
            model.happen(event);
            let served = model.registered().any(|k| serves_now(model.state(k)));
            let healthy = model
                .group
                .iter()
                .any(|(k, s)| *s == Healthy && model.state(k) == Ready);
            let decision = model.decide();
            for (key, _) in decision.with(Action::Drain).chain(decision.with(Action::Release)) {
                prop_assert!(model.state(&key) != Ready, "a ready pod is never taken out");
            }
            model.apply(&decision);
            if served {
                prop_assert!(model.registered().any(|k| serves_now(model.state(k))));
            }
            if healthy {
                let still = |(k, s): (&TargetKey, &CloudState)| {
                    *s == Healthy && model.state(k) == Ready
                };
                prop_assert!(model.group.iter().any(still), "healthy capacity is kept");
            }
        }
    }

    #[test]
    fn i4_decisions_come_to_rest_with_exactly_what_is_ready(
        events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut model = Model::default();
        for event in events {
            model.happen(event);
            let decision = model.decide();
            model.apply(&decision);
        }
        model.refuses = false;
        for _ in 0..4 {
            let decision = model.decide();
            model.apply(&decision);
            model.happen(Event::Probe);
        }
        let last = model.decide();
        prop_assert!(!model.apply(&last), "I4: nothing changed, so nothing is written: {last:?}");
        for (n, state) in &model.pods {
            let registered = model.group.get(&key(*n)).is_some_and(|s| s.registered());
            match state {
                Ready => prop_assert!(registered, "a ready pod is a target"),
                Gone => prop_assert!(!registered, "a gone pod is none"),
                _ => {}
            }
        }
    }
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
