use super::*;
use crate::cloud::aws::testkit::{UID_A, annotated, service, settings};

fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
    let service = annotated(service(("default", "web"), UID_A, &[(80, 80, 0)]), pairs);
    let (_, problems) = parse(&settings(), &service);
    problems.iter().map(ToString::to_string).collect()
}

fn wishes(pairs: &[(&str, &str)]) -> Wishes {
    let service = annotated(service(("default", "web"), UID_A, &[(80, 80, 0)]), pairs);
    let (wishes, problems) = parse(&settings(), &service);
    assert_eq!(problems, []);
    wishes
}

#[test]
fn aws002_a_service_without_a_class_asks_by_two_combinations_of_annotations_only() {
    let asks = |pairs: &[(&str, &str)]| {
        ask_the_peer(&annotated(
            service(("default", "web"), UID_A, &[(80, 80, 0)]),
            pairs,
        ))
    };
    let (kind, target) = (
        "aws-load-balancer-type",
        "aws-load-balancer-nlb-target-type",
    );
    assert!(asks(&[(kind, "nlb-ip")]));
    assert!(asks(&[(kind, "external"), (target, "ip")]));
    assert!(asks(&[(kind, "external"), (target, "instance")]));
    assert!(!asks(&[(kind, "external")]), "AWS-002");
    assert!(!asks(&[(kind, "external"), (target, "pod")]), "AWS-002");
    assert!(!asks(&[(kind, "nlb"), (target, "ip")]), "AWS-002");
    assert!(!asks(&[(target, "ip")]) && !asks(&[]), "AWS-002");
}

#[test]
fn aws032_aws033_every_problem_is_reported_at_once_with_key_value_and_what_is_allowed() {
    let found = problems(&[
        ("aws-load-balancer-scheme", "public"),
        ("aws-load-balancer-internal", "0.0.0.0/0"),
        (
            "aws-load-balancer-name",
            "a-name-that-is-longer-than-32-characters",
        ),
        ("aws-load-balancer-healthcheck-interval", "often"),
        ("aws-load-balancer-healthcheck-protocol", "udp"),
        ("aws-load-balancer-ip-address-type", "ipv6"),
        (
            "aws-load-balancer-attributes",
            "dns_record.client_routing_policy=near",
        ),
        ("aws-load-balancer-proxy-protocol-per-target-group", "http"),
        ("aws-load-balancer-alpn-policy", "HTTP3"),
        ("aws-load-balancer-private-ipv4-addresses", "10.0.0.300"),
        ("onehop.dev/membership", "sometimes"),
        ("onehop.dev/tagret", "pod"),
    ]);
    assert_eq!(found.len(), 12, "{found:#?}");
    for text in &found {
        assert!(
            text.contains(": \"") && text.contains("is not allowed: "),
            "{text}"
        );
    }
    let of = |key: &str| found.iter().find(|text| text.contains(key)).unwrap();
    assert_eq!(
        of("balancer-scheme"),
        "service.beta.kubernetes.io/aws-load-balancer-scheme: \"public\" is not allowed: one of internal, internet-facing",
        "AWS-043"
    );
    assert!(
        of("balancer-internal").contains("true or false"),
        "AWS-044: the old form is an error"
    );
}

#[test]
fn aws043_aws044_the_scheme_annotation_wins_over_the_old_one() {
    let both = [
        ("aws-load-balancer-scheme", "internal"),
        ("aws-load-balancer-internal", "false"),
    ];
    assert_eq!(wishes(&both).scheme, Some(Scheme::Internal));
    assert_eq!(wishes(&both[1..]).scheme, Some(Scheme::InternetFacing));
}

#[test]
fn aws003_an_unknown_target_type_counts_as_instance_and_is_said() {
    let found = wishes(&[("aws-load-balancer-nlb-target-type", "pods")]);
    assert_eq!(found.mode, Some(TargetMode::Node));
    assert_eq!(found.hints, [Hint::CountsAsInstance("pods".to_owned())]);
}

#[test]
fn aws041_aws087_the_providers_key_wins_over_ours_and_vip_is_refused() {
    let both = [
        ("aws-load-balancer-nlb-target-type", "instance"),
        ("onehop.dev/target", "pod"),
    ];
    assert_eq!(wishes(&both).mode, Some(TargetMode::Node));
    assert_eq!(wishes(&both[1..]).mode, Some(TargetMode::Pod));
    assert!(problems(&[("onehop.dev/target", "vip")])[0].contains("AWS has no vip"));
}

#[test]
fn aws030_aws085_aws086_keys_that_do_nothing_are_said_and_never_fail() {
    assert_eq!(keys::PREFIX, "service.beta.kubernetes.io/", "AWS-030");
    let found = wishes(&[
        ("aws-load-balancer-connection-idle-timeout", "60"),
        ("aws-load-balancer-source-ranges", "10.0.0.0/8"),
        ("aws-load-balancer-shceme", "internal"),
        ("aws-load-balancer-quic-enabled-ports", "443"),
    ]);
    let texts: Vec<_> = found.hints.iter().map(ToString::to_string).collect();
    let of = |key: &str| texts.iter().find(|text| text.contains(key)).unwrap();
    assert!(
        of("idle-timeout").contains("listener-attributes"),
        "AWS-085, AWS-956"
    );
    assert!(
        of("source-ranges").contains("load-balancer-source-ranges"),
        "AWS-085"
    );
    assert!(of("shceme").contains("not known"), "AWS-086");
    assert!(of("quic").contains("not carried out"));
    assert!(found.source_ranges.is_empty());
}

#[test]
fn aws061_the_spec_wins_over_the_annotation() {
    let mut both = annotated(
        service(("default", "web"), UID_A, &[(80, 80, 0)]),
        &[("load-balancer-source-ranges", "10.0.0.0/8, 172.16.0.0/12")],
    );
    let (found, _) = parse(&settings(), &both);
    assert_eq!(found.source_ranges.len(), 2);
    both.source_ranges.allowed = vec!["192.0.2.0/24".parse().unwrap()];
    let (found, problems) = parse(&settings(), &both);
    assert_eq!(
        (found.source_ranges, problems),
        (both.source_ranges.allowed, vec![])
    );
}

#[test]
fn aws054_logs_are_only_spoken_of_when_they_are_on() {
    let rest = [
        ("aws-load-balancer-access-log-s3-bucket-name", "b"),
        ("aws-load-balancer-access-log-s3-bucket-prefix", "p"),
    ];
    let off = [
        ("aws-load-balancer-access-log-enabled", "false"),
        rest[0],
        rest[1],
    ];
    assert!(wishes(&off).attributes.is_empty());
    let on = [
        ("aws-load-balancer-access-log-enabled", "true"),
        rest[0],
        rest[1],
    ];
    assert_eq!(wishes(&on).attributes.len(), 3);
}

#[test]
fn aws074_aws075_words_of_the_check() {
    let found = wishes(&[
        ("aws-load-balancer-healthcheck-protocol", "hTTp"),
        ("aws-load-balancer-healthcheck-port", "traffic-port"),
        ("aws-load-balancer-healthcheck-path", "/ready"),
        ("aws-load-balancer-healthcheck-success-codes", "200"),
    ]);
    let health = found.health;
    assert_eq!(
        health.protocol,
        Some(CheckProtocol::Http),
        "AWS-074: in any case"
    );
    assert_eq!(health.port, Some(HealthPort::Traffic), "AWS-075");
    assert_eq!(health.codes.as_deref(), Some("200"), "AWS-079");
}

#[test]
fn i10_a_resolved_spec_holds_every_wish_for_later() {
    let pairs = [
        ("aws-load-balancer-scheme", "internal"),
        (
            "aws-load-balancer-attributes",
            r"access_logs.s3.prefix=a\,b",
        ),
        (
            "aws-load-balancer-target-group-attributes.80",
            "stickiness.enabled=true",
        ),
        (
            "aws-load-balancer-listener-attributes.TCP-80",
            "tcp.idle_timeout.seconds=400",
        ),
        ("load-balancer-source-ranges", "10.0.0.0/8"),
        ("aws-load-balancer-ssl-cert", "a,b"),
        ("aws-load-balancer-enable-tcp-udp-listener", "true"),
    ];
    let service = annotated(
        service(("default", "web"), UID_A, &[(80, 80, 30080)]),
        &pairs,
    );
    let resolved = crate::cloud::aws::resolve::resolve(&settings(), &service, None);
    let (parsed, _) = parse(&settings(), &service);
    let mut again = of_options(&settings(), &resolved.spec.unwrap());
    again.origins.clone_from(&parsed.origins);
    again.hints.clone_from(&parsed.hints);
    assert_eq!(again, parsed, "I10");
}
