//! Listeners and groups: ports, protocols, TLS, modes, attributes, tags.

use super::*;

fn both_on_80() -> ServiceSpec {
    let mut service = service(("app", "traffic-local"), UID_B, &[]);
    service.ports = vec![tcp(80, 80, 31223), udp(80, 80, 31223), tcp(83, 83, 32323)];
    annotated(service, &[(TARGET, "instance")])
}

#[test]
fn aa06_tls_on_the_named_port_and_attributes_of_old_keys() {
    let mut service = tls_service();
    service.ports.push(tcp(83, 83, 0));
    let service = annotated(
        service,
        &[
            ("aws-load-balancer-internal", "false"),
            ("aws-load-balancer-ssl-cert", "a,b"),
            ("aws-load-balancer-ssl-ports", "83"),
            ("aws-load-balancer-access-log-enabled", "true"),
            ("aws-load-balancer-access-log-s3-bucket-name", "nlb-bucket"),
            ("aws-load-balancer-access-log-s3-bucket-prefix", "bkt-pfx"),
            (
                "aws-load-balancer-cross-zone-load-balancing-enabled",
                "true",
            ),
        ],
    );
    let stack = built(&settings(), &service);
    assert_eq!(
        stack.balancer.scheme,
        Scheme::InternetFacing,
        "AA-06, AWS-044"
    );
    let expected = [
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.bucket", "nlb-bucket"),
        ("access_logs.s3.prefix", "bkt-pfx"),
        ("load_balancing.cross_zone.enabled", "true"),
    ];
    let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(
        stack.balancer.attributes,
        expected.into(),
        "AA-06, AWS-053, AWS-054"
    );
    let [(plain, _), (tls, group)] = stack.listeners.as_slice() else {
        panic!("two listeners")
    };
    assert_eq!(
        (plain.protocol, plain.certificates.len()),
        (GroupProtocol::Tcp, 0)
    );
    assert_eq!(
        (tls.protocol, tls.certificates.len()),
        (GroupProtocol::Tls, 2),
        "AWS-064"
    );
    assert_eq!(
        tls.policy.as_deref(),
        Some("ELBSecurityPolicy-2016-08"),
        "AWS-066"
    );
    assert_eq!(
        group.protocol,
        GroupProtocol::Tcp,
        "AA-06: towards targets without TLS"
    );
    let to_targets = annotated(service, &[("aws-load-balancer-backend-protocol", "ssl")]);
    let stack = built(&settings(), &to_targets);
    assert_eq!(stack.listeners[1].1.protocol, GroupProtocol::Tls, "AWS-067");
}

#[test]
fn aa07_node_ports_and_the_vpc_as_source() {
    let mut service = service(
        ("default", "instance"),
        UID_A,
        &[(80, 80, 31223), (83, 83, 32323)],
    );
    service.external_policy = TrafficPolicy::Cluster;
    let stack = built(&gate_off(), &annotated(service, &[(TARGET, "instance")]));
    let groups = stack
        .listeners
        .iter()
        .map(|(_, group)| (group.port, group.target));
    let expected = [(31223, TargetType::Instance), (32323, TargetType::Instance)];
    assert_eq!(groups.collect::<Vec<_>>(), expected, "AA-07, AWS-105");
    let check = &stack.listeners[0].1.check;
    assert_eq!((check.protocol, check.port), (CheckProtocol::Tcp, None));
    let expected = ["tcp 31223 192.168.0.0/16", "tcp 32323 192.168.0.0/16"];
    assert_eq!(rules(&stack), expected, "AA-07");
}

#[test]
fn aa11_tcp_and_udp_on_one_port_are_one_listener_when_asked_for() {
    let service = annotated(
        both_on_80(),
        &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
    );
    let stack = built(&settings(), &service);
    let [(first, group), (second, other)] = stack.listeners.as_slice() else {
        panic!("two listeners")
    };
    assert_eq!(
        (first.protocol, group.protocol),
        (GroupProtocol::TcpUdp, GroupProtocol::TcpUdp)
    );
    assert!(group.name.ends_with("-2213a0d759"), "AA-11: {}", group.name);
    assert_eq!(
        (second.protocol, other.protocol),
        (GroupProtocol::Tcp, GroupProtocol::Tcp)
    );
    let on_80: Vec<_> = rules(&stack)
        .into_iter()
        .filter(|r| r.contains("31223"))
        .collect();
    assert_eq!(on_80, ["tcp 31223 backend", "udp 31223 backend"], "AA-11");
}

#[test]
fn aa12_without_it_the_second_one_is_dropped_and_said_to_be() {
    let stack = built(&settings(), &both_on_80());
    let protocols: Vec<_> = stack
        .listeners
        .iter()
        .map(|(l, _)| (l.port, l.protocol))
        .collect();
    assert_eq!(
        protocols,
        [(80, GroupProtocol::Tcp), (83, GroupProtocol::Tcp)],
        "AA-12"
    );
    let resolution = crate::cloud::aws::resolve::resolve(&settings(), &both_on_80(), None);
    let reasons: Vec<_> = resolution.notices.iter().map(|n| n.reason).collect();
    assert_eq!(reasons, ["PortDropped"], "AA-12, AI-53, AWS-956");
    assert!(
        resolution.notices[0]
            .message
            .contains("enable-tcp-udp-listener")
    );
}

#[test]
fn aa13_more_than_a_pair_cannot_be_merged() {
    for extra in [tcp(80, 80, 31223), udp(80, 80, 31223)] {
        let mut service = annotated(
            both_on_80(),
            &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
        );
        service.ports.insert(2, extra);
        assert!(
            refused(&settings(), &service, &one()).contains("one TCP and one UDP"),
            "AA-13"
        );
    }
    let mut twice = annotated(
        both_on_80(),
        &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
    );
    twice.ports = vec![tcp(80, 80, 31223), tcp(80, 81, 31224)];
    assert!(
        refused(&settings(), &twice, &one()).contains("one TCP and one UDP"),
        "AA-13"
    );
}

#[test]
fn ai_h05_a_merged_pair_has_one_target_port_and_one_node_port() {
    for (other, what) in [
        (udp(80, 81, 31223), "targetPort"),
        (udp(80, 80, 31224), "nodePort"),
    ] {
        let mut service = annotated(
            both_on_80(),
            &[("aws-load-balancer-enable-tcp-udp-listener", "true")],
        );
        service.ports = vec![tcp(80, 80, 31223), other];
        assert!(
            refused(&settings(), &service, &one()).contains(what),
            "AWS-606"
        );
    }
}

#[test]
fn aa15_aa16_the_class_alone_gives_node_ports_or_the_installs_default() {
    let plain = service(("default", "web"), UID_A, &[(80, 8080, 32110)]);
    let stack = built(&settings(), &plain);
    let group = &stack.listeners[0].1;
    assert_eq!(
        (group.target, group.port),
        (TargetType::Instance, 32110),
        "AA-15"
    );
    let mut by_default = settings();
    by_default.mode = TargetMode::Pod;
    let stack = built(&by_default, &plain);
    let group = &stack.listeners[0].1;
    assert_eq!((group.target, group.port), (TargetType::Ip, 8080), "AA-16");
}

#[test]
fn aa28_aa29_aa30_impossible_modes_are_refused() {
    let mut no_ip = settings();
    no_ip.gates.ip_targets = Gate::Off;
    assert!(
        refused(&no_ip, &tls_service(), &one()).contains("EnableIPTargetType"),
        "AA-28"
    );
    let mut without = service(("default", "web"), UID_A, &[(80, 8080, 0)]);
    without.allocates_node_ports = false;
    let without = annotated(without, &[(TARGET, "instance")]);
    assert!(
        refused(&settings(), &without, &one()).contains("nodePort"),
        "AA-29, AWS-041"
    );
    let mut with = without;
    with.ports[0].node_port = Some(32110);
    assert_eq!(
        built(&settings(), &with).listeners[0].1.port,
        32110,
        "AA-29: fine"
    );
    let mut cluster = with;
    cluster.kind = ServiceKind::ClusterIp;
    assert!(
        refused(&settings(), &cluster, &one()).contains("nodePort"),
        "AA-30"
    );
}

#[test]
fn aa35_aa36_proxy_protocol_everywhere_or_on_some_ports() {
    let attribute = "aws-load-balancer-target-group-attributes";
    let key = "aws-load-balancer-proxy-protocol";
    let off = (attribute, "proxy_protocol_v2.enabled=false");
    let stack = built(&settings(), &annotated(tls_service(), &[(key, "*"), off]));
    assert_eq!(
        stack.listeners[0].1.attributes["proxy_protocol_v2.enabled"], "true",
        "AA-35, AWS-069"
    );
    let other = annotated(tls_service(), &[(key, "80")]);
    assert!(
        refused(&settings(), &other, &one()).contains("one of *"),
        "AA-35"
    );
    let mut two = tls_service();
    two.ports.push(tcp(22, 22, 0));
    let some = annotated(
        two,
        &[(
            "aws-load-balancer-proxy-protocol-per-target-group",
            "80, 443",
        )],
    );
    let stack = built(&settings(), &some);
    let of =
        |index: usize| stack.listeners[index].1.attributes["proxy_protocol_v2.enabled"].as_str();
    assert_eq!((of(0), of(1)), ("true", "false"), "AA-36");
}

#[test]
fn aa38_aa39_what_is_no_boolean_and_what_names_no_port() {
    let key = "aws-load-balancer-target-group-attributes";
    let foo = annotated(tls_service(), &[(key, "preserve_client_ip.enabled=foo")]);
    assert!(
        refused(&settings(), &foo, &one()).contains("true or false"),
        "AA-38, AWS-071"
    );
    let ports = annotated(
        tls_service(),
        &[
            ("aws-load-balancer-ssl-cert", "a"),
            ("aws-load-balancer-ssl-ports", "80,443,https"),
        ],
    );
    let text = refused(&settings(), &ports, &one());
    assert!(
        text.contains("443, https") && !text.contains("80,"),
        "AA-39, AWS-065: {text}"
    );
}

#[test]
fn aa46_default_tags_win_unless_the_gate_says_otherwise() {
    let mut defaults = settings();
    defaults.default_tags = [("team".to_owned(), "default".to_owned())].into();
    let key = "aws-load-balancer-additional-resource-tags";
    let service = annotated(tls_service(), &[(key, "team=own,env=prod")]);
    let tag = |settings: &Settings| built(settings, &service).balancer.tags["team"].clone();
    assert_eq!(tag(&defaults), "default", "AA-46, AWS-056");
    defaults.gates.default_tags_low = Gate::On;
    assert_eq!(tag(&defaults), "own", "AA-46");
    defaults.external_tags.insert("env".to_owned());
    assert!(
        refused(&defaults, &service, &one()).contains("external-managed-tags"),
        "AA-46"
    );
    let tracking = annotated(tls_service(), &[(key, "onehop.dev/install=x")]);
    let tags = built(&settings(), &tracking).balancer.tags;
    assert_eq!(
        tags[names::INSTALL],
        "my-install",
        "AWS-056: tracking tags always win"
    );
}

#[test]
fn aws072_aws073_attributes_of_one_group_and_of_one_listener() {
    let service = annotated(
        tls_service(),
        &[
            (
                "aws-load-balancer-target-group-attributes",
                "stickiness.enabled=true,deregistration_delay.timeout_seconds=5",
            ),
            (
                "aws-load-balancer-target-group-attributes.80",
                "stickiness.enabled=,deregistration_delay.timeout_seconds=9",
            ),
            (
                "aws-load-balancer-listener-attributes.TCP-80",
                "tcp.idle_timeout.seconds=400",
            ),
            (
                "aws-load-balancer-listener-attributes.TCP-81",
                "tcp.idle_timeout.seconds=500",
            ),
        ],
    );
    let stack = built(&settings(), &service);
    let (listener, group) = &stack.listeners[0];
    assert_eq!(
        group.attributes["stickiness.enabled"], "true",
        "AWS-072: an empty value keeps it"
    );
    assert_eq!(
        group.attributes["deregistration_delay.timeout_seconds"], "9",
        "AWS-072"
    );
    let expected = [("tcp.idle_timeout.seconds".to_owned(), "400".to_owned())];
    assert_eq!(listener.attributes, expected.into(), "AWS-073");
}
