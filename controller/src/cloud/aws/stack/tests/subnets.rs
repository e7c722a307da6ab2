//! Subnets, families and addresses.

use super::*;

#[test]
fn aa17_aa19_ipv6_needs_a_dualstack_load_balancer() {
    let mut six = tls_service();
    six.families = vec![IpFamily::V6];
    assert!(
        refused(&settings(), &six, &one()).contains("dualstack"),
        "AA-17, AWS-222"
    );
    let mut preferred = tls_service();
    preferred.families = vec![IpFamily::V4, IpFamily::V6];
    assert_eq!(
        built(&settings(), &preferred).listeners[0].1.ip_type,
        IpType::Ipv4,
        "AWS-222"
    );
    let range = annotated(
        tls_service(),
        &[("load-balancer-source-ranges", "2001:db8::/32")],
    );
    assert!(
        refused(&settings(), &range, &one()).contains("2001:db8::/32"),
        "AA-19, AWS-061"
    );
}

#[test]
fn aa44_addresses_that_do_not_fit_are_four_errors() {
    let eips = ("aws-load-balancer-eip-allocations", "eipalloc-1");
    let internal = annotated(tls_service(), &[eips]);
    assert!(
        refused(&settings(), &internal, &one()).contains("internet-facing"),
        "AA-44, AWS-046"
    );
    let scheme = ("aws-load-balancer-scheme", "internet-facing");
    let two = ("aws-load-balancer-eip-allocations", "eipalloc-1,eipalloc-2");
    let counts = annotated(tls_service(), &[scheme, two]);
    assert!(
        refused(&settings(), &counts, &one()).contains("2 entries for 1 subnets"),
        "AA-44"
    );
    let outside = annotated(
        tls_service(),
        &[("aws-load-balancer-private-ipv4-addresses", "10.0.0.1")],
    );
    assert!(
        refused(&settings(), &outside, &one()).contains("in none of the subnets"),
        "AA-44, AWS-047"
    );
    let inside = annotated(
        tls_service(),
        &[("aws-load-balancer-private-ipv4-addresses", "192.168.0.9")],
    );
    let mapping = &built(&settings(), &inside).balancer.subnets[0];
    assert_eq!(
        mapping.private_ipv4.as_deref(),
        Some("192.168.0.9"),
        "AWS-220"
    );
}

#[test]
fn aws200_aws201_aws202_aws203_subnets_are_discovered_and_refused_with_reasons() {
    let mut net = three();
    let tags = |net: &mut Network, id: &str, pairs: &[(&str, &str)]| {
        let subnet = net.subnets.get_mut(id).unwrap();
        subnet.tags = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
    };
    let role = ("kubernetes.io/role/internal-elb", "");
    tags(
        &mut net,
        "subnet-1",
        &[role, ("kubernetes.io/cluster/other", "owned")],
    );
    tags(&mut net, "subnet-2", &[role]);
    net.subnets.get_mut("subnet-2").unwrap().free = 7;
    tags(&mut net, "subnet-3", &[]);
    let text = refused(&settings(), &tls_service(), &net);
    for part in [
        "subnet-1: tagged for cluster other",
        "subnet-2: 7 free",
        "subnet-3: no tag",
    ] {
        assert!(text.contains(part), "AWS-203, AI-50: {text}");
    }
    // Two in one zone: our cluster's own comes first, then the lowest id (AWS-202).
    net.subnets.get_mut("subnet-2").unwrap().free = 100;
    tags(
        &mut net,
        "subnet-3",
        &[role, ("kubernetes.io/cluster/my-cluster", "shared")],
    );
    net.subnets.get_mut("subnet-3").unwrap().zone = "zone-2".to_owned();
    let stack = stack_of(&settings(), &tls_service(), &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-3"], "AWS-202, AWS-208: one zone is enough");
}

#[test]
fn ai51_dualstack_takes_only_subnets_with_ipv6() {
    let mut net = three();
    net.subnets
        .get_mut("subnet-2")
        .unwrap()
        .ipv6
        .push("2001:db8::/64".parse().unwrap());
    let service = annotated(
        tls_service(),
        &[("aws-load-balancer-ip-address-type", "dualstack")],
    );
    let stack = stack_of(&settings(), &service, &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-2"], "AI-51, AWS-201");
}

#[test]
fn aws045_aws204_named_subnets_in_their_order_and_a_live_one_keeps_its_own() {
    let mut net = three();
    net.subnets
        .get_mut("subnet-2")
        .unwrap()
        .tags
        .insert("Name".to_owned(), "blue".to_owned());
    let named = annotated(
        tls_service(),
        &[("aws-load-balancer-subnets", "subnet-3,blue")],
    );
    let stack = stack_of(&settings(), &named, &net, None).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-3", "subnet-2"], "AWS-045");
    net.subnets.get_mut("subnet-2").unwrap().zone = "zone-3".to_owned();
    assert!(
        refused(&settings(), &named, &net).contains("one subnet a zone"),
        "AWS-045"
    );
    let there = live(Scheme::Internal, &["sg-1"], &["subnet-1"]);
    let stack = stack_of(&settings(), &tls_service(), &net, Some(&there)).unwrap();
    let ids: Vec<_> = stack
        .balancer
        .subnets
        .iter()
        .map(|m| m.subnet.as_str())
        .collect();
    assert_eq!(ids, ["subnet-1"], "AWS-204");
}

#[test]
fn aws221_another_address_is_asked_for_in_vain_and_that_is_said() {
    let named = |address: &str| {
        let pairs = [
            ("aws-load-balancer-subnets", "subnet-1"),
            ("aws-load-balancer-private-ipv4-addresses", address),
        ];
        annotated(tls_service(), &pairs)
    };
    let mut there = live(Scheme::Internal, &["sg-1"], &[]);
    let has = vec!["192.168.0.10".to_owned()];
    there.subnets.insert("subnet-1".to_owned(), has);
    let told = |address: &str| {
        let stack = stack_of(&settings(), &named(address), &one(), Some(&there)).unwrap();
        let notices = stack.notices.into_iter();
        let refused = notices.filter(|n| n.reason == "ReplacementRefused");
        refused.map(|n| n.message).collect::<Vec<_>>()
    };
    assert_eq!(told("192.168.0.10"), [""; 0], "AWS-221");
    let other = told("192.168.0.11");
    assert_eq!(other.len(), 1, "AWS-221");
    for part in ["subnet-1", "192.168.0.10", "192.168.0.11"] {
        assert!(other[0].contains(part), "AWS-221: {other:?}");
    }
}

#[test]
fn aws822_aws200_aws201_gates_let_subnets_of_other_clusters_in_and_routes_decide_nothing() {
    let mut net = three();
    let role = ("kubernetes.io/role/internal-elb", "");
    let other = ("kubernetes.io/cluster/other", "owned");
    for subnet in net.subnets.values_mut() {
        subnet.tags = [role, other]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    }
    let text = refused(&settings(), &tls_service(), &net);
    assert!(text.contains("tagged for cluster other"), "AWS-201: {text}");
    let mut open = settings();
    open.gates.subnets_of_cluster = Gate::Off;
    let stack = stack_of(&open, &tls_service(), &net, None).unwrap();
    assert_eq!(stack.balancer.subnets.len(), 3, "AWS-822");
    for subnet in net.subnets.values_mut() {
        subnet.tags.clear();
        subnet.public = Some(false);
    }
    let stack = stack_of(&settings(), &tls_service(), &net, None).unwrap();
    assert_eq!(stack.balancer.subnets.len(), 3, "AWS-200: by their routes");
    let mut by_tags = settings();
    by_tags.gates.subnets_by_routes = Gate::Off;
    let text = refused(&by_tags, &tls_service(), &net);
    assert!(text.contains("no tag"), "AWS-822: {text}");
}
