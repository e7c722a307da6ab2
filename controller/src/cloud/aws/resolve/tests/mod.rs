use onehop_core::crd::{HealthBy, HealthProtocol};

use super::*;
use crate::cloud::aws::testkit::{UID_A, annotated, service, settings, tcp, udp};
use crate::plan::Bounds;
use onehop_core::crd::LateFlows;

const TARGET: &str = "aws-load-balancer-nlb-target-type";

fn web() -> ServiceSpec {
    service(("default", "web"), UID_A, &[(80, 8080, 30080)])
}

#[test]
fn aws012_i10_a_typo_keeps_the_last_good_spec_of_the_same_service_only() {
    let good = resolve(&settings(), &web(), None).spec.unwrap();
    let typo = annotated(web(), &[("aws-load-balancer-scheme", "publik")]);
    let resolved = resolve(&settings(), &typo, Some(&good));
    assert_eq!(resolved.spec.as_ref(), Some(&good), "AWS-012");
    assert_eq!(resolved.refusals[0].reason, "AnnotationInvalid");
    let other = LoadBalancerSpec {
        service_uid: "another".into(),
        ..good
    };
    assert_eq!(resolve(&settings(), &typo, Some(&other)).spec, None);
}

#[test]
fn aws087_k51_without_node_ports_pods_are_the_targets_and_a_live_mode_stays() {
    let mut without = web();
    without.allocates_node_ports = false;
    without.ports[0].node_port = None;
    let resolved = resolve(&settings(), &without, None).spec.unwrap();
    assert_eq!(resolved.ports[0].mode, TargetMode::Pod, "AWS-087, K-51");
    assert_eq!(
        resolve(&settings(), &web(), None).spec.unwrap().ports[0].mode,
        TargetMode::Node
    );
}

#[test]
fn aws088_membership_is_ours_for_our_class_and_the_peers_for_its_own() {
    let policy = |service: &ServiceSpec| {
        resolve(&settings(), service, None)
            .spec
            .unwrap()
            .membership
            .policy
    };
    assert_eq!(policy(&web()), MembershipPolicy::Compat, "AWS-088, K-31");
    let mut own = web();
    own.class = Some("onehop.dev/aws".to_owned());
    assert_eq!(policy(&own), MembershipPolicy::ZeroDrop, "AWS-088, K-30");
    let said = annotated(web(), &[("onehop.dev/membership", "zero-drop")]);
    assert_eq!(policy(&said), MembershipPolicy::ZeroDrop, "AWS-088, K-32");
}

#[test]
fn c52_bounds_of_membership_are_the_installs() {
    let mut settings = settings();
    let membership = |settings: &Settings| {
        let resolution = resolve(settings, &web(), None);
        resolution.spec.unwrap().membership
    };
    assert_eq!(membership(&settings).tail_max_seconds, 180, "C-52");
    settings.bounds = Bounds {
        floor_percent: 50,
        hold_max_seconds: 60,
        tail_max_seconds: 7,
        late_flows: LateFlows::Drop,
    };
    let policy = membership(&settings).policy;
    assert_eq!(
        membership(&settings),
        settings.bounds.membership(policy),
        "C-52"
    );
}

#[test]
fn aws771_which_address_targets_see() {
    let mode = |service: &ServiceSpec| {
        resolve(&settings(), service, None).spec.unwrap().ports[0].client_ip
    };
    assert_eq!(mode(&web()), ClientIp::Preserve, "instance targets");
    let ip = annotated(web(), &[(TARGET, "ip")]);
    assert_eq!(mode(&ip), ClientIp::Snat, "ip targets of TCP");
    let key = "aws-load-balancer-target-group-attributes";
    let kept = annotated(ip.clone(), &[(key, "preserve_client_ip.enabled=true")]);
    assert_eq!(mode(&kept), ClientIp::Preserve);
    let proxied = annotated(ip.clone(), &[("aws-load-balancer-proxy-protocol", "*")]);
    assert_eq!(mode(&proxied), ClientIp::ProxyProtocol);
    let mut both = annotated(
        ip.clone(),
        &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
    );
    both.ports = vec![tcp(53, 53, 0), udp(53, 53, 0)];
    assert_eq!(mode(&both), ClientIp::Preserve, "TCP beside UDP");
    let mut of_udp = ip.clone();
    of_udp.ports = vec![udp(53, 53, 0)];
    assert_eq!(mode(&of_udp), ClientIp::Preserve, "UDP, always");
    let mut merged = annotated(ip, &[("aws-load-balancer-enable-tcp-udp-listener", "true")]);
    merged.ports.push(udp(80, 8080, 30080));
    assert_eq!(mode(&merged), ClientIp::Preserve, "TCP_UDP, always");
}

#[test]
fn aws075_a_check_port_by_name() {
    let key = "aws-load-balancer-healthcheck-port";
    let mut two = web();
    two.ports.push(tcp(81, 9090, 30081));
    let port = |service: &ServiceSpec| {
        resolve(&settings(), service, None)
            .spec
            .map(|s| s.ports[0].health.clone().unwrap().port)
    };
    let named = annotated(two, &[(key, "p81")]);
    assert_eq!(port(&named), Some(Some(30081)), "AWS-075: the node port");
    let ip = annotated(named.clone(), &[(TARGET, "ip")]);
    assert_eq!(port(&ip), Some(Some(9090)), "AWS-075: the target port");
    let unknown = annotated(named, &[(key, "nobody")]);
    assert_eq!(port(&unknown), None, "AWS-075");
}

#[test]
fn aws090_udp_of_the_peers_class_keeps_its_check() {
    let mut of_udp = web();
    of_udp.ports = vec![udp(53, 53, 30053)];
    let check = resolve(&settings(), &of_udp, None).spec.unwrap().ports[0]
        .health
        .clone()
        .unwrap();
    assert_eq!(
        (check.by, check.protocol, check.port),
        (HealthBy::Traffic, HealthProtocol::Tcp, None)
    );
}

#[test]
fn aws400_aws080_nodes_that_are_no_targets_by_what_they_are_or_by_the_labels_that_are_asked_for() {
    let machine = |labels: &[(&str, &str)]| {
        let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Machine {
            labels: labels.iter().map(label).collect(),
            ..Machine::default()
        }
    };
    let unfit = |service: &ServiceSpec, labels: &[(&str, &str)]| {
        let spec = resolve(&settings(), service, None).spec.unwrap();
        is_unfit(&settings(), &spec, &machine(labels))
    };
    let rows = [
        ("node-role.kubernetes.io/master", ""),
        (
            "alpha.service-controller.kubernetes.io/exclude-balancer",
            "",
        ),
        ("eks.amazonaws.com/compute-type", "fargate"),
    ];
    for row in rows {
        assert!(unfit(&web(), &[row]), "AWS-400: {row:?}");
    }
    assert!(
        !unfit(&web(), &[("eks.amazonaws.com/compute-type", "auto")]),
        "AWS-400"
    );
    assert!(!unfit(&web(), &[]), "AWS-400");
    let chosen = annotated(
        web(),
        &[("aws-load-balancer-target-node-labels", "pool=a,disk=ssd")],
    );
    assert!(
        !unfit(&chosen, &[("pool", "a"), ("disk", "ssd")]),
        "AWS-080"
    );
    assert!(unfit(&chosen, &[("pool", "a")]), "AWS-080");
}

#[test]
fn aws049_aws222_targets_are_ipv6_behind_dualstack_if_the_service_has_it_at_all() {
    let families = |of: &[IpFamily], dualstack: bool| {
        let mut service = web();
        service.families = of.to_vec();
        if dualstack {
            service = annotated(
                service,
                &[("aws-load-balancer-ip-address-type", "dualstack")],
            );
        }
        let spec = resolve(&settings(), &service, None).spec.unwrap();
        target_family(&settings(), &spec)
    };
    let (four, six) = (IpFamily::V4, IpFamily::V6);
    assert_eq!(families(&[four, six], true), six, "AWS-049");
    assert_eq!(families(&[six], true), six, "AWS-049");
    assert_eq!(families(&[four], true), four, "AWS-049");
    assert_eq!(families(&[four, six], false), four, "AWS-222");
    let other = annotated(web(), &[("aws-load-balancer-ip-address-type", "ipv6")]);
    let refusals = resolve(&settings(), &other, None).refusals;
    assert!(
        refusals[0].message.contains("dualstack"),
        "AWS-049: {refusals:?}"
    );
}

#[test]
fn aws077_aws078_numbers_of_the_check_are_taken_as_they_are_said() {
    let numbers = [
        ("aws-load-balancer-healthcheck-interval", "7"),
        ("aws-load-balancer-healthcheck-timeout", "3"),
        ("aws-load-balancer-healthcheck-healthy-threshold", "4"),
        ("aws-load-balancer-healthcheck-unhealthy-threshold", "5"),
    ];
    let health = |service: &ServiceSpec| {
        let spec = resolve(&settings(), service, None).spec.unwrap();
        let health = spec.ports[0].health.clone().unwrap();
        (
            health.interval_seconds,
            health.timeout_seconds,
            health.healthy,
            health.unhealthy,
        )
    };
    assert_eq!(
        health(&annotated(web(), &numbers)),
        (7, 3, 4, 5),
        "AWS-077, AWS-078"
    );
    assert_eq!(
        health(&web()),
        (10, 10, 3, 3),
        "AWS-077, AWS-078: the peer's defaults"
    );
    for (key, _) in numbers {
        let wrong = resolve(&settings(), &annotated(web(), &[(key, "soon")]), None);
        assert!(wrong.refusals[0].message.contains(key), "AWS-032: {key}");
    }
}
