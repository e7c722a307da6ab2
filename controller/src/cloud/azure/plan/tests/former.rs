//! Former addresses of Services that were given another one (AZ-113).

use super::*;

#[test]
fn za116_zi29_az113_after_a_flip_the_former_side_serves_on_until_the_grace_is_over() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let flipped = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    let internal = intent(&flipped, &[], &[(1, READY)]);
    let at = NOW + Duration::from_hours(1);
    let done = cloud.settle(Some(&internal), at);
    assert_eq!(
        done,
        [
            "write part atest1 of Internal with 1 members",
            "write security rules with atest1",
            "write public IP kubernetes-atest1",
        ],
        "AZ-040: nothing goes yet"
    );
    give_private(&mut cloud);
    let end = at + Duration::from_mins(15);
    let said =
        |cloud: &mut Cloud, now| outcome::outcome(&settings(), &internal, &cloud.seen(now), now);
    let outcome = said(&mut cloud, at);
    let addresses: Vec<String> = outcome.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(
        addresses,
        ["10.0.4.4", "20.0.0.1"],
        "AZ-113: the new one first"
    );
    let notice = &outcome.notices[0];
    assert!(
        notice.reason == "FormerAddressServes" && notice.message.contains(&end.to_string()),
        "{notice:?}"
    );
    let demands =
        super::super::super::demands::demands(&settings(), &roster(&internal), &cloud.documents);
    assert_eq!(demands.len(), 1, "the public side still needs its rule");
    // Nodes come and go on both sides meanwhile.
    let more = intent(&flipped, &[], &[(1, READY), (2, READY)]);
    let done = cloud.settle(Some(&more), at + Duration::from_mins(5));
    assert_eq!(
        done,
        [
            "pool demo-azure of External: 1 up, 0 down, 0 out",
            "pool demo-azure of Internal: 1 up, 0 down, 0 out",
        ],
        "AZ-113"
    );
    assert_eq!(
        cloud.settle(Some(&more), end - Duration::from_secs(1)),
        [""; 0]
    );
    assert_eq!(
        said(&mut cloud, end).addresses.len(),
        1,
        "unpublished before it goes"
    );
    let done = cloud.settle(Some(&more), end);
    assert_eq!(
        done,
        [
            "remove part atest1 of External",
            "delete public IP kubernetes-atest1"
        ],
        "ZI-29, ZA-43"
    );
    let kinds: Vec<Kind> = cloud.documents.balancers.keys().copied().collect();
    assert_eq!(kinds, [Kind::Internal]);
}

#[test]
fn az113_az111_a_restart_does_not_begin_the_grace_anew_and_its_end_is_said_no_longer_than_it_lasts()
{
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let flipped = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    let internal = intent(&flipped, &[], &[(1, READY)]);
    for (first, then) in [(&public, &internal), (&internal, &public)] {
        let mut cloud = Cloud::default();
        cloud.settle(Some(first), NOW);
        let at = NOW + Duration::from_hours(1);
        cloud.settle(Some(then), at);
        give_private(&mut cloud);
        let end = at + Duration::from_mins(15);
        // Another process: it knows no times.
        cloud.times = Times::default();
        let restarted = at + Duration::from_mins(10);
        assert_eq!(cloud.settle(Some(then), restarted), [""; 0], "AZ-105");
        assert_eq!(cloud.documents.balancers.len(), 2);
        assert_eq!(
            cloud.settle(Some(then), end - Duration::from_secs(1)),
            [""; 0]
        );
        let done = cloud.settle(Some(then), end);
        assert!(
            done[0].starts_with("remove part atest1"),
            "AZ-113: {done:?}"
        );
        assert_eq!(cloud.documents.balancers.len(), 1);
        let tags: Vec<bool> = cloud
            .documents
            .public_ips
            .iter()
            .map(|pip| {
                pip["tags"]
                    .get(super::super::super::names::TAG_FORMER)
                    .is_some()
            })
            .collect();
        assert!(!tags.contains(&true), "it is over: {tags:?}");
        // The next flip has a grace of its own.
        let back = end + Duration::from_hours(1);
        cloud.settle(Some(first), back);
        give_private(&mut cloud);
        cloud.settle(Some(first), back + Duration::from_mins(14));
        assert_eq!(cloud.documents.balancers.len(), 2, "AZ-113");
    }
}

#[test]
fn az113_a_service_that_goes_has_no_grace() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let flipped = annotated(own(&[80]), &[("azure-load-balancer-internal", "true")]);
    cloud.settle(Some(&intent(&flipped, &[], &[(1, READY)])), NOW);
    assert_eq!(cloud.documents.balancers.len(), 2);
    cloud.settle(None, NOW);
    assert!(cloud.documents.balancers.is_empty() && cloud.documents.public_ips.is_empty());
}
