//! Rows of the specification about what exists, what is foreign and what may be a member.

use super::super::super::document::PROBES;
use super::super::super::public_ip;
use super::super::super::testkit::foreign;
use super::*;

#[test]
fn az007_a_service_exists_as_long_as_either_half_of_it_does() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let whole = cloud.documents.clone();
    let exists = |cloud: &mut Cloud| is_left(&settings(), &cloud.seen(NOW), "atest1");
    // The load balancer is gone already.
    cloud.documents.balancers.clear();
    assert!(exists(&mut cloud), "AZ-007: the public IP");
    cloud.settle(None, NOW);
    assert_eq!(cloud.documents, Documents::default(), "ZI-25");
    // The public IP is.
    cloud.documents = whole;
    cloud.documents.public_ips.clear();
    assert!(exists(&mut cloud), "AZ-007: its part of the load balancer");
    cloud.settle(None, NOW);
    assert!(!exists(&mut cloud));
    assert_eq!(cloud.documents, Documents::default());
}

#[test]
fn az251_az252_pods_outside_of_the_ranges_that_are_said_to_be_reachable_are_no_members() {
    let pods = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let mut mixed = intent(&pods, &[(1, READY)], &[]);
    for port in mixed.members.values_mut() {
        let at = port.pods.list[0].key.port;
        // In the network, where delegated subnets are, and in an overlay.
        port.pods.list.push(member([10, 2, 0, 1], at, READY));
        port.pods.list.push(member([172, 16, 0, 1], at, READY));
    }
    let mut cloud = Cloud::default();
    cloud.settle(Some(&mixed), NOW);
    assert_eq!(cloud.members("atest1-pods-1"), ["10.1.0.1"], "AZ-251");
}

#[test]
fn az270_readiness_changes_no_membership_and_existence_does() {
    let pods = annotated(own(&[80]), &[("onehop.dev/target", "pod")]);
    let of = |second| intent(&pods, &[(1, READY), (2, second)], &[]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&of(READY)), NOW);
    let later = NOW + Duration::from_mins(1);
    assert_eq!(
        cloud.settle(Some(&of(State::NotReady)), later),
        [""; 0],
        "ZA-85: its probe falls"
    );
    assert_eq!(cloud.members("atest1-pods-1").len(), 2);
    cloud.settle(Some(&of(State::Gone)), later);
    assert_eq!(cloud.members("atest1-pods-1"), ["10.1.0.1"], "AZ-270");
}

#[test]
fn az350_what_a_service_gateway_has_is_foreign() {
    let mut cloud = Cloud::default();
    let mut gateway = foreign();
    gateway["sku"]["name"] = json!("Service");
    let id = settings().place.public_ip_id(None, "uid-pip");
    let pip = json!({"id": id, "name": "uid-pip", "sku": {"name": "StandardV2"}, "properties": {"ipAddress": "20.0.0.9"}});
    cloud.documents.balancers.insert(Kind::External, gateway);
    cloud.documents.public_ips.push(pip.clone());
    let before = cloud.documents.clone();
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    assert_eq!(cloud.settle(Some(&public), NOW), [""; 0], "AZ-350");
    assert_eq!(cloud.settle(None, NOW), [""; 0]);
    assert_eq!(cloud.documents, before);
    let outcome = outcome::outcome(&settings(), &public, &cloud.seen(NOW), NOW);
    assert!(
        outcome
            .notices
            .iter()
            .any(|it| it.reason == "LoadBalancerForeign")
    );
    let release = public_ip::release(&settings(), &pip, &key());
    assert_eq!(release, public_ip::Release::Nothing);
}

#[test]
fn az401_az403_read_only_fields_go_back_as_they_came_and_are_never_made_up() {
    const READ_ONLY: [&str; 5] = ["etag", "id", "type", "provisioningState", "resourceGuid"];
    let public = intent(&own(&[80, 443]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    cloud.settle(Some(&public), NOW);
    let balancer = cloud.documents.balancers.get_mut(&Kind::External).unwrap();
    for list in [FRONTENDS, POOLS, PROBES, RULES] {
        for child in super::super::super::document::children_mut(balancer, list) {
            let made = READ_ONLY
                .iter()
                .any(|key| child.get(key).is_some() || child["properties"].get(key).is_some());
            assert!(!made, "AZ-401: made up in {child}");
            // As Azure sends it back.
            let said = json!({"etag": "W/\"1\"", "type": "x", "properties": {"provisioningState": "Succeeded", "loadBalancingRules": [{"id": "/r"}]}});
            lay_over(child, &said);
        }
    }
    let sent_back = |balancer: &Value| -> Vec<String> {
        let all = [FRONTENDS, POOLS, PROBES].iter();
        let all = all.flat_map(|list| children(balancer, list));
        all.map(|it| {
            format!(
                "{} {} {}",
                it["etag"], it["type"], it["properties"]["loadBalancingRules"]
            )
        })
        .collect()
    };
    let before = sent_back(balancer);
    // A rule is edited in place.
    let affine = annotated(
        own(&[80, 443]),
        &[("azure-load-balancer-tcp-idle-timeout", "9")],
    );
    cloud.settle(Some(&intent(&affine, &[], &[(1, READY)])), NOW);
    let balancer = &cloud.documents.balancers[&Kind::External];
    assert_eq!(sent_back(balancer), before, "AZ-401: unchanged");
    for rule in children(balancer, RULES) {
        assert_eq!(rule["properties"]["idleTimeoutInMinutes"], 9);
        assert_eq!(
            (&rule["etag"], &rule["type"]),
            (&json!("W/\"1\""), &json!("x")),
            "AZ-403"
        );
    }
    // A look into a document borrows from it.
    let place = std::ptr::from_ref(text(balancer, &["location"]).unwrap());
    let there = std::ptr::from_ref(balancer["location"].as_str().unwrap());
    assert!(std::ptr::addr_eq(place, there), "AZ-403");
}

/// AZ-474: what users can be told is on the page of the provider.
#[test]
fn az474_az473_every_reason_in_the_code_is_documented() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../docs/azure.md")).unwrap();
    let mut folders = vec![root.join("src/cloud/azure")];
    let mut reasons = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("tests") {
                    folders.push(path);
                }
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap().to_owned();
            for start in [
                "reason: \"",
                "refusal(\"",
                "notice(\"",
                "refusal(\n        \"",
            ] {
                let found = code.split(start).skip(1);
                reasons.extend(found.map(|rest| rest.split('"').next().unwrap().to_owned()));
            }
        }
    }
    assert!(reasons.len() > 10, "AZ-474: {reasons:?}");
    for known in [
        "ConflictConfiguration",
        "InvalidAllowedIPRanges",
        "InvalidSourceRanges",
    ] {
        assert!(page.contains(&format!("`{known}`")), "AZ-473: {known}");
    }
    let untold = reasons
        .iter()
        .filter(|it| !page.contains(&format!("`{it}`")));
    assert_eq!(untold.collect::<Vec<_>>(), [""; 0], "AZ-474");
}

/// AZ-473: words of steps are those that users of cloud-provider-azure look for.
#[test]
fn az473_events_of_steps_have_the_reasons_of_the_peer() {
    let public = intent(&own(&[80]), &[], &[(1, READY)]);
    let mut cloud = Cloud::default();
    let mut said = BTreeSet::new();
    let more = intent(&own(&[80]), &[], &[(1, READY), (2, READY)]);
    for wanted in [Some(&public), Some(&more), None] {
        for _ in 0..4 {
            for step in cloud.plan(wanted, NOW) {
                said.extend(step.event().map(|(reason, _)| reason));
                cloud.carry_out(&step);
            }
        }
    }
    let expected = [
        "CreateOrUpdatePublicIPAddress",
        "DeletePublicIPAddress",
        "LoadBalancerBackendPoolUpdated",
        "UpdatedLoadBalancer",
    ];
    assert_eq!(said, expected.into(), "AZ-473");
}
