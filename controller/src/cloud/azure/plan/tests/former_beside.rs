//! Former addresses of Services that were given another one on the same load balancer (AZ-113).

use onehop_core::id::IpFamily;

use super::super::super::document::children_mut;
use super::super::super::names::{self, TAG_FORMER};
use super::super::super::testkit::service;
use super::*;

const GRACE: Duration = Duration::from_mins(15);

/// Public IPs of a user.
fn given() -> Cloud {
    let pip = |(n, name): (usize, &str)| {
        let id = settings().place.public_ip_id(None, name);
        let address = format!("20.0.0.{}", n + 1);
        json!({"id": id, "name": name, "properties": {"ipAddress": address}})
    };
    let mut cloud = Cloud::default();
    let all = ["one", "two", "three"].into_iter().enumerate();
    cloud.documents.public_ips = all.map(pip).collect();
    cloud
}

fn with(mode: &str, key: &str, value: &str) -> Intent {
    let target = ("onehop.dev/target", mode);
    let service = annotated(own(&[80]), &[target, (key, value)]);
    intent(
        &service,
        &[(1, READY), (2, READY)],
        &[(1, READY), (2, READY)],
    )
}

fn at_pip(mode: &str, name: &str) -> Intent {
    with(mode, "azure-pip-name", name)
}

fn inside(subnet: &str) -> Intent {
    let keys = [
        ("azure-load-balancer-internal", "true"),
        ("azure-load-balancer-internal-subnet", subnet),
    ];
    intent(&annotated(own(&[80]), &keys), &[], &[(1, READY)])
}

/// Rules with the frontends and pools that they are on.
fn rules(cloud: &Cloud) -> Vec<String> {
    let balancers = cloud.documents.balancers.values();
    let rules = balancers.flat_map(|balancer| children(balancer, RULES));
    let mut all: Vec<String> = rules
        .map(|rule| {
            let on = |key| referred(rule, key).unwrap_or_default();
            let (front, pool) = (on("frontendIPConfiguration"), on("backendAddressPool"));
            format!("{} {front} {pool}", name(rule))
        })
        .collect();
    all.sort();
    all
}

fn frontends(cloud: &Cloud) -> Vec<String> {
    let balancers = cloud.documents.balancers.values();
    let all = balancers.flat_map(|balancer| children(balancer, FRONTENDS));
    all.map(|it| name(it).to_owned()).collect()
}

fn was(frontend: &str) -> String {
    format!("atest1-_was-{}-TCP-80", names::mark(frontend))
}

fn told(cloud: &mut Cloud, intent: &Intent, now: Time) -> (Vec<String>, Vec<String>) {
    let outcome = outcome::outcome(&settings(), intent, &cloud.seen(now), now);
    assert_eq!(outcome.programmed, Programmed::Yes);
    let addresses = outcome.addresses.iter().map(ToString::to_string).collect();
    let notices = outcome.notices.into_iter();
    let said = |it: crate::plan::Notice| format!("{}: {}", it.reason, it.message);
    (addresses, notices.map(said).collect())
}

#[test]
fn az113_another_public_ip_serves_beside_the_former_one_until_the_grace_is_over() {
    let (one, two) = (at_pip("vip", "one"), at_pip("vip", "two"));
    let mut cloud = given();
    cloud.settle(Some(&one), NOW);
    assert_eq!(
        told(&mut cloud, &one, NOW),
        (vec!["20.0.0.1".to_owned()], vec![])
    );
    let at = NOW + Duration::from_hours(1);
    let done = cloud.settle(Some(&two), at);
    assert_eq!(
        done,
        [
            "write part atest1 of External with 0 members",
            "write security rules with atest1"
        ],
        "AZ-102: in one write"
    );
    let both = [
        "atest1-TCP-80 atest1-2 demo-azure".to_owned(),
        format!("{} atest1 demo-azure", was("atest1")),
    ];
    assert_eq!(rules(&cloud), both, "AZ-113");
    let end = at + GRACE;
    let (addresses, notices) = told(&mut cloud, &two, at);
    assert_eq!(
        addresses,
        ["20.0.0.2", "20.0.0.1"],
        "AZ-113: the new one first"
    );
    let notice = format!(
        "FormerAddressServes: 20.0.0.1 serves on until {end}, and stays in status until then"
    );
    assert_eq!(notices, [notice]);
    let demands =
        super::super::super::demands::demands(&settings(), &roster(&two), &cloud.documents);
    let to: Vec<usize> = demands.iter().map(|it| it.destinations.len()).collect();
    assert_eq!(to, [1, 1], "the security group lets in to both");
    assert_eq!(
        cloud.settle(Some(&two), end - Duration::from_secs(1)),
        [""; 0],
        "AZ-104"
    );
    let done = cloud.settle(Some(&two), end);
    assert_eq!(done[0], "write part atest1 of External with 0 members");
    assert_eq!(rules(&cloud), ["atest1-TCP-80 atest1-2 demo-azure"]);
    assert_eq!(frontends(&cloud), ["atest1-2"]);
    assert_eq!(
        told(&mut cloud, &two, end),
        (vec!["20.0.0.2".to_owned()], vec![])
    );
    // It is a user's: it stays as it was.
    assert_eq!(cloud.documents.public_ips.len(), 3, "AZ-180");
}

#[test]
fn az113_there_and_back_within_a_grace_and_a_second_change_begin_it_anew() {
    let of = |name| at_pip("vip", name);
    let minutes = |n| NOW + Duration::from_mins(n);
    let mut cloud = given();
    cloud.settle(Some(&of("one")), NOW);
    cloud.settle(Some(&of("two")), minutes(60));
    cloud.settle(Some(&of("one")), minutes(65));
    let back = [
        "atest1-TCP-80 atest1 demo-azure".to_owned(),
        format!("{} atest1-2 demo-azure", was("atest1-2")),
    ];
    assert_eq!(rules(&cloud), back);
    assert_eq!(
        cloud.settle(Some(&of("one")), minutes(79)),
        [""; 0],
        "AZ-113"
    );
    // A third one, while the second still serves.
    cloud.settle(Some(&of("three")), minutes(79));
    let (addresses, _) = told(&mut cloud, &of("three"), minutes(79));
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    assert_eq!(addresses[0], "20.0.0.3");
    assert_eq!(
        cloud.settle(Some(&of("three")), minutes(93)),
        [""; 0],
        "late, never early"
    );
    cloud.settle(Some(&of("three")), minutes(94));
    assert_eq!(rules(&cloud), ["atest1-TCP-80 atest1-3 demo-azure"]);
    assert_eq!(frontends(&cloud), ["atest1-3"]);
}

#[test]
fn az113_az262_with_floating_ip_off_the_former_frontend_has_a_pool_of_its_own_with_the_same_members()
 {
    for (mode, pool) in [("pod", "atest1-pods-1"), ("node", "demo-azure")] {
        let (one, two) = (at_pip(mode, "one"), at_pip(mode, "two"));
        let mut cloud = given();
        cloud.settle(Some(&one), NOW);
        let at = NOW + Duration::from_hours(1);
        let done = cloud.settle(Some(&two), at);
        let own = names::former_pool("atest1", pool, "atest1", IpFamily::V4);
        let filled = format!("pool {own} of External: 2 up, 0 down, 0 out");
        assert_eq!(done[0], filled, "AZ-253: filled before a rule is on it");
        let written = "write part atest1 of External with 0 members".to_owned();
        assert!(done.contains(&written), "{done:?}");
        assert_eq!(cloud.members(&own), cloud.members(pool), "AZ-262");
        let there = [
            format!("atest1-TCP-80 atest1-2 {pool}"),
            format!("{} atest1 {own}", was("atest1")),
        ];
        assert_eq!(rules(&cloud), there);
        // Members follow in both.
        let mut more = two.clone();
        let third = if mode == "pod" {
            member([10, 1, 0, 3], 8080, READY)
        } else {
            member([10, 0, 0, 3], 30080, READY)
        };
        for port in more.members.values_mut() {
            let list = if mode == "pod" {
                &mut port.pods
            } else {
                &mut port.nodes
            };
            let port = list.list[0].key.port;
            list.list.push(Member {
                key: TargetKey { port, ..third.key },
                ..third.clone()
            });
        }
        let done = cloud.settle(Some(&more), at + Duration::from_mins(1));
        assert_eq!(done.len(), 2, "{done:?}");
        assert_eq!(cloud.members(&own), cloud.members(pool), "AZ-113: {mode}");
        assert_eq!(cloud.members(&own).len(), 3);
        let outcome = outcome::outcome(&settings(), &more, &cloud.seen(at), at);
        assert_eq!(
            outcome.addresses.len(),
            1,
            "nodes need it in status for floating IP only"
        );
        cloud.settle(Some(&more), at + GRACE);
        assert_eq!(rules(&cloud), [format!("atest1-TCP-80 atest1-2 {pool}")]);
        let done = cloud.settle(Some(&more), at + GRACE + settings().switch_tail);
        assert_eq!(
            done,
            [format!("drop pool {own} of External")],
            "its flows had their time"
        );
    }
}

#[test]
fn az044_az113_az111_a_public_ip_of_ours_is_kept_to_the_end_that_its_tag_says_over_restarts() {
    let prefix = |name: &str| {
        let id = format!(
            "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/publicIPPrefixes/{name}"
        );
        with("vip", "azure-pip-prefix-id", &id)
    };
    let mut cloud = Cloud::default();
    cloud.settle(Some(&prefix("a")), NOW);
    let at = NOW + Duration::from_hours(1);
    let done = cloud.settle(Some(&prefix("b")), at);
    assert_eq!(done[0], "write public IP kubernetes-atest1-b", "AZ-044");
    assert!(done.iter().all(|it| !it.starts_with("delete")), "{done:?}");
    let tagged = |cloud: &Cloud| {
        let all = cloud.documents.public_ips.iter();
        all.filter(|pip| pip["tags"].get(TAG_FORMER).is_some())
            .count()
    };
    assert_eq!(tagged(&cloud), 2);
    // Another process: it knows no times.
    cloud.times = Times::default();
    let end = at + GRACE;
    assert_eq!(
        cloud.settle(Some(&prefix("b")), at + Duration::from_mins(10)),
        [""; 0],
        "AZ-105"
    );
    assert_eq!(
        cloud.settle(Some(&prefix("b")), end - Duration::from_secs(1)),
        [""; 0]
    );
    // A change back just before: what was said is of another one.
    let back = end - Duration::from_secs(1);
    cloud.settle(Some(&prefix("a")), back);
    cloud.times = Times::default();
    assert_eq!(
        cloud.settle(Some(&prefix("a")), back + Duration::from_mins(14)),
        [""; 0],
        "AZ-113"
    );
    let done = cloud.settle(Some(&prefix("a")), back + GRACE);
    assert!(
        done.contains(&"delete public IP kubernetes-atest1-b".to_owned()),
        "{done:?}"
    );
    assert_eq!(
        (frontends(&cloud).as_slice(), tagged(&cloud)),
        (&["atest1".to_owned()][..], 0)
    );
}

#[test]
fn az041_az113_another_subnet_gets_a_frontend_beside_the_former_one() {
    let mut cloud = Cloud::default();
    cloud.settle(Some(&inside("a")), NOW);
    give_private(&mut cloud);
    let at = NOW + Duration::from_hours(1);
    cloud.settle(Some(&inside("b")), at);
    let balancer = cloud.documents.balancers.get_mut(&Kind::Internal).unwrap();
    children_mut(balancer, FRONTENDS)[1]["properties"]["privateIPAddress"] = json!("10.0.5.5");
    let both = [
        format!("{} atest1-a demo-azure", was("atest1-a")),
        "atest1-b-TCP-80 atest1-b demo-azure".to_owned(),
    ];
    assert_eq!(rules(&cloud), both);
    assert_eq!(
        told(&mut cloud, &inside("b"), at).0,
        ["10.0.5.5", "10.0.4.4"]
    );
    cloud.settle(Some(&inside("b")), at + GRACE);
    assert_eq!(rules(&cloud), ["atest1-b-TCP-80 atest1-b demo-azure"]);
    assert_eq!(frontends(&cloud), ["atest1-b"]);
}

#[test]
fn az113_a_flip_within_the_grace_takes_both_addresses_along() {
    let mut cloud = given();
    cloud.settle(Some(&at_pip("pod", "one")), NOW);
    cloud.settle(Some(&at_pip("pod", "two")), NOW);
    let keys = [
        ("onehop.dev/target", "pod"),
        ("azure-load-balancer-internal", "true"),
    ];
    let flipped = annotated(own(&[80]), &keys);
    let pods = intent(&flipped, &[(1, READY), (2, READY)], &[]);
    let at = NOW + Duration::from_mins(5);
    cloud.settle(Some(&pods), at);
    assert_eq!(rules(&cloud).len(), 3);
    let more = intent(&flipped, &[(1, READY), (2, READY), (3, READY)], &[]);
    let done = cloud.settle(Some(&more), at + Duration::from_mins(1));
    assert_eq!(done.len(), 3, "the members of all three pools: {done:?}");
    cloud.settle(Some(&more), at + GRACE);
    let kinds: Vec<Kind> = cloud.documents.balancers.keys().copied().collect();
    assert_eq!(kinds, [Kind::Internal]);
}

#[test]
fn az113_a_service_that_goes_within_a_grace_leaves_nothing() {
    for mode in ["vip", "node", "pod"] {
        let mut cloud = given();
        cloud.settle(Some(&at_pip(mode, "one")), NOW);
        cloud.settle(Some(&at_pip(mode, "two")), NOW);
        assert_eq!(frontends(&cloud).len(), 2);
        cloud.settle(None, NOW);
        assert!(cloud.documents.balancers.is_empty(), "AZ-113: {mode}");
    }
}

#[test]
fn az113_az085_a_frontend_of_the_peers_class_keeps_its_name_and_is_told_to_change() {
    let of = |name: &str| {
        let given = annotated(service(&[80]), &[("azure-pip-name", name)]);
        intent(&given, &[], &[(1, READY)])
    };
    let mut cloud = given();
    cloud.settle(Some(&of("one")), NOW);
    let outcome = outcome::outcome(&settings(), &of("two"), &cloud.seen(NOW), NOW);
    assert_eq!(outcome.notices[0].reason, "FormerAddressGoes");
    cloud.settle(Some(&of("two")), NOW);
    assert_eq!(frontends(&cloud), ["atest1"], "AZ-085");
    assert_eq!(rules(&cloud).len(), 1);
}

#[test]
fn az113_where_old_and_new_cannot_stand_side_by_side_it_is_told() {
    let pinned = |subnet: &str| {
        let keys = [
            ("azure-load-balancer-internal", "true"),
            ("azure-load-balancer-internal-subnet", subnet),
            ("azure-load-balancer-ipv4", "10.0.4.4"),
        ];
        intent(&annotated(own(&[80]), &keys), &[], &[(1, READY)])
    };
    let mut cloud = Cloud::default();
    cloud.settle(Some(&pinned("a")), NOW);
    assert_eq!(told(&mut cloud, &pinned("a"), NOW).1, [""; 0]);
    // The same static address: one frontend only can have it.
    let told = |cloud: &mut Cloud| -> Vec<String> {
        let outcome = outcome::outcome(&settings(), &pinned("b"), &cloud.seen(NOW), NOW);
        let said = outcome.notices.into_iter();
        said.map(|it| format!("{}: {}", it.reason, it.message))
            .collect()
    };
    let said = told(&mut cloud);
    assert!(
        said.len() == 1 && said[0].starts_with("FormerAddressGoes: 10.0.4.4 "),
        "{said:?}"
    );
    cloud.settle(Some(&pinned("b")), NOW);
    assert_eq!(told(&mut cloud), [""; 0], "once it is gone");
    assert_eq!(frontends(&cloud).len(), 1);
}
