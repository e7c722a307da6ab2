//! The assertions on logs (FC-103) prove themselves: each finds what it is for and nothing in a good run.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{Sim, lb, target, tcp_group};
use e2e_cloud::assertions::{
    PodSpan, deregistered_first, groups_with, reused_early, without_owner, writes_after,
    zero_healthy,
};
use e2e_cloud::engine::{
    Event, GroupId, LbSpec, ListenerKey, Operation, Profile, Protocol, Tags, TargetSpec,
    TargetState,
};
use onehop_core::time::Time;

const NOTICE: Duration = Duration::from_millis(500);

fn events(sim: &Sim) -> Vec<Arc<Event>> {
    sim.engine.log().after(0).cloned().collect()
}

fn pod(last: u8, ready: Time, until: Option<Time>) -> PodSpan {
    PodSpan {
        address: target(last).ip(),
        zone: None,
        ready,
        until,
    }
}

/// One pod is replaced by another, in the good order or the bad one.
fn replace(register_first: bool) -> (Sim, BTreeSet<GroupId>, Vec<PodSpan>) {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    sim.up.extend([target(1), target(2)]);
    let first = sim.now;
    sim.register(&group, &[target(1)]);
    sim.run_secs(5);
    let second = sim.now;
    sim.run_secs(1);
    let ended = sim.now;
    if register_first {
        sim.register(&group, &[target(2)]);
        sim.run_secs(1);
        sim.deregister(&group, target(1));
    } else {
        sim.deregister(&group, target(1));
        sim.run_secs(1);
        sim.register(&group, &[target(2)]);
    }
    sim.run_secs(20);
    let pods = vec![pod(1, first, Some(ended)), pod(2, second, None)];
    (sim, BTreeSet::from([group]), pods)
}

#[test]
fn fc103_a_time_without_healthy_targets_is_found_and_a_good_replacement_is_not() {
    let (sim, groups, pods) = replace(true);
    let log = events(&sim);
    // FC-103 (1) and (5)
    assert_eq!(zero_healthy(&log, &groups, &pods, sim.now), []);
    assert_eq!(
        deregistered_first(&log, &groups, &pods, NOTICE, sim.now),
        []
    );

    let (sim, groups, pods) = replace(false);
    let log = events(&sim);
    let gaps = zero_healthy(&log, &groups, &pods, sim.now);
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].to.since(gaps[0].from), Duration::from_secs(1));
    assert_eq!(gaps[0].ready, target(2).ip());
    let early = deregistered_first(&log, &groups, &pods, NOTICE, sim.now);
    assert_eq!(early.len(), 1);
    assert_eq!((early[0].0, early[0].1), (target(1), target(2).ip()));
    // Without any pod that was ready all the while, nothing is to complain about: exempt.
    let none = [pods[0].clone()];
    assert_eq!(zero_healthy(&log, &groups, &none, sim.now), []);
    // Nor after the Service was deleted.
    let deleted = gaps[0].from;
    assert_eq!(zero_healthy(&log, &groups, &pods, deleted), []);
    let late = deregistered_first(&log, &groups, &pods, NOTICE, deleted);
    assert_eq!(late, []);
}

#[test]
fn fc103_an_address_that_is_reused_while_its_target_drains_is_found() {
    let (mut sim, groups, _) = replace(true);
    let group = groups.first().unwrap().clone();
    let later = (target(1).ip(), sim.now);
    sim.deregister(&group, target(2));
    let draining = sim.now + Duration::from_secs(9);
    let over = sim.now + Duration::from_secs(11);
    sim.run_secs(20);
    let log = events(&sim);
    let address = target(2).ip();
    // FC-103 (3)
    let found = reused_early(&log, &[later, (address, draining), (address, over)]);
    assert_eq!(found, [(target(2), TargetState::Draining, draining)]);
}

#[test]
fn fc103_writes_at_rest_and_objects_without_an_owner_are_found() {
    let mut sim = Sim::local();
    let (_, group) = sim.balanced_group(tcp_group("web"));
    let rest = sim.engine.log().last();
    sim.engine.list_lbs(sim.now, &Tags::new()).unwrap();
    sim.run_secs(10);
    // FC-103 (6)
    assert_eq!(writes_after(&events(&sim), rest), []);
    sim.register(&group, &[target(1)]);
    let writes = writes_after(&events(&sim), rest);
    assert_eq!(writes, [(Operation::RegisterTargets, group.to_string())]);

    let mut ours = lb("two", &["198.51.100.40"]);
    ours.tags = Tags::from([
        ("install".to_owned(), "us".to_owned()),
        ("service".to_owned(), "shop/two".to_owned()),
    ]);
    let id = sim.engine.create_lb(sim.now, "two", ours).unwrap().id;
    let install = Tags::from([("install".to_owned(), "us".to_owned())]);
    let lost = |sim: &Sim, owners: &[&str]| {
        let owners = owners.iter().map(|name| (*name).to_owned()).collect();
        without_owner(&sim.engine.inventory(), &install, "service", &owners)
    };
    // FC-103 (7): foreign objects are none of our business.
    assert_eq!(lost(&sim, &["shop/two"]), Vec::<String>::new());
    assert_eq!(lost(&sim, &["shop/one"]), [id.to_string()]);
}

#[test]
fn fc103_a_listener_is_judged_by_the_group_that_it_points_at() {
    let mut sim = Sim::local();
    let (lb, old) = sim.balanced_group(tcp_group("old"));
    sim.up.extend([target(1), target(2)]);
    let ready = sim.now;
    sim.register(&old, &[target(1), target(2)]);
    sim.run_secs(5);
    let new = sim.engine.create_group(sim.now, "new", tcp_group("new"));
    let new = new.unwrap().id;
    let listener = ListenerKey {
        port: 80,
        protocol: Protocol::Tcp,
    };
    let groups = BTreeSet::from([old.clone(), new.clone()]);
    // The third came when nothing pointed at the old group any more.
    let pods = [pod(1, ready, None), pod(3, ready, None)];
    // FC-103 (1): the good order. The old group may be emptied once nothing points at it.
    sim.register(&new, &[target(1)]);
    sim.run_secs(3);
    sim.engine
        .put_listener(sim.now, &lb, listener, &new)
        .unwrap();
    sim.deregister(&old, target(1));
    sim.deregister(&old, target(2));
    sim.run_secs(20);
    assert_eq!(zero_healthy(&events(&sim), &groups, &pods, sim.now), []);
    // And nothing is deregistered early: a group is given up as a whole.
    let early = deregistered_first(&events(&sim), &groups, &pods, NOTICE, sim.now);
    assert_eq!(early, []);
    // The bad one: a switch to a group without a healthy target, although the other has some.
    let from = sim.now;
    sim.engine
        .put_listener(sim.now, &lb, listener, &old)
        .unwrap();
    sim.run_secs(2);
    let gaps = zero_healthy(&events(&sim), &groups, &pods, sim.now);
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!((gaps[0].from, gaps[0].to), (from, sim.now));
    assert_eq!(gaps[0].listener, format!("{lb}/80-tcp"));
}

#[test]
fn fc103_with_cross_zone_off_each_zone_is_judged_for_itself() {
    let in_zone = |at: std::net::SocketAddr, zone: &str| TargetSpec {
        target: at,
        zone: Some(zone.to_owned()),
    };
    let run = |cross_zone: bool| {
        let mut sim = Sim::new(Profile::local(), 1, &["a", "b"]);
        let (lb, group) = sim.balanced_group(tcp_group("web"));
        let spec = LbSpec {
            cross_zone,
            ..common::lb("svc", &["198.51.100.7", "198.51.100.8"])
        };
        sim.engine.update_lb(sim.now, &lb, spec).unwrap();
        sim.up.extend([target(1), target(2), target(3)]);
        let ready = sim.now;
        let targets = vec![in_zone(target(1), "a"), in_zone(target(2), "b")];
        sim.engine.register(sim.now, &group, targets).unwrap();
        sim.run_secs(5);
        // Zone b has none for a while, though its pods 2 and 3 are ready all the time.
        let from = sim.now;
        sim.deregister(&group, target(2));
        sim.run_secs(4);
        let to = sim.now;
        let late = vec![in_zone(target(3), "b")];
        sim.engine.register(sim.now, &group, late).unwrap();
        sim.run_secs(5);
        let of = |last, zone: &str| PodSpan {
            zone: Some(zone.to_owned()),
            ..pod(last, ready, None)
        };
        let pods = [of(1, "a"), of(2, "b"), of(3, "b")];
        let groups = BTreeSet::from([group]);
        let gaps = zero_healthy(&events(&sim), &groups, &pods, sim.now);
        // Without a pod that is ready in that zone nothing is to complain about.
        let elsewhere = zero_healthy(&events(&sim), &groups, &pods[..1], sim.now);
        assert_eq!(elsewhere, []);
        (gaps, from, to)
    };
    // FC-103 (1): zone a goes on serving clients of both.
    assert_eq!(run(true).0, []);
    let (gaps, from, to) = run(false);
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].zone.as_deref(), Some("b"), "FC-103 (1)");
    assert_eq!((gaps[0].from, gaps[0].to), (from, to));
}

#[test]
fn fc103_groups_are_known_by_their_tags_when_they_are_gone() {
    let mut sim = Sim::local();
    let tags = |owner: &str| Tags::from([("owner".to_owned(), owner.to_owned())]);
    let spec = |owner: &str| e2e_cloud::engine::GroupSpec {
        tags: tags(owner),
        ..tcp_group(owner)
    };
    let one = sim
        .engine
        .create_group(sim.now, "1", spec("one"))
        .unwrap()
        .id;
    sim.engine.delete_group(sim.now, &one).unwrap();
    let two = sim
        .engine
        .create_group(sim.now, "2", spec("two"))
        .unwrap()
        .id;
    let ids = |owner: &str| {
        let known = groups_with(&events(&sim), &tags(owner));
        known.into_iter().map(|group| group.id).collect::<Vec<_>>()
    };
    assert_eq!(ids("one"), [one]);
    assert_eq!(ids("two"), [two]);
    assert_eq!(ids("three"), []);
}
