//! Members of groups: who is registered, in how many calls, and who is left out.

use std::net::IpAddr;

use onehop_core::crd::TargetState;

use super::*;
use crate::cloud::aws::model::{RefusedTarget, TargetId};
use crate::plan::membership::{Guard, Serving};

#[test]
fn aws430_a_refused_target_is_tried_again_later_and_said_meanwhile() {
    let (mut model, intent) = served(&web(), &READY);
    let mut of_it = std::collections::BTreeMap::new();
    let group = &mut model.seen.groups[0];
    let targets = group.targets.get_or_insert_default();
    let refused = targets.pop_first().map(|(target, _)| target).unwrap();
    let until = NOW + std::time::Duration::from_secs(30);
    of_it.insert(
        refused.clone(),
        RefusedTarget {
            until,
            no_room: false,
            why: "InvalidTarget: not running".to_owned(),
        },
    );
    group.refused = of_it;
    assert!(planned(Some(&intent), &model, NOW).is_empty(), "AWS-430");
    let look = wanted::next_look(&settings(), std::slice::from_ref(&intent), &model.seen, NOW);
    assert!(look.unwrap() <= until, "AWS-430");
    let said = outcome(&settings(), &intent, &model.seen, NOW).notices;
    assert_eq!(said[0].reason, "TargetInvalid");
    assert!(said[0].message.contains(&refused.to_string()), "AWS-430");
    let later = planned(Some(&intent), &model, until).to_string();
    assert!(later.contains("register"), "AWS-430: {later}");
}

#[test]
fn aws610_ai02_register_before_deregister_and_the_old_hold_until_the_new_are_healthy() {
    let (mut model, _) = served(&web(), &READY);
    let flipped = wanted(
        &web(),
        &[
            (1, State::Withdrawn),
            (2, State::Withdrawn),
            (3, State::Withdrawn),
            (4, State::Ready),
            (5, State::Ready),
        ],
    );
    let first = planned(Some(&flipped), &model, NOW);
    let verbs: Vec<_> = first.steps().map(ToString::to_string).collect();
    assert_eq!(verbs.len(), 1, "AI-02: {verbs:?}");
    assert!(verbs[0].starts_with("register "), "AI-02");
    converge(&mut model, Some(&flipped), NOW);
    model.settle();
    let then = planned(Some(&flipped), &model, NOW);
    assert!(
        then.steps()
            .all(|step| matches!(step, AwsStep::Deregister { .. })),
        "AI-02"
    );
    assert_eq!(then.steps().count(), 1);
}

#[test]
fn aws434_a_draining_target_that_comes_back_is_registered_again() {
    let (mut model, intent) = served(&web(), &READY);
    let group = &mut model.seen.groups[0];
    let target = group
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .clone();
    let targets = group.targets.get_or_insert_default();
    targets.insert(
        target.clone(),
        health(HealthState::Draining, "Target.DeregistrationInProgress"),
    );
    let plan = planned(Some(&intent), &model, NOW);
    assert!(
        plan.steps().any(
            |step| matches!(step, AwsStep::Register { targets, .. } if targets[0].0 == target)
        )
    );
    let targets = model.seen.groups[0].targets.get_or_insert_default();
    targets.insert(target, health(HealthState::UnhealthyDraining, ""));
    assert!(
        planned(Some(&intent), &model, NOW).is_empty(),
        "registered and unhealthy"
    );
}

#[test]
fn aws421_aa50_at_most_200_targets_in_one_call() {
    let mut service = web();
    service.ports[0].target = onehop_core::service::TargetPort::Number(8080);
    let mut intent = wanted(&service, &[]);
    let members = intent.members.values_mut().next().unwrap();
    for n in 0..450_u16 {
        let [high, low] = n.to_be_bytes();
        members.pods.list.push(crate::cloud::aws::testkit::member(
            [192, 168, 10 + high, low],
            8080,
            State::Ready,
        ));
    }
    let mut model = empty();
    let plan = planned(Some(&intent), &model, NOW);
    let sizes: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [200, 200, 50], "AA-50");
    converge(&mut model, Some(&intent), NOW);
}

#[test]
fn aws427_one_address_on_two_ports_is_two_targets() {
    let mut service = web();
    service.ports.push(tcp(81, 9090, 30081));
    let (model, _) = served(&service, &READY);
    let targets: Vec<_> = model
        .seen
        .groups
        .iter()
        .flat_map(|g| g.targets.iter().flatten())
        .collect();
    assert_eq!(targets.len(), 6);
}

#[test]
fn aws403_ai_h01_a_node_without_an_instance_is_skipped_alone() {
    let mut service = web();
    service.annotations.clear();
    let mut intent = wanted(&service, &READY);
    let machines = std::sync::Arc::make_mut(&mut intent.machines);
    machines.values_mut().next().unwrap().provider_id = "gce://project/zone/name".to_owned();
    let mut model = empty();
    converge(&mut model, Some(&intent), NOW);
    let ids: Vec<_> = model.seen.groups[0]
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ids, ["i-00000000000000002:30080"], "AWS-403, AI-H01");
}

#[test]
fn aws080_nodes_are_selected_by_their_labels() {
    let mut service = web();
    service.annotations.clear();
    let service = annotated(
        service,
        &[("aws-load-balancer-target-node-labels", "pool=2")],
    );
    let (model, _) = served(&service, &READY);
    let ids: Vec<_> = model.seen.groups[0]
        .targets
        .as_ref()
        .unwrap()
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(ids, ["i-00000000000000002:30080"]);
}

#[test]
fn aws425_an_address_outside_the_vpc_is_registered_for_all_zones() {
    let mut intent = wanted(&web(), &READY);
    let pods = &mut intent.members.values_mut().next().unwrap().pods.list;
    pods[0].key.address = [100, 64, 0, 1].into();
    let plan = planned(Some(&intent), &empty(), NOW);
    let zones: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.clone()),
            _ => None,
        })
        .flatten()
        .map(|(target, zone)| (target.id, zone))
        .collect();
    assert!(zones.contains(&("100.64.0.1".to_owned(), Some("all".to_owned()))));
    assert!(zones.contains(&("192.168.9.2".to_owned(), None)));
}

#[test]
fn aws433_a_cap_means_no_additions_and_never_fewer() {
    let mut capped = settings();
    capped.max_targets = 2;
    let intent = wanted(&web(), &READY);
    let plan = plan(
        &capped,
        &ServiceKey::new("shop", "web"),
        Some(&intent),
        &empty().seen,
        NOW,
    );
    let sizes: Vec<_> = plan
        .steps()
        .filter_map(|step| match step {
            AwsStep::Register { targets, .. } => Some(targets.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [2], "AWS-433");
    let (model, _) = served(&web(), &READY);
    let more = wanted(&web(), &[READY[0], READY[1], READY[2], (4, State::Ready)]);
    let plan = super::plan(
        &capped,
        &ServiceKey::new("shop", "web"),
        Some(&more),
        &model.seen,
        NOW,
    );
    assert!(plan.is_empty(), "AWS-433: {plan}");
}

/// Pods 1 and 2 end while agents stand in for them, 5 and 6 follow; 1 and 5 are in zone a, 2 and 6 in zone b.
fn rolling(service: &ServiceSpec) -> Intent {
    let ends = State::Terminating {
        serving: Serving::Yes,
        since: Some(NOW),
    };
    let pods = [(1, ends), (2, ends), (5, State::Ready), (6, State::Ready)];
    let mut intent = wanted(service, &pods);
    for members in intent.members.values_mut() {
        let zones = [(1, "a"), (2, "b"), (5, "a"), (6, "b")];
        members.pods.zones = zones
            .map(|(n, zone)| (IpAddr::from([192, 168, 9, n]), zone.into()))
            .into();
        for member in &mut members.pods.list {
            member.guard = Guard::Present;
        }
    }
    intent
}

/// Old targets that the plan takes out.
fn leaving(intent: &Intent, model: &Model, now: Time) -> Vec<String> {
    let plan = planned(Some(intent), model, now);
    let out = plan.steps().filter_map(|step| match step {
        AwsStep::Deregister { targets, .. } => Some(targets.iter().map(|(t, ..)| t.id.clone())),
        _ => None,
    });
    out.flatten().collect()
}

#[test]
fn zd_t32_zd29_aws430_old_targets_are_held_until_a_refused_one_was_taken_and_is_healthy() {
    let (mut model, _) = served(&web(), &[(1, State::Ready), (2, State::Ready)]);
    let intent = rolling(&web());
    converge(&mut model, Some(&intent), NOW);
    // The answer to the batch was that one of it was not taken.
    let until = NOW + std::time::Duration::from_secs(30);
    let group = &mut model.seen.groups[0];
    let refused = TargetId {
        id: "192.168.9.6".to_owned(),
        port: 8080,
    };
    let targets = group.targets.get_or_insert_default();
    assert!(targets.remove(&refused).is_some(), "it was asked for");
    let why = RefusedTarget {
        until,
        no_room: false,
        why: "InvalidTarget: not running".to_owned(),
    };
    group.refused = [(refused.clone(), why)].into();
    model.settle();
    let held = |model: &Model, now| {
        let all = crate::cloud::aws::listed::listed(&intent, &model.seen, now);
        let held = all.iter().filter(|l| l.state == TargetState::Held);
        held.map(|l| l.key.address.to_string()).collect::<Vec<_>>()
    };
    let second = "192.168.9.2".to_owned();
    assert!(held(&model, NOW).contains(&second), "ZD-T32, ZD-29");
    assert!(!leaving(&intent, &model, NOW).contains(&second), "ZD-T32");
    // Taken now, and not judged yet.
    converge(&mut model, Some(&intent), until);
    let group = &model.seen.groups[0];
    assert!(
        group
            .targets
            .as_ref()
            .is_some_and(|all| all.contains_key(&refused))
    );
    assert!(held(&model, until).contains(&second), "ZD-T32: initial");
    model.settle();
    assert!(leaving(&intent, &model, until).contains(&second), "ZD-T32");
    assert_eq!(held(&model, until), [] as [String; 0], "ZD-T32");
}

#[test]
fn zd23_zones_stand_alone_unless_load_balancer_nodes_send_to_all_of_them() {
    let half = |service: &ServiceSpec| {
        let (mut model, _) = served(service, &[(1, State::Ready), (2, State::Ready)]);
        let mut intent = rolling(service);
        // One of two would be enough.
        intent.spec.membership.floor_percent = 50;
        converge(&mut model, Some(&intent), NOW);
        let sick = TargetId {
            id: "192.168.9.6".to_owned(),
            port: 8080,
        };
        model.settle();
        let targets = model.seen.groups[0].targets.get_or_insert_default();
        targets.insert(sick, health(HealthState::Initial, ""));
        leaving(&intent, &model, NOW)
    };
    let (first, second) = ("192.168.9.1", "192.168.9.2");
    assert_eq!(half(&web()), [first], "ZD-23");
    for (key, value) in [
        (
            "aws-load-balancer-cross-zone-load-balancing-enabled",
            "true",
        ),
        (
            "aws-load-balancer-attributes",
            "load_balancing.cross_zone.enabled=true",
        ),
    ] {
        let mixed = annotated(web(), &[(key, value)]);
        assert_eq!(half(&mixed), [first, second], "ZD-23: {key}");
    }
}

#[test]
fn zd23_zd102_people_are_told_of_a_zone_that_loses_its_last_target() {
    let (mut model, _) = served(&web(), &[(1, State::Ready), (2, State::Ready)]);
    let mut intent = rolling(&web());
    // Zone b is left for good: the successors are both in zone a.
    for members in intent.members.values_mut() {
        let moved = IpAddr::from([192, 168, 9, 6]);
        members.pods.zones.insert(moved, "a".into());
    }
    converge(&mut model, Some(&intent), NOW);
    model.settle();
    let said = |intent: &Intent| {
        let said = outcome(&settings(), intent, &model.seen, NOW).notices;
        let mut of = said.into_iter().filter(|n| n.reason == "ZoneLosesTargets");
        of.next().map(|notice| notice.message)
    };
    let message = said(&intent).unwrap_or_default();
    assert!(
        message.starts_with("zones that lose their last target: b."),
        "ZD-23: {message}"
    );
    assert_eq!(leaving(&intent, &model, NOW).len(), 2, "ZD-23");
    assert_eq!(
        said(&rolling(&web())),
        None,
        "ZD-23: each zone has another one"
    );
}
