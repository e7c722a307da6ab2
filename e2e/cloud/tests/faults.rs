//! Faults of the API in virtual time (fake-cloud.md section 10): each does what it says and nothing
//! else, before a test of the product relies on it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test"
)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{FRONT, Sim, lb, target, tcp_group};
use e2e_cloud::engine::{
    ApiError, Edit, Effect, Faults, GroupId, GroupSpec, Injection, Lag, ListenerKey, Operation,
    ProbeProtocol, Protocol, Quotas, Reason, Tags, TargetSpec, TargetState, Throttle, What,
};

const HTTP: ListenerKey = ListenerKey {
    port: 80,
    protocol: Protocol::Tcp,
};

fn specs(targets: &[SocketAddr]) -> Vec<TargetSpec> {
    let spec = |target: &SocketAddr| TargetSpec {
        target: *target,
        zone: None,
    };
    targets.iter().map(spec).collect()
}

fn faulty(sim: &mut Sim, change: impl FnOnce(&mut Faults)) {
    let mut faults = sim.engine.faults().clone();
    change(&mut faults);
    sim.engine.set_faults(sim.now, faults);
}

fn inject(sim: &mut Sim, operation: Operation, effect: Effect) {
    sim.engine.inject(Injection {
        operations: [operation].into(),
        effect,
        times: 1,
        skip: 0,
    });
}

fn listed(sim: &mut Sim, group: &GroupId) -> Vec<SocketAddr> {
    let found = sim.engine.targets(sim.now, group, &[]).unwrap();
    found.iter().map(|status| status.target).collect()
}

fn code<T: std::fmt::Debug>(answer: Result<T, ApiError>) -> &'static str {
    answer.unwrap_err().code()
}

#[test]
fn fct19_fc90_with_a_describe_lag_of_5_s_a_change_is_seen_after_5_s_and_not_before() {
    let mut sim = Sim::local();
    let (lb_id, group) = sim.balanced_group(tcp_group("web"));
    sim.up.extend([target(1), target(2)]);
    sim.register(&group, &[target(1)]);
    faulty(&mut sim, |faults| faults.describe_lag = Lag::secs(5));

    sim.register(&group, &[target(2)]);
    sim.deregister(&group, target(1));
    let made = sim
        .engine
        .create_group(sim.now, "new", tcp_group("new"))
        .unwrap();
    let mut moved = lb("svc", &[FRONT]);
    moved.cross_zone = false;
    sim.engine.update_lb(sim.now, &lb_id, moved).unwrap();
    sim.run_for(Duration::from_millis(4_999));
    // FC-T19, FC-90: nothing of it yet, and a created object is missing.
    assert_eq!(listed(&mut sim, &group), [target(1)]);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
    assert_eq!(
        sim.state(&group, target(2)),
        (TargetState::Unused, Some(Reason::NotRegistered))
    );
    assert_eq!(code(sim.engine.get_group(sim.now, &made.id)), "not_found");
    let all = sim.engine.list_groups(sim.now, &Tags::new()).unwrap();
    assert_eq!(all.len(), 1);
    let seen = sim.engine.get_lb(sim.now, &lb_id).unwrap();
    assert!(seen.spec.cross_zone);
    // Packets do not wait for reads.
    assert_eq!(sim.front().targets, [target(2)]);

    sim.run_for(Duration::from_millis(1));
    assert_eq!(listed(&mut sim, &group), [target(1), target(2)]);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Draining);
    assert_eq!(sim.state(&group, target(2)).0, TargetState::Healthy);
    sim.engine.get_group(sim.now, &made.id).unwrap();
    let seen = sim.engine.get_lb(sim.now, &lb_id).unwrap();
    assert!(!seen.spec.cross_zone);
    // The end of a drain is no change of ours: it does not lag.
    sim.run_secs(5);
    assert_eq!(listed(&mut sim, &group), [target(2)]);
    let gone = (TargetState::Unused, Some(Reason::NotRegistered));
    assert_eq!(sim.state(&group, target(1)), gone);
}

#[test]
fn fct18_fc91_a_throttled_call_says_when_to_come_back_and_changes_nothing() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    let rule = Throttle {
        operations: [Operation::RegisterTargets].into(),
        per_second: 2,
        burst: 1,
    };
    faulty(&mut sim, |faults| faults.throttle = vec![rule]);
    sim.register(&group, &[target(1)]);
    let refused = sim
        .engine
        .register(sim.now, &group, specs(&[target(2)]))
        .unwrap_err();
    // FC-T18
    let Err::<(), _>(ApiError::Throttled { retry_after, .. }) = Err(refused) else {
        panic!("another error");
    };
    assert_eq!(retry_after, Duration::from_millis(500));
    assert_eq!(listed(&mut sim, &group), [target(1)]);
    sim.run_for(retry_after);
    sim.register(&group, &[target(2)]);
    assert_eq!(listed(&mut sim, &group), [target(1), target(2)]);
}

#[test]
fn fct32_of_30_registrations_at_once_20_pass_and_the_rest_at_4_a_second() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    faulty(&mut sim, |faults| {
        faults.throttle = vec![Throttle::registrations()];
    });
    let mut passed = Vec::new();
    let mut left = 30;
    while left > 0 {
        let mut now = 0;
        for _ in 0..left {
            let batch = specs(&[target(1)]);
            match sim.engine.register(sim.now, &group, batch) {
                Ok(_) => now += 1,
                Err(error) => assert_eq!(error.code(), "throttled"),
            }
        }
        passed.push(now);
        left -= now;
        sim.run_secs(1);
    }
    // FC-T32
    assert_eq!(passed, [20, 4, 4, 2]);
    // Other operations have their own budget.
    for _ in 0..50 {
        listed(&mut sim, &group);
    }
}

#[test]
fn fct16_fc92_after_a_partial_success_answer_and_describe_agree() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    let all: Vec<_> = (1..=5).map(target).collect();
    let partial = Effect::Partial { refuse: 2, lose: 0 };
    inject(&mut sim, Operation::RegisterTargets, partial);
    let answer = sim.engine.register(sim.now, &group, specs(&all)).unwrap();
    let taken = answer.iter().filter(|s| s.state != TargetState::Unused);
    let taken: Vec<_> = taken.map(|status| status.target).collect();
    // FC-T16
    assert_eq!(taken.len(), 3);
    assert_eq!(listed(&mut sim, &group), taken);

    // FC-92: a lost one is in the answer and not in the group.
    let lost = Effect::Partial { refuse: 0, lose: 1 };
    inject(&mut sim, Operation::RegisterTargets, lost);
    let more = sim
        .engine
        .register(sim.now, &group, specs(&[target(9)]))
        .unwrap();
    assert_eq!(more[0].state, TargetState::Initial);
    assert!(!listed(&mut sim, &group).contains(&target(9)));
    // The next call is not hit.
    sim.register(&group, &all);
    assert_eq!(listed(&mut sim, &group), all);
}

#[test]
fn fc93_a_full_quota_refuses_by_its_name_and_changes_nothing() {
    let mut sim = Sim::local();
    let (lb_id, group) = sim.balanced_group(tcp_group("web"));
    let none = Quotas::default();
    let case = |sim: &mut Sim, quotas, name, act: &dyn Fn(&mut Sim) -> Result<(), ApiError>| {
        faulty(sim, |faults| faults.quotas = quotas);
        let before = sim.engine.inventory();
        let Err(ApiError::QuotaExceeded { quota, .. }) = act(sim) else {
            panic!("{name}: accepted or another error");
        };
        assert_eq!(quota, name, "FC-93");
        assert_eq!(sim.engine.inventory(), before);
        faulty(sim, |faults| faults.quotas = none);
    };
    let two = |sim: &mut Sim| {
        let batch = specs(&[target(1), target(2)]);
        sim.engine.register(sim.now, &group, batch).map(drop)
    };
    let limit = Some(1);
    let quotas = Quotas {
        targets_per_group: limit,
        ..none
    };
    case(&mut sim, quotas, "targetsPerGroup", &two);
    let quotas = Quotas {
        targets_per_load_balancer: limit,
        ..none
    };
    case(&mut sim, quotas, "targetsPerLoadBalancer", &two);
    let quotas = Quotas {
        targets_per_cross_zone_load_balancer: limit,
        ..none
    };
    case(&mut sim, quotas, "targetsPerCrossZoneLoadBalancer", &two);
    let quotas = Quotas {
        targets_per_zone: limit,
        ..none
    };
    case(&mut sim, quotas, "targetsPerZone", &|sim| {
        let mut batch = specs(&[target(1), target(2)]);
        for spec in &mut batch {
            spec.zone = Some("a".to_owned());
        }
        sim.engine.register(sim.now, &group, batch).map(drop)
    });
    let quotas = Quotas {
        listeners_per_load_balancer: limit,
        ..none
    };
    case(&mut sim, quotas, "listenersPerLoadBalancer", &|sim| {
        let key = ListenerKey { port: 81, ..HTTP };
        let made = sim.engine.put_listener(sim.now, &lb_id, key, &group);
        made.map(drop)
    });
    let quotas = Quotas {
        groups: limit,
        ..none
    };
    case(&mut sim, quotas, "groups", &|sim| {
        let made = sim.engine.create_group(sim.now, "two", tcp_group("two"));
        made.map(drop)
    });
    let quotas = Quotas {
        load_balancers: limit,
        ..none
    };
    case(&mut sim, quotas, "loadBalancers", &|sim| {
        let spec = lb("two", &["198.51.100.99"]);
        sim.engine.create_lb(sim.now, "two", spec).map(drop)
    });
    let quotas = Quotas {
        addresses_per_load_balancer: limit,
        ..none
    };
    case(&mut sim, quotas, "addressesPerLoadBalancer", &|sim| {
        let spec = lb("two", &["198.51.100.98", "198.51.100.99"]);
        sim.engine.create_lb(sim.now, "two", spec).map(drop)
    });
    two(&mut sim).unwrap();
}

#[test]
fn fct25_fc98_what_is_fixed_is_refused_each_time_and_left_as_it_was() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    let with = |protocol| {
        let mut spec = tcp_group("web");
        spec.health.as_mut().unwrap().protocol = protocol;
        spec
    };
    // FC-T25: off by default.
    let changed = sim
        .engine
        .update_group(sim.now, &group, with(ProbeProtocol::Http));
    let changed = changed.unwrap().spec;
    faulty(&mut sim, |faults| faults.probe_protocol_fixed = true);
    for _ in 0..3 {
        let spec = with(ProbeProtocol::Tcp);
        assert_eq!(
            code(sim.engine.update_group(sim.now, &group, spec)),
            "invalid"
        );
    }
    assert_eq!(sim.engine.get_group(sim.now, &group).unwrap().spec, changed);
    // Everything else of the group can still be changed.
    let other = GroupSpec {
        drain: Duration::from_secs(77),
        ..changed
    };
    sim.engine.update_group(sim.now, &group, other).unwrap();

    // FC-98: IPv6 addresses can be set once.
    faulty(&mut sim, |faults| faults.ipv6_fixed = true);
    let four = lb("six", &["198.51.100.66"]);
    let six = lb("six", &["198.51.100.66", "2001:db8::1"]);
    let moved = lb("six", &["198.51.100.66", "2001:db8::2"]);
    let id = sim.engine.create_lb(sim.now, "six", four).unwrap().id;
    sim.engine.update_lb(sim.now, &id, six.clone()).unwrap();
    assert_eq!(code(sim.engine.update_lb(sim.now, &id, moved)), "invalid");
    assert_eq!(sim.engine.get_lb(sim.now, &id).unwrap().spec, six);
}

#[test]
fn fc99_a_permanently_bad_attribute_fails_only_the_call_that_carries_it() {
    let mut sim = Sim::local();
    let (lb_id, group) = sim.balanced_group(tcp_group("web"));
    faulty(&mut sim, |faults| {
        faults.bad_text = vec!["no-such-bucket".to_owned()];
    });
    let mut bad = lb("svc", &[FRONT]);
    let bucket = "no-such-bucket".to_owned();
    bad.tags.insert("logs".to_owned(), bucket);
    for _ in 0..3 {
        let answer = sim.engine.update_lb(sim.now, &lb_id, bad.clone());
        assert_eq!(code(answer), "bad_attribute", "FC-99: each time");
    }
    assert_eq!(
        code(sim.engine.create_lb(sim.now, "b", bad)),
        "bad_attribute"
    );
    sim.register(&group, &[target(1)]);
    sim.engine
        .update_lb(sim.now, &lb_id, lb("renamed", &[FRONT]))
        .unwrap();
}

#[test]
fn fc97_after_a_lost_answer_the_same_key_finds_what_was_made_and_another_key_makes_a_twin() {
    let mut sim = Sim::local();
    for effect in [Effect::LostAfter, Effect::LostBefore] {
        inject(&mut sim, Operation::CreateGroup, effect);
        let lost = sim
            .engine
            .create_group(sim.now, "key", tcp_group("web"))
            .map(drop);
        if effect == Effect::LostBefore {
            assert_eq!(code(lost), "connection_lost");
            assert_eq!(sim.engine.inventory().groups.len(), 1);
            continue;
        }
        assert_eq!(code(lost), "connection_lost");
        let half = sim.engine.inventory().groups;
        assert_eq!(half.len(), 1, "FC-97: the change was made");
        let again = sim
            .engine
            .create_group(sim.now, "key", tcp_group("web"))
            .unwrap();
        assert_eq!(again.id, half[0].0.id);
    }
    // FC-97: two generations of one object with the same tags, by a new key or by the console.
    let twin = sim
        .engine
        .create_group(sim.now, "other", tcp_group("web"))
        .unwrap();
    sim.engine
        .edit(sim.now, &Edit::DuplicateGroup { id: twin.id })
        .unwrap();
    let all = sim.engine.inventory().groups;
    assert!(all.iter().all(|(group, _)| group.spec == all[0].0.spec));
    assert_eq!(all.len(), 3);
}

#[test]
fn fc95_a_group_in_use_cannot_be_deleted_by_the_api_but_fc96_by_accident_it_can() {
    let mut sim = Sim::local();
    let (lb_id, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    let calls = sim.engine.calls().clone();
    // FC-95
    assert_eq!(
        code(sim.engine.delete_group(sim.now, &group)),
        "group_in_use"
    );
    assert_eq!(sim.front().targets, [target(1)]);
    // FC-96: each kind of edit, none of them an API call.
    let targets = vec![target(1)];
    let id = group.clone();
    let edit = |sim: &mut Sim, edit: Edit| sim.engine.edit(sim.now, &edit).unwrap();
    edit(&mut sim, Edit::RemoveTargets { id, targets });
    assert!(sim.front().targets.is_empty());
    let (id, tags) = (lb_id.clone(), Tags::new());
    edit(&mut sim, Edit::SetLoadBalancerTags { id, tags });
    let (id, tags) = (group.clone(), Tags::from([("a".into(), "b".into())]));
    edit(&mut sim, Edit::SetGroupTags { id, tags });
    edit(
        &mut sim,
        Edit::ChangeGroup {
            id: group.clone(),
            drain_seconds: Some(1),
            health_port: Some(1),
            health_path: None,
        },
    );
    edit(
        &mut sim,
        Edit::ChangeLoadBalancer {
            id: lb_id.clone(),
            addresses: None,
            cross_zone: Some(false),
            preserve_client_ip: None,
        },
    );
    let now = sim.engine.inventory();
    let spec = &now.load_balancers[0].spec;
    assert!(spec.tags.is_empty() && !spec.cross_zone);
    let spec = &now.groups[0].0.spec;
    assert_eq!(spec.tags["a"], "b");
    assert_eq!(spec.drain, Duration::from_secs(1));
    assert_eq!(spec.health.as_ref().unwrap().port, Some(1));
    edit(&mut sim, Edit::DeleteGroup { id: group.clone() });
    assert!(
        sim.engine.inventory().load_balancers[0]
            .listeners
            .is_empty()
    );
    edit(&mut sim, Edit::DeleteLoadBalancer { id: lb_id.clone() });
    assert_eq!(
        sim.engine.inventory(),
        e2e_cloud::engine::Inventory::default()
    );
    let again = Edit::DeleteLoadBalancer { id: lb_id };
    assert_eq!(code(sim.engine.edit(sim.now, &again)), "not_found");
    let mut counted = sim.engine.calls().clone();
    counted.remove(&Operation::DeleteGroup);
    assert_eq!(counted, calls);
    let logged = sim.engine.log().after(0);
    let logged = logged.filter(|event| matches!(event.what, What::OutOfBand { .. }));
    assert_eq!(logged.count(), 8);
}

#[test]
fn a_missing_right_and_a_broken_cloud_refuse_by_their_own_errors_and_change_nothing() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    faulty(&mut sim, |faults| {
        faults.denied = [Operation::RegisterTargets].into();
    });
    let refused = sim
        .engine
        .register(sim.now, &group, specs(&[target(1)]))
        .unwrap_err();
    assert_eq!(refused.code(), "forbidden");
    assert!(refused.to_string().contains("RegisterTargets"));
    faulty(&mut sim, |faults| faults.denied.clear());
    sim.engine.inject(Injection {
        operations: [Operation::RegisterTargets].into(),
        effect: Effect::Unavailable,
        times: 2,
        skip: 1,
    });
    let mut codes = Vec::new();
    for last in 1..=4 {
        let answer = sim.engine.register(sim.now, &group, specs(&[target(last)]));
        codes.push(answer.map_or_else(|error| error.code(), |_| "ok"));
    }
    assert_eq!(codes, ["ok", "unavailable", "unavailable", "ok"]);
    assert_eq!(listed(&mut sim, &group), [target(1), target(4)]);
}

#[test]
fn a_failing_probe_makes_a_good_target_unhealthy_until_it_is_taken_back() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.insert(target(1));
    sim.register(&group, &[target(1)]);
    faulty(&mut sim, |faults| {
        faults.failing_probes = [target(1)].into();
    });
    sim.run_secs(5);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Unhealthy);
    faulty(&mut sim, |faults| faults.failing_probes.clear());
    sim.run_secs(3);
    assert_eq!(sim.state(&group, target(1)).0, TargetState::Healthy);
}
