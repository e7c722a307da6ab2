//! Members of groups: who is registered, in how many calls, and who is left out.

use super::*;
use crate::cloud::aws::model::RefusedTarget;

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
