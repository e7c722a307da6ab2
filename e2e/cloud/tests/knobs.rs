//! Lags, tails and switches that the local profile leaves at zero, in virtual time: the engine must
//! obey each before a profile that uses it is believed (fake-cloud.md section 14).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{START, Sim, check, lb, target, tcp_group};
use e2e_cloud::engine::{
    AllDown, Established, GroupSpec, HealthCheck, Lag, Lags, ListenerKey, Profile, Protocol,
    Reason, TargetSpec, TargetState, What,
};

const HTTP: ListenerKey = ListenerKey {
    port: 80,
    protocol: Protocol::Tcp,
};

/// The profile `local` with other lags.
fn lagging(change: impl FnOnce(&mut Lags)) -> Profile {
    let mut profile = Profile::local();
    change(&mut profile.lags);
    profile
}

fn group(interval: u64, healthy: u32, unhealthy: u32) -> GroupSpec {
    GroupSpec {
        health: Some(check(interval, healthy, unhealthy)),
        ..tcp_group("web")
    }
}

/// The first second, counted from now, at which the target gets no new flow any more.
fn stops_after(sim: &mut Sim, wanted: std::net::SocketAddr, limit: u64) -> u64 {
    for second in 0..limit {
        if !sim.front().targets.contains(&wanted) {
            return second;
        }
        sim.run_secs(1);
    }
    panic!("{wanted} still gets new flows after {limit} s");
}

/// The log says of every tail that it is over, also when a verdict ends it early: who waits for the cloud waits for that.
#[test]
fn fc44_a_tail_that_a_verdict_ends_is_logged_as_ended() {
    let tails = |sim: &Sim| {
        let events = sim.engine.log().after(0);
        let of = |what: &What| match what {
            What::TailStarted { .. } => Some("started"),
            What::TailEnded { .. } => Some("ended"),
            _ => None,
        };
        events.filter_map(|e| of(&e.what)).collect::<Vec<_>>()
    };
    // A draining target fails its probes.
    let slow = lagging(|lags| lags.deregistration_tail = Lag::secs(120));
    let mut sim = Sim::new(slow, 1, &["a"]);
    let (_, id) = sim.balanced_group(group(5, 1, 2));
    sim.up.extend([target(1), target(2)]);
    sim.register(&id, &[target(1), target(2)]);
    sim.run_secs(10);
    sim.deregister(&id, target(1));
    assert_eq!(tails(&sim), ["started"]);
    sim.up.remove(&target(1));
    sim.run_secs(10);
    assert!(!sim.front().targets.contains(&target(1)), "FC-44");
    assert_eq!(tails(&sim), ["started", "ended"], "FC-44");
    // A target comes back before its tail is over.
    let slow = lagging(|lags| lags.unhealthy_tail = Lag::secs(60));
    let mut sim = Sim::new(slow, 1, &["a"]);
    let (_, id) = sim.balanced_group(group(5, 1, 2));
    sim.up.insert(target(1));
    sim.register(&id, &[target(1)]);
    sim.run_secs(10);
    sim.up.clear();
    sim.run_secs(15);
    assert_eq!(tails(&sim), ["started"]);
    sim.up.insert(target(1));
    sim.run_secs(10);
    assert_eq!(tails(&sim), ["started", "ended"], "FC-44");
}

#[test]
fn fct01_a_registration_lag_of_100_s_with_3_good_probes() {
    let mut sim = Sim::new(
        lagging(|lags| lags.registration = Lag::secs(100)),
        1,
        &["a"],
    );
    let (_, group) = sim.balanced_group(group(10, 3, 2));
    sim.up.insert(target(1));
    let spec = TargetSpec {
        target: target(1),
        zone: None,
    };
    let answer = sim.engine.register(sim.now, &group, vec![spec]).unwrap();
    assert_eq!(answer[0].reason, Some(Reason::RegistrationInProgress));
    sim.run_secs(99);
    let waiting = (TargetState::Initial, Some(Reason::InitialHealthChecking));
    assert_eq!(sim.state(&group, target(1)), waiting);
    assert!(sim.front().targets.is_empty());
    sim.run_secs(1);
    assert_eq!(sim.state(&group, target(1)), (TargetState::Healthy, None));

    // The other half: the lag is over, but three good probes are not.
    sim.register(&group, &[target(2)]);
    sim.run_secs(95);
    sim.up.insert(target(2));
    let healthy_after = (0..60).find(|_| {
        sim.run_secs(1);
        sim.state(&group, target(2)).0 == TargetState::Healthy
    });
    // Probes at 100, 110 and 120 s after registration: 25 s from here.
    assert_eq!(healthy_after, Some(24));
}

#[test]
fn fct02_the_verdict_comes_after_the_threshold_and_new_flows_end_a_tail_later() {
    let tail = Lag::Uniform(Duration::from_secs(30), Duration::from_secs(40));
    let mut sim = Sim::new(lagging(|lags| lags.unhealthy_tail = tail), 7, &["a", "b"]);
    let (_, group) = sim.balanced_group(group(10, 3, 2));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(41);
    sim.up.remove(&target(1));
    let failing_since = sim.now;
    sim.run_secs(20);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Unhealthy);
    sim.run_secs(60);
    // On every LB node, from its own verdict.
    let mut verdicts = 0;
    for event in sim.engine.log().after(0) {
        if let What::TailStarted { until, .. } = &event.what {
            verdicts += 1;
            let after = event.cloud_time.since(failing_since).as_secs();
            assert!((10..=20).contains(&after), "verdict after {after} s");
            let tail = until.since(event.cloud_time).as_secs();
            assert!((30..=40).contains(&tail), "tail of {tail} s");
        }
    }
    assert_eq!(verdicts, 2);
    for node in sim.nodes.clone() {
        assert!(sim.front_at(node, Protocol::Tcp).targets.is_empty());
    }
}

#[test]
fn fct03_new_flows_go_on_for_the_tail_whatever_the_drain_time() {
    let profile = lagging(|lags| lags.deregistration_tail = Lag::secs(120));
    let mut sim = Sim::new(profile, 1, &["a"]);
    let spec = GroupSpec {
        drain: Duration::from_secs(5),
        ..group(10, 1, 2)
    };
    let (_, group) = sim.balanced_group(spec);
    sim.up.extend([target(1), target(2)]);
    sim.register(&group, &[target(1), target(2)]);
    sim.deregister(&group, target(1));
    sim.run_for(Duration::from_millis(4_999));
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Draining);
    sim.run_for(Duration::from_millis(1));
    let gone = (TargetState::Unused, Some(Reason::NotRegistered));
    assert_eq!(sim.state(&group, target(1)), gone);
    // FC-43, and its flows are not cut meanwhile.
    assert!(sim.front().established.contains(&target(1)));
    assert_eq!(stops_after(&mut sim, target(1), 130), 115);
    assert!(!sim.front().established.contains(&target(1)));
}

#[test]
fn fc44_of_two_tails_the_earlier_end_counts() {
    let profile = lagging(|lags| {
        lags.deregistration_tail = Lag::secs(120);
        lags.unhealthy_tail = Lag::secs(30);
    });
    let mut sim = Sim::new(profile, 1, &["a"]);
    let (_, group) = sim.balanced_group(group(10, 1, 2));
    sim.up.extend([target(1), target(2)]);
    sim.register(&group, &[target(1), target(2)]);
    sim.deregister(&group, target(1));
    sim.up.remove(&target(1));
    // FC-44: bad probes at 10 and 20 s, then 30 s.
    assert_eq!(stops_after(&mut sim, target(1), 130), 50);
}

#[test]
fn fc21_all_targets_down_fails_open_or_stops() {
    let open = Profile {
        all_down: AllDown::FailOpen,
        ..Profile::local()
    };
    for (profile, chosen) in [(open, 2), (Profile::local(), 0)] {
        let mut sim = Sim::new(profile, 1, &["a"]);
        let (_, group) = sim.balanced_group(tcp_group("web"));
        sim.up.extend([target(1), target(2)]);
        sim.register(&group, &[target(1), target(2)]);
        sim.up.clear();
        sim.run_secs(10);
        assert_eq!(sim.front().targets.len(), chosen);
        // An open stream goes on in both.
        assert_eq!(sim.front().established.len(), 2);
    }
}

/// A label of a node may name a zone that the cloud knows nothing of: its targets are near for everybody, and the log says
/// of them what it says of targets without a zone.
#[test]
fn fc31_targets_in_a_zone_without_an_lb_node_are_near_for_every_lb_node() {
    let apart = Profile {
        cross_zone: false,
        ..Profile::local()
    };
    let mut sim = Sim::new(apart, 1, &["a", "b"]);
    let created = sim.engine.create_group(sim.now, "g", tcp_group("web"));
    let id = created.unwrap().id;
    let mut spec = lb("svc", &[common::FRONT]);
    spec.cross_zone = false;
    let lb = sim.engine.create_lb(sim.now, "lb", spec).unwrap().id;
    sim.engine.put_listener(sim.now, &lb, HTTP, &id).unwrap();
    let at = |last, zone: &str| TargetSpec {
        target: target(last),
        zone: Some(zone.to_owned()),
    };
    sim.up.extend([target(1), target(2)]);
    let registered = sim
        .engine
        .register(sim.now, &id, vec![at(1, "a"), at(2, "elsewhere")]);
    let told: Vec<Option<String>> = registered.unwrap().into_iter().map(|t| t.zone).collect();
    assert_eq!(told, [Some("a".to_owned()), Some("elsewhere".to_owned())]);
    sim.run_secs(1);
    for (node, near) in [(0, vec![target(1), target(2)]), (1, vec![target(2)])] {
        let path = sim.engine.data_path(sim.nodes[node]);
        let chosen = path.frontends.values().map(|path| path.targets.clone());
        assert!(
            chosen.clone().all(|targets| targets == near),
            "FC-31: {node}"
        );
    }
    let zones = sim
        .engine
        .log()
        .after(0)
        .filter_map(|event| match &event.what {
            What::TargetState {
                target: at, zone, ..
            } if *at == target(2) => Some(zone.clone()),
            _ => None,
        });
    let zones: Vec<_> = zones.collect();
    assert!(
        !zones.is_empty() && zones.iter().all(Option::is_none),
        "{zones:?}"
    );
}

#[test]
fn fc31a_a_zone_without_a_healthy_target_does_not_fail_open_while_another_has_one() {
    let profile = Profile {
        all_down: AllDown::FailOpen,
        cross_zone: false,
        ..Profile::local()
    };
    let mut sim = Sim::new(profile, 1, &["a", "b"]);
    let id = sim
        .engine
        .create_group(sim.now, "g", tcp_group("web"))
        .unwrap()
        .id;
    let mut spec = lb("svc", &[common::FRONT, "198.51.100.8"]);
    spec.cross_zone = false;
    spec.zones = vec!["b".to_owned(), "a".to_owned()];
    let lb = sim.engine.create_lb(sim.now, "lb", spec).unwrap().id;
    sim.engine.put_listener(sim.now, &lb, HTTP, &id).unwrap();
    let near = |last, zone: &str| TargetSpec {
        target: target(last),
        zone: Some(zone.to_owned()),
    };
    sim.up.extend([target(1), target(2)]);
    sim.engine
        .register(sim.now, &id, vec![near(1, "b"), near(2, "a")])
        .unwrap();
    sim.run_secs(1);
    // FC-61: one address per zone, in the order of the zones, each with its own targets.
    let choice = |sim: &Sim, at: usize| {
        let path = sim.engine.data_path(sim.nodes[at]);
        assert_eq!(path.frontends.len(), 1);
        path.frontends
            .first_key_value()
            .map(|(front, path)| (front.address.to_string(), path.targets.clone()))
    };
    assert_eq!(
        choice(&sim, 1),
        Some((common::FRONT.to_owned(), vec![target(1)]))
    );
    assert_eq!(
        choice(&sim, 0),
        Some(("198.51.100.8".to_owned(), vec![target(2)]))
    );
    // FC-31a
    sim.up.remove(&target(1));
    sim.run_secs(6);
    assert_eq!(choice(&sim, 1).unwrap().1, []);
    sim.up.remove(&target(2));
    sim.run_secs(6);
    assert_eq!(choice(&sim, 1).unwrap().1, [target(1)]);
}

#[test]
fn fc23_an_unhealthy_target_loses_its_flows_only_where_the_profile_says_so() {
    let cut = Profile {
        unhealthy_flows: Established::Cut,
        ..Profile::local()
    };
    for (profile, kept) in [(cut, false), (Profile::local(), true)] {
        let mut sim = Sim::new(profile, 1, &["a"]);
        let (_, group) = sim.balanced_group(tcp_group("web"));
        sim.up.insert(target(1));
        sim.register(&group, &[target(1)]);
        sim.up.clear();
        sim.run_secs(6);
        // FC-23
        assert_eq!(sim.front().established.contains(&target(1)), kept);
    }
}

#[test]
fn fc36_each_lb_node_uses_its_own_verdict_and_the_report_is_the_vote() {
    let skew = Lag::Uniform(Duration::ZERO, Duration::from_secs(10));
    let mut sim = Sim::new(
        lagging(|lags| lags.verdict_skew = skew),
        3,
        &["a", "b", "c"],
    );
    let (_, group) = sim.balanced_group(group(10, 1, 2));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(20);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
    sim.blind.insert((sim.nodes[0], target(1)));
    sim.run_secs(30);
    // FC-36: one of three is blind.
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
    assert!(sim.front_at(sim.nodes[0], Protocol::Tcp).targets.is_empty());
    sim.blind.insert((sim.nodes[1], target(1)));
    sim.run_secs(30);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Unhealthy);
}

#[test]
fn fc45_a_switched_listener_goes_on_with_its_old_group_for_the_tail() {
    let profile = lagging(|lags| lags.group_switch_tail = Lag::secs(75));
    let mut sim = Sim::new(profile, 1, &["a"]);
    let (lb, old) = sim.balanced_group(tcp_group("old"));
    let new = sim
        .engine
        .create_group(sim.now, "new", tcp_group("new"))
        .unwrap()
        .id;
    sim.up.extend([target(1), target(2)]);
    sim.register(&old, &[target(1)]);
    sim.register(&new, &[target(2)]);
    sim.engine.put_listener(sim.now, &lb, HTTP, &new).unwrap();
    // FC-45
    assert_eq!(stops_after(&mut sim, target(1), 100), 75);
    assert_eq!(sim.front().targets, [target(2)]);
}

#[test]
fn fc47_a_load_balancer_serves_only_once_it_is_active() {
    let mut sim = Sim::new(lagging(|lags| lags.provisioning = Lag::secs(90)), 1, &["a"]);
    let (lb, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(89);
    let serves = |sim: &Sim| !sim.data_path().frontends.is_empty();
    assert!(!serves(&sim));
    sim.run_secs(1);
    // FC-47
    assert_eq!(
        sim.engine.get_lb(sim.now, &lb).unwrap().state,
        e2e_cloud::engine::LbState::Active
    );
    assert!(serves(&sim));
}

#[test]
fn a_group_that_no_listener_uses_is_not_judged_where_the_profile_says_so() {
    let profile = Profile {
        probe_unused_groups: false,
        ..Profile::local()
    };
    let mut sim = Sim::new(profile, 1, &["a"]);
    let id = sim
        .engine
        .create_group(sim.now, "g", tcp_group("web"))
        .unwrap()
        .id;
    sim.up.insert(target(1));
    sim.register(&id, &[target(1)]);
    let idle = (TargetState::Unused, Some(Reason::NotInUse));
    assert_eq!(sim.state(&id, target(1)), idle);
    let lb = sim
        .engine
        .create_lb(sim.now, "lb", lb("svc", &[common::FRONT]))
        .unwrap()
        .id;
    sim.engine.put_listener(sim.now, &lb, HTTP, &id).unwrap();
    sim.run_secs(1);
    assert_eq!(sim.state(&id, target(1)).0, TargetState::Healthy);
    sim.engine.delete_listener(sim.now, &lb, HTTP).unwrap();
    assert_eq!(sim.state(&id, target(1)), idle);
}

#[test]
fn fc02_one_load_balancer_can_behave_differently() {
    let mut sim = Sim::local();
    let (lb, group) = sim.balanced_group(tcp_group("web"));
    let slow = lagging(|lags| lags.registration = Lag::secs(60));
    sim.engine.override_profile(&lb, slow).unwrap();
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    sim.run_secs(59);
    // FC-02
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Initial);
    sim.run_secs(1);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
}

#[test]
fn fc05_fc06_the_same_seed_gives_the_same_log_and_draws_stay_in_range() {
    let measured = vec![Duration::from_secs(21), Duration::from_secs(34)];
    let scenario = |seed| {
        let profile = lagging(|lags| {
            lags.registration = Lag::Uniform(Duration::from_secs(20), Duration::from_mins(1));
            lags.deregistration_tail = Lag::Measured(measured.clone());
            lags.verdict_skew = Lag::Uniform(Duration::ZERO, Duration::from_secs(10));
        });
        let mut sim = Sim::new(profile, seed, &["a", "b"]);
        let (_, group) = sim.balanced_group(group(10, 2, 2));
        sim.up.extend((1..=8).map(target));
        sim.register(&group, &(1..=8).map(target).collect::<Vec<_>>());
        sim.run_secs(90);
        sim.deregister(&group, target(3));
        sim.run_secs(90);
        sim
    };
    let (one, again, other) = (scenario(42), scenario(42), scenario(43));
    // FC-05: byte for byte; and the head of the log tells the seed.
    assert_eq!(
        one.engine.log().json_lines(),
        again.engine.log().json_lines()
    );
    assert_ne!(
        one.engine.log().json_lines(),
        other.engine.log().json_lines()
    );
    assert!(
        one.engine
            .log()
            .json_lines()
            .lines()
            .next()
            .unwrap()
            .contains(r#""seed":42"#)
    );
    // FC-06, FC-11: what was set is what is drawn from.
    let healthy = one
        .history(target(1))
        .iter()
        .find(|(_, state, _)| *state == TargetState::Healthy)
        .map(|(second, ..)| *second);
    assert!((20..=70).contains(&healthy.unwrap()), "{healthy:?}");
    for event in one.engine.log().after(0) {
        if let What::TailStarted { until, .. } = &event.what {
            assert!(measured.contains(&until.since(event.cloud_time)));
        }
    }
    assert_eq!(one.now.since(START), Duration::from_mins(3));
}

#[test]
fn fct21_fc42_a_trickle_reaches_initial_targets_as_rarely_as_the_knob_says() {
    let chosen = |per_mille| {
        let mut profile = lagging(|lags| lags.registration = Lag::secs(100));
        profile.trickle_per_mille = per_mille;
        let mut sim = Sim::new(profile, 1, &["a"]);
        let (_, group) = sim.balanced_group(tcp_group("web"));
        sim.up.extend([target(1), target(2)]);
        sim.register(&group, &[target(1)]);
        let alone = sim.front().targets;
        sim.run_secs(150);
        sim.register(&group, &[target(2)]);
        assert_eq!(sim.state(&group, target(2)).0, TargetState::Initial);
        let targets = sim.front().targets;
        let of = |wanted| targets.iter().filter(|at| **at == wanted).count();
        (alone, of(target(1)), of(target(2)))
    };
    // FC-T21
    assert_eq!(chosen(1000), (vec![target(1)], 1, 1));
    assert_eq!(chosen(0), (vec![], 1, 0));
    // FC-42: one in 51.
    assert_eq!(chosen(20), (vec![], 50, 1));
}

#[test]
fn fc22_the_switch_for_all_down_is_one_load_balancers_own() {
    let mut sim = Sim::local();
    let (lb, group) = sim.balanced_group(tcp_group("web"));
    sim.register(&group, &[target(1)]);
    sim.run_secs(10);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Unhealthy);
    // FC-22: the local profile stops by default.
    assert_eq!(sim.front().targets, []);
    let open = Profile {
        all_down: AllDown::FailOpen,
        ..Profile::local()
    };
    sim.engine.override_profile(&lb, open).unwrap();
    assert_eq!(sim.front().targets, [target(1)]);
}

/// What peers set is taken as it is, and shows a target that fails as soon as they count on it.
#[test]
fn fc39a_the_usual_settings_of_controllers_are_usable_and_take_their_time() {
    let presets = [
        ("LBC ip", HealthCheck::lbc_ip(), 30),
        (
            "LBC instance, Local",
            HealthCheck::lbc_instance_local(31_000),
            20,
        ),
        ("CPA, Local", HealthCheck::cpa_local(31_000), 10),
        ("CPA, Cluster", HealthCheck::cpa_cluster(), 10),
        ("CPA, shared", HealthCheck::cpa_shared(), 10),
    ];
    for (name, check, seconds) in presets {
        let mut sim = Sim::local();
        let (_, group) = sim.balanced_group(GroupSpec {
            health: Some(check.clone()),
            ..tcp_group("web")
        });
        let probed = SocketAddr::new(target(1).ip(), check.port.unwrap_or(target(1).port()));
        sim.up.insert(probed);
        sim.register(&group, &[target(1)]);
        let (good, last) = (u64::from(check.healthy), check.interval.as_secs());
        sim.run_secs((good - 1) * last);
        assert_eq!(
            sim.state(&group, target(1)).0,
            TargetState::Healthy,
            "FC-39a: {name}"
        );
        // It fails just after a good probe: the longest that anybody waits for the verdict.
        sim.run_secs(1);
        sim.up.clear();
        sim.run_secs(seconds - 2);
        assert_eq!(
            sim.state(&group, target(1)).0,
            TargetState::Healthy,
            "FC-39a: {name}"
        );
        sim.run_secs(2);
        assert_eq!(
            sim.state(&group, target(1)).0,
            TargetState::Unhealthy,
            "FC-39a: {name}"
        );
    }
    // UDP has no probe of its own: a target counts as healthy.
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(GroupSpec {
        protocol: Protocol::Udp,
        health: None,
        ..tcp_group("dns")
    });
    sim.register(&group, &[target(1)]);
    assert_eq!(
        sim.state(&group, target(1)).0,
        TargetState::Healthy,
        "FC-39a"
    );
}
