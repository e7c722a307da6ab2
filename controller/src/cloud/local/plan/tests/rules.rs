//! Single rules.

use onehop_core::crd::ProviderOption;

use super::super::super::resolve::OPTION_AFFINITY;
use super::model::{Cloud, converged, planned};
use super::*;

#[test]
fn i4_a_plan_for_what_is_already_so_is_empty() {
    for mode in [TargetMode::Node, TargetMode::Vip, TargetMode::Pod] {
        let intent = intent(vec![http(mode)], &[(1, State::Ready), (2, State::NotReady)]);
        let (cloud, now) = converged(&intent);
        assert_eq!(planned(Some(&intent), &cloud, now), "", "I4");
        assert_eq!(
            outcome(&intent, &cloud.seen, now).programmed,
            Programmed::Yes
        );
    }
    let gone = Cloud::default();
    assert_eq!(planned(None, &gone, NOW), "");
}

#[test]
fn c10_nothing_is_programmed_before_every_listener_is_there() {
    let intent = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let mut cloud = Cloud::default();
    let waits = |cloud: &Cloud| {
        matches!(
            outcome(&intent, &cloud.seen, NOW).programmed,
            Programmed::Waiting(_)
        )
    };
    for _ in 0..3 {
        assert!(waits(&cloud), "C-10");
        let plan = plan(&settings(), &service(), Some(&intent), &cloud.seen, NOW);
        for lane in Lane::ALL {
            for group in plan.runnable(lane) {
                group.steps.iter().for_each(|step| cloud.execute(step));
            }
        }
    }
    assert!(!waits(&cloud));
}

#[test]
fn k40_probe_timing_is_edited_in_place_and_another_check_is_another_group() {
    let intent_with = |port: LoadBalancerPort| intent(vec![port], &[(1, State::Ready)]);
    let (cloud, now) = converged(&intent_with(http(TargetMode::Node)));
    let mut slower = http(TargetMode::Node);
    slower.health.as_mut().unwrap().interval_seconds = 5;
    let edited = planned(Some(&intent_with(slower)), &cloud, now);
    assert!(
        edited.contains("update-group") && !edited.contains("create-group"),
        "K-40: {edited}"
    );
    let mut other = http(TargetMode::Node);
    other.health.as_mut().unwrap().port = Some(10356);
    let replaced = planned(Some(&intent_with(other)), &cloud, now);
    assert!(
        replaced.contains("create-group") && !replaced.contains("put-listener"),
        "{replaced}"
    );
}

#[test]
fn s321_affinity_is_switched_on_and_off_in_place() {
    let plain = intent(vec![http(TargetMode::Node)], &[(1, State::Ready)]);
    let mut sticky = plain.clone();
    sticky.spec.options.push(ProviderOption {
        name: OPTION_AFFINITY.to_owned(),
        value: "ClientIP".to_owned(),
        from: "spec.sessionAffinity".to_owned(),
    });
    for (from, to) in [(&plain, &sticky), (&sticky, &plain)] {
        let (cloud, now) = converged(from);
        assert_eq!(planned(Some(from), &cloud, now), "", "S-321");
        let edited = planned(Some(to), &cloud, now);
        assert!(
            edited.contains("update-group") && !edited.contains("create-group"),
            "S-321: {edited}"
        );
    }
}

#[test]
fn what_another_uid_has_left_goes() {
    let old = intent(vec![http(TargetMode::Pod)], &[(1, State::Ready)]);
    let (mut cloud, mut now) = converged(&old);
    let mut new = old.clone();
    new.uid = "u2".into();
    cloud.converge(Some(&new), &mut now);
    assert!(cloud.seen.balancers.iter().all(|b| b.uid == new.uid));
    assert!(cloud.seen.groups.iter().all(|g| g.uid == new.uid));
    assert_eq!(planned(Some(&new), &cloud, now), "");
}

#[test]
fn targets_are_registered_in_the_zone_of_their_node_and_follow_its_label() {
    let in_zone = |zone: Option<&str>| {
        let mut intent = intent(
            vec![http(TargetMode::Pod)],
            &[(1, State::Ready), (2, State::Ready)],
        );
        let members = intent.members.values_mut().next().unwrap();
        let zone = zone.map(|zone| (IpAddr::from([10, 244, 1, 1]), zone.into()));
        members.pods.zones = zone.into_iter().collect();
        intent
    };
    let (first, again) = (in_zone(Some("zone-a")), in_zone(Some("zone-b")));
    let plan = planned(Some(&first), &Cloud::default(), NOW);
    assert!(
        plan.contains(" 10.244.1.1:8080@zone-a 10.244.1.2:8080\n"),
        "{plan}"
    );
    let (cloud, now) = converged(&first);
    assert_eq!(planned(Some(&first), &cloud, now), "", "I4");
    // A label that comes late or changes is told, and nothing but the label.
    let moved = planned(Some(&again), &cloud, now);
    let others = ["10.244.1.2", "deregister", "put-listener", "create"];
    assert!(
        moved.contains("10.244.1.1:8080@zone-b") && others.iter().all(|word| !moved.contains(word)),
        "{moved}"
    );
    // A node that does not say its zone any more is where it was.
    assert_eq!(planned(Some(&in_zone(None)), &cloud, now), "");
}
