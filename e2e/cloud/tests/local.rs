//! The profile `local` in virtual time, and what every profile has in common.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::time::Duration;

use common::{FRONT, START, Sim, check, lb, target, tcp_group};
use e2e_cloud::engine::{
    ApiError, GroupSpec, LbSpec, ListenerKey, Operation, Profile, Protocol, Reason, Tags,
    TargetSpec, TargetState, What,
};

const HTTP: ListenerKey = ListenerKey {
    port: 80,
    protocol: Protocol::Tcp,
};

#[test]
fn fc39b_local_probes_every_2_s_and_judges_after_1_good_or_2_bad() {
    let profile = Profile::local();
    assert_eq!(profile.probe.interval, Duration::from_secs(2));
    assert_eq!((profile.probe.healthy, profile.probe.unhealthy), (1, 2));

    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(5);
    sim.up.remove(&target(1));
    sim.run_secs(5);
    sim.up.insert(target(1));
    sim.run_secs(2);
    let history = sim.history(target(1));
    assert_eq!(
        history,
        [
            (
                0,
                TargetState::Initial,
                Some(Reason::RegistrationInProgress)
            ),
            (0, TargetState::Healthy, None),
            (8, TargetState::Unhealthy, Some(Reason::FailedHealthChecks)),
            (12, TargetState::Healthy, None),
        ]
    );
}

#[test]
fn fc34b_local_reports_initial_until_the_first_good_probe_and_sends_nothing() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.register(&group, &[target(1)]);
    let waiting = (TargetState::Initial, Some(Reason::InitialHealthChecking));
    assert_eq!(sim.state(&group, target(1)), waiting);
    assert!(sim.front().targets.is_empty());
    sim.up.insert(target(1));
    sim.run_secs(2);
    assert_eq!(sim.state(&group, target(1)), (TargetState::Healthy, None));
    assert_eq!(sim.front().targets, [target(1)]);
}

#[test]
fn fc20_fc21_local_leaves_out_what_is_down_and_stops_when_all_are() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.extend([target(1), target(2)]);
    sim.register(&group, &[target(1), target(2)]);
    // FC-20: new flows go to the healthy one; FC-23: flows of the other are kept.
    sim.up.remove(&target(1));
    sim.run_secs(6);
    assert_eq!(sim.front().targets, [target(2)]);
    assert!(sim.front().established.contains(&target(1)));
    // FC-21: none left, none chosen, and the frontend is still there to drop them.
    sim.up.clear();
    sim.run_secs(6);
    assert!(sim.front().targets.is_empty());
    assert_eq!(sim.front().established.len(), 2);
}

#[test]
fn fc24_local_draining_gets_no_new_flow_and_its_flows_end_after_10_s() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.extend([target(1), target(2)]);
    sim.register(&group, &[target(1), target(2)]);
    sim.deregister(&group, target(1));
    let draining = (
        TargetState::Draining,
        Some(Reason::DeregistrationInProgress),
    );
    assert_eq!(sim.state(&group, target(1)), draining);
    assert_eq!(sim.front().targets, [target(2)]);
    sim.run_for(Duration::from_millis(9_999));
    assert!(sim.front().established.contains(&target(1)));
    sim.run_for(Duration::from_millis(1));
    // FC-24: flows end.
    assert!(!sim.front().established.contains(&target(1)));
    // Gone from the list, `unused` when asked for.
    let listed = sim.engine.targets(sim.now, &group, &[]).unwrap();
    assert_eq!(
        listed.iter().map(|found| found.target).collect::<Vec<_>>(),
        [target(2)]
    );
    let gone = (TargetState::Unused, Some(Reason::NotRegistered));
    assert_eq!(sim.state(&group, target(1)), gone);
}

#[test]
fn a_draining_target_that_is_registered_again_starts_anew() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.deregister(&group, target(1));
    sim.run_secs(3);
    sim.up.remove(&target(1));
    sim.register(&group, &[target(1)]);
    let waiting = (TargetState::Initial, Some(Reason::InitialHealthChecking));
    assert_eq!(sim.state(&group, target(1)), waiting);
    assert!(sim.front().targets.is_empty());
    sim.up.insert(target(1));
    // The old drain time ends meanwhile and must not end the new registration.
    sim.run_secs(10);
    assert_eq!(sim.state(&group, target(1)), (TargetState::Healthy, None));
    assert_eq!(sim.front().targets, [target(1)]);
}

#[test]
fn a_udp_group_without_probe_is_healthy_once_registered() {
    let mut sim = Sim::local();
    let spec = GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        ..tcp_group("dns")
    };
    let (_, group) = sim.balanced_group(spec);
    sim.register(&group, &[target(1)]);
    assert_eq!(sim.state(&group, target(1)), (TargetState::Healthy, None));
    assert_eq!(
        sim.front_at(sim.nodes[0], Protocol::Udp).targets,
        [target(1)]
    );
    assert!(sim.engine.next_event().is_none(), "nothing is probed");
}

#[test]
fn a_listener_switched_to_another_group_keeps_the_flows_of_the_old_one_while_it_lives() {
    let mut sim = Sim::local();
    let (lb, old) = sim.balanced_group(tcp_group("old"));
    let new = sim
        .engine
        .create_group(sim.now, "new", tcp_group("new"))
        .unwrap()
        .id;
    sim.up.extend([target(1), target(2)]);
    sim.register(&old, &[target(1)]);
    sim.register(&new, &[target(2)]);
    // Local judges the targets of a group before a listener uses it.
    assert_eq!(sim.state(&new, target(2)), (TargetState::Healthy, None));
    sim.engine.put_listener(sim.now, &lb, HTTP, &new).unwrap();
    assert_eq!(sim.front().targets, [target(2)]);
    assert!(sim.front().established.contains(&target(1)));
    sim.engine.delete_group(sim.now, &old).unwrap();
    assert!(!sim.front().established.contains(&target(1)));
}

#[test]
fn a_removed_load_balancer_leaves_nothing_behind() {
    let mut sim = Sim::local();
    let (id, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    let error = sim.engine.delete_group(sim.now, &group).unwrap_err();
    assert_eq!(error.code(), "group_in_use");
    sim.engine.delete_lb(sim.now, &id).unwrap();
    let path = sim.data_path();
    assert!(path.addresses.is_empty() && path.frontends.is_empty());
    sim.engine.delete_group(sim.now, &group).unwrap();
    sim.run_secs(20);
    assert_eq!(sim.engine.next_event(), None);
    // The address is free again, and the key makes a new object.
    let again = sim
        .engine
        .create_lb(sim.now, "lb", lb("svc", &[FRONT]))
        .unwrap();
    assert_ne!(again.id, id);
}

#[test]
fn a_create_is_repeatable_by_its_key_and_a_key_is_for_one_request() {
    let mut sim = Sim::local();
    let first = sim
        .engine
        .create_lb(sim.now, "key", lb("svc", &[FRONT]))
        .unwrap();
    let second = sim
        .engine
        .create_lb(sim.now, "key", lb("svc", &[FRONT]))
        .unwrap();
    assert_eq!(first, second);
    assert_eq!(sim.engine.list_lbs(sim.now, &Tags::new()).unwrap().len(), 1);
    let other = sim
        .engine
        .create_lb(sim.now, "key", lb("other", &[FRONT]))
        .unwrap_err();
    assert_eq!(other.code(), "idempotency_key_reused");
}

#[test]
fn fc_t27_one_address_for_two_owners_fails_the_run_and_names_both() {
    let mut sim = Sim::local();
    let holder = sim
        .engine
        .create_lb(sim.now, "1", lb("shop", &[FRONT]))
        .unwrap()
        .id;
    assert!(sim.engine.violations().is_empty());
    let refused = sim
        .engine
        .create_lb(sim.now, "2", lb("blog", &["198.51.100.8", FRONT]));
    let Err(ApiError::AddressInUse {
        address,
        holder: named,
    }) = refused
    else {
        panic!("accepted: {refused:?}");
    };
    assert_eq!((address.to_string().as_str(), &named.id), (FRONT, &holder));
    assert_eq!(named.tags["owner"], "shop");
    // FC-100: found by the engine itself.
    let violations = sim.engine.violations();
    assert_eq!(violations.len(), 1);
    assert!(
        violations[0].contains("shop") && violations[0].contains("blog"),
        "{violations:?}"
    );
    // All or nothing: the free address was not taken.
    sim.engine
        .create_lb(sim.now, "3", lb("wiki", &["198.51.100.8"]))
        .unwrap();
}

#[test]
fn fc100_an_address_is_shared_by_one_key_and_listeners_of_their_own() {
    let mut sim = Sim::local();
    let shared = |name, key: &str| LbSpec {
        sharing_key: Some(key.to_owned()),
        ..lb(name, &[FRONT])
    };
    let now = sim.now;
    let web = sim
        .engine
        .create_lb(now, "1", shared("web", "shop/k"))
        .unwrap()
        .id;
    let dns = sim
        .engine
        .create_lb(now, "2", shared("dns", "shop/k"))
        .unwrap()
        .id;
    let group =
        |sim: &mut Sim, key: &str, spec| sim.engine.create_group(now, key, spec).unwrap().id;
    let tcp = group(&mut sim, "3", tcp_group("web"));
    let other = group(&mut sim, "4", tcp_group("dns"));
    let port = |port| ListenerKey {
        port,
        protocol: Protocol::Tcp,
    };
    sim.engine.put_listener(now, &web, port(80), &tcp).unwrap();
    sim.engine
        .put_listener(now, &dns, port(53), &other)
        .unwrap();
    assert_eq!(sim.engine.violations(), Vec::<String>::new(), "FC-100");
    // The address stays with the other one when one of them goes.
    sim.engine.delete_lb(now, &dns).unwrap();
    let third = sim
        .engine
        .create_lb(now, "5", shared("third", "shop/k"))
        .unwrap()
        .id;
    let refused = sim.engine.put_listener(now, &third, port(80), &other);
    assert!(
        matches!(refused, Err(ApiError::AddressInUse { .. })),
        "FC-100"
    );
    let found = sim.engine.violations();
    assert!(
        found[0].contains("web") && found[0].contains("third"),
        "{found:?}"
    );
}

#[test]
fn fc_t27_one_address_for_two_owners_with_different_sharing_keys_fails_the_run() {
    let keys = [
        (Some("shop/k"), Some("other/k")),
        (Some("shop/k"), None),
        (None, Some("shop/k")),
    ];
    for (first, second) in keys {
        let mut sim = Sim::local();
        let with = |name, key: Option<&str>| LbSpec {
            sharing_key: key.map(str::to_owned),
            ..lb(name, &[FRONT])
        };
        sim.engine
            .create_lb(sim.now, "1", with("shop", first))
            .unwrap();
        let refused = sim.engine.create_lb(sim.now, "2", with("blog", second));
        assert!(
            matches!(refused, Err(ApiError::AddressInUse { .. })),
            "FC-T27"
        );
        let found = sim.engine.violations();
        assert!(
            found[0].contains("shop") && found[0].contains("blog"),
            "FC-T27: {found:?}"
        );
    }
}

#[test]
fn an_address_that_is_given_up_can_be_taken_and_the_move_is_logged() {
    let mut sim = Sim::local();
    let id = sim
        .engine
        .create_lb(sim.now, "1", lb("shop", &[FRONT]))
        .unwrap()
        .id;
    sim.engine
        .update_lb(sim.now, &id, lb("shop", &["198.51.100.9"]))
        .unwrap();
    sim.engine
        .create_lb(sim.now, "2", lb("blog", &[FRONT]))
        .unwrap();
    assert!(sim.engine.violations().is_empty());
    let lines = sim.engine.log().json_lines();
    assert!(
        lines.contains(r#""kind":"address_released","lb":"lb-000001","address":"198.51.100.7""#)
    );
}

#[test]
fn fc102_each_line_has_both_times_a_number_and_its_cause() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    let log = sim.engine.log();
    let events: Vec<_> = log.after(0).collect();
    let numbers: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=log.last()).collect::<Vec<_>>());
    // FC-102: healthy ← verdict or probe; the registration's state ← the call.
    let call = |operation| {
        let is =
            |what: &What| matches!(what, What::ApiCall { operation: of, .. } if *of == operation);
        events.iter().find(|event| is(&event.what)).unwrap().seq
    };
    let state = |wanted| {
        let is = |what: &What| matches!(what, What::TargetState { state, .. } if *state == wanted);
        events.iter().find(|event| is(&event.what)).unwrap()
    };
    assert_eq!(
        state(TargetState::Initial).cause,
        Some(call(Operation::RegisterTargets))
    );
    let cause = state(TargetState::Healthy).cause.unwrap();
    assert!(matches!(
        events[usize::try_from(cause).unwrap() - 1].what,
        What::Probe { .. }
    ));
    for event in events {
        let line: serde_json::Value = serde_json::from_str(&event.line()).unwrap();
        for field in ["seq", "cloudTime", "wallTime", "cause", "kind"] {
            assert!(line.get(field).is_some(), "{field} is missing: {line}");
        }
    }
    // A reader goes on where it stopped.
    assert_eq!(log.after(log.last()).count(), 0);
    assert_eq!(log.after(log.last() - 1).count(), 1);
}

#[test]
fn fc105_calls_are_counted_by_operation() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.register(&group, &[target(1)]);
    sim.register(&group, &[target(2)]);
    sim.engine
        .get_group(sim.now, &"nothing".into())
        .unwrap_err();
    // FC-105: refused ones count too.
    let calls = sim.engine.calls();
    assert_eq!(calls[&Operation::RegisterTargets], 2);
    assert_eq!(calls[&Operation::GetGroup], 1);
    assert!(!Operation::GetGroup.is_write() && Operation::RegisterTargets.is_write());
}

#[test]
fn the_state_of_a_target_can_be_looked_up_for_the_past() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(3);
    sim.deregister(&group, target(1));
    let at = |sim: &Sim, seconds| {
        let states = sim
            .engine
            .target_states_at(target(1), START + Duration::from_secs(seconds));
        states.get(&group).map(|(state, _)| *state)
    };
    assert_eq!(at(&sim, 1), Some(TargetState::Healthy));
    assert_eq!(at(&sim, 3), Some(TargetState::Draining));
    sim.run_secs(30);
    assert_eq!(at(&sim, 12), Some(TargetState::Draining));
    assert_eq!(at(&sim, 13), Some(TargetState::Unused));
    assert_eq!(sim.engine.target_states_at(target(9), sim.now).len(), 0);
}

#[test]
fn a_changed_health_check_is_used_at_once() {
    let mut sim = Sim::local();
    let spec = GroupSpec {
        health: Some(check(300, 1, 2)),
        ..tcp_group("web")
    };
    let (_, group) = sim.balanced_group(spec);
    sim.register(&group, &[target(1)]);
    sim.up.insert(target(1));
    sim.run_secs(10);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Initial);
    sim.engine
        .update_group(sim.now, &group, tcp_group("web"))
        .unwrap();
    sim.run_secs(2);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
    let other = GroupSpec {
        protocol: Protocol::Udp,
        ..tcp_group("web")
    };
    assert_eq!(
        sim.engine
            .update_group(sim.now, &group, other)
            .unwrap_err()
            .code(),
        "invalid"
    );
}

#[test]
fn the_health_checks_protocol_of_a_tcp_group_can_be_changed() {
    use e2e_cloud::engine::ProbeProtocol;
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    let mut http = tcp_group("web");
    http.health.as_mut().unwrap().protocol = ProbeProtocol::Http;
    let changed = sim
        .engine
        .update_group(sim.now, &group, http.clone())
        .unwrap();
    assert_eq!(changed.spec, http);
    sim.register(&group, &[target(1)]);
    sim.engine
        .register(
            sim.now,
            &group,
            vec![TargetSpec {
                target: target(2),
                zone: None,
            }],
        )
        .unwrap();
    let probes = sim.engine.take_probes();
    assert!(!probes.is_empty());
    assert!(
        probes
            .iter()
            .all(|probe| probe.protocol == ProbeProtocol::Http)
    );
}

#[test]
fn a_look_inside_is_no_call_and_leaves_no_line() {
    let mut sim = Sim::local();
    let (lb, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1), target(2)]);
    let before = sim.engine.log().last();
    let inventory = sim.engine.inventory();
    assert_eq!(sim.engine.log().last(), before);
    assert_eq!(inventory.load_balancers[0].id, lb);
    let (seen, targets) = &inventory.groups[0];
    assert_eq!((&seen.id, targets.len()), (&group, 2));
    assert_eq!(targets[0].state.to_string(), "healthy");
    assert_eq!(targets[1].state.to_string(), "initial");
}
