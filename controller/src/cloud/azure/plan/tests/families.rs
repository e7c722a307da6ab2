//! Dual-stack Services (AZ-310 to AZ-315).

use onehop_core::id::IpFamily;

use super::*;

/// Members of the other family beside those that there are.
fn and_six(mut intent: Intent) -> Intent {
    for members in intent.members.values_mut() {
        for list in [&mut members.pods, &mut members.nodes, &mut members.vips] {
            let twin = |member: &Member| {
                let IpAddr::V4(address) = member.key.address else {
                    panic!("only IPv4 is mirrored");
                };
                let mut twin = member.clone();
                twin.key.address = address.to_ipv6_mapped().into();
                twin
            };
            let twins: Vec<Member> = list.list.iter().map(twin).collect();
            list.list.extend(twins);
        }
    }
    intent
}

#[test]
fn az310_az315_each_family_has_a_frontend_and_a_pool_and_comes_and_goes_alone() {
    let with = |families: &[IpFamily]| {
        let service = ServiceSpec {
            families: families.to_vec(),
            ..own(&[80])
        };
        and_six(intent(&service, &[], &[(1, READY), (2, READY)]))
    };
    let (single, dual) = (with(&[IpFamily::V4]), with(&IpFamily::ALL));
    let mut cloud = Cloud::default();
    cloud.settle(Some(&single), NOW);
    assert_eq!(
        cloud.members("demo-azure"),
        ["10.0.0.1", "10.0.0.2"],
        "of its family"
    );
    let before = cloud.documents.clone();
    let done = cloud.settle(Some(&dual), NOW);
    let writes = |what: &str| done.iter().filter(|step| step.starts_with(what)).count();
    assert_eq!(
        (writes("write public IP"), writes("write part")),
        (1, 1),
        "{done:?}"
    );
    assert_eq!(
        cloud.members("demo-azure-IPv6"),
        ["::ffff:10.0.0.1", "::ffff:10.0.0.2"],
        "AZ-310"
    );
    assert_eq!(cloud.members("demo-azure"), ["10.0.0.1", "10.0.0.2"]);
    let balancer = &cloud.documents.balancers[&Kind::External];
    let rules: Vec<&str> = children(balancer, RULES).iter().map(name).collect();
    assert_eq!(rules, ["atest1-TCP-80", "atest1-TCP-80-IPv6"], "ZA-02");
    let counts = outcome::outcome(&settings(), &dual, &cloud.seen(NOW), NOW).ports;
    assert_eq!(counts.values().next().unwrap().registered, 4);
    cloud.settle(Some(&single), NOW);
    let there = &cloud.documents.balancers[&Kind::External];
    for kind in [FRONTENDS, RULES] {
        let old = &before.balancers[&Kind::External];
        assert_eq!(children(there, kind), children(old, kind), "AZ-315");
    }
    assert_eq!(cloud.documents.public_ips, before.public_ips, "AZ-315");
    cloud.settle(None, NOW);
    assert!(cloud.documents.balancers.is_empty() && cloud.documents.public_ips.is_empty());
}

#[test]
fn az315_a_private_address_stays_when_the_other_family_comes() {
    for first in IpFamily::ALL {
        let second = if first == IpFamily::V4 {
            IpFamily::V6
        } else {
            IpFamily::V4
        };
        let with = |families: &[IpFamily]| {
            let service = ServiceSpec {
                families: families.to_vec(),
                ..annotated(
                    own(&[80]),
                    &[
                        ("azure-load-balancer-internal", "true"),
                        ("onehop.dev/target", "node"),
                    ],
                )
            };
            and_six(intent(&service, &[], &[(1, READY)]))
        };
        let mut cloud = Cloud::default();
        // Azure takes an IPv6 frontend only beside an IPv4 one (AZ-188).
        let mut other = with(&[IpFamily::V4]).spec;
        other.service_uid = "other".into();
        let built = build(&settings(), &key(), &other, &cloud.documents).unwrap();
        cloud.carry_out(&AzureStep::PutPart {
            part: Box::new(built.part),
            members: vec![],
            needs: vec![],
        });
        cloud.settle(Some(&with(&[first])), NOW);
        let frontends = |cloud: &Cloud| {
            let balancer = &cloud.documents.balancers[&Kind::Internal];
            children(balancer, FRONTENDS).to_vec()
        };
        let before = frontends(&cloud);
        cloud.settle(Some(&with(&[first, second])), NOW);
        let after = frontends(&cloud);
        assert_eq!(after.len(), before.len() + 1);
        assert!(
            before.iter().all(|old| after.contains(old)),
            "AZ-315: {first}: {after:#?}"
        );
        cloud.settle(Some(&with(&[first])), NOW);
        assert_eq!(frontends(&cloud), before, "AZ-315: {first}");
    }
}
